"""Smoothed concentration scores: how many users agree with each other, on average.

``score = (1/B) sum_ij phi(||q_i - q_j||_inf)``, between 1 and B, for a kernel phi that falls from 1 to 0. Source:
Ghazi, Kumar, Liu, Manurangsi, "Linear-Time User-Level DP-SCO via Robust Statistics" (2025), Algorithm 3, with the
radius rho where they write 1/tau. The ramp kernel is ours.

*Floating point.* The bounds below are those of the COMPUTED score, for finite rows of any size. Three things make
them so, with u = 2^-53:

- The computed distance of a pair is the exact one, rounded once: each difference is rounded once (not at all where it
  is subnormal; to infinity where it overflows), and the largest of rounded numbers is the largest number, rounded.
- The phi of a pair is a function of that computed distance alone, rounded to a multiple of ``1 / STEPS`` = 2^-30. No
  other row has a part in it. A pair that `_ramp_pairs` decides without its distance has the same phi, to the last bit.
- Sums of phi are exact: a tile of 1024^2 pairs adds up to at most 2^50 steps, and tiles are added as integers. So
  neither the order of the rows nor the way the pairs are found makes a difference. Only the score itself, the quotient
  ``1 + 2 pairs / B``, is rounded, once, by at most u B; the bounds hold up to this rounding.

*Formal guarantees* of the score, unit one row (a user):

- **Replacement.** Replacing one row changes the B - 1 pairs it is in, each counted twice and each by at most 1:
  the score changes by at most ``2 (B - 1) / B``.
- **Movement.** If every pairwise distance changes by at most h, each of the B (B - 1) ordered pairs changes by at
  most the kernel's modulus of continuity at h: ``(B - 1) (1 - exp(-h/rho))`` for `ExpKernel` (for u <= v <= u + h,
  ``exp(-u/rho) - exp(-v/rho) <= exp(-u/rho) (1 - exp(-h/rho))``), ``(B - 1) min(1, 2h/rho)`` for `RampKernel`; and
  by 2^-29 a pair more where h > 0: half of it for the grid, and far less than the other half for the rounding of
  distances and of phi.
- **Unaligned bound.** If no ball of radius rho holds two thirds of the rows, fewer than 2B/3 rows lie within rho of
  any q_i and each of the others scores at most phi(rho), as computed: the score is at most
  ``B (2/3 + phi(rho)/3)``, where phi(rho) is 1/e, to within 2^-30, or 0.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Rows
from userdp.errors import BadInput
from userdp.estimators.distances import SLACK, TILE, Distances, all_pairs, sup_distances
from userdp.estimators.robust import coordinate_median

STEPS = 1 << 30
"""Phi is a whole number of steps of ``1 / STEPS``, so that sums of it are exact."""

_LARGEST_RADIUS = 2.0**960
"""Between its inverse and itself, rho can be divided by, and a distance that overflows is far beyond it."""


class Kernel(Protocol):
    """A kernel phi of the score, with the bounds that the module's proofs give."""

    @property
    def radius(self) -> float:
        """Rho, in units of the rows."""
        ...

    def values(self, distance: Distances) -> Distances:
        """Phi of each distance, a multiple of ``1 / STEPS``; may write into ``distance``."""
        ...

    def unaligned_bound(self, batch: int) -> float:
        """U: the largest score of a batch that is not aligned at rho."""
        ...

    def movement_bound(self, batch: int, movement: float) -> float:
        """How much the score can change when every pairwise distance changes by at most ``movement``."""
        ...


@dataclass(frozen=True)
class ExpKernel:
    """``phi(u) = exp(-u / radius)`` (Ghazi et al. 2025, Algorithm 3).

    Attributes:
        radius: rho > 0. A batch scores 0.95 B when its mean distance is 0.05 rho.
    """

    radius: float

    def __post_init__(self) -> None:
        check_radius(self.radius)

    def values(self, distance: Distances) -> Distances:
        """Phi of each distance, a multiple of ``1 / STEPS``, written into ``distance``."""
        np.divide(distance, -self.radius, out=distance)
        np.exp(distance, out=distance)
        distance *= STEPS
        return _phi_of_steps(distance)

    def unaligned_bound(self, batch: int) -> float:
        """U: the largest score of a batch that is not aligned at rho."""
        return batch * (2 + math.exp(-1) + 1 / STEPS) / 3

    def movement_bound(self, batch: int, movement: float) -> float:
        """How much the score can change when every pairwise distance changes by at most ``movement``."""
        return _moved_pairs(batch, movement, -math.expm1(-_checked_movement(movement) / self.radius))


@dataclass(frozen=True)
class RampKernel:
    """``phi(u) = 1`` up to ``radius / 2``, falling linearly to 0 at ``radius``.

    Users that agree within rho / 2 score the full B, so rho need be only twice the largest pairwise distance.

    Attributes:
        radius: rho > 0.
    """

    radius: float

    def __post_init__(self) -> None:
        check_radius(self.radius)

    def values(self, distance: Distances) -> Distances:
        """Phi of each distance, a multiple of ``1 / STEPS``, written into ``distance``."""
        np.multiply(distance, -2 * STEPS / self.radius, out=distance)
        distance += 2 * STEPS
        np.clip(distance, 0.0, STEPS, out=distance)
        return _phi_of_steps(distance)

    def unaligned_bound(self, batch: int) -> float:
        """U: the largest score of a batch that is not aligned at rho."""
        return 2 * batch / 3

    def movement_bound(self, batch: int, movement: float) -> float:
        """How much the score can change when every pairwise distance changes by at most ``movement``."""
        return _moved_pairs(batch, movement, 2 * _checked_movement(movement) / self.radius)


