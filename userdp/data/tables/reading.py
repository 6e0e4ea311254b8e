"""Declared columns read from a file, each cell by itself; messages hold counts, names and row numbers, no cell.

Names of columns are cells, too, where a file has no header: `names_of` says which of them a message may quote.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.tables.cells import Rows, cell_number, numbers_of, raw_cells, texts_of
from userdp.data.tables.columns import Columns
from userdp.data.tables.date_cells import moments_of
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.unusable import kind_of_cells
from userdp.errors import BadInput, MissingColumn, UserdpError

_BUFFER_BYTES = 1 << 16
"""Bytes of each column read at once."""
_MOST_NAMES, _MOST_LETTERS = 20, 40
"""The most names of columns that a message lists, and the most letters of each."""
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""Other marks between cells than the comma, and their names."""


def read_columns(path: Path, columns: Columns, names: Sequence[str]) -> Rows:
    """Read the declared columns ``names`` of a whole CSV or Parquet file.

    *Formal guarantee*: a row's result depends on its own cells, the declarations and the file's list of columns; no
    cell makes reading fail. The cells of a CSV file stand between its delimiters: a cell with a delimiter or a line
    break must be quoted, and quotes within quotes doubled, as programs that write CSV do.

    Raises `BadInput` for a file that is missing, unreadable, larger than memory or without rows, an unknown suffix, and
    a column that is missing or of a type that cannot be used.
    """
    return _rows_of(read_cells(path, names), columns)


def read_cells(path: Path, names: Sequence[str]) -> pa.Table:
    """Read columns unconverted, a CSV file as text, a Parquet file by its schema; raise as `read_columns` does."""
    if not path.is_file():
        raise BadInput(f"the data file {path} does not exist; check the path")
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise BadInput(f"the data file {path} ends with {path.suffix!r}; use a .csv or .parquet file")
    try:
        table = readers[path.suffix.lower()](path, names)
    except MemoryError:
        raise BadInput(
            f"the data file {path} does not fit into memory: lower data.memory, so that a Parquet file is read in "
            "batches, or convert it to Parquet"
        ) from None
    except UserdpError:
        raise
    except Exception:  # any error of a foreign parser, whose text may quote cells
        raise BadInput(_unreadable(path, path.suffix[1:].lower())) from None
    if not table.num_rows:
        raise BadInput(f"the data file {path} has no rows; a federation needs at least one sample")
    return table


def row_batches(path: Path, columns: Columns, names: Sequence[str], count: int) -> Iterator[Rows]:
    """Yield columns of a Parquet file without lists, at most ``count`` rows at a time; raise as `read_columns` does."""
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            require_columns(f"the data file {path}", columns.names, file.schema_arrow.names)
            # Pages are read on demand, because a row group may be larger than memory.
            for batch in file.iter_batches(count, columns=list(names), use_threads=False):
                yield _rows_of(pa.Table.from_batches([batch]), columns)
    except UserdpError:
        raise
    except Exception:  # as above
        raise BadInput(_unreadable(path, "parquet")) from None


def _unreadable(path: Path, kind: str) -> str:
    return f"the data file {path} cannot be read as {kind}; check its format and permissions"


def _rows_of(table: pa.Table, columns: Columns) -> Rows:
    names, samples, raw, text = table.column_names, columns.samples, columns.samples.raw, columns.text
    tests = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    possible = [name for name in samples.channels if name in names and name not in raw]
    lists = {name for name in possible if any(test(table[name].type) for test in tests)}
    lengths = {name: pc.fill_null(pc.list_value_length(table[name]), 0).to_numpy().astype(np.int64) for name in lists}
    items = {name: pc.list_flatten(table[name]) if name in lists else table[name] for name in names}
    cells = {name: raw_cells(items.pop(name), name) for name in raw if name in names}
    moments = {name: moments_of(items[name], name, form) for name, form in samples.dates.items() if name in items}
    texts = {name: texts_of(column, name) for name, column in items.items() if name in text}
    others = [name for name in items if name not in text and name not in moments]
    numbers = {name: numbers_of(items[name], name) for name in others}
    empty = [name for name, values in numbers.items() if np.isnan(values).all()]
    empty += [name for name, values in moments.items() if np.isnat(values).all()]
    kinds = {name: kind_of_cells(texts_of(items[name], name).distinct) for name in empty}
    return Rows(table.num_rows, texts, numbers, lengths, cells, kinds, moments)


