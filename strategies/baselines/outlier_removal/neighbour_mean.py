"""Mean without outliers, in the l2 norm: users with few neighbours lose their weight.

Sources: Asi, Liu, "User-level Differentially Private Stochastic Convex Optimization: Efficient Algorithms with Optimal
Rates" (2024) and Lowy, Liu, Asi, "Faster Algorithms for User-Level Private Stochastic Convex Optimization" (2024),
which keep users at random. The deterministic weights, their slopes and the constant below are ours.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput
from userdp.estimators import REACH, Kernel, check_rows

_TILE = 1024
# Radii within which users are neighbours: any two within one radius of a third are, however rounded.
_REACHES = 2 * (1 + 2.0**-20)

SMALLEST_BATCH = 12  # The smallest batch: below it a weight would fall from one to zero within half a user


def neighbour_counts(rows: NDArray[np.float64], radius: float) -> NDArray[np.int64]:
    """Return (B,): how many users lie within l2 distance ``radius`` of each of (B, d) rows, itself counted.

    Exact: distances are not computed from inner products, so a pair's answer depends on no third user. Raises
    `BadInput`: rows are not a non-empty matrix of finite numbers.
    """
    check_rows(rows)
    import torch  # noqa: PLC0415 -- takes seconds, for which only who compares pairs should wait

    points = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float64))
    counts = np.zeros(len(rows), dtype=np.int64)
    for first in range(0, len(points), _TILE):
        tile = points[first : first + _TILE]
        for other in range(0, len(points), _TILE):
            distances = torch.cdist(tile, points[other : other + _TILE], compute_mode="donot_use_mm_for_euclid_dist")
            counts[first : first + _TILE] += (distances <= radius).sum(dim=1).numpy()
    return counts


def in_radii(rows: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    """Return (B, d) rows in units of ``radius``, each coordinate clipped to `REACH` of them.

    Each row is mapped by itself, so scores and means of the result are functions of users' rows however they are
    rounded. Squares of such numbers neither overflow nor vanish beside 1. A row that is not finite stays so.
    """
    with np.errstate(over="ignore"):
        return np.clip(rows / radius, -REACH, REACH, where=np.isfinite(rows), out=rows.astype(np.float64))


@dataclass(frozen=True)
class IndicatorKernel(Kernel):
    """``phi(u) = 1`` up to ``radius`` and 0 beyond, for scores in the l2 norm, of rows mapped by `in_radii`.

    *Formal guarantees.* Call a batch aligned if some user has at least 2B/3 users within radius of it. Otherwise every
    user's count is below 2B/3, and so is the score, the counts' mean. A replaced user changes 2 (B - 1) ordered pairs
    by at most 1 each: the score moves by at most ``2 (B - 1) / B``. No bound limits how it moves with the model (phi
    jumps): every step must be tested alone.
    """

    def values(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return (distance <= self.radius).astype(np.float64)

    def unaligned_bound(self, batch: int) -> float:
        return 2 * batch / 3

    def movement_bound(self, batch: int, movement: float) -> float:
        return 0.0 if movement == 0 else float(batch - 1)

    def score(self, rows: NDArray[np.float64]) -> float:
        """Return the mean count of (B, d) rows, in [1, B]."""
        return float(neighbour_counts(in_radii(rows, self.radius), 1.0).mean())


@dataclass(frozen=True)
class NeighbourMean:
    """A weighted mean; a user's weight grows with its count f of users within 2 rho, of rows mapped by `in_radii`.

    Neighbours are counted within ``2 (1 + 2^-20) rho``, so the proof holds for computed distances (see `rounding`).

    ``w = clip((f - (B + 1)/2) / (B/6 - 3/2), 0, 1)``: zero up to (B + 1)/2 neighbours, one from 2B/3 - 1.

    *Formal guarantees.* If two data sets differ in one user k and BOTH are aligned at rho (see `IndicatorKernel`), then
    ``||g - g'||_2 <= (6 rho / B) (2 / (1 - 9/B) + 2)``, about 24 rho / B. Proof:

    1. Any two points of positive weight, of either data set, have more than (B + 1)/2 - 1 neighbours each among the
       B - 1 common users, so they share one and lie within 4 rho.
    2. The 2B/3 users or more within rho of the aligned centre lie within 2 rho of each other: they weigh 1, so the sum
       of weights is W >= 2B/3. Without k they still count 2B/3 - 1, so at least 2B/3 - 1 common users weigh 1 in both
       data sets, and at most B/3 common users change weight; f changes by at most 1, w by at most 1 / (B/6 - 3/2).
    3. As ``sum w'_i (q'_i - g') = 0``, ``W (g - g') = sum over i != k of (w_i - w'_i)(q_i - g') + w_k (q_k - g') - w'_k
       (q'_k - g')``. Every vector with a factor has norm at most 4 rho by 1, since g' is a mean of points of positive
       weight. So the norm is at most ``4 rho ((B/3) / (B/6 - 3/2) + 2) / W``.

    Known neighbours attain 0.5625 of the bound in large batches, and over half of it from 60 users on.
    """

    radius: float  # rho > 0

    def weights(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (B,) weights in [0, 1] of (B, d) rows; `BadInput` for too few, or not finite ones."""
        return _weights(in_radii(rows, self.radius))

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (d,) weighted mean of (B, d) rows; zero if all weights are (in unaligned batches alone)."""
        points = in_radii(rows, self.radius)
        weights = _weights(points)
        total = weights.sum()
        if total == 0:
            return np.zeros(rows.shape[1])
        # Whoever counts lies within 4 radii of whoever counts most, and sums of that size are hardly rounded.
        middle = points[np.argmax(weights)]
        return np.asarray((middle + weights @ (points - middle) / total) * self.radius)

    def l2_sensitivity(self, batch: int) -> float:
        """Return how far one user moves the mean of aligned batches, at most; `BadInput` for too few."""
        return 6 * self.radius / _checked(batch) * (2 / (1 - 9 / batch) + 2)

    def rounding(self, batch: int, dimension: int) -> float:
        """Return how much the l2 sensitivity can grow, relatively, by computing counts, weights and mean in float64.

        *Formal guarantees.* For B and d at most 2^30 and finite rows of any size: before any sum, `in_radii` maps each
        row by itself to a point with coordinates within `REACH`. With u = 2^-53:

        1. *Counts.* A computed distance is off by less than 2^-23 of itself (d/2 + 3 roundings in any order; squares
           that vanish beside 1 count for nothing). Users within 1 of one user, as computed, lie within
           ``2 (1 + 2^-23)^2 < 2 (1 + 2^-20)`` of each other, as computed: they are neighbours. Users who share a
           neighbour lie within ``4 (1 + 2^-20) (1 + 2^-23) < 4 (1 + 2^-19)``, in truth. So the class's proof holds for
           computed counts, whose sums are exact, with distances longer by that.
        2. *Weights.* Computed weights lie in [0, 1]; a count of 2B/3 - 1 or more weighs exactly 1 (where 3 divides B
           the quotient's two parts are exact, and elsewhere such a count is a third of a user above it); a count that
           moves by 1 moves a weight by 6u more than stated, which for at most B/3 users adds ``B u / 2`` of the bound.
        3. *Mean.* Users with weight lie within 4 (1 + 2^-19) of ``middle``. Differences, products, both sums and the
           quotient err by ``4 (2B + 4) u`` in l2; adding the middle and multiplying by the radius by
           ``2 u REACH sqrt(d)``, for each of two neighbours, in radii, and up to a factor of 1 + 2^-18.

        Raises `BadInput` for too few users.
        """
        error = (1 + 2.0**-18) * 2.0**-53 * (4 * (2 * batch + 4) + 2 * REACH * math.sqrt(dimension)) * self.radius
        return 2.0**-19 + batch * 2.0**-54 + 2 * error / self.l2_sensitivity(batch)


def _weights(points: NDArray[np.float64]) -> NDArray[np.float64]:
    batch = _checked(len(points))
    return np.clip((neighbour_counts(points, _REACHES) - (batch + 1) / 2) / (batch / 6 - 1.5), 0.0, 1.0)


def _checked(batch: int) -> int:
    if batch < SMALLEST_BATCH:
        raise BadInput(f"batch = {batch}: removing outliers takes at least {SMALLEST_BATCH} users")
    return batch
