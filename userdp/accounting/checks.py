"""Checks of arguments that the modules of this package share."""

import math
from typing import get_args

from userdp.accounting.guarantee import Relation
from userdp.errors import BadInput


def check_positive(**numbers: float) -> None:
    """Refuse numbers that are not positive and finite, with a `BadInput` that names the first."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise BadInput(f"{name} = {value}: must be a positive number")


def check_delta(delta: float, *, or_zero: bool = False) -> None:
    """Refuse (`BadInput`) a delta outside (0, 1), or outside [0, 1) if it may be zero."""
    if or_zero and not 0 <= delta < 1:
        raise BadInput(f"delta = {delta}: must lie in [0, 1)")
    if not or_zero and not 0 < delta < 1:
        raise BadInput(f"delta = {delta}: must lie strictly between 0 and 1, such as 1e-6")


def check_guarantee(epsilon: float, delta: float) -> None:
    """Refuse (`BadInput`) an epsilon outside [0, inf), or a delta outside [0, 1)."""
    if not 0 <= epsilon < math.inf:
        raise BadInput(f"epsilon = {epsilon}: must be zero or a positive number")
    check_delta(delta, or_zero=True)


def check_least(name: str, value: int, least: int = 1) -> None:
    """Refuse (`BadInput`) a number below the least allowed one; ``name`` names it in the message."""
    if value < least:
        raise BadInput(f"{name} = {value}: must be at least {least}")


def check_relation(relation: Relation) -> None:
    """Refuse (`BadInput`) a neighbouring relation of another name."""
    if relation not in get_args(Relation):
        raise BadInput(f"relation = {relation!r}: must be {' or '.join(map(repr, get_args(Relation)))}")


def check_rate(rate: float, name: str = "rate") -> None:
    """Refuse (`BadInput`) a sampling probability outside (0, 1]."""
    if not 0 < rate <= 1:
        raise BadInput(f"{name} = {rate}: the probability of taking part in a round must lie in (0, 1]")
