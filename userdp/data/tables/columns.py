"""Columns of a table: which are declared, read from a file, and turned into numbers within declared bounds.

Ranges and levels are declared, never taken from the data: privacy proofs rest on them. No message holds a value of
the data, only counts, column names and row numbers.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.tables.cells import Texts, cell_text, numbers_of, texts_of
from userdp.errors import BadInput, MissingColumn

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a table are what; see `userdp.data.tables.tabular.read_table` for their meaning.

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
    def inputs(self) -> list[str]:
        """The columns that features are made of."""
        single = [self.codes] if isinstance(self.codes, str) else []
        return [*self.features, *self.categorical, *self.hashed, *single]

    @property
    def names(self) -> list[str]:
        """Every column that is declared."""
        return [self.user, *self.inputs, *([] if self.target is None else [self.target])]

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
    if len(values) != 2 or not values[0] < values[1] or not np.isfinite(values[1] - values[0]):
        raise BadInput(f"{name} must be [low, high] with low < high, got {list(bounds)}")
    return values[0], values[1]


def checked_levels(name: str, levels: Sequence[object]) -> list[str]:
    """Declared levels as text, by `cell_text` as cells are.

    Raises:
        BadInput: none, or one twice.
    """
    if isinstance(levels, str) or len(levels) == 0:
        raise BadInput(f"{name} must be a list of levels, at least one")
    texts = [cell_text(level) for level in levels]
    text, times = Counter(texts).most_common(1)[0]
    if times > 1:
        raise BadInput(f"{name} lists {text!r} twice; every level must differ")
    return texts


@dataclass(frozen=True, eq=False)
class Rows:
    """Declared columns of a file with N rows.

    Attributes:
        count: N.
        texts: those compared as text.
        numbers: the others, each (N,) float64, NaN where a cell holds no finite number.
    """

    count: int
    texts: Mapping[str, Texts]
    numbers: Mapping[str, NDArray[np.float64]]


def read_columns(path: Path, columns: Columns, names: Sequence[str]) -> Rows:
    """The declared columns ``names`` of a CSV or Parquet file.

    *Formal guarantee*: what a row becomes depends on its own cells, the declarations and the file's list of columns; no
    cell makes reading fail. Of a CSV file, cells are what stands between its delimiters: a cell with a delimiter or a
    line break must be quoted, and quotes within quotes doubled, as programs that write CSV do.

    Raises:
        BadInput: file missing or unreadable, suffix unknown, column missing or of a type that cannot be used, no rows.
    """
    import pandas as pd  # noqa: PLC0415 -- slow to import, and a plan reads no table

    if not path.is_file():
        raise BadInput(f"the data file {path} does not exist; check the path")
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise BadInput(f"the data file {path} ends with {path.suffix!r}; use a .csv or .parquet file")
    try:
        table = readers[path.suffix.lower()](path, names)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, pa.ArrowException, OSError):
        kind = path.suffix[1:].lower()
        raise BadInput(f"the data file {path} cannot be read as {kind}; check its format and permissions") from None
    if table.num_rows == 0:
        raise BadInput(f"the data file {path} has no rows; a federation needs at least one sample")
    texts = {name: texts_of(table[name], name) for name in names if name in columns.text}
    numbers = {name: numbers_of(table[name], name) for name in names if name not in columns.text}
    return Rows(table.num_rows, texts, numbers)


def _read_csv(path: Path, names: Sequence[str]) -> pa.Table:
    """Every cell as text.

    Nothing is asked of the rows as a whole. A row that is too short lacks its last cells, one that is too long has
    cells of no column: without ``index_col`` the FIRST row would decide which column is which. Bytes that are no UTF-8
    are spelled out, in their cell. Where the header ends without a carriage return, one in a cell ends no row.
    """
    import pandas as pd  # noqa: PLC0415 -- as above

    with path.open("rb") as file:
        header = file.readline()
    ends = "\n" if header.endswith(b"\n") and b"\r" not in header else None
    how: dict[str, Any] = {"index_col": False, "encoding_errors": "backslashreplace", "lineterminator": ends}
    require_columns(f"the data file {path}", names, pd.read_csv(path, nrows=0, **how).columns)
    frame = pd.read_csv(path, usecols=list(names), dtype=str, na_filter=False, **how)
    return pa.table({name: pa.array(frame[name], type=pa.large_string()) for name in names})


def _read_parquet(path: Path, names: Sequence[str]) -> pa.Table:
    """Columns of the types that the file's schema says; pandas would round large numbers where any cell is missing."""
    with pq.ParquetFile(path) as file:
        require_columns(f"the data file {path}", names, file.schema_arrow.names)
        return file.read(columns=list(names))


def require_columns(where: str, names: Sequence[str], present: Iterable[object]) -> None:
    """Refuse a table, called ``where`` in the sentence, unless each of ``names`` is one of its columns ``present``.

    Raises:
        MissingColumn: a column is missing.
        BadInput: a column is there twice.
    """
    found = [str(name) for name in present]
    for name in names:
        if name not in found:
            hint = did_you_mean(name, found) or f"; it has {', '.join(found[:12])}"
            raise MissingColumn(f"{where} has no column {name!r}{hint}")
        if found.count(name) > 1:
            raise BadInput(f"{where} has column {name!r} more than once; rename the others")


def first_row(bad: NDArray[np.bool_]) -> str:
    """'3 cells (the first in row 17)', rows counted from 1 after the header."""
    count = int(bad.sum())
    return f"{count} cell{'s' if count > 1 else ''} (the first in row {int(np.argmax(bad)) + 1})"


def scaled(values: NDArray[np.float64], bounds: Range, low: float, high: float) -> tuple[NDArray[np.float32], int]:
    """Values clipped into ``bounds`` and mapped to [low, high], and how many were clipped; NaN stays NaN.

    Each by itself, in operations that IEEE 754 rounds exactly: where a value stands in an array changes no bit of it.
    """
    first, last = bounds
    inside = np.clip(values, first, last)
    unit = (inside - first) / (last - first)
    clipped = np.count_nonzero((values < first) | (values > last))
    return (low + (high - low) * unit).astype(np.float32), int(clipped)


def level_codes(texts: Texts, levels: Sequence[str]) -> NDArray[np.int64]:
    """Position of each cell among the declared levels, -1 where it is none of them."""
    codes = {level: code for code, level in enumerate(levels)}
    return texts.mapped(codes.get(text, -1) for text in texts.distinct)
