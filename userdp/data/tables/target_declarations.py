"""What may be declared of the column to predict: a range of numbers, a cell that means 1, or the levels of classes."""

from collections.abc import Mapping, Sequence

from userdp.data.tables.declared import checked_levels, checked_range
from userdp.errors import BadInput

_FORMS = "target_range is for numbers, positive for two classes, target_levels for classes with names"


def check_target(
    target: str | None, bounds: Sequence[float] | None, positive: object | None, levels: Sequence[object] | None
) -> None:
    """Refuse declarations of a target that contradict each other.

    Args:
        target: its column; None for none.
        bounds: `Columns.target_range`.
        positive: the same of ``positive``.
        levels: the same of ``target_levels``.

    Raises:
        BadInput: more than one of them, any without a column, or what none of them can be.
    """
    declared = {"target_range": bounds, "positive": positive, "target_levels": levels}
    given = [name for name, value in declared.items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"{given[0]} and {given[1]} exclude each other: {_FORMS}")
    if target is None and given:
        raise BadInput(f"{given[0]} describes a target, and target names no column")
    if isinstance(positive, Mapping | list | tuple | set):
        raise BadInput(
            f"positive = {positive!r}: must be the one cell that means 1; to join several, add a column of 0 and 1 to "
            "the table, and make it the target; for several classes list them in target_levels"
        )
    if bounds is not None:
        checked_range("target_range", bounds)
    if levels is not None and len(checked_levels("target_levels", levels)) < 2:
        raise BadInput(
            f"target_levels = {list(levels)!r}: a target of one class tells nothing; list two or more, or name the one "
            "cell of interest as positive"
        )
