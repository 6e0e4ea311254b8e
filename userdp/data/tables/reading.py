"""Declared columns read from a file, each cell by itself; messages hold counts, names and row numbers, no cell.

Names of columns are cells, too, where a file has no header: `names_of` says which of them a message may quote.
"""

import gzip
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.tables.cells import Rows, cell_number, numbers_of, raw_cells, texts_of, written
from userdp.data.tables.columns import Columns
from userdp.data.tables.csv_form import CsvForm
from userdp.data.tables.date_cells import moments_of
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.ids import ids_of
from userdp.data.tables.unusable import kind_of_cells
from userdp.errors import BadInput, MissingColumn, UserdpError
from userdp.extras import check_extra

_BUFFER_BYTES = 1 << 16
"""Bytes of each column read at once."""
_MOST_NAMES, _MOST_LETTERS = 20, 40
"""The most names of columns that a message lists, and the most letters of each."""
_SEPARATORS = (";", "\t", "|", ",")
"""Marks between cells, which a message may propose."""
_OTHERS = {
    b"PAR1": "a Parquet file: name it .parquet",
    b"PK": "a zip archive, as Excel's files are: name it .xlsx, or unpack it",
    b"\x1f\x8b": "compressed by gzip: name it .csv.gz",
}
"""The first bytes of files that are no text, and what to do."""
_SURPLUS = re.compile(r"Expected ([0-9]+) fields in line ([0-9]+), saw ([0-9]+)")
"""The words of pandas about a line that is too long."""


def read_columns(path: Path, columns: Columns, names: Sequence[str]) -> Rows:
    """Read the declared columns ``names`` of a whole file: CSV, Excel or Parquet, by its suffix.

    *Formal guarantee*: a row's result depends on its own cells, the declarations and the file's list of columns; no
    cell makes reading fail, ids apart (`ids_of`). The cells of a CSV file stand between its separators: a cell with a
    separator or a line break must be quoted, and quotes within quotes doubled, as programs that write CSV do. Lines
    with an open quote or with more cells than the header are no rows, and the file is refused: cells would move into
    other columns, ids among them.

    Raises `BadInput` for a file that is missing, unreadable, larger than memory or without rows, an unknown suffix, and
    a column that is missing or of a type that cannot be used.
    """
    return _rows_of(read_cells(path, names, columns.csv), columns, form_of(path, columns.csv))


def form_of(path: Path, declared: CsvForm | None) -> CsvForm:
    """Return how the numbers in a file are written as text: as declared in CSV files, plainly in others."""
    form = CsvForm() if declared is None or _suffix(path) in (".xlsx", ".parquet") else declared
    return form.of(path)


def read_cells(path: Path, names: Sequence[str], csv: CsvForm | None = None) -> pa.Table:
    """Read columns unconverted, a CSV file as text, a Parquet file by its schema; raise as `read_columns` does."""
    if not os.path.isfile(path):  # for Path.is_file a name can be too long
        if os.path.isdir(path):
            raise BadInput(f"the data file {path} is a folder: name the file in it")
        if path.as_posix().find(":/") > 1:  # beyond the letter of a drive
            raise BadInput(f"the data file {path} is an address: download it, and name the file")
        raise BadInput(f"the data file {path} does not exist; check the path")
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".xlsx": _read_excel, ".parquet": _read_parquet}
    if _suffix(path) not in readers:
        raise BadInput(
            f"the data file {path} ends with {path.suffix!r}; use .csv, .tsv (both also with .gz), .xlsx or .parquet"
        )
    try:
        table = readers[_suffix(path)](path, names, form_of(path, csv))
    except MemoryError:
        raise BadInput(
            f"the data file {path} does not fit into memory: lower data.memory, so that a Parquet file is read in "
            "batches, or convert it to Parquet"
        ) from None
    except UserdpError:
        raise
    except Exception:  # any error of a foreign parser, whose text may quote cells
        raise BadInput(_unreadable(path, _suffix(path)[1:])) from None
    if not table.num_rows:
        raise BadInput(f"the data file {path} has no rows; a table needs at least one")
    return table


