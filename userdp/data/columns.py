"""Columns of a table: which are declared, read from a file, and turned into numbers within declared bounds.

Ranges and levels are declared, never taken from the data: privacy proofs rest on them. No message holds a value of
the data, only counts, column names and row numbers.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.errors import BadInput

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a table are what; see `userdp.data.tabular.read_table` for their meaning.

    Raises:
        BadInput: declarations that contradict each other or miss something.
    """

    user: str
    features: Sequence[str] = ()
    categorical: Mapping[str, Sequence[object]] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    scale: Literal["symmetric", "unit"] = "symmetric"
    target: str | None = None
    target_range: Sequence[float] | None = None
    positive: object | None = None
    codes: str | Sequence[str] | None = None
    levels: int | Sequence[object] | None = None
    buckets: int | None = None

    def __post_init__(self) -> None:
        if self.scale not in ("symmetric", "unit"):
            raise BadInput(f"scale must be symmetric or unit, got {self.scale!r}")
        if self.target_range is not None and self.positive is not None:
            raise BadInput("target_range and positive exclude each other: one is for numbers, one for two classes")
        if self.target is None and (self.target_range is not None or self.positive is not None):
            raise BadInput("target_range and positive describe a target, and target names no column")
        self._check_features()
        for column in self.features:
            if column not in self.ranges:
                raise BadInput(
                    f"ranges has no [low, high] for the numeric feature {column!r}; declare its public bounds"
                )
        for column, bounds in self.ranges.items():
            if column not in self.features:
                raise BadInput(
                    f"ranges names {column!r}, which is not in features{did_you_mean(column, self.features)}"
                )
            checked_range(f"ranges.{column}", bounds)
        if self.target_range is not None:
            checked_range("target_range", self.target_range)
        names = self.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"column {twice[0]!r} is declared twice; user, target and features must all differ")

    def _check_features(self) -> None:
        if (self.codes is None) == (not self.features and not self.categorical):
            raise BadInput(
                "declare either features and categorical columns, or one column of codes (or a list of them)"
            )
        if self.codes is None and self.levels is not None:
            raise BadInput("levels describes codes, and codes names no column; for features use categorical")
        self._check_hashed()
        if isinstance(self.codes, str):
            if self.levels is None:
                raise BadInput(f"levels is missing: how many levels column {self.codes!r} has, or a list of them")
            if isinstance(self.levels, int):
                if not 1 <= self.levels < 2**31:
                    raise BadInput(f"levels must lie in 1..2^31 - 1, got {self.levels}")
            else:
                checked_levels("levels", self.levels)
        for column, levels in self.categorical.items():
            checked_levels(f"categorical.{column}", levels)

    def _check_hashed(self) -> None:
        if self.codes is None or isinstance(self.codes, str):
            if self.buckets is not None:
                raise BadInput(
                    f"buckets = {self.buckets}: cells are hashed for a LIST of codes, and codes = {self.codes!r}; "
                    "list the columns, such as codes = ['film', 'genre']"
                )
            return
        if not self.codes or not all(isinstance(name, str) for name in self.codes):
            raise BadInput(f"codes = {self.codes!r}: must be one column's name, or a list of names, at least one")
        if self.levels is not None:
            raise BadInput("levels describes one column of codes; for a list of columns give buckets instead")
        if self.buckets is None:
            raise BadInput(f"buckets is missing: how many numbers the cells of {list(self.codes)} are hashed to")
        if isinstance(self.buckets, bool) or not isinstance(self.buckets, int) or not 1 <= self.buckets < 2**31:
            raise BadInput(f"buckets = {self.buckets!r}: must be a whole number in 1..2^31 - 1")

    @property
    def hashed(self) -> Sequence[str]:
        """The columns whose cells are hashed."""
        return () if self.codes is None or isinstance(self.codes, str) else self.codes

    @property
    def names(self) -> list[str]:
        """Every column that is read."""
        single = [name for name in (self.codes, self.target) if isinstance(name, str)]
        return [self.user, *self.features, *self.categorical, *self.hashed, *single]

    @property
    def feature_names(self) -> list[str]:
        """The feature columns that samples get: numeric ones, then one for each level; or the columns of codes."""
        if self.codes is not None:
            return [self.codes] if isinstance(self.codes, str) else list(self.codes)
        hot = [f"{column}={level}" for column, levels in self.categorical.items() for level in levels]
        return [*self.features, *hot]

    @property
    def text(self) -> set[str]:
        """Columns compared as text."""
        binary = {self.target} if self.target is not None and self.positive is not None else set()
        listed = {self.codes} if isinstance(self.codes, str) and not isinstance(self.levels, int) else set()
        return {self.user, *self.categorical, *self.hashed, *binary, *listed}


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' with the nearest of ``names``, or nothing."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def checked_range(name: str, bounds: Sequence[float]) -> Range:
    """Bounds as (low, high).

    Raises:
        BadInput: not two finite numbers with low < high.
    """
    values = tuple(float(value) for value in bounds)
    if len(values) != 2 or not np.isfinite(values).all() or not values[0] < values[1]:
        raise BadInput(f"{name} must be [low, high] with low < high, got {list(bounds)}")
    return values[0], values[1]


