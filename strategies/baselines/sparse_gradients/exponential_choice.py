"""The exponential mechanism on lattice points of a ball: pure privacy for convex losses that need not be smooth.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 7), with its exponent, its scale of the net and the missing
factor 2 put right, and a smaller net. The candidates are the integer lattice times tau, within the l2 ball: rounding
each coordinate of a minimiser towards zero finds one of them with at most ``radius^2 / tau^2`` non-zero entries, which
are the paper's thresholding and its net of sparse vectors in one step. There are too many of them except in few
dimensions, or at a coarse tau.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import check_positive
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.noise import NoiseSource, Scores

MOST_STEPS = 1024
"""Finest net that is looked at: tau of a 32nd of the radius."""

LARGEST_NET = 10**6
"""Candidates that are still enumerated."""

LARGEST_ENTRIES = 1 << 26
"""Candidates times dimensions that are still enumerated: they are held as bytes."""

_BLOCK = 1 << 14
"""Candidates whose risk is computed at once."""

Risk = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A function from models (M, d) to their empirical risks (M,)."""


def lattice_counts(dimension: int, most: int = MOST_STEPS) -> NDArray[np.float64]:
    """(most + 1,): for m = 0..most, how many integer vectors of that dimension have squared l2 norms of at most m.

    Counts by squared norm are the coefficients of ``(1 + 2 q + 2 q^4 + 2 q^9 + ...)^dimension``. Exact below 2^53;
    what is larger may be given too small, but no smaller than that.
    """
    base = np.zeros(most + 1)
    base[np.arange(1, math.isqrt(most) + 1) ** 2] = 2.0
    base[0] = 1.0
    power = np.zeros(most + 1)
    power[0] = 1.0
    left = dimension
    while left:
        if left & 1:
            power = _product(power, base)
        base, left = _product(base, base), left >> 1
    return np.asarray(np.cumsum(power))


def _product(one: Vector, other: Vector) -> Vector:
    """The product of two power series, cut off at their common length; capped, so that nothing overflows."""
    return np.minimum(np.convolve(one, other)[: len(one)], 2.0**60)


