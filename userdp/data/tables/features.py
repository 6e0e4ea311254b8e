"""Features and targets of rows; each follows from its own row's cells alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import Sparse, sparse_rows
from userdp.data.block import Features
from userdp.data.tables.cells import Texts, bytes_in, cell_text
from userdp.data.tables.columns import Columns
from userdp.data.tables.dates import PARTS
from userdp.data.tables.declared import Levels, checked_levels, checked_range, level_codes, scaled
from userdp.data.tables.moments import days_since, part_codes
from userdp.data.tables.reading import Rows
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.texts import text_rows
from userdp.data.tables.unusable import MISSING, NO_LEVEL, NO_RESULT, WRONG_LENGTH, Counts, listed

_EPOCH = np.datetime64(0, "us")


def features_of(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: Counts) -> Features:
    """Return the (N, k) features of the chosen ``rows`` (N,)."""
    if columns.buckets is not None:
        return hashed_rows({name: table.texts[name].taken(rows) for name in columns.hashed}, columns.buckets)
    if columns.coded:
        return np.stack([_codes(table, columns, name, rows, counts) for name in columns.coded], axis=1)
    if columns.sequence is not None:
        return _texts(table, columns.sequence, rows, counts)
    if columns.images is not None:
        features = pixels(table.cells[columns.images], rows, columns.pixels)
        unusable = np.isnan(features[:, 0])
        counts.unusable[columns.images] = int(np.count_nonzero(unusable))
        if len(rows):
            counts.note_kind(columns.images, WRONG_LENGTH if unusable.all() else None)
        return features
    return _numbers_and_levels(table, columns, rows, counts)


def _texts(table: Rows, form: SequenceColumns, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
    """Return (N, window) tokens of texts that have a target."""
    name, tokenizer = form.predicted, str(form.tokenizer)
    features, counts.clipped[name] = text_rows(table.cells[name].take(pa.array(rows)), tokenizer, form.window)
    unusable = features[:, 0] < 0
    counts.unusable[name] = int(np.count_nonzero(unusable))
    if len(rows):
        counts.note_kind(name, MISSING if unusable.all() else None)
    return features


def _numbers_and_levels(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32]:
    features = np.zeros((len(rows), len(columns.feature_names)), dtype=np.float32)
    low = -1.0 if columns.scale == "symmetric" else 0.0
    ranges, missing = columns.scaled_ranges, _Missing(table, columns, rows, counts)
    for column in [*columns.numbers_read, *columns.dated.needed]:
        counts.note_kind(column, table.kinds.get(column))
    for position, (column, bounds) in enumerate(ranges.items()):
        if column in columns.derive:
            made = columns.derive[column]
            cells = map(missing.filled, made.of)
            values, otherwise = made.values([days_since(one, _EPOCH) if made.of_dates else one for one in cells])
            if made.otherwise is not None:
                counts.imputed[column] = otherwise
            if len(rows):
                counts.note_kind(column, NO_RESULT if np.isnan(values).all() else None)
        elif column in columns.dates:
            values = days_since(missing.filled(column), columns.dated.first(column))
        else:
            values = missing.filled(column)
        counts.unusable[column] = int(np.count_nonzero(np.isnan(values)))
        features[:, position], counts.clipped[column] = scaled(values, bounds, low, 1.0)
    position = len(ranges)
    for column in columns.missing_indicators:
        features[:, position] = missing.cells(column)
        position += 1
    for column, declared in columns.categorical.items():
        levels = missing.replaced(column, codes_of(table, column, declared, counts)[rows])
        names = columns.level_names(column)
        counts.unknown_levels[column] = _mark(features[:, position : position + len(names)], levels)
        position += len(names)
    for column, parts in columns.date_parts.items():
        moments = missing.filled(column)
        counts.note_dates(column, bool((~np.isnat(table.moments[column])).any()))
        for part in parts:
            unknown = _mark(features[:, position : position + len(PARTS[part])], part_codes(moments, part))
            if column not in columns.dated.needed:
                counts.unknown_levels[column] = unknown
            position += len(PARTS[part])
    return features


def _mark(features: NDArray[np.float32], levels: NDArray[np.int64]) -> int:
    """Put 1 at each row's level, nothing in a row with -1; return the number of the latter."""
    known = np.flatnonzero(levels >= 0)
    features[known, levels[known]] = 1.0
    return len(levels) - len(known)


