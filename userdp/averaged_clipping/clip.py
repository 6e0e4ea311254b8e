"""Clipping after averaging, and a private mean with one clip."""

import math

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.noise import SeededNoise

Vector = NDArray[np.float64]


def average_clip(mean: Vector, clip: float) -> Vector:
    """The mean of a batch, scaled down to l2 norm at most ``clip``: its projection on the ball.

    *Formal guarantees.* Whatever two batches are, their clipped means lie in one ball, so they are at most ``2 clip``
    apart, and two opposite means attain it: the sensitivity is ``2 clip``, not ``clip / batch`` and not ``clip``, for
    adding, removing or replacing one sample, all samples of a user, or anything else. It does not matter how the mean
    was made. A mean that is not finite becomes zero, which lies in the ball too.

    Args:
        mean: (d,) sum over the batch by a PUBLIC divisor.
        clip: > 0; infinity leaves finite means as they are.

    Raises:
        BadInput: ``clip`` is not positive.
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


def private_clipped_mean(
    rows: NDArray[np.floating], clip: float, epsilon: float, delta: float, rng: np.random.Generator
) -> Vector:
    """The mean of the rows, clipped once, with Gaussian noise.

    *Formal guarantees.* (epsilon, delta), replace-one, by the analytic Gaussian mechanism at sensitivity ``2 clip``
    (`average_clip`); n is public. The unit is a row, and in fact any set of rows, since the sensitivity is the same.
    Accuracy: with ``||mean of the population|| <= clip / 2`` and covariance trace s^2, the bias is at most
    ``s^2 / (2 n clip)`` and the mean squared error before noise at most ``s^2 / n``.

    Args:
        rows: (n, d).
        clip: > 0.
        epsilon: > 0.
        delta: in (0, 1).
        rng: of the noise.

    Raises:
        BadInput: an argument out of range, or no rows.
    """
    if rows.ndim != 2 or len(rows) == 0:
        raise BadInput(f"rows must be a matrix with at least one row, got shape {rows.shape}")
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite becomes zero in the clip
        mean = rows.mean(axis=0, dtype=np.float64)
    return GaussianMechanism.calibrated(2 * clip, epsilon, delta).release(average_clip(mean, clip), SeededNoise(rng))
