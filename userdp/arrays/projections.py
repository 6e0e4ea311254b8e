"""Euclidean projection on the l1 ball, and on the part of it that lies in an l2 ball.

Vectors with s non-zeros and l2 norm at most L, and all means of such vectors, lie in the l1 ball of radius
``L sqrt(s)`` and in the l2 ball of radius L. Both projections are exact up to rounding. Numbers are taken relative to
the largest entry, whatever the scale, so that neither huge nor tiny vectors are lost.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from userdp.arrays.types import Vector
from userdp.errors import BadInput


def project_l1(vector: ArrayLike, radius: float) -> Vector:
    """Nearest point of ``{z : ||z||_1 <= radius}``.

    All entries are moved towards zero by one threshold (Duchi, Shalev-Shwartz, Singer, Chandra 2008). Entries that lie
    ``radius`` or more below the largest become zero, so only the others are sorted. A vector (d,) that lies in the ball
    is returned as it is. Raises `BadInput` for a vector that is not finite, another shape, or a radius out of range.
    """
    values = _checked(vector)
    _check_radius("l1 radius", radius)
    sizes = np.abs(values)
    with np.errstate(over="ignore"):  # an infinite sum exceeds every radius, and infinitely far below is below
        if sizes.sum() <= radius:
            return values
        gaps = (sizes - sizes.max()) / radius
    near = np.sort(gaps[gaps > -1])[::-1]
    thresholds = (np.cumsum(near) - 1) / np.arange(1, len(near) + 1)
    threshold = thresholds[np.flatnonzero(near > thresholds)[-1]]
    return np.asarray(np.copysign(radius * np.maximum(gaps - threshold, 0.0), values))


def project_l1_l2(vector: ArrayLike, l1_radius: float, l2_radius: float) -> Vector:
    """Nearest point of ``{z : ||z||_1 <= l1_radius and ||z||_2 <= l2_radius}``.

    By the conditions of Karush, Kuhn and Tucker it is ``soft(v, t) / (1 + q)`` with t, q >= 0. If the projection on the
    l1 ball is too long, the l2 constraint binds and the point is ``l2_radius soft(v, t) / ||soft(v, t)||_2``, with the
    least t for which it fits in the l1 ball. Raises `BadInput` as `project_l1` does.
    """
    values = _checked(vector)
    _check_radius("l2 radius", l2_radius)
    projected = project_l1(values, l1_radius)
    if np.linalg.norm(projected / l2_radius) <= 1:
        return projected
    sizes = np.abs(values)
    gaps = sizes / sizes.max() - 1
    kept = np.maximum(gaps - _ratio_threshold(gaps, l1_radius / l2_radius), 0.0)
    return np.asarray(np.copysign(l2_radius * kept / np.linalg.norm(kept), values))


def _ratio_threshold(gaps: Vector, ratio: float) -> float:
    """Least t >= -1 for which the l1 norm of ``max(gaps - t, 0)`` is at most ``ratio`` times its l2 norm.

    The quotient of the norms falls as t rises. With the k largest entries above t, their mean m and their variance V,
    its square is ``k (m - t)^2 / (V + (m - t)^2)``, which equals ``ratio^2`` at ``m - t = ratio sqrt(V / (k -
    ratio^2))``. ``gaps`` lie in [-1, 0], the largest is zero.
    """
    falling = np.sort(gaps)[::-1]
    counts = np.arange(1, len(falling) + 1)
    means = np.cumsum(falling) / counts
    variances = np.maximum(np.cumsum(falling**2) / counts - means**2, 0.0)
    following = np.append(falling[1:], -1.0)
    lifts = (means - following) ** 2
    # Strictly: then k > ratio^2 below. Entries that are all equal have no variance and, at their own size, no lift.
    too_long = np.flatnonzero(counts * lifts > ratio**2 * (variances + lifts))
    if len(too_long) == 0:
        return -1.0
    k = int(too_long[0])
    threshold = means[k] - ratio * math.sqrt(variances[k] / (counts[k] - ratio**2))
    return float(np.clip(threshold, following[k], falling[k]))


def _checked(vector: ArrayLike) -> Vector:
    values = np.asarray(vector, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise BadInput(f"the vector to project must hold finite numbers, (d,) of them; got shape {values.shape}")
    return values


def _check_radius(name: str, radius: float) -> None:
    if not 0 < radius < math.inf:
        raise BadInput(f"{name} = {radius}: must be a positive number")