@dataclass(frozen=True)
class _Missing:
    """The missing cells of the chosen rows, and their declared values."""

    table: Rows
    columns: Columns
    rows: NDArray[np.int64]
    counts: Counts

    def cells(self, column: str) -> NDArray[np.bool_]:
        """Return the mask (N,) of missing cells; a cell of numbers without a finite one is missing too."""
        if column in self.table.texts:
            texts = self.table.texts[column].taken(self.rows)
            return texts.mapped(text == "" for text in texts.distinct).astype(bool)
        if column in self.table.moments:
            return np.isnat(self.table.moments[column][self.rows])
        return np.isnan(self.table.numbers[column][self.rows])

    def filled(self, column: str) -> NDArray[Any]:
        """Return (N,) numbers, or dates, with the declared one for missing cells."""
        moments = self.table.moments
        return self.replaced(column, (moments if column in moments else self.table.numbers)[column][self.rows])

    def replaced(self, column: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return (N,) numbers, dates or codes of a column, with the declared one for missing cells."""
        if (instead := self.columns.instead_of_missing(column)) is None:
            return values
        missing = self.cells(column)
        self.counts.imputed[column] = int(np.count_nonzero(missing))
        return np.where(missing, instead, values)


def _codes(table: Rows, columns: Columns, column: str, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
    """Return (N,) codes; -1 for a cell that is no whole number in 0..L-1, or no declared level."""
    every = codes_of(table, column, columns.coded[column], counts)
    counts.note_kind(column, table.kinds.get(column, None if (every >= 0).any() else NO_LEVEL))
    codes = _Missing(table, columns, rows, counts).replaced(column, every[rows]).astype(np.int32)
    counts.unusable[column] = int(np.count_nonzero(codes < 0))
    return codes


def codes_of(table: Rows, column: str, levels: Levels, counts: Counts) -> NDArray[np.int64]:
    """Return the position of every cell of a column among the declared levels; -1 for any other cell."""
    if isinstance(levels, int):
        values = table.numbers[column]
        known = (values == np.floor(values)) & (values >= 0) & (values < levels)
        codes, declared = np.where(known, values, -1.0).astype(np.int64), f"0 to {levels - 1}"
    else:
        codes, declared = level_codes(table.texts[column], checked_levels(column, levels)), listed(levels)
    counts.note_levels(column, declared, codes >= 0)
    return codes


def pixels(cells: pa.LargeBinaryArray, rows: NDArray[np.int64], length: int) -> NDArray[np.float32]:
    """Return the pictures of the chosen rows (N,), bytes divided by 255: (N, length) in [0, 1].

    *Formal guarantee*: a row of the result depends on its own cell alone, to the last bit; IEEE 754 rounds quotients
    exactly. A cell that is missing or not ``length`` bytes long gives a row of NaN, which problems set aside.
    """
    chosen = cells.take(pa.array(rows))
    whole = pc.fill_null(pc.equal(pc.binary_length(chosen), length), False)
    features = np.full((len(rows), length), np.nan, dtype=np.float32)
    features[whole.to_numpy(zero_copy_only=False)] = bytes_in(chosen.filter(whole)).reshape(-1, length)
    features /= np.float32(255)
    return features


def bucket(column: str, cell: str, buckets: int) -> int:
    """Return the bucket of a cell, in 0..buckets - 1: blake2b of the cell, keyed by that of the column's name.

    Buckets are public: they follow from the column's name and the cell alone, on every machine and in every release, so
    that no vocabulary has to be declared or taken from the data. With b buckets, two given cells share one with chance
    1/b (Weinberger, Dasgupta, Langford, Smola, Attenberg 2009).
    """
    key = blake2b(column.encode(), digest_size=16).digest()
    return int.from_bytes(blake2b(cell.encode(), digest_size=8, key=key).digest()) % buckets


def hashed_rows(table: Mapping[str, Texts], buckets: int) -> Sparse:
    """Hash k columns of text with N cells each to (N, buckets) float32 rows of l2 norm 1 (never above).

    If the cells of a row lie in k buckets, each has the value 1/sqrt(k). A bucket that several cells share counts once
    for each, and the row is scaled to norm 1 as well.

    *Formal guarantee*: a row depends on its own cells alone, to the last bit: counts are whole numbers, and IEEE 754
    rounds roots and quotients exactly at every position of an array.
    """
    columns = [texts.mapped(bucket(name, cell, buckets) for cell in texts.distinct) for name, texts in table.items()]
    cells = np.sort(np.stack(columns, axis=1), axis=1)
    first = np.diff(cells, axis=1, prepend=-1) > 0
    starts = np.flatnonzero(first)
    counts = np.diff(starts, append=first.size).astype(np.float64)
    ends = np.concatenate([[0], np.cumsum(first.sum(axis=1))])
    lengths = np.sqrt(np.add.reduceat(counts**2, ends[:-1]))
    values = counts / np.repeat(lengths, np.diff(ends))
    near = values.astype(np.float32)
    inside = np.where(near > values, np.nextafter(near, np.float32(0)), near)  # no row is longer than declared
    return sparse_rows(inside, cells.ravel()[starts], ends, buckets)


def targets_of(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32] | None:
    """Return the targets of the chosen ``rows`` (N,), NaN where a loss could not use one; None without a target."""
    column = columns.target
    if column is None:
        return None
    kind = table.kinds.get(column)
    if columns.target_levels is not None:
        codes = level_codes(table.texts[column], checked_levels("target_levels", columns.target_levels))
        counts.note_levels(column, listed(columns.target_levels), codes >= 0)
        kind = None if (codes >= 0).any() else NO_LEVEL
        targets = np.where(codes < 0, np.nan, codes).astype(np.float32)[rows]
        counts.unknown_levels[column] = int(np.count_nonzero(np.isnan(targets)))
    elif columns.positive is not None:
        targets = _binary_targets(table.texts[column], column, columns.positive, counts)[rows]
    elif columns.target_range is not None:
        bounds = checked_range("target_range", columns.target_range)
        targets, counts.clipped[column] = scaled(table.numbers[column][rows], bounds, -1.0, 1.0)
    else:
        values = table.numbers[column][rows]
        targets = np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.nan).astype(np.float32)
    if column in table.texts and not any(table.texts[column].distinct):
        kind = MISSING
    counts.note_kind(column, kind)
    counts.unusable[column] = int(np.count_nonzero(np.isnan(targets)))
    return targets


def _binary_targets(texts: Texts, column: str, positive: object, counts: Counts) -> NDArray[np.float32]:
    """Return, for all rows, 1 for ``positive``, NaN for a missing cell, 0 for any other."""
    wanted = cell_text(positive)
    counts.note(
        f"positive = {positive!r} is in no cell of the target {column!r}: check its spelling", wanted in texts.distinct
    )
    meanings = np.array([np.nan if text == "" else text == wanted for text in texts.distinct], dtype=np.float32)
    return meanings[texts.positions]
