"""Checks of public numbers that strategies for sparse models need before they begin."""

import math

import numpy as np

from strategies import Given
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.problems import Box


def check_room(domain: Box, centre: Vector, radius: float, setting: str, ball: str) -> None:
    """Refuse (`BadInput`) a ball about ``centre`` that leaves the domain: models in it are released."""
    room = domain.radius - float(np.abs(centre - domain.centre).max())
    if not radius <= room:
        raise BadInput(
            f"strategy.{setting} = {radius:g}: {ball} must lie in the problem's domain, which has room for "
            f"{max(room, 0):g}; lower it or raise problem.radius"
        )


def declared(given: Given, setting: str, value: float | None, use: str) -> float:
    """Return a setting, or its stand-in, that ``use`` needs; `BadInput` if it is no positive number."""
    if not value or math.isinf(value):
        raise BadInput(f"strategy.{setting} must be declared: {given.strategy} {use}")
    return value


def declared_sparsity(given: Given, setting: int | None) -> int:
    """Return the s that rows are clipped for; `BadInput` if it is neither set nor certified."""
    s = setting or given.problem.certificate.sparsity
    if s is None:
        raise BadInput(
            f"strategy.sparsity is not set, and {given.problem.name} certifies none: set it to the most non-zeros that "
            "a sample's gradient can have, or use dp_fed_sgd"
        )
    return min(s, given.dimension)


def no_better(bound: float, untrained: float, remedy: str) -> tuple[str, ...]:
    """The warning that a bound on the excess risk says nothing beyond that of the start, if it does not."""
    if bound < untrained:
        return ()
    return (
        f"the bound on the excess risk ({bound:.3g}) is no better than that of the start, never trained "
        f"({untrained:.3g}): bring more users, raise privacy.epsilon, or {remedy}",
    )
