"""The target of samples: what is declared about it, and its values."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.cells import Rows, cell_text
from userdp.data.tables.codes import codes_of
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.declared import checked_levels, checked_range, scaled
from userdp.data.tables.unusable import MISSING, NOT_POSITIVE, Counts
from userdp.errors import BadInput
from userdp.settings import shown


def check_target(declared: Declaration) -> None:
    """Refuse more than one declaration of a target, one without a target, and malformed ones."""
    positive, levels = declared.positive, declared.target_levels
    given = [name for name in ("target_range", "positive", "target_levels") if getattr(declared, name) is not None]
    if len(given) > 1:
        raise BadInput(
            f"{given[0]} and {given[1]} exclude each other: declare target_range for numbers, positive for two classes "
            "or target_levels for named ones"
        )
    if declared.survival is not None and declared.target is not None:
        raise BadInput(f"target = {declared.target!r}: survival makes the target; leave target out")
    if declared.target is None and given:
        raise BadInput(f"{given[0]} describes a target, and target names no column; declare target")
    if isinstance(positive, Mapping | list | tuple | set):
        raise BadInput(
            f"positive = {shown(positive)}: must be the one cell that means 1; to join several, make a column of 0 and "
            "1 the target; for several classes list them in target_levels"
        )
    if declared.target_range is not None:
        checked_range("target_range", declared.target_range)
    if levels is not None and len(checked_levels("target_levels", levels)) < 2:
        raise BadInput(
            f"target_levels = {levels!r}: a target of one class holds no information; list two or more, or declare the "
            "one cell of interest as positive"
        )


def target_shape(declared: Declaration) -> dict[str, Any]:
    """Return the fields of `userdp.data.shape.Shape` about the target."""
    scaled_target, survival = declared.target_range is not None, declared.survival is not None
    binary = declared.positive is not None or survival
    return {
        "has_target": declared.target is not None or survival,
        "target_range": (0.0, 1.0) if binary else (-1.0, 1.0) if scaled_target else None,
        "scaled_target": scaled_target,
        "classes": None if declared.target_levels is None else len(declared.target_levels),
    }


def targets_of(
    table: Rows, declared: Declaration, rows: NDArray[np.int64], counts: Counts
) -> NDArray[np.float32] | None:
    """Return the targets of the chosen ``rows`` (N,), NaN where a loss could not use one; None without a target."""
    column = declared.target
    if column is None:
        return None
    if declared.target_levels is not None:
        codes = codes_of(table, column, declared.target_levels, counts)
        targets = np.where(codes < 0, np.nan, codes).astype(np.float32)[rows]
        counts.unknown_levels[column] = int(np.count_nonzero(np.isnan(targets)))
    elif declared.positive is not None:
        texts, wanted = table.texts[column], cell_text(declared.positive)
        other = NOT_POSITIVE if any(texts.distinct) else MISSING
        counts.note_kind(column, None if wanted and wanted in texts.distinct else other)
        meanings = np.array([np.nan if text == "" else text == wanted for text in texts.distinct], dtype=np.float32)
        targets = meanings[texts.positions[rows]]
    else:
        counts.note_kind(column, table.kinds.get(column))
        values = table.numbers[column][rows]
        counts.note_ends(column, values)
        if declared.target_range is not None:
            bounds = checked_range("target_range", declared.target_range)
            targets, counts.clipped[column] = scaled(values, bounds, -1.0, 1.0)
        else:
            targets = np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.nan).astype(np.float32)
    counts.unusable[column] = int(np.count_nonzero(np.isnan(targets)))
    return targets
