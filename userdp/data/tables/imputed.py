"""Missing cells that get a declared value instead of making their sample unusable.

What takes their place is declared. A mean, a median or the most frequent level would be a function of everybody's
cells: one person's could be read off everybody else's samples, and no noise would hide it.
"""

import math
from collections.abc import Mapping, Sequence

from userdp.data.tables.cells import cell_text
from userdp.errors import BadInput

OWN_LEVEL = "own level"
"""What a column of categories is imputed with so that a missing cell is one more level."""

STATISTICS = frozenset(
    {"mean", "average", "median", "mode", "most frequent", "most_frequent", "max", "min", "last", "previous", "knn"}
)
"""Words for values that would be taken from the data."""


def imputed_number(column: str, value: object, bounds: Sequence[float] | None) -> float:
    """The number that stands for a missing cell of a column.

    Args:
        column: its name.
        value: as declared.
        bounds: the column's declared range; None where it has none.

    Raises:
        BadInput: no finite number within the range; of a word, why a statistic cannot be it.
    """
    field = f"impute.{column} = {value!r}"
    example = "" if bounds is None else f", such as the middle of its range, {0.5 * bounds[0] + 0.5 * bounds[1]:g}"
    if isinstance(value, str):
        raise BadInput(not_from_data(field, f"a public number{example}"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{field}: must be a public number{example}")
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        raise BadInput(f"{field}: must lie within ranges.{column} = [{bounds[0]:g}, {bounds[1]:g}]")
    return float(value)


def imputed_level(column: str, value: object, levels: Sequence[str], field: str) -> int:
    """The code of a missing cell: that of a declared level, or one after the last for a level of its own.

    Args:
        column: its name.
        value: as declared.
        levels: declared levels, as text.
        field: what declares them, for sentences.

    Raises:
        BadInput: neither ``OWN_LEVEL`` nor a declared level, or missing cells are a level already.
    """
    told = f"impute.{column} = {value!r}"
    if "" in levels:
        raise BadInput(f"{told}: {field} lists '', so a missing cell is a level already; leave one of the two out")
    if not isinstance(value, Mapping | list | tuple):
        text = cell_text(value)
        if value == OWN_LEVEL and text not in levels:
            return len(levels)
        if value != OWN_LEVEL and text in levels:
            return levels.index(text)
        if text in STATISTICS:
            raise BadInput(not_from_data(told, f"{OWN_LEVEL!r}, or a level of {field}"))
    raise BadInput(f"{told}: must be {OWN_LEVEL!r}, for one more level, or one of the levels of {field}")


def imputed_code(column: str, value: object, levels: int) -> int:
    """The same for a column of whole numbers 0..levels - 1.

    Raises:
        BadInput: neither ``OWN_LEVEL`` nor such a number.
    """
    told = f"impute.{column} = {value!r}"
    if value == OWN_LEVEL:
        return levels
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < levels:
        return value
    if isinstance(value, str) and value in STATISTICS:
        raise BadInput(not_from_data(told, f"{OWN_LEVEL!r}, or a level in 0..{levels - 1}"))
    raise BadInput(f"{told}: must be {OWN_LEVEL!r}, for one more level, or a level in 0..{levels - 1}")


def not_from_data(field: str, instead: str) -> str:
    """Why what is declared in ``field`` cannot be a statistic of the data, and what may stand there instead."""
    return (
        f"{field}: a value taken from the data would tell about the people in them, which no noise hides; declare "
        f"{instead}"
    )
