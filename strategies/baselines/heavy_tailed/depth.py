"""The direction along which a given share of points lies farthest: the step of the iterative mean.

For points a_1..a_k (rows, relative to a centre) and a share phi, ``h(u)`` is the ceil(phi k)-th LARGEST of the
projections <a_j, u>. ``max h(u)`` over unit u is the largest s such that a share phi of the points has projections of
at least s on one direction; it is small when the centre is deep among the points. It is solved exactly in one and two
dimensions, elsewhere by an ascent with restarts, whose answer is feasible and so never too large.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from userdp.arrays import Vector
from userdp.errors import BadInput

Points = NDArray[np.float64]

_CHUNK = 1 << 20  # Projections that the exact search in the plane holds at once.
# Most points of the exact search in the plane, which takes k^3 products; more are searched by ascent.
_PLANE_LIMIT = 400
_POOL = 128  # Random directions considered for each start chosen among them.


@dataclass(frozen=True)
class Reach:
    """The distance that a share of the points reaches, and its direction."""

    distance: float  # s; negative where no direction has that share of the points on its side
    direction: Vector  # (d,) of norm 1


def needed(count: int, share: float) -> int:
    """Return how many of ``count`` points a share in (0, 1] is, rounded up but for rounding errors; else `BadInput`."""
    if not 0 < share <= 1:
        raise BadInput(f"share = {share}: must lie in (0, 1]")
    return max(1, math.ceil(share * count - 1e-9))


def order_statistic(points: Points, directions: Points, rank: int) -> NDArray[np.float64]:
    """Return (D,): the ``rank``-th largest projection of (k, d) points on each of (D, d) directions."""
    projections = directions @ points.T
    return np.asarray(np.partition(projections, len(points) - rank, axis=1)[:, len(points) - rank])


def reach(
    points: Points, share: float, rng: np.random.Generator, restarts: int = 8, hint: Vector | None = None
) -> Reach:
    """Return the largest s, and its direction, with projections of at least s for a ``share`` in (0, 1] of the points.

    Points are (k, d), relative to the centre. Exact for d = 1, and for d = 2 with up to 400 points. Elsewhere the best
    of several ascents, a lower bound on s that the returned direction attains: ``restarts`` of them start from the best
    of many random directions and the points' own, others from the mean, the median, the leading singular vectors and
    (d,) ``hint``. Raises `BadInput` for no points, points that are not finite, or a share out of range.
    """
    if points.ndim != 2 or points.size == 0 or not np.isfinite(points).all():
        raise BadInput("points must be a non-empty matrix of finite numbers")
    rank = needed(len(points), share)
    largest = float(np.abs(points).max())
    if largest == 0:
        return Reach(0.0, np.eye(points.shape[1])[0])
    scaled = points / largest
    if points.shape[1] == 1:
        candidates = np.array([[1.0], [-1.0]])
        found = _best(scaled, candidates, rank)
    elif points.shape[1] == 2 and len(points) <= _PLANE_LIMIT:
        found = _plane(scaled, rank)
    else:
        found = _ascents(scaled, rank, rng, restarts, hint)
    return Reach(found.distance * largest, found.direction)


def _best(points: Points, directions: Points, rank: int) -> Reach:
    values = order_statistic(points, directions, rank)
    first = int(np.argmax(values))
    return Reach(float(values[first]), directions[first].copy())


def _plane(points: Points, rank: int) -> Reach:
    """Return the exact maximum for d = 2.

    As u turns, the projections are cosines, and the ``rank``-th largest changes only where two are equal: at right
    angles to a_i - a_j. Between such angles h is one cosine, with its maximum at an end or at u along a_j. So the
    maximum is at one of these finitely many directions.
    """
    best = _best(points, np.concatenate([_unit_rows(points), [[1.0, 0.0]]]), rank)
    first, second = np.triu_indices(len(points), 1)
    difference = points[first] - points[second]
    apart = np.any(difference != 0, axis=1)
    ties = _unit_rows(np.column_stack([-difference[apart, 1], difference[apart, 0]]))
    at_tie = np.einsum("ij,ij->i", ties, points[first[apart]])
    for sign in (1.0, -1.0):
        # h is at most the tied value where it counts, so ties below what has been found need no look.
        directions = sign * ties[sign * at_tie > best.distance]
        rows = max(1, _CHUNK // len(points))
        for start in range(0, len(directions), rows):
            found = _best(points, directions[start : start + rows], rank)
            best = found if found.distance > best.distance else best
    return best


def _ascents(points: Points, rank: int, rng: np.random.Generator, restarts: int, hint: Vector | None) -> Reach:
    basis: Points | None = None
    if points.shape[1] > len(points):
        basis = np.linalg.qr(points.T)[0]
        points = points @ basis
        hint = None if hint is None else hint @ basis
    centred = points - points.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:3]
    starts = [points.mean(axis=0)[None], np.median(points, axis=0)[None], axes, -axes]
    if hint is not None:
        starts.insert(0, hint[None])
    # Many directions are looked at, the best few of them climbed from.
    pool = _unit_rows(np.concatenate([points, rng.standard_normal((_POOL * restarts, points.shape[1]))]))
    pool = pool[np.argsort(-order_statistic(points, pool, rank), kind="stable")[:restarts]]
    # A start of no length says nothing; there are always the singular vectors.
    directions = np.concatenate([_unit_rows(np.concatenate(starts)), pool])
    best = ascend(points, directions, rank)
    return best if basis is None else Reach(best.distance, basis @ best.direction)


def ascend(points: Points, directions: Points, rank: int, most: int = 100) -> Reach:
    """Alternate, from every start, between the ``rank`` points farthest along it and the best direction for just these.

    Points are (k, d), starts (D, d) of norm 1, and steps ``most``; return the best direction seen. For a fixed set of
    points, ``max over u of min <a_j, u>`` is the distance of zero from their convex hull, at the hull's point of least
    norm; so h never falls along an ascent. An ascent ends where its farthest points are a set that any ascent has seen,
    or where their hull holds zero. So ascents that meet continue as one, and no set is solved twice.
    """
    best = _best(points, directions, rank)
    seen: set[bytes] = set()
    for _ in range(most):
        farthest = np.argpartition(directions @ points.T, len(points) - rank, axis=1)[:, len(points) - rank :]
        new = {members.tobytes(): members for members in np.sort(farthest, axis=1)}
        found = [nearest_direction(points[members]) for key, members in new.items() if key not in seen]
        seen |= new.keys()
        risen = [direction for direction in found if direction is not None]
        if not risen:
            break
        directions = np.array(risen)
        highest = _best(points, directions, rank)
        best = highest if highest.distance > best.distance else best
    return best


def nearest_direction(points: Points) -> Vector | None:
    """Return the (d,) direction of the point of least norm in the convex hull of (k, d) points; None if it is 0.

    ``min ||w|| such that <a_j, w> >= 1 for all j`` has its solution along that direction, and is solved by non-negative
    least squares (Lawson, Hanson 1974, chapter 23): with E = [A; 1]' and f = (0, .., 0, 1), the residual
    ``r = E y - f`` gives ``w = -r[:d] / r[d]``, and r = 0 if there is no such w.
    """
    scale = float(np.abs(points).max())
    if scale == 0:
        return None
    stacked = np.vstack([points.T / scale, np.ones(len(points))])
    target = np.zeros(len(stacked))
    target[-1] = 1.0
    try:
        weights, length = scipy.optimize.nnls(stacked, target)
    except RuntimeError:  # no convergence: the ascent stops where it is, at a feasible direction
        return None
    if length <= 1e-12:
        return None
    residual = (stacked @ weights - target)[:-1]
    norm = float(np.linalg.norm(residual))
    return None if norm == 0 else residual / norm


def geometric_median(points: Points, steps: int = 500) -> Vector:
    """Return the (d,) point with the least sum of distances to (k, d) points, by Weiszfeld's iteration.

    Distances below 1e-9 of the largest count as that much, so an iterate that meets a point continues. A baseline for
    the iterative mean: for group means it is the geometric median of means (Minsker 2015). Raises `BadInput`: no
    points, points that are not finite, or no steps.
    """
    if points.ndim != 2 or points.size == 0 or not np.isfinite(points).all() or steps < 1:
        raise BadInput("points must be a non-empty matrix of finite numbers, and steps at least 1")
    exponent = size_exponent(points)
    points = np.ldexp(points, -exponent)
    centre: Vector = np.median(points, axis=0)
    least = 1e-9 * float(np.linalg.norm(points - centre, axis=1).max())
    if least == 0:
        return np.ldexp(centre, exponent)
    for _ in range(steps):
        weights = 1 / np.maximum(np.linalg.norm(points - centre, axis=1), least)
        following = weights @ points / weights.sum()
        moved, centre = float(np.linalg.norm(following - centre)), following
        if moved <= least:
            break
    return np.ldexp(centre, exponent)


def size_exponent(points: Points) -> int:
    """Return the exponent of the next power of two above the largest entry; over it, no square overflows."""
    return int(np.frexp(np.abs(points).max(initial=0.0))[1])


def _unit_rows(rows: Points) -> Points:
    norms = np.linalg.norm(rows, axis=1)
    return np.asarray(rows[norms > 0] / norms[norms > 0, None])