def row_batches(path: Path, columns: Columns, names: Sequence[str], count: int) -> Iterator[Rows]:
    """Yield columns of a Parquet file without lists, at most ``count`` rows at a time; raise as `read_columns` does."""
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            require_columns(f"the data file {path}", columns.names, file.schema_arrow.names)
            # Pages are read on demand, because a row group may be larger than memory.
            for batch in file.iter_batches(count, columns=list(names), use_threads=False):
                yield _rows_of(pa.Table.from_batches([batch]), columns, CsvForm())
    except UserdpError:
        raise
    except Exception:  # as above
        raise BadInput(_unreadable(path, "parquet")) from None


def _unreadable(path: Path, kind: str) -> str:
    form = "" if kind in ("parquet", "xlsx") else ", quotes without an end, the encoding that csv declares"
    return f"the data file {path} cannot be read as {kind}; check its format{form} and permissions"


def _suffix(path: Path) -> str:
    """Return what says the kind of a file; text may be compressed."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz") if name.endswith((".csv.gz", ".tsv.gz")) else name).suffix


def _rows_of(table: pa.Table, columns: Columns, form: CsvForm) -> Rows:
    names, samples, raw, text = table.column_names, columns.samples, columns.samples.raw, columns.text
    tests = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    possible = [name for name in samples.channels if name in names and name not in raw]
    lists = {name for name in possible if any(test(table[name].type) for test in tests)}
    lengths = {name: pc.fill_null(pc.list_value_length(table[name]), 0).to_numpy().astype(np.int64) for name in lists}
    items = {name: pc.list_flatten(table[name]) if name in lists else table[name] for name in names}
    cells = {name: raw_cells(items.pop(name), name) for name in raw if name in names}
    moments = {name: moments_of(items[name], name, form) for name, form in samples.dates.items() if name in items}
    user = {columns.user: ids_of}
    texts = {name: user.get(name, texts_of)(column, name) for name, column in items.items() if name in text}
    others = [name for name in items if name not in text and name not in moments]
    numbers = {name: numbers_of(items[name], name, form.number) for name in others}
    empty = [name for name, values in numbers.items() if np.isnan(values).all()]
    empty += [name for name, values in moments.items() if np.isnat(values).all()]
    kinds = {name: kind_of_cells(texts_of(items[name], name).distinct) for name in empty}
    return Rows(table.num_rows, texts, numbers, lengths, cells, kinds, moments)


def _read_csv(path: Path, names: Sequence[str], form: CsvForm) -> pa.Table:
    """Read every cell as text.

    A row that is too short lacks its last cells. Bytes that are not of the encoding are spelled out in their cell. If
    the header ends without a carriage return, one in a cell ends no row.
    """
    import pandas as pd  # noqa: PLC0415 -- slow to import, and a plan reads no table

    if _suffix(path) == path.suffix.lower():
        with path.open("rb") as file:
            start = file.read(4)
        if others := [told for mark, told in _OTHERS.items() if start.startswith(mark)]:
            raise BadInput(f"the data file {path} is no text, but {others[0]}")
    with _text(path, form) as text:
        line = text.readline()
    how: dict[str, Any] = {"header": None, "index_col": False, "na_filter": False, "sep": form.separator}
    how["lineterminator"] = "\n" if line.endswith("\n") and "\r" not in line else None
    with _text(path, form) as text:
        header = [str(cell) for cell in pd.read_csv(text, dtype=str, nrows=1, **how).iloc[0]]
    if any("\0" in name for name in header):
        other = "write csv = { encoding = 'utf-16' }" if form.encoding == "utf-8" else f"{form.encoding} is another"
        raise BadInput(f"the data file {path} has a header with NUL bytes: if its encoding is UTF-16, {other}")
    require_columns(f"the data file {path}", names, header, form)
    places = {name: place for place, name in enumerate(header)}
    types: dict[int, Any] = dict.fromkeys(range(len(header)), "S1")  # which takes one byte of other columns' cells
    types |= {places[name]: str for name in names}
    try:
        with _text(path, form) as text:  # whole, as pandas compares each line with the one before in a piece
            frame = pd.read_csv(text, dtype=types, low_memory=False, **how).iloc[1:]
    except pd.errors.ParserError as error:
        if (surplus := _SURPLUS.search(str(error))) is None:
            raise
        wide, line, cells = surplus.groups()
        raise BadInput(
            f"the data file {path} has {cells} cells in line {line}, and {wide} in its header: quote cells that hold "
            "the separator, such as numbers with decimal commas, and give every column a name"
        ) from None
    return pa.table({name: pa.array(frame[places[name]], type=pa.large_string()) for name in names})


def _text(path: Path, form: CsvForm) -> IO[str]:
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    how: dict[str, Any] = {"encoding": encoding, "errors": "backslashreplace", "newline": ""}
    opened: Callable[..., IO[str]] = gzip.open if path.suffix.lower() == ".gz" else open
    return opened(path, "rt", **how)


def _read_excel(path: Path, names: Sequence[str], _: CsvForm) -> pa.Table:
    """Read the first sheet of an Excel file as text; its numbers are floats, by which long ids are rounded."""
    import pandas as pd  # noqa: PLC0415 -- as above

    check_extra("excel", f"the data file {path}")
    frame = pd.read_excel(path, header=None, dtype=object, na_filter=False)
    header = [str(cell) for cell in frame.iloc[0]]
    require_columns(f"the data file {path}", names, header)
    columns = {name: frame[frame.columns[header.index(name)]].iloc[1:] for name in names}
    floats = {name: (float(one) if type(one) is int else one for one in cells) for name, cells in columns.items()}
    return pa.table({name: written(cells).cast(pa.large_string()) for name, cells in floats.items()})


def _read_parquet(path: Path, names: Sequence[str], _: CsvForm) -> pa.Table:
    """Read columns with the schema's types; pandas would round large numbers if any cell were missing."""
    with pq.ParquetFile(path) as file:
        require_columns(f"the data file {path}", names, file.schema_arrow.names)
        return file.read(columns=list(names))


