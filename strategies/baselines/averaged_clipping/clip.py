"""Clipping after averaging, and a private mean with one clip."""

import math

import numpy as np

from userdp.arrays import Vector
from userdp.errors import BadInput


def average_clip(mean: Vector, clip: float) -> Vector:
    """The mean of a batch, scaled down to l2 norm at most ``clip``: its projection on the ball.

    *Formal guarantees.* Whatever two batches are, their clipped means lie in one ball, so they are at most ``2 clip``
    apart, and two opposite means attain it: the sensitivity is ``2 clip``, not ``clip / batch`` and not ``clip``, for
    adding, removing or replacing one sample, all samples of a user, or anything else. It does not matter how the mean
    was made. A mean that is not finite becomes zero, which lies in the ball too.

    ``mean`` (d,) is a sum over the batch by a PUBLIC divisor; an infinite ``clip`` leaves finite means as they are.
    Raises `BadInput` unless ``clip`` is positive.
    """
    if not clip > 0:
        raise BadInput(f"clip = {clip}: must be a positive number")
    if not np.isfinite(mean).all():
        return np.zeros_like(mean, dtype=np.float64)
    largest = float(np.abs(mean).max(initial=0.0))
    if largest == 0 or largest * math.sqrt(mean.size) <= clip:
        return np.array(mean, dtype=np.float64)
    unit = mean / largest  # a norm taken after this cannot overflow and escape the clip
    norm = float(np.linalg.norm(unit))
    if largest <= clip / norm:
        return np.array(mean, dtype=np.float64)
    return np.asarray(unit * (clip / norm))
