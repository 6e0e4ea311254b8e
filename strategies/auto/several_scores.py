"""Steps of a loss of several scores, as one for each class: post-processing, on which no privacy rests."""

import numpy as np

from userdp.arrays.types import Array, Vector

FLAT = 0.25
"""Curvature across scores is never taken for less than this part of the largest: rare classes would make leaps."""

_NONE = 1e-9
"""Below it there is no curvature: adding the same to all scores changes nothing."""


def split(hessian: Array) -> tuple[float, Array]:
    """(largest curvature in any direction, second derivatives over that), of those by the scores (K, K)."""
    largest = float(np.linalg.eigvalsh(hessian)[-1])
    return largest, hessian / largest


def step_of_scores(across: Array, descent: Vector, variance: Vector, z: Vector) -> Vector:
    """(p,) from z towards where a quadratic loss is least, shrunk towards zero as far as noise hides where that is.

    In the eigenvectors of ``across`` every direction has a block of d coordinates. The descent at zero, ``D`` there, is
    what is left of it at z and what the way to z took of it. Of noise of total variance V its part
    ``1 - V / ||D||^2``, if that is positive, is what is worth to be followed (James and Stein 1961): without it the
    many parameters of many classes would follow noise further than what they gain.

    Args:
        across: (K, K) the second derivatives by the scores, over the largest eigenvalue.
        descent: (p,) minus the gradient at z, over the curvature, in coordinates whose second moments are one.
        variance: (p,) of the error of the descent.
        z: (p,) K blocks of d coordinates, where the loss is looked at.
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