def checked_levels(name: str, levels: Sequence[object]) -> pd.Index:
    """Declared levels as an index of text.

    Raises:
        BadInput: none, or one twice.
    """
    if isinstance(levels, str) or len(levels) == 0:
        raise BadInput(f"{name} must be a list of levels, at least one")
    index = pd.Index([str(level) for level in levels], dtype=object)
    if index.has_duplicates:
        raise BadInput(f"{name} lists {index[index.duplicated()][0]!r} twice; every level must differ")
    return index


def read_columns(path: Path, columns: Columns) -> pd.DataFrame:
    """The declared columns of a CSV or Parquet file, text columns as text.

    Raises:
        BadInput: file missing or unreadable, suffix unknown, column missing, no rows.
    """
    if not path.is_file():
        raise BadInput(f"the data file {path} does not exist; check the path")
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise BadInput(f"the data file {path} ends with {path.suffix!r}; use a .csv or .parquet file")
    try:
        table = readers[path.suffix.lower()](path, columns)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, pa.ArrowInvalid):
        raise BadInput(f"the data file {path} cannot be read as {path.suffix[1:].lower()}; check its format") from None
    if len(table) == 0:
        raise BadInput(f"the data file {path} has no rows; a federation needs at least one sample")
    for column in columns.text:
        table[column] = _as_text(table[column])
    return table


def _read_csv(path: Path, columns: Columns) -> pd.DataFrame:
    _require_columns(path, columns, pd.read_csv(path, nrows=0).columns)
    # Everything as text: "007" stays a name, and cells that are no numbers are found and counted below.
    return pd.read_csv(path, usecols=columns.names, dtype=str, keep_default_na=False)


def _read_parquet(path: Path, columns: Columns) -> pd.DataFrame:
    _require_columns(path, columns, pq.read_schema(path).names)
    return pd.read_parquet(path, columns=columns.names)


def _require_columns(path: Path, columns: Columns, present: Iterable[str]) -> None:
    present = [str(name) for name in present]
    for name in columns.names:
        if name not in present:
            hint = did_you_mean(name, present) or f"; it has {', '.join(present[:12])}"
            raise BadInput(f"the data file {path} has no column {name!r}{hint}")


def _as_text(column: pd.Series) -> pd.Series:
    """Cells as text, a missing cell as ''; whole numbers without a decimal point, as a CSV file would hold them."""
    missing = column.isna()
    if pd.api.types.is_float_dtype(column):
        numbers = column.to_numpy(dtype=np.float64)
        if np.all(missing.to_numpy() | ((numbers == np.round(numbers)) & (np.abs(numbers) < 2**53))):
            column = pd.Series(np.where(missing, 0.0, numbers).astype(np.int64), index=column.index)
    return column.astype(str).mask(missing, "").astype(object)


def first_row(bad: NDArray[np.bool_]) -> str:
    """'3 cells (the first in row 17)', rows counted from 1 after the header."""
    count = int(bad.sum())
    return f"{count} cell{'s' if count > 1 else ''} (the first in row {int(np.argmax(bad)) + 1})"


def numbers_of(table: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """A column as float64, finite in float32 too.

    Raises:
        BadInput: cells that are missing or not finite numbers: how many and the first row.
    """
    cells = table[column]
    if pd.api.types.is_numeric_dtype(cells):
        values: NDArray[np.float64] = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    elif pd.api.types.is_string_dtype(cells):
        values = pd.to_numeric(cells.astype(object), errors="coerce").to_numpy(dtype=np.float64)
    else:
        raise BadInput(f"column {column!r} holds {cells.dtype}, not numbers; convert it or declare it categorical")
    bad = ~(np.abs(values) <= np.finfo(np.float32).max)
    if bad.any():
        raise BadInput(f"column {column!r} has {first_row(bad)} that are not finite numbers; mend or remove these rows")
    return values


def scaled(values: NDArray[np.float64], bounds: Range, low: float, high: float) -> tuple[NDArray[np.float32], int]:
    """Values clipped into ``bounds`` and mapped to [low, high], and how many were clipped."""
    first, last = bounds
    inside = np.clip(values, first, last)
    unit = (inside - first) / (last - first)
    return (low + (high - low) * unit).astype(np.float32), int(np.count_nonzero(inside != values))


def level_codes(texts: pd.Series, levels: pd.Index) -> NDArray[np.int64]:
    """Position of each cell among the declared levels, -1 where it is none of them."""
    codes: NDArray[np.int64] = levels.get_indexer(pd.Index(texts, dtype=object)).astype(np.int64)
    return codes
