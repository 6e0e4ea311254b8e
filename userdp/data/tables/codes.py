"""Samples that are codes of categories: places among declared levels, or buckets to which cells are hashed."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import Sparse, sparse_rows
from userdp.data.block import Features
from userdp.data.tables.cells import Rows, Texts
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.declared import (
    OWN_LEVEL,
    Levels,
    checked_levels,
    did_you_mean,
    expanded_keys,
    imputed_code,
    level_codes,
    level_count,
)
from userdp.data.tables.sample_kinds import SampleKind
from userdp.data.tables.unusable import MISSING, NO_LEVEL, Counts
from userdp.errors import BadInput
from userdp.settings import shown


class Codes(SampleKind):
    """One column of codes, or several, with declared levels."""

    told = "codes"
    keys = frozenset({"codes", "levels", "impute"})
    number = np.int32

    def __init__(self, declared: Declaration) -> None:
        codes, levels = declared.codes, declared.levels
        self._single = isinstance(codes, str)
        self.columns = [codes] if isinstance(codes, str) else list(codes or ())
        if levels is None:
            wanted = (
                "declare the number or list of levels of each column of codes, or buckets to hash a list of columns"
            )
            raise BadInput(f"levels is missing: {wanted}")
        if self._single == isinstance(levels, dict):
            raise BadInput(
                f"codes = {codes!r} and levels = {shown(levels)}: one column has a number or list of levels; a list of "
                "columns has levels by column, or buckets"
            )
        by_column = levels if isinstance(levels, dict) else {self.columns[0]: levels}
        for column in self.columns:
            if column not in by_column:
                raise BadInput(f"levels.{column} is missing: declare the number of levels of the column, or a list")
        for column in by_column:
            if column not in self.columns:
                raise BadInput(f"levels names {column!r}, which is not in codes{did_you_mean(column, self.columns)}")
        self.levels = {column: by_column[column] for column in self.columns}
        self.impute = expanded_keys("impute", declared.impute or {})
        self.counts = tuple(
            level_count(self._field(name), levels) + (self.impute.get(name) == OWN_LEVEL)
            for name, levels in self.levels.items()
        )
        """The number of codes of each column, including a level of missing cells."""
        self.text = {name for name, levels in self.levels.items() if not isinstance(levels, int)}

    def check(self, text: Set[str]) -> None:
        for column in self.impute:
            if column not in self.levels:
                hint = did_you_mean(column, self.levels)
                raise BadInput(f"impute names {column!r}, but no feature is made of it{hint}")
            self.instead_of_missing(column)

    def instead_of_missing(self, column: str) -> int | None:
        """Return the declared code for a missing cell, or None; refuse a value that is no level."""
        if column not in self.impute:
            return None
        return imputed_code(column, self.impute[column], self.levels[column], self._field(column))

    def _field(self, column: str) -> str:
        return "levels" if self._single else f"levels.{column}"

    @property
    def shape(self) -> dict[str, Any]:
        if self._single:
            return {"columns": 1, "levels": self.counts[0]}
        return {"columns": len(self.counts), "code_levels": self.counts}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
        return np.stack([self._codes(table, column, rows, counts) for column in self.levels], axis=1)

    def without_level(self, features: Features, *, reference: bool) -> Mapping[str, NDArray[np.bool_]]:
        """See `SampleKind`."""
        codes = cast("NDArray[np.int32]", features)
        found = {column: codes[:, place] < 0 for place, column in enumerate(self.levels)}
        if reference:
            np.maximum(codes, 0, out=codes)
        return found

    @property
    def level_names(self) -> Sequence[str]:
        """See `SampleKind`; a linear model has one column of codes."""
        column, levels = next(iter(self.levels.items()))
        texts = [*map(str, range(levels))] if isinstance(levels, int) else checked_levels(column, levels)
        own = [f"{column} is missing"] if self.impute.get(column) == OWN_LEVEL else []
        return [*(f"{column}={text}" for text in texts), *own] if self._single else []

    def at_levels(self, features: Features, names: Sequence[str]) -> NDArray[np.bool_]:
        """See `SampleKind`."""
        places = [self.level_names.index(name) for name in names]
        return np.isin(cast("NDArray[np.int32]", features)[:, 0], places)

    def _codes(self, table: Rows, column: str, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
        """Return (N,) codes; -1 for a cell that is no whole number in 0..L-1, or no declared level."""
        every = codes_of(table, column, self.levels[column], counts)
        missing = Missing(table, rows, counts, self.instead_of_missing)
        codes = missing.replaced(column, every[rows]).astype(np.int32)
        counts.unusable[column] = int(np.count_nonzero(codes < 0))
        return codes


class Hashed(SampleKind):
    """Columns whose cells are hashed to buckets: sparse samples without declared levels."""

    told = "hashed codes"
    keys = frozenset({"codes", "buckets"})
    batched = False  # samples differ in size

    def __init__(self, declared: Declaration) -> None:
        codes, self.buckets = declared.codes, declared.buckets or 0
        if isinstance(codes, str):
            given = f"buckets = {self.buckets}: cells are hashed for a LIST of codes, and codes = {codes!r}"
            raise BadInput(f"{given}; list the columns, such as codes = ['film', 'genre']")
        if not self.buckets < 2**31:
            raise BadInput(f"buckets = {self.buckets}: must be a whole number in 1..2^31 - 1")
        self.columns = list(codes or ())
        self.text = set(self.columns)

    @property
    def shape(self) -> dict[str, Any]:
        most = min(len(self.columns), self.buckets)
        return {"columns": self.buckets, "bound": 1.0, "sparsity": most, "feature_length": 1.0}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> Sparse:
        return hashed_rows({name: table.texts[name].taken(rows) for name in self.columns}, self.buckets)


@dataclass(frozen=True)
class Missing:
    """The missing cells of the chosen rows, and the value that is declared ``instead`` for each column, or None."""

    table: Rows
    rows: NDArray[np.int64]
    counts: Counts
    instead: Callable[[str], object]

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
        instead: Any = self.instead(column)
        if instead is None:
            return values
        missing = self.cells(column)
        self.counts.imputed[column] = int(np.count_nonzero(missing))
        return np.where(missing, instead, values)


def codes_of(table: Rows, column: str, levels: Levels, counts: Counts) -> NDArray[np.int64]:
    """Return the position of every cell of a column among the declared levels; -1 for any other cell.

    The kind of its cells is noted if none is a declared level.
    """
    if isinstance(levels, int):
        values = table.numbers[column]
        known = (values == np.floor(values)) & (values >= 0) & (values < levels)
        codes, other = np.where(known, values, -1.0).astype(np.int64), table.kinds.get(column, NO_LEVEL)
    else:
        texts = table.texts[column]
        codes = level_codes(texts, checked_levels(column, levels))
        other = NO_LEVEL if any(texts.distinct) else MISSING
    counts.note_kind(column, None if (codes >= 0).any() else other)
    return codes


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
