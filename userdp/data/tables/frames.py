"""A pandas DataFrame as a Parquet file, which is then read like any other table, cell by cell."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from userdp.data.tables.cells import cell_text
from userdp.data.tables.reading import require_columns
from userdp.errors import BadInput


def write_frame(frame: pd.DataFrame, path: Path, names: Sequence[str]) -> None:
    """Write the columns ``names`` of a frame to a Parquet file.

    *Formal guarantee*: a cell's result depends on that cell and on its column's dtype, and no cell makes writing fail.
    A column of dtype object or category holds values of any types, and Arrow would choose one type for all; its cells
    are written as text, each by itself: text unchanged, other values by `cell_text`. A column's dtype counts as public,
    like the types of a Parquet file.

    Raises `BadInput` for no rows, a column that is missing or occurs twice, or a dtype without a type in Parquet.
    """
    require_columns("the DataFrame", names, frame.columns)
    if not len(frame):
        raise BadInput("the DataFrame has no rows; a federation needs at least one sample")
    numbers = {str(name): position for position, name in enumerate(frame.columns)}
    pq.write_table(pa.table({name: _column(frame.iloc[:, numbers[name]], name) for name in names}), path)


def _column(cells: "pd.Series[Any]", name: str) -> pa.Array:
    kind = cells.dtype
    if isinstance(kind, pd.CategoricalDtype | pd.StringDtype) or pd.api.types.is_object_dtype(kind):
        return pa.array([_text(cell) for cell in cells], type=pa.large_binary())
    try:
        return pa.array(cells, from_pandas=True)
    except (pa.ArrowException, TypeError):
        raise BadInput(f"column {name!r} holds {kind}, not text, numbers or dates; convert it") from None


def _text(cell: object) -> bytes | None:
    """Return a cell as text, in bytes, which may be no UTF-8; None if it is missing. Text and bytes are unchanged."""
    if isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        return str.encode(cell, "utf-8", "backslashreplace") or None
    try:
        text = cell_text(cell)
    except Exception:  # the cell's own code may raise anything: it has no text, and must not stop the others
        return None
    return text.encode("utf-8", "backslashreplace") or None
