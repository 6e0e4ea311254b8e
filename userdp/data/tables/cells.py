"""Cells of a table: each becomes one text or one number, independent of the other cells.

Privacy proofs replace one user's cells, which can change a column's type: one 2.5 makes whole numbers floats. So a cell
is read by its VALUE, the same for 1, 1.0, "1" and "1.0" in a column of any type, and no content makes reading fail.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.errors import BadInput

# Each takes time linear in a cell's length: no cell can make loading hang.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_FLOAT = re.compile(r"-?[0-9](?:\.[0-9]+)?e[+-][0-9]{2,3}")
_DAY = r"(?:([+-]?[0-9]{4,}-[0-9]{2}-[0-9]{2}|-?[0-9]+ days)[ T])?"
_TIME = re.compile(_DAY + r"([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?([+-][0-9]{2}:[0-9]{2})?")
_BOOLEANS = {"True": 1.0, "False": 0.0}


def cell_text(cell: object) -> str:
    """Return the text by which a cell is compared and hashed; '' if it is missing.

    Numbers have all their digits, no exponent and no trailing zeros: 1.0, Decimal("1.00") and "1.0" are "1". True and
    False are "1" and "0", because one number among them makes their column one of numbers. A date and its midnight are
    one text, fractions of a second lose trailing zeros, and a timestamp from a column with a time zone is in UTC. Other
    text is unchanged, so "007" is not "7". Declared levels are converted by the same function.
    """
    pandas = sys.modules.get("pandas")  # slow to import, and maybe halfway imported by another thread
    if cell is None or cell is getattr(pandas, "NaT", None) or cell is getattr(pandas, "NA", None):
        return ""
    if isinstance(cell, float | np.floating):
        return _float_text(float(cell))
    if isinstance(cell, Decimal):
        return "" if cell.is_nan() else _string_text(format(cell, "f"))
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        cell = cell.astimezone(UTC)
    return _string_text(cell.isoformat() if isinstance(cell, date) else str(cell))


def _float_text(value: float) -> str:
    if math.isnan(value):
        return ""
    if value.is_integer():
        return str(int(value))
    return format(Decimal(repr(value)), "f") if math.isfinite(value) else repr(value)


def _string_text(cell: str) -> str:
    if cell in _BOOLEANS:
        return _float_text(_BOOLEANS[cell])
    if _DECIMAL.fullmatch(cell):
        short = cell.rstrip("0").rstrip(".")
        return "0" if short == "-0" else short
    if _FLOAT.fullmatch(cell) and math.isfinite(value := float(cell)):
        return _float_text(value)
    return time_text(cell)


def time_text(cell: str) -> str:
    """Return a date or a time without what the type of its column adds; other text is unchanged."""
    match = _TIME.fullmatch(cell)
    if match is None:
        return cell
    day, time, fraction, zone = (part or "" for part in match.groups())
    time += fraction.rstrip("0").rstrip(".") + zone
    return day if day and time == "00:00:00" else f"{day} {time}".strip()


def cell_number(cell: object) -> float:
    """Return the number in a cell of text (or a Decimal); NaN for none.

    Numbers are as in CSV files, "-1.5e3" or ".5", with or without blanks around them; True and False are 1 and 0. Other
    spellings of programming languages, such as "1_000", "0x1f" or "nan", are no numbers.
    """
    if isinstance(cell, str):
        text = cell.strip(" \t")
        return float(text) if _NUMBER.fullmatch(text) else _BOOLEANS.get(text, math.nan)
    return float(cell) if isinstance(cell, Decimal) else math.nan


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of N cells as text: (D,) distinct texts, in any order, and (N,) positions of the cells' texts."""

    distinct: list[str]
    positions: NDArray[np.int64]

    def mapped(self, values: Iterable[int]) -> NDArray[np.int64]:
        """Return (N,) the number of each cell, given those of the texts, ``values`` (D,)."""
        return np.fromiter(values, dtype=np.int64, count=len(self.distinct))[self.positions]

    def taken(self, rows: NDArray[np.int64]) -> "Texts":
        """Return the cells of these rows."""
        return Texts(self.distinct, self.positions[rows])


@dataclass(frozen=True, eq=False)
class Rows:
    """Declared columns of a file with ``count`` = N rows.

    Attributes:
        texts: columns compared as text.
        numbers: columns of numbers, each (N,) float64, NaN for a cell without a finite number.
        lengths: items of each cell (N,), for a sequence's columns of lists; ``texts`` and ``numbers`` hold the items of
            all their cells, one cell after the other.
        cells: columns whose bytes are read unchanged, each (N,).
        kinds: the kind of the cells in each column of ``numbers`` without a number, or of ``moments`` without a date.
        moments: columns of dates, each (N,), NaT for a cell that is missing or no date.
    """

    count: int
    texts: Mapping[str, Texts]
    numbers: Mapping[str, NDArray[np.float64]]
    lengths: Mapping[str, NDArray[np.int64]]
    cells: Mapping[str, pa.LargeBinaryArray]
    kinds: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, NDArray[np.datetime64]] = field(default_factory=dict)


def texts_of(column: pa.ChunkedArray, name: str, text: Callable[[object], str] = cell_text) -> Texts:
    """Return a column as text, each cell by ``text``; refuse a schema type that holds no text, numbers or dates."""
    column = plain(column)
    if not (_holds_numbers(column.type) or pa.types.is_temporal(column.type)) or pa.types.is_duration(column.type):
        raise BadInput(f"column {name!r} holds {kind_of(column.type)}, not text, numbers or dates; convert it")
    positions, cells = _distinct(column)
    texts = [text(cell) for cell in cells]
    distinct = {one: number for number, one in enumerate(dict.fromkeys(texts))}
    numbers = np.array([distinct[one] for one in texts], dtype=np.int64)
    return Texts(list(distinct), numbers[positions])