def _read_csv(path: Path, names: Sequence[str]) -> pa.Table:
    """Read every cell as text.

    A row that is too short lacks its last cells, and surplus cells of a longer one are ignored; without ``index_col``
    the FIRST row would decide which column is which. Bytes that are no UTF-8 are spelled out in their cell. If the
    header ends without a carriage return, one in a cell ends no row.
    """
    import pandas as pd  # noqa: PLC0415 -- slow to import, and a plan reads no table

    with path.open("rb") as file:
        header = file.readline()
    ends = "\n" if header.endswith(b"\n") and b"\r" not in header else None
    how: dict[str, Any] = {"index_col": False, "encoding_errors": "backslashreplace", "lineterminator": ends}
    require_columns(f"the data file {path}", names, pd.read_csv(path, nrows=0, **how).columns)
    frame = pd.read_csv(path, usecols=list(names), dtype=str, na_filter=False, **how)
    return pa.table({name: pa.array(frame[name], type=pa.large_string()) for name in names})


def _read_parquet(path: Path, names: Sequence[str]) -> pa.Table:
    """Read columns with the schema's types; pandas would round large numbers if any cell were missing."""
    with pq.ParquetFile(path) as file:
        require_columns(f"the data file {path}", names, file.schema_arrow.names)
        return file.read(columns=list(names))


def require_columns(where: str, names: Sequence[str], present: Iterable[object]) -> None:
    """Refuse a table, called ``where``, whose columns ``present`` lack one of ``names`` or hold it twice."""
    columns = [str(name) for name in present]
    for name in names:
        if name not in columns:
            raise MissingColumn(f"{where} has no column {name!r}{_instead(name, names, columns)}")
        if columns.count(name) > 1:
            raise BadInput(f"{where} has column {name!r} more than once; rename the others")


def names_of(declared: Sequence[str], present: Iterable[str]) -> list[str]:
    """Return those names of columns that a message may quote: none, unless they are a header by what is ``declared``.

    *Formal guarantee*: no name is quoted unless more than half of the declared names are there, or half of those that
    are there are declared. The names of a table without a header are the cells of its first person.
    """
    columns, wanted = list(present), set(declared)
    found = len(wanted & {column.strip() for column in columns})
    if not found or (2 * found <= len(wanted) and 2 * found < len(columns)):
        return []
    return [column for column in columns if len(column) <= _MOST_LETTERS][:_MOST_NAMES]


def like_cells(names: Sequence[str]) -> bool:
    """Return whether names of columns look like the cells of a row: numbers other than their places, or joined ones."""
    return any(
        (name != str(place) and math.isfinite(cell_number(name)))
        or len(name) > _MOST_LETTERS
        or not _SEPARATORS.keys().isdisjoint(name)
        for place, name in enumerate(names)
    )


def _instead(name: str, declared: Sequence[str], columns: list[str]) -> str:
    """Say what to do about a column that is missing, without a cell of a table that has no header."""
    if names := names_of(declared, columns):
        return did_you_mean(name, names) or f"; it has {', '.join(names)}"
    line = ",".join(columns)
    marks = {mark: told for mark, told in _SEPARATORS.items() if mark in line}
    for mark, told in marks.items():
        if names_of(declared, [cell.strip(" \"'") for cell in line.split(mark)]):
            return f": its separator is not the comma, but {told}; write the table with commas"
    header = ",".join(declared[:3]) + (",..." if len(declared) > 3 else "")
    hint = "".join(f"; if {told} are its separator, write it with commas" for told in marks.values())
    return (
        f" and too few of the others to tell whether it has a header: of {len(columns)} columns, none is quoted; add a "
        f"header, {header}, or correct the declared names{hint}"
    )


def first_row(bad: NDArray[np.bool_]) -> str:
    """Return '3 cells (the first in row 17)', rows counted from 1 after the header."""
    count = int(bad.sum())
    return f"{count} cell{'s' if count > 1 else ''} (the first in row {int(np.argmax(bad)) + 1})"
