"""Losses of several scores, as of classes: their curvature across scores, and steps as far as noise allows."""

import numpy as np

from userdp.arrays.types import Array, Vector

FLAT = 0.25  # Least curvature across scores that steps assume, over the largest: rare classes would leap
_NONE = 1e-9  # Curvature that counts as none: adding the same to all scores changes nothing


def split(hessian: Array) -> tuple[float, Array]:
    """Split second derivatives by the scores (K, K) into (largest curvature in any direction, the rest over that)."""
    largest = float(np.linalg.eigvalsh(hessian)[-1])
    return largest, hessian / largest


def step_of_scores(across: Array, descent: Vector, variance: Vector, z: Vector) -> Vector:
    """Return the (p,) step from z to the minimum of a quadratic loss, shrunk towards zero as far as noise hides it.

    In the eigenvectors of ``across`` every direction has a block of d coordinates. The descent at zero, ``D`` there, is
    the descent at z plus the curvature's part of z. Of noise of total variance V, the share ``1 - V / ||D||^2``, if
    positive, is worth following (James and Stein 1961): otherwise the many parameters of many classes would follow
    noise further than they gain.

    Args:
        across: (K, K) the second derivatives by the scores, over the largest eigenvalue.
        descent: (p,) minus the gradient at z, over the curvature, in coordinates whose second moments are one.
        variance: (p,) of the error of the descent.
        z: (p,) K blocks of d coordinates.
    """
    blocks = len(across)
    values, vectors = np.linalg.eigh(across)
    left = vectors.T @ descent.reshape(blocks, -1)
    whole = left + values[:, None] * (vectors.T @ z.reshape(blocks, -1))
    noise = ((vectors**2).T @ variance.reshape(blocks, -1)).sum(axis=1)
    signal = (whole**2).sum(axis=1)
    hidden = np.minimum(noise / np.where(signal > 0, signal, 1.0), 1.0)
    moves = (left - hidden[:, None] * whole) / np.maximum(values, FLAT)[:, None]
    moves[values < _NONE] = 0.0
    return np.asarray((vectors @ moves).ravel())
