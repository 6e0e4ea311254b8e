"""Targets of rows: numbers as they are or within a declared range, or one of several classes; each row by itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.cells import Texts, cell_text
from userdp.data.tables.columns import Columns
from userdp.data.tables.counts import Counts, listed
from userdp.data.tables.declared import checked_levels, checked_range, level_codes, scaled
from userdp.data.tables.reading import Rows
from userdp.data.tables.unusable import MISSING, NO_LEVEL


def targets_of(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32] | None:
    """(N,) targets of the chosen ``rows`` (N,), NaN for those that no loss could use; None where no column is one."""
    column = columns.target
    if column is None:
        return None
    kind = table.kinds.get(column)
    if columns.target_levels is not None:
        every = _class_targets(table.texts[column], column, columns.target_levels, counts)
        kind = NO_LEVEL if np.isnan(every).all() else None
        targets = every[rows]
        counts.unknown[column] = int(np.count_nonzero(np.isnan(targets)))
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
    """Of all rows: 1 for ``positive``, NaN for a missing cell, 0 for others."""
    wanted = cell_text(positive)
    counts.note(
        f"positive = {positive!r} is in no cell of the target {column!r}: check its spelling", wanted in texts.distinct
    )
    meanings = np.array([np.nan if text == "" else text == wanted for text in texts.distinct], dtype=np.float32)
    return meanings[texts.positions]


def _class_targets(texts: Texts, column: str, levels: Sequence[object], counts: Counts) -> NDArray[np.float32]:
    """Of all rows: the position of the cell among the declared levels, NaN where it is none of them."""
    codes = level_codes(texts, checked_levels("target_levels", levels))
    counts.note_levels(column, listed(levels), codes >= 0)
    return np.where(codes < 0, np.nan, codes).astype(np.float32)