@lru_cache(maxsize=64)
def enumerable(dimension: int) -> NDArray[np.float64]:
    """(K,): the numbers of candidates for steps = 0..K - 1, of those nets that are enumerated."""
    counts = lattice_counts(dimension)
    return counts[counts <= min(LARGEST_NET, LARGEST_ENTRIES // dimension)]


def lattice_points(dimension: int, squared_norm: int) -> NDArray[np.int8]:
    """(M, d): all integer vectors of squared l2 norm up to ``squared_norm``; `BadInput` if they are too many."""
    if dimension < 1 or not 0 <= squared_norm < len(enumerable(dimension)):
        raise BadInput(
            f"dimension = {dimension}, squared norm = {squared_norm}: there must be a dimension, and at most "
            f"{LARGEST_NET:g} lattice points are enumerated; use fewer dimensions or a coarser net"
        )
    points, left = np.zeros((1, 0), dtype=np.int8), np.array([squared_norm])
    side = math.isqrt(squared_norm)
    values = np.arange(-side, side + 1)
    for _ in range(dimension):
        rest = left[:, None] - values**2
        row, column = np.nonzero(rest >= 0)
        points = np.column_stack([points[row], values[column].astype(np.int8)])
        left = rest[row, column]
    return points


@dataclass(frozen=True)
class SparseExponential:
    """Chooses one of the lattice points ``tau z``, z an integer vector with ``||z||_2^2 <= steps``, by their risks.

    *Formal guarantees.* Unit: one record, a sample or a whole user; relation: replace-one; n public. (epsilon, 0)-DP
    for whoever sees the model. *Proof.* The law of the choice does not change when ``F(0)`` is taken off all risks.
    ``f_i(x) - f_i(0)`` lies within ``L radius`` of zero on the ball, so replacing a record moves the rest by at most
    ``spread / n``, where the spread is ``2 L radius`` or a smaller declared one; the exponential mechanism with
    exponent ``-epsilon n F / (2 spread)`` is epsilon-DP (McSherry, Talwar 2007). Assumptions: convexity is not needed
    for privacy; every ``f_i`` is L-Lipschitz on the ball, or within ``spread`` of every other record's, at each x, up
    to a constant. The server computes exact risks and is trusted.

    *Utility.* For every x of the ball, rounding ``x / tau`` towards zero gives a candidate within tau in the sup norm.
    If the risk is convex and its gradients have l1 norms of at most ``L sqrt(s)``, then with probability
    ``1 - failure`` the excess risk is at most `excess_bound` (Theorem 7.5, at half its discretisation error).

    Raises `BadInput` for a number out of range, or more candidates than are enumerated.
    """

    records: int  # n
    dimension: int  # d
    sparsity: int  # s, most non-zero entries of a sample's gradient
    gradient_norm: float  # L, > 0: l2 bound on gradients
    radius: float  # of the l2 ball around zero, > 0
    epsilon: float  # > 0
    steps: int  # the squared norm of the farthest candidate in units of tau, ``radius^2 / tau^2``; at least 1
    # how far apart the losses of two records can be at one model, up to a constant; ``2 L radius`` if None
    spread: float | None = None

    def __post_init__(self) -> None:
        names = ("gradient_norm", "radius", "epsilon", "range_of_losses")
        check_positive(**{name: getattr(self, name) for name in names})
        if self.records < 1 or not 1 <= self.sparsity <= self.dimension:
            raise BadInput(
                f"records = {self.records}, sparsity = {self.sparsity}, dimension = {self.dimension}: there must be a "
                "record, and a sparsity between 1 and the dimension"
            )
        if not 1 <= self.steps < len(enumerable(self.dimension)):
            raise BadInput(
                f"steps = {self.steps}: must be at least 1, and small enough for at most {LARGEST_NET:g} candidates "
                f"in {self.dimension} dimensions"
            )

    @classmethod
    def planned(
        cls,
        records: int,
        dimension: int,
        sparsity: int,
        gradient_norm: float,
        radius: float,
        epsilon: float,
        failure: float = 0.1,
        spread: float | None = None,
        most_candidates: int = LARGEST_NET,
    ) -> "SparseExponential":
        """Return the mechanism whose net has the least `excess_bound`, among nets of at most so many candidates.

        Raises `BadInput` for a number out of range, or not even the coarsest net can be enumerated.
        """
        coarsest = cls(records, dimension, sparsity, gradient_norm, radius, epsilon, 1, spread)
        if coarsest.candidates > most_candidates:
            raise BadInput(
                f"most_candidates = {most_candidates}: the coarsest net in {dimension} dimensions has "
                f"{coarsest.candidates}; raise it, or use fewer dimensions"
            )
        finest = int(np.searchsorted(enumerable(dimension), most_candidates, side="right"))
        choices = [replace(coarsest, steps=steps) for steps in range(1, finest)]
        return min(choices, key=lambda choice: choice.excess_bound(failure))

    @property
    def tau(self) -> float:
        """Distance of neighbouring candidates, and how far in the sup norm the nearest one can be."""
        return self.radius / math.sqrt(self.steps)

    @property
    def range_of_losses(self) -> float:
        """B, what n times the sensitivity of the risk is."""
        certain = 2 * self.gradient_norm * self.radius
        return certain if self.spread is None else min(self.spread, certain)

    @cached_property
    def candidates(self) -> int:
        """The number of candidates."""
        return int(enumerable(self.dimension)[self.steps])

    def excess_bound(self, failure: float) -> float:
        """``L sqrt(s) tau + (2 B / (epsilon n)) (ln candidates + ln(1/failure))``, for a failure in (0, 1)."""
        if not 0 < failure < 1:
            raise BadInput(f"failure = {failure}: must lie strictly between 0 and 1")
        logs = math.log(self.candidates) - math.log(failure)
        noise = 2 * self.range_of_losses / (self.epsilon * self.records) * logs
        return self.gradient_norm * math.sqrt(self.sparsity) * self.tau + noise

    def net(self) -> NDArray[np.float64]:
        """(M, d): the candidates."""
        return np.asarray(lattice_points(self.dimension, self.steps) * self.tau, dtype=np.float64)

    def scores(self, risk: Risk) -> Scores:
        """(M,) scores: minus the candidates' risks in units of the sensitivity, in the order of `net`."""
        points = lattice_points(self.dimension, self.steps)
        starts = range(0, len(points), _BLOCK)
        blocks = [risk(np.asarray(points[start : start + _BLOCK] * self.tau, dtype=np.float64)) for start in starts]
        risks = np.concatenate(blocks)
        if risks.shape != (len(points),) or not np.isfinite(risks).all():
            raise BadInput("a risk is no finite number for each candidate")
        return Scores(np.asarray(-risks * (self.records / self.range_of_losses)), 1.0)

    def __call__(self, risk: Risk, noise: NoiseSource) -> Vector:
        """A private model (d,). Raises `BadInput`: the risk of a candidate is not a finite number."""
        chosen = ExponentialMechanism(1.0, self.epsilon).choose(self.scores(risk), noise)
        return np.asarray(lattice_points(self.dimension, self.steps)[chosen] * self.tau, dtype=np.float64)