def numbers_of(
    column: pa.ChunkedArray, name: str, number: Callable[[object], float] = cell_number
) -> NDArray[np.float64]:
    """Return a column as float64, as ``number`` of its text; NaN for no finite number. Refuse dates and lists."""
    column = plain(column)
    if not _holds_numbers(column.type):
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            raise BadInput(
                f"column {name!r} holds {column.type}, not numbers; declare a feature of dates under dates, such as "
                f"dates = {{ {name} = ['1950-01-01', '2030-12-31'] }}, and write a target of dates as numbers"
            )
        raise BadInput(
            f"column {name!r} holds {kind_of(column.type)}, not numbers; convert it or declare it categorical"
        )
    if pa.types.is_large_binary(column.type) or pa.types.is_decimal(column.type):
        positions, cells = _distinct(column)
        values = np.array([number(cell) for cell in cells], dtype=np.float64)[positions]
    else:
        values = pc.cast(column, pa.float64(), safe=False).fill_null(math.nan).to_numpy()
    return np.where(np.isfinite(values), values, math.nan)


def written(cells: Iterable[object]) -> pa.Array:
    """Return Python's objects as text, in bytes, which may be no UTF-8, each by itself; null for a missing cell.

    Text and bytes are unchanged. `cell_text` and `cell_number` read each as they read the object.
    """
    return pa.array(map(_written, cells), type=pa.large_binary())


def _written(cell: object) -> bytes | None:
    if isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        return str.encode(cell, "utf-8", "backslashreplace") or None
    try:
        if isinstance(cell, float | np.floating) and not math.isnan(cell):
            text = repr(float(cell))
        else:
            text = str(cell) if isinstance(cell, bool | np.bool_) else cell_text(cell)
    except Exception:  # the cell's own code may raise anything: it has no text, and must not stop the others
        return None
    return text.encode("utf-8", "backslashreplace") or None


def raw_cells(column: pa.ChunkedArray, name: str) -> pa.LargeBinaryArray:
    """Return a column of text (as UTF-8) or bytes, (N,), null for a missing cell; refuse any other type of column."""
    column = plain(column)
    if pa.types.is_null(column.type):
        column = column.cast(pa.large_binary())
    if not pa.types.is_large_binary(column.type):
        raise BadInput(f"column {name!r} holds {kind_of(column.type)}, not text or bytes; convert it")
    return column.combine_chunks()


def bytes_in(cells: pa.LargeBinaryArray) -> NDArray[np.uint8]:
    """Return all bytes of cells, none of them missing, one cell after the other, without a copy."""
    ends = ends_of(cells)
    return np.frombuffer(cells.buffers()[2] or b"", dtype=np.uint8)[ends[0] : ends[-1]]


def ends_of(cells: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Return the bounds (N + 1,) of the cells in their buffer."""
    ends = np.frombuffer(cells.buffers()[1], dtype=np.int64)
    return ends[cells.offset : cells.offset + len(cells) + 1]


def kind_of(kind: object) -> str:
    """Return the name of a column's type for a message, without its parameters, which may come from cells.

    Such are the fields of a struct that was made of dicts, and the fill value of a sparse column of pandas.
    """
    return re.split(r"[<\[(]", str(kind))[0]


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Remove dictionaries and extensions; text becomes bytes, whose validity each cell decides by itself."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        if _holds_text(column.type.value_type):  # first within: Arrow cannot take views by index
            column = column.cast(pa.dictionary(column.type.index_type, pa.large_binary()))
        column = column.cast(column.type.value_type)
    return column.cast(pa.large_binary()) if _holds_text(column.type) else column


def _holds_text(kind: pa.DataType) -> bool:
    tests = ("string", "binary", "large_string", "string_view", "binary_view", "fixed_size_binary")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


def _holds_numbers(kind: pa.DataType) -> bool:
    tests = ("null", "boolean", "integer", "floating", "decimal", "large_binary")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


def _distinct(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[object]]:
    """Return each row's position among the distinct cells, and these; None for a missing one."""
    flat = column.combine_chunks()
    encoded = pc.dictionary_encode(flat, null_encoding="encode")
    cells, positions = encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
    if pa.types.is_temporal(cells.type):
        return positions, _times(cells)
    if not pa.types.is_large_binary(cells.type):
        return positions, cells.to_pylist()
    texts = (None if cell is None else cell.decode("utf-8", "backslashreplace") for cell in cells.to_pylist())
    return positions, list(texts)


def ticks_of(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], str] | None:
    """Return dates or timestamps as (N,) integers since 1970 in UTC (least: missing), and their unit; else None."""
    column = plain(column)
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        return None
    return _ticks(column.combine_chunks())


def _ticks(cells: pa.Array) -> tuple[NDArray[np.int64], str]:
    kind = cells.type
    unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else str(kind.unit)
    ticks = cells.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    missing = np.iinfo(np.int64).min  # NumPy's own mark
    return ticks.fill_null(missing).to_numpy(), unit


def _times(cells: pa.Array) -> list[object]:
    """Return dates, times of day and timestamps as text, by NumPy, because Python's years end at 9999."""
    kind = cells.type
    ticks, unit = _ticks(cells)
    times = ticks.view(f"M8[{unit}]")
    texts = np.datetime_as_string(times).tolist()
    if pa.types.is_time(kind):
        texts = [text.partition("T")[2] for text in texts]
    zone = "+00:00" if pa.types.is_timestamp(kind) and kind.tz else ""
    return [None if gone else text + zone for text, gone in zip(texts, np.isnat(times), strict=True)]
