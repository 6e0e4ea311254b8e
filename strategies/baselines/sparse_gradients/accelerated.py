"""Accelerated projected gradient descent whose distance to the minimiser is known before it starts.

All points at which gradients are taken lie in the domain, since bounds on a loss are proven there and nowhere else.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from userdp.accounting import check_positive
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.state import Stateful


class AcceleratedDescent(Stateful):
    """Minimises phi, mu-strongly convex with a beta-Lipschitz gradient (l2) over a closed convex set.

    With ``theta = sqrt(mu / beta)``, from ``x = z``: ``y = (x + theta z) / (1 + theta)``, ``w = (1 - theta) z + theta
    y``, ``z+ = project(w - (theta / mu) grad phi(y))``, ``x+ = (1 - theta) x + theta z+``.

    *Formal guarantees.* ``E = phi(x) - min phi + (mu / 2) ||z - x*||^2`` falls at least by the factor ``1 - theta`` a
    step, whatever the set. *Proof.* ``x+ - y = theta (z+ - w)`` and ``beta theta^2 = mu``, so with l the linear
    approximation of phi at y, ``phi(x+) <= (1 - theta) l(x) + theta l(z+) + (mu / 2) ||z+ - w||^2``. As z+ minimises
    the last two terms, they are at most ``theta l(x*) + (mu / 2) ||x* - w||^2 - (mu / 2) ||x* - z+||^2``, and
    ``||x* - w||^2 <= (1 - theta) ||x* - z||^2 + theta ||x* - y||^2``. Now ``l(x) <= phi(x)`` and
    ``l(x*) + (mu / 2) ||x* - y||^2 <= phi(x*)``. (Real arithmetic: rounding is not part of the proof.)

    ``start`` (d,) lies in the domain, on which ``project`` is the Euclidean projection. The next gradient is to be
    taken at ``query``, y; ``point`` is x.
    """

    remembered: ClassVar[tuple[str, ...]] = ("query", "point", "_lead")
    given: ClassVar[tuple[str, ...]] = ("_theta", "_rate", "_project")

    def __init__(
        self, start: Vector, strong_convexity: float, smoothness: float, project: Callable[[Vector], Vector]
    ) -> None:
        self._theta = momentum_share(strong_convexity, smoothness)
        self._rate = self._theta / strong_convexity
        self._project = project
        self.query = self.point = self._lead = np.array(start, dtype=np.float64)

    def step(self, gradient: Vector) -> None:
        """One step along the gradient of phi at `query`, (d,)."""
        theta = self._theta
        centre = (1 - theta) * self._lead + theta * self.query
        self._lead = self._project(centre - self._rate * gradient)
        self.point = (1 - theta) * self.point + theta * self._lead
        self.query = (self.point + theta * self._lead) / (1 + theta)


def momentum_share(strong_convexity: float, smoothness: float) -> float:
    """The theta of `AcceleratedDescent`. Raises `BadInput`: not ``0 < strong_convexity <= smoothness < inf``."""
    if not 0 < strong_convexity <= smoothness < math.inf:
        raise BadInput(
            f"strong convexity = {strong_convexity} and smoothness = {smoothness}: both must be positive numbers, the "
            "first at most the second"
        )
    return math.sqrt(strong_convexity / smoothness)


def gap_after(rounds: int, gap: float, theta: float) -> float:
    """Bound on E after that many steps of `AcceleratedDescent`, from ``gap``."""
    return gap * (1 - theta) ** rounds


def rounds_until(target: float, gap: float, theta: float) -> int:
    """Fewest steps, at least 1, after which `gap_after` is at most ``target``; `BadInput` unless that is positive."""
    check_positive(target=target)
    if theta == 1 or gap <= target:
        return 1
    rounds = max(1, math.ceil(math.log(target / gap) / math.log1p(-theta)))
    return rounds if gap_after(rounds, gap, theta) <= target else rounds + 1
