"""Tables in memory as a Parquet file, which is then read like any other table, cell by cell.

A table in memory is a pandas DataFrame or any object that hands its columns over by the Arrow PyCapsule interface:
those of polars, DuckDB, pyarrow and others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from userdp.data.tables.cells import kind_of, plain, written
from userdp.data.tables.reading import require_columns
from userdp.errors import BadInput, MissingColumn

FRAME = "frame.parquet"
"""The path in a configuration of a table in memory."""
A_TABLE = "a DataFrame (pandas, polars) or another Arrow table"
_SECONDS = (2**63 - 1) // 1000


@runtime_checkable
class ArrowStream(Protocol):
    """A table as a stream of batches, see https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html.

    pandas DataFrames, polars DataFrames, pyarrow Tables and RecordBatchReaders and DuckDB relations are such tables.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """A table as one struct array of the same interface, such as a RecordBatch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


Frame = ArrowStream | ArrowArray
Tabular = Frame | str | Path  # a table in memory, or the path of a CSV or Parquet file


@contextmanager
def table_file(data: Tabular, names: Sequence[str]) -> Iterator[Path]:
    """Yield a file with the columns ``names`` of a table; BadInput for no table, see also `write_frame`."""
    if isinstance(data, str | Path):
        yield Path(data)
        return
    with TemporaryDirectory(prefix="userdp-") as folder:
        write_frame(data, Path(folder) / FRAME, names)
        yield Path(folder) / FRAME


def write_frame(data: Frame, path: Path, names: Sequence[str]) -> None:
    """Write the columns ``names`` of a table in memory to a Parquet file, batch by batch; a stream is read once.

    *Formal guarantee*: a cell's result depends on that cell and on its column's type, and no cell makes writing fail.
    A pandas column of dtype object or category holds values of any types, and Arrow would choose one type for all; its
    cells are written as text, each by itself, by `userdp.data.tables.cells.written`. A column's type counts as
    public, like the types of a Parquet file. A time in seconds that Parquet's milliseconds cannot hold is missing.

    Raises `BadInput` for no table, no rows, a column that is missing or occurs twice, or a type that Parquet lacks.
    """
    where = f"the {type(data).__name__}"
    batches = _of_pandas(data, names) if isinstance(data, pd.DataFrame) else _of_arrow(data, where, names)
    if not write_batches(batches, path, names):
        once = "" if isinstance(data, pd.DataFrame) else " (a stream that has been read is empty: make it anew)"
        raise BadInput(f"{where} has no rows{once}; a table needs at least one")


def write_batches(batches: Iterable[pa.Table | pa.RecordBatch], path: Path, names: Sequence[str]) -> int:
    """Write the columns ``names`` of all batches to a Parquet file, in types that it holds; return the rows."""
    rows = 0
    with ExitStack() as files:
        writer: pq.ParquetWriter | None = None
        for batch in batches:
            stored = pa.table({name: _storable(batch[name], name) for name in names})
            writer = writer or files.enter_context(pq.ParquetWriter(path, stored.schema))
            writer.write_table(stored)
            rows += stored.num_rows
    return rows


def _of_pandas(frame: pd.DataFrame, names: Sequence[str]) -> Iterator[pa.Table]:
    if frame.columns.nlevels > 1:
        raise MissingColumn("the DataFrame has columns of several levels: join them, frame.columns.map('_'.join)")
    if apart := sorted({*names} & {*frame.index.names} - {*frame.columns}):
        raise MissingColumn(f"the DataFrame has no column {apart[0]!r}, but an index: give frame.reset_index()")
    require_columns("the DataFrame", names, frame.columns)
    numbers = {str(name): position for position, name in enumerate(frame.columns)}
    yield pa.table({name: _column(frame.iloc[:, numbers[name]], name) for name in names})


def _of_arrow(data: Frame, where: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if not isinstance(data, ArrowStream | ArrowArray) or isinstance(data, pd.Series):
        raise no_table(data)
    try:
        stream = data if isinstance(data, ArrowStream) else pa.Table.from_batches([pa.record_batch(data)])
        reader = pa.RecordBatchReader.from_stream(stream)
        present = reader.schema.names
    except Exception as error:  # the code of any library runs here
        raise _unreadable(where, error) from None
    require_columns(where, names, present)
    try:
        yield from reader
    except Exception as error:
        raise _unreadable(where, error) from None


def no_table(data: object) -> BadInput:
    """Return the error about data that are no table, with what makes one of them."""
    made = next((f"call .{way}() on it, or " for way in ("collect", "to_frame") if hasattr(data, way)), "")
    made = "make one by pandas.DataFrame(data), or " if isinstance(data, Mapping | Sequence | np.ndarray) else made
    kind = type(data).__name__
    return BadInput(f"the {kind} is no table: {made}give {A_TABLE}, or the path of a CSV or Parquet file")


def _unreadable(where: str, error: Exception) -> BadInput:
    """Return the error about a library that fails; its message may quote cells, and stays out."""
    return BadInput(
        f"{where} cannot be read as an Arrow table ({type(error).__name__}): read it alone to see why; a table has "
        "named columns, of types that other libraries have, too"
    )


def _storable(cells: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """Return a column in a type that Parquet holds: text as bytes, categories as their values."""
    cells = plain(cells)
    if pa.types.is_timestamp(cells.type) and cells.type.unit == "s":
        ticks = cells.cast(pa.int64())
        inside = pc.and_(pc.less_equal(ticks, _SECONDS), pc.greater_equal(ticks, -_SECONDS))
        cells = pc.if_else(inside, cells, None)
    if not _held(cells.type):
        raise _unfit(name, cells.type)
    return cells


@cache
def _held(kind: pa.DataType) -> bool:
    """Return whether Parquet holds cells of this type."""
    try:
        pq.write_table(pa.table({"": pa.nulls(1, kind)}), pa.BufferOutputStream())
    except pa.ArrowException:
        return False
    return True


def _column(cells: "pd.Series[Any]", name: str) -> pa.Array:
    kind = cells.dtype
    texts = pd.CategoricalDtype | pd.StringDtype | pd.PeriodDtype | pd.IntervalDtype
    if isinstance(kind, pd.StringDtype) and kind.storage == "pyarrow":  # a million cells one by one take a second
        text = pa.array(cells, from_pandas=True).cast(pa.large_binary())
        return pc.if_else(pc.equal(pc.binary_length(text), 0), None, text)
    if isinstance(kind, texts) or pd.api.types.is_object_dtype(kind):
        return written(cells)
    try:
        return pa.array(cells, from_pandas=True)
    except (pa.ArrowException, TypeError):
        raise _unfit(name, kind) from None


def _unfit(name: str, kind: object) -> BadInput:
    return BadInput(f"column {name!r} holds {kind_of(kind)}, not text, numbers or dates; convert it")