def replacement_bound(batch: int) -> float:
    """How much the score can change when one of ``batch`` rows is replaced: ``2 (B - 1) / B``."""
    return 2 * (batch - 1) / batch


def concentration_score(rows: Rows, kernel: Kernel) -> float:
    """The score of (B, d) rows, in [1, B]: the exact sum of the pairs' phi, divided and rounded once.

    Raises:
        BadInput: rows are not a non-empty matrix of finite numbers.
    """
    centre = coordinate_median(rows)
    whole = len(rows) * STEPS
    # The overflow that a difference of huge rows may cause is an infinite distance, whose phi is 0.
    with np.errstate(over="ignore"):
        steps = (
            _ramp_pairs(rows, centre, kernel) if isinstance(kernel, RampKernel) else _all_pairs(rows, centre, kernel)
        )
    return (whole + 2 * steps) / whole


def _all_pairs(rows: Rows, centre: NDArray[np.float64], kernel: Kernel) -> int:
    """Steps of phi over all pairs i < j, each pair once."""
    return sum(_steps(kernel.values(distances).sum()) for distances in all_pairs(rows, centre))


def _ramp_pairs(rows: Rows, centre: NDArray[np.float64], kernel: RampKernel) -> int:
    """Steps of the ramp's phi over all pairs i < j; only undecided pairs are computed.

    With ``r_i = ||q_i - centre||_inf`` the triangle inequality gives phi = 1 when ``r_i + r_j <= rho / 2`` and
    phi = 0 when ``r_j - r_i >= rho``. In rising order of r, the undecided partners j > i of each i are
    consecutive, and both their ends are found by bisection.

    What is decided here is what the pair's own distance would give. Computed deviations R are the r rounded once, as
    distances are. Where ``R_i + R_j <= rho / 2`` as computed, the distance exceeds rho / 2 by a share of a few u of
    it, and phi is 1 on the grid up to a share of 2^-31. Where ``R_j > (R_i + rho) (1 + 8u)`` as computed, its three
    roundings leave ``R_j > (R_i + rho) (1 + 5u)``, so ``r_j - r_i > (R_i + rho) (1 + 3u) - R_i (1 + 2u) > rho``: the
    error of a deviation, which can be far larger than rho, is paid for by its own size. Infinite deviations decide
    nothing between them, nor does a right side that overflows; and no number is larger than itself.
    """
    deviations = _deviations(rows, centre)
    order = np.argsort(deviations, kind="stable")
    deviations = deviations[order]
    later = np.arange(1, len(rows) + 1)
    first = np.maximum(np.searchsorted(deviations, kernel.radius / 2 - deviations, side="right"), later)
    last = np.maximum(np.searchsorted(deviations, (deviations + kernel.radius) * SLACK, side="right"), first)
    certain = int((first - later).sum()) * STEPS
    undecided = int((last - first).sum())
    if undecided == 0:
        return certain
    if 4 * undecided > len(rows) * (len(rows) - 1):
        return _all_pairs(
            rows, centre, kernel
        )  # compiled for half of the square, faster than most of a square in tiles
    points = np.ascontiguousarray(rows, dtype=np.float64)[order]
    return certain + _undecided_pairs(points, first, last, kernel)


def _undecided_pairs(points: Rows, first: NDArray[np.intp], last: NDArray[np.intp], kernel: Kernel) -> int:
    """Steps of phi over pairs (i, j) with ``first[i] <= j < last[i]``, in tiles that hold some such pair."""
    total = 0
    for start in range(0, len(points), TILE):
        stop = min(start + TILE, len(points))
        starts, ends = first[start:stop, None], last[start:stop, None]
        undecided = ends > starts
        if not undecided.any():
            continue
        left, right = int(starts[undecided].min()), int(ends[undecided].max())
        for column in range(left, right, TILE):
            columns = np.arange(column, min(column + TILE, right))
            wanted = (columns >= starts) & (columns < ends)
            used = wanted.any(axis=1)
            tile = points[start:stop][used]
            phi = kernel.values(sup_distances(tile, points[column : column + len(columns)]))
            total += _steps(phi.sum(where=wanted[used]))
    return total


def _phi_of_steps(steps: Distances) -> Distances:
    """Numbers of steps, rounded to whole ones, as phi; in place."""
    np.rint(steps, out=steps)
    return np.multiply(steps, 1 / STEPS, out=steps)


def _steps(total: np.float64) -> int:
    """The exact sum of a tile's phi, in steps."""
    return int(total * STEPS)


def _moved_pairs(batch: int, movement: float, modulus: float) -> float:
    """How far the score moves with B - 1 pairs a row that each move by at most the modulus, plus rounding."""
    rounding = 2 / STEPS if movement > 0 else 0.0
    return (batch - 1) * min(1.0, modulus + rounding)


def _deviations(rows: Rows, centre: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B,) sup-norm distance of each row from the centre, by blocks of rows."""
    step = max(1, TILE * TILE // rows.shape[1])
    blocks = range(0, len(rows), step)
    return np.concatenate([np.abs(rows[first : first + step] - centre).max(axis=1) for first in blocks])


def check_radius(radius: float) -> None:
    """Refuse radii that are too small or too large for floats of their size to be divided or added up.

    Raises:
        BadInput: the radius is no positive number, or one of those.
    """
    if not 1 / _LARGEST_RADIUS <= radius <= _LARGEST_RADIUS:
        raise BadInput(
            f"radius = {radius}: must be a positive number, in units of the gradients, between "
            f"{1 / _LARGEST_RADIUS:.0e} and {_LARGEST_RADIUS:.0e}"
        )


def _checked_movement(movement: float) -> float:
    if not movement >= 0:
        raise BadInput(f"movement = {movement}: must be zero or a positive bound on how far distances move")
    return movement