def require_columns(where: str, names: Sequence[str], present: Iterable[object], form: CsvForm | None = None) -> None:
    """Refuse a table, called ``where``, whose columns ``present`` lack one of ``names`` or hold it twice.

    ``form`` is that of a CSV file.
    """
    columns = [str(name) for name in present]
    for name in names:
        if name not in columns:
            raise MissingColumn(f"{where} has no column {name!r}{_instead(name, names, columns, form)}")
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
        or not set(_SEPARATORS[:-1]).isdisjoint(name)
        for place, name in enumerate(names)
    )


def _instead(name: str, declared: Sequence[str], columns: list[str], form: CsvForm | None) -> str:
    """Say what to do about a column that is missing, without a cell of a table that has no header."""
    if form is not None and form.encoding == "utf-8" and any("\\x" in column for column in columns):
        return ", and its header is not in UTF-8: declare its encoding, such as csv = { encoding = 'cp1252' }"
    if names := names_of(declared, columns):
        return did_you_mean(name, names) or f"; it has {', '.join(names)}"
    used = "," if form is None else str(form.separator)
    line = used.join(columns)
    marks = [mark for mark in _SEPARATORS if mark != used and mark in line]
    remedy = "write csv = {{ separator = {} }}" if form is not None else "read it with the separator {}"
    told = {mark: remedy.format(json.dumps(mark)) for mark in marks}  # as in TOML and in Python
    for mark in marks:
        if header := names_of(declared, [cell.strip(" \"'") for cell in line.split(mark)]):
            one = f"it has the one column {mark.join(header)}" if len(columns) == 1 else f"its header has {mark!r}"
            return f"; {one}: it seems to be separated by {mark!r}: {told[mark]}"
    wanted = used.join(declared[:3]) + (f"{used}..." if len(declared) > 3 else "")
    hint = "".join(f"; if {mark!r} is its separator, {told[mark]}" for mark in marks)
    return (
        f" and too few of the others to tell whether it has a header: of {len(columns)} columns, none is quoted; add a "
        f"header, {wanted}, or correct the declared names{hint}"
    )


def first_row(bad: NDArray[np.bool_]) -> str:
    """Return '3 cells (the first in row 17)', rows counted from 1 after the header."""
    count = int(bad.sum())
    return f"{count} cell{'s' if count > 1 else ''} (the first in row {int(np.argmax(bad)) + 1})"
