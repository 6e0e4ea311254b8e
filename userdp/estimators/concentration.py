"""Smoothed concentration scores: how many users agree with each other, on average.

``score = (1/B) sum_ij phi(||q_i - q_j||_inf)``, between 1 and B, for a kernel phi that falls from 1 to 0. Source:
Ghazi, Kumar, Liu, Manurangsi, "Linear-Time User-Level DP-SCO via Robust Statistics" (2025), Algorithm 3, with the
radius rho for their 1/tau. The ramp kernel is ours.

*Floating point.* The bounds below hold for the COMPUTED score of finite rows of any size. With u = 2^-53:

- A pair's computed distance is the exact one, rounded once: each difference is rounded once (not at all where
  subnormal; to infinity where it overflows), and the largest rounded number is the largest number, rounded.
- A pair's phi depends on that computed distance alone and is rounded to a multiple of ``1 / STEPS`` = 2^-30. A pair
  that `_ramp_pairs` decides without its distance has the same phi, to the last bit.
- Sums of phi are exact: a tile of 1024^2 pairs adds up to at most 2^50 steps, and tiles are added as integers. So the
  order of the rows and the way the pairs are found make no difference. Only the score, the quotient
  ``1 + 2 pairs / B``, is rounded, once, by at most u B; the bounds hold up to this rounding.

*Formal guarantees* of the score, unit one row (a user):

- **Replacement.** Replacing one row changes its B - 1 pairs, each counted twice, by at most 1 each: the score changes
  by at most ``2 (B - 1) / B``.
- **Movement.** If every pairwise distance changes by at most h, each of the B (B - 1) ordered pairs changes by at most
  the kernel's modulus of continuity at h: ``(B - 1) (1 - exp(-h/rho))`` for `ExpKernel` (for u <= v <= u + h,
  ``exp(-u/rho) - exp(-v/rho) <= exp(-u/rho) (1 - exp(-h/rho))``), ``(B - 1) min(1, 2h/rho)`` for `RampKernel`; and by
  2^-29 a pair more where h > 0: half of it for the grid, and far less for the rounding of distances and phi.
- **Unaligned bound.** If no ball of radius rho holds two thirds of the rows, fewer than 2B/3 rows lie within rho of any
  q_i and each of the others scores at most phi(rho), as computed: the score is at most ``B (2/3 + phi(rho)/3)``, where
  phi(rho) is 1/e, to within 2^-30, or 0.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from userdp.arrays.types import Rows
from userdp.errors import BadInput
from userdp.estimators.robust import check_rows, coordinate_median

TILE = 1024  # The rows and columns of a tile of distances: 8 MiB of float64
SLACK = 1 + 2.0**-50  # More than rounding can change a deviation from the centre, relative to its size

Distances = NDArray[np.float64]

STEPS = 1 << 30  # The steps of phi in 1: phi is a whole number of steps, so sums of it are exact

# Dividing by rho up to this, or down to its inverse, is safe; distances that overflow are far beyond.
_LARGEST_RADIUS = 2.0**960


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel phi of the score; `BadInput` for a radius that floats of its size cannot be divided by."""

    radius: float  # rho > 0, in units of the rows

    def __post_init__(self) -> None:
        if not 1 / _LARGEST_RADIUS <= self.radius <= _LARGEST_RADIUS:
            raise BadInput(
                f"radius = {self.radius}: must be a positive number, in units of the gradients, between "
                f"{1 / _LARGEST_RADIUS:.0e} and {_LARGEST_RADIUS:.0e}"
            )

    @abstractmethod
    def values(self, distance: Distances) -> Distances:
        """Return phi of each distance, a multiple of ``1 / STEPS``; may write into ``distance``."""

    @abstractmethod
    def unaligned_bound(self, batch: int) -> float:
        """Return U, the largest score of a batch that is not aligned at rho."""

    @abstractmethod
    def movement_bound(self, batch: int, movement: float) -> float:
        """Return how much the score can change when every pairwise distance changes by at most ``movement``."""


@dataclass(frozen=True)
class ExpKernel(Kernel):
    """``phi(u) = exp(-u / radius)`` (Ghazi et al. 2025, Algorithm 3): 0.95 B at a mean distance of 0.05 rho."""

    def values(self, distance: Distances) -> Distances:
        """See `Kernel.values`; written into ``distance``."""
        np.divide(distance, -self.radius, out=distance)
        np.exp(distance, out=distance)
        distance *= STEPS
        return _phi_of_steps(distance)

    def unaligned_bound(self, batch: int) -> float:
        return batch * (2 + math.exp(-1) + 1 / STEPS) / 3

    def movement_bound(self, batch: int, movement: float) -> float:
        return _moved_pairs(batch, movement, -math.expm1(-_checked_movement(movement) / self.radius))


