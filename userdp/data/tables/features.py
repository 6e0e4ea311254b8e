"""Features of rows: numbers and dates within bounds, levels, codes, hashed cells, pictures; each row by itself."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Features
from userdp.data.tables.columns import Columns
from userdp.data.tables.counts import Counts, listed
from userdp.data.tables.dates import PARTS
from userdp.data.tables.declared import Levels, checked_levels, level_codes, scaled
from userdp.data.tables.derived import Derivation
from userdp.data.tables.hashed_codes import hashed_rows
from userdp.data.tables.images import pixels
from userdp.data.tables.moments import Moments, days_since, part_codes
from userdp.data.tables.reading import Rows
from userdp.data.tables.unusable import NO_LEVEL, NO_RESULT, WRONG_LENGTH


def features_of(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: Counts) -> Features:
    """(N, k) features of the chosen ``rows`` (N,)."""
    if columns.buckets is not None:
        return hashed_rows({name: table.texts[name].taken(rows) for name in columns.hashed}, columns.buckets)
    if columns.coded:
        return np.stack([_codes(table, columns, name, rows, counts) for name in columns.coded], axis=1)
    if columns.images is not None:
        made = pixels(table.cells[columns.images], rows, columns.pixels)
        unusable = np.isnan(made[:, 0])
        counts.unusable[columns.images] = int(np.count_nonzero(unusable))
        if len(rows):
            counts.note_kind(columns.images, WRONG_LENGTH if unusable.all() else None)
        return made
    return _numbers_and_levels(table, columns, rows, counts)


def _numbers_and_levels(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32]:
    features = np.zeros((len(rows), len(columns.feature_names)), dtype=np.float32)
    low = -1.0 if columns.scale == "symmetric" else 0.0
    ranges, missing = columns.scaled_ranges, _Missing(table, columns, rows)
    for column in [*columns.numbers_read, *columns.dated.needed]:
        counts.note_kind(column, table.kinds.get(column))
    for position, (column, bounds) in enumerate(ranges.items()):
        if column in columns.derive:
            made = columns.derive[column]
            values, otherwise = made.values([missing.cells_for(made, name, counts) for name in made.of])
            if made.otherwise is not None:
                counts.imputed[column] = otherwise
            if len(rows):
                counts.note_kind(column, NO_RESULT if np.isnan(values).all() else None)
        elif column in columns.dates:
            values = days_since(missing.dated(column, counts), columns.dated.first(column))
        else:
            values = missing.filled(column, counts)
        counts.unusable[column] = int(np.count_nonzero(np.isnan(values)))
        features[:, position], counts.clipped[column] = scaled(values, bounds, low, 1.0)
    position = len(ranges)
    for column in columns.missing_indicators:
        features[:, position] = missing.cells(column)
        position += 1
    for column, declared in columns.categorical.items():
        levels = missing.coded(column, codes_of(table, column, declared, counts)[rows], counts)
        names = columns.level_names(column)
        counts.unknown[column] = _mark(features[:, position : position + len(names)], levels)
        position += len(names)
    for column, parts in columns.date_parts.items():
        moments = missing.dated(column, counts)
        counts.note_dates(column, bool((~np.isnat(table.moments[column])).any()))
        for part in parts:
            unknown = _mark(features[:, position : position + len(PARTS[part])], part_codes(moments, part))
            if column not in columns.dated.needed:
                counts.unknown[column] = unknown
            position += len(PARTS[part])
    return features


def _mark(features: NDArray[np.float32], levels: NDArray[np.int64]) -> int:
    """Put 1 where each row's level stands, nothing in a row with -1; how many of these there are."""
    known = np.flatnonzero(levels >= 0)
    features[known, levels[known]] = 1.0
    return len(levels) - len(known)


@dataclass(frozen=True)
class _Missing:
    """Which of the chosen rows' cells are missing, and what is declared in their place."""

    table: Rows
    columns: Columns
    rows: NDArray[np.int64]

    def cells(self, column: str) -> NDArray[np.bool_]:
        """(N,): those that are; a cell of numbers also where it holds no finite one."""
        if column in self.table.texts:
            texts = self.table.texts[column].taken(self.rows)
            return texts.mapped(text == "" for text in texts.distinct).astype(bool)
        if column in self.table.moments:
            return np.isnat(self.table.moments[column][self.rows])
        return np.isnan(self.table.numbers[column][self.rows])

    def filled(self, column: str, counts: Counts) -> NDArray[np.float64]:
        """(N,) numbers, those that are missing replaced where a value is declared."""
        values, instead = self.table.numbers[column][self.rows], self.columns.missing_number(column)
        if instead is None:
            return values
        missing = np.isnan(values)
        counts.imputed[column] = int(np.count_nonzero(missing))
        return np.where(missing, instead, values)

    def dated(self, column: str, counts: Counts) -> Moments:
        """(N,) dates, those that are missing replaced where one is declared."""
        moments, instead = self.table.moments[column][self.rows], self.columns.missing_moment(column)
        if instead is None:
            return moments
        missing = np.isnat(moments)
        counts.imputed[column] = int(np.count_nonzero(missing))
        return np.where(missing, instead, moments)

    def cells_for(self, made: Derivation, column: str, counts: Counts) -> NDArray[np.float64]:
        """(N,) numbers of which a derived column is made."""
        if made.of_dates:
            return days_since(self.dated(column, counts), np.datetime64(0, "us"))
        return self.filled(column, counts)

    def coded(self, column: str, codes: NDArray[np.int64], counts: Counts) -> NDArray[np.int64]:
        """(N,) codes, those of missing cells replaced where one is declared."""
        instead = self.columns.missing_code(column)
        if instead is None:
            return codes
        missing = self.cells(column)
        counts.imputed[column] = int(np.count_nonzero(missing))
        return np.where(missing, instead, codes)


def _codes(table: Rows, columns: Columns, column: str, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
    """(N,) codes; -1 for a cell that is no whole number in 0..L-1, or no declared level."""
    every = codes_of(table, column, columns.coded[column], counts)
    counts.note_kind(column, table.kinds.get(column, None if (every >= 0).any() else NO_LEVEL))
    codes = _Missing(table, columns, rows).coded(column, every[rows], counts).astype(np.int32)
    counts.unusable[column] = int(np.count_nonzero(codes < 0))
    return codes


def codes_of(table: Rows, column: str, levels: Levels, counts: Counts) -> NDArray[np.int64]:
    """Of every cell of a column its position among the declared levels, -1 where it is none of them."""
    if isinstance(levels, int):
        values = table.numbers[column]
        known = (values == np.floor(values)) & (values >= 0) & (values < levels)
        codes, declared = np.where(known, values, -1.0).astype(np.int64), f"0 to {levels - 1}"
    else:
        codes, declared = level_codes(table.texts[column], checked_levels(column, levels)), listed(levels)
    counts.note_levels(column, declared, codes >= 0)
    return codes
