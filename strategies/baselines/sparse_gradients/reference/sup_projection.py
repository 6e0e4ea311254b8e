"""Nearest points in the sup norm: ``argmin over x in X of ||x - v||_inf``, for the sets where that is simple.

Output perturbation ends with it, since a convex loss with sparse gradients moves little when the model moves little
in the sup norm. For the whole space it is the identity.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike

from userdp.arrays import Vector
from userdp.errors import BadInput


def sup_project_box(point: Vector, low: ArrayLike, high: ArrayLike) -> Vector:
    """The point of ``{x : low <= x <= high}`` nearest to ``point`` (d,) in the sup norm: each coordinate is clipped.

    Clipping moves each coordinate as little as any point of the box can, so it is nearest in every l_p norm. It is
    1-Lipschitz in each coordinate; for a point x of the box the result is therefore no farther from x than ``point``.
    Raises `BadInput`: an empty box.
    """
    if not np.all(np.asarray(low) <= np.asarray(high)):
        raise BadInput("the box is empty: low must not exceed high in any coordinate")
    return np.asarray(np.clip(point, low, high))


def sup_project_ball(point: Vector, centre: Vector | float, radius: float, order: float) -> Vector:
    """A point of ``{x : ||x - centre||_p <= radius}`` nearest to ``point`` (d,) in the sup norm, any p >= 1.

    *Proof.* Let ``v = point - centre``. A point x within t of ``point`` has ``|x_j - centre_j| >= (|v_j| - t)_+`` for
    each j. So no point of the ball lies within t unless the l_p norm of these numbers, ``soft(v, t)``, is at most
    ``radius``; and then ``centre + soft(v, t)`` does. The answer takes the smallest such t, rounded up.

    Raises `BadInput` for a number out of range, or a point that is not finite.

    Args:
        point: (d,), finite.
        centre: (d,) or a number.
        radius: > 0.
        order: p, 1 to infinity.
    """
    if not 0 < radius < np.inf:
        raise BadInput(f"radius = {radius}: must be a positive number")
    if not order >= 1:
        raise BadInput(f"order = {order}: an l_p ball needs p of at least 1")
    offset = np.asarray(point - centre, dtype=np.float64)
    if not np.isfinite(offset).all():
        raise BadInput("a point to project must be finite")
    largest = float(np.abs(offset).max(initial=0.0))

    def excess(threshold: float) -> float:
        return float(np.linalg.norm(_soft(offset, threshold), ord=order)) - radius

    if excess(0.0) <= 0:
        return np.array(point, dtype=np.float64)
    threshold = float(scipy.optimize.brentq(excess, 0.0, largest, xtol=1e-15 * largest, rtol=1e-14))
    step = 1e-15 * largest
    while excess(threshold) > 0:  # a root may be found from outside, by a hair
        threshold, step = threshold + step, 2 * step
    return np.asarray(centre + _soft(offset, threshold))


def _soft(values: Vector, threshold: float) -> Vector:
    """Values moved towards zero by ``threshold``, at most to zero."""
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0))