@dataclass(frozen=True)
class RampKernel(Kernel):
    """``phi(u) = 1`` up to ``radius / 2``, then linearly to 0 at ``radius``: users within rho / 2 score B."""

    def values(self, distance: Distances) -> Distances:
        """See `Kernel.values`; written into ``distance``."""
        np.multiply(distance, -2 * STEPS / self.radius, out=distance)
        distance += 2 * STEPS
        np.clip(distance, 0.0, STEPS, out=distance)
        return _phi_of_steps(distance)

    def unaligned_bound(self, batch: int) -> float:
        return 2 * batch / 3

    def movement_bound(self, batch: int, movement: float) -> float:
        return _moved_pairs(batch, movement, 2 * _checked_movement(movement) / self.radius)


def replacement_bound(batch: int) -> float:
    """Return how much the score can change when one of ``batch`` rows is replaced: ``2 (B - 1) / B``."""
    return 2 * (batch - 1) / batch


def concentration_score(rows: Rows, kernel: Kernel) -> float:
    """Return the score, in [1, B], of (B, d) rows, rounded once; `BadInput` unless they are finite and some."""
    check_rows(rows)
    points, whole = np.ascontiguousarray(rows, dtype=np.float64), len(rows) * STEPS
    # A difference of huge rows may overflow to an infinite distance, whose phi is 0.
    with np.errstate(over="ignore"):
        steps = _ramp_pairs(points, kernel) if isinstance(kernel, RampKernel) else _pairs(points, kernel)
    return (whole + 2 * steps) / whole


def _pairs(points: Rows, kernel: Kernel) -> int:
    """Return the steps of phi over all pairs i < j, tile by tile."""
    tiles, total = [points[first : first + TILE] for first in range(0, len(points), TILE)], 0
    for place, tile in enumerate(tiles):
        total += _steps(kernel.values(scipy.spatial.distance.pdist(tile, "chebyshev")).sum())
        for other in tiles[place + 1 :]:
            total += _steps(kernel.values(scipy.spatial.distance.cdist(tile, other, "chebyshev")).sum())
    return total


def _ramp_pairs(points: Rows, kernel: RampKernel) -> int:
    """Return the steps of the ramp's phi over all pairs i < j, computing only undecided pairs.

    With ``r_i = ||q_i - centre||_inf``, about the median, the triangle inequality gives phi = 1 when ``r_i + r_j <= rho
    / 2`` and phi = 0 when ``r_j - r_i >= rho``. In rising order of r, the undecided partners j > i of each i are
    consecutive; bisection finds both ends.

    Decided pairs get the phi of their own distance. Computed deviations R are the r rounded once, as distances are.
    Where ``R_i + R_j <= rho / 2`` as computed, the distance exceeds rho / 2 by a share of a few u of it, and phi is 1
    on the grid up to a share of 2^-31. Where ``R_j > (R_i + rho) (1 + 8u)`` as computed, its three roundings leave
    ``R_j > (R_i + rho) (1 + 5u)``, so ``r_j - r_i > (R_i + rho) (1 + 3u) - R_i (1 + 2u) > rho``: the error of a
    deviation, which can be far larger than rho, is covered by its own size. Two infinite deviations decide nothing, nor
    does a right side that overflows; no number is larger than itself.
    """
    deviations = scipy.spatial.distance.cdist(points, coordinate_median(points)[None], "chebyshev")[:, 0]
    order = np.argsort(deviations, kind="stable")
    deviations = deviations[order]
    later = np.arange(1, len(points) + 1)
    first = np.maximum(np.searchsorted(deviations, kernel.radius / 2 - deviations, side="right"), later)
    last = np.maximum(np.searchsorted(deviations, (deviations + kernel.radius) * SLACK, side="right"), first)
    certain = int((first - later).sum()) * STEPS
    undecided = int((last - first).sum())
    if undecided == 0:
        return certain
    if 4 * undecided > len(points) * (len(points) - 1):
        # Half of the square is faster than most of a square in tiles.
        return _pairs(points, kernel)
    return certain + _undecided_pairs(points[order], first, last, kernel)


def _undecided_pairs(points: Rows, first: NDArray[np.intp], last: NDArray[np.intp], kernel: Kernel) -> int:
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
            others = points[column : column + len(columns)]
            phi = kernel.values(scipy.spatial.distance.cdist(tile, others, "chebyshev"))
            total += _steps(phi.sum(where=wanted[used]))
    return total


def _phi_of_steps(steps: Distances) -> Distances:
    np.rint(steps, out=steps)
    return np.multiply(steps, 1 / STEPS, out=steps)


def _steps(total: np.float64) -> int:
    return int(total * STEPS)


def _moved_pairs(batch: int, movement: float, modulus: float) -> float:
    rounding = 2 / STEPS if movement > 0 else 0.0
    return (batch - 1) * min(1.0, modulus + rounding)


def _checked_movement(movement: float) -> float:
    if not movement >= 0:
        raise BadInput(f"movement = {movement}: must be zero or a positive bound on how far distances move")
    return movement
