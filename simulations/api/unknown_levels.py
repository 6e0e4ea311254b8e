"""Rows at prediction with cells that are none of the declared levels."""

import logging
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Features
from userdp.data.tables.sample_kinds import SampleKind
from userdp.errors import BadInput
from userdp.settings import shown

log = logging.getLogger("userdp")
OnUnknown = Literal["nan", "reference", "error"]
"""The prediction for a row with a cell that is none of the declared levels of its column, or missing where `impute`
declares nothing: NaN; the prediction for the first declared level; or nothing for any row, but an error."""


def check_on_unknown(given: str, *allowed: str) -> None:
    """Refuse what is none of `OnUnknown`, or of those ``allowed``."""
    if given not in (allowed := allowed or get_args(OnUnknown)):
        raise BadInput(f"on_unknown = {shown(given)}: must be {' or '.join(map(repr, allowed))}")


def told_cells(cells: Mapping[str, int]) -> str:
    """Tell columns and their cells, for the holder of the table."""
    return ", ".join(f"{column!r} in {count}" for column, count in cells.items())


def taken_levels(
    samples: SampleKind, features: Features, unusable: Mapping[str, int], on_unknown: OnUnknown
) -> tuple[NDArray[np.bool_], Mapping[str, int]]:
    """Return which rows (N,) get no prediction because of an undeclared level, and the unusable cells by column.

    With "reference" the features of such rows become those of each column's first level. Raises `BadInput` for "error".
    """
    rows = features.shape[0]
    unknown = samples.without_level(features, reference=on_unknown == "reference")
    lost = np.logical_or.reduce([np.zeros(rows, dtype=bool), *unknown.values()])
    cells = {column: int(mask.sum()) for column, mask in unknown.items() if mask.any()}
    if cells and on_unknown == "error":
        raise BadInput(
            f"on_unknown = 'error': {lost.sum()} of {rows} rows hold no declared level of a column "
            f"({told_cells(cells)} of them); correct these cells, or give 'nan' or 'reference'"
        )
    if not cells or on_unknown == "nan":
        return lost, {**unusable, **cells}
    log.warning(
        "%d of %d rows hold no declared level of a column (%s of them): they are predicted as if they held its first "
        "one",
        lost.sum(),
        rows,
        told_cells(cells),
    )
    lost[:] = False
    return lost, {column: count for column, count in unusable.items() if column not in cells}
