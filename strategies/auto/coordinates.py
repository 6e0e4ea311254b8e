"""Coordinates, and steps of several scores, from released moments: post-processing, on which no privacy rests."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from userdp.arrays.types import Array, Vector
from userdp.state import Stateful

FLOOR, LEAST_FLOOR = 0.5, 0.25
"""Eigenvalues are raised to a share of the largest eigenvalue that noise alone is expected to have. The share is that
eigenvalue itself, held between these two: where moments are little hidden by noise, so are gradients, and slow
directions cost more than steps that `Progress.heed` may shorten."""

RARE = 3.0  # Least share of users who have a column, in standard deviations of its noise
FLAT = 0.25  # Least curvature across scores that steps assume, over the largest: rare classes would leap
_NONE = 1e-9  # Curvature that counts as none: adding the same to all scores changes nothing


@dataclass(frozen=True)
class Whitening(Stateful):
    """Coordinates in which second moments are about one at most."""

    remembered: ClassVar[tuple[str, ...]] = ("matrix", "raised", "seen", "deviation")
    matrix: Array  # (d, d) W with ``W^T A W`` near the identity
    raised: Vector  # (p,) the second moments along its columns, at least the floor; once for each block of d parameters
    seen: Vector  # (p,) the released second moments over these: 1 unless they were raised
    deviation: float  # of the noise of A

    @property
    def floored(self) -> int:
        """The number of directions whose second moment was raised to the floor."""
        return int((self.seen < 1).sum())

    def doubt(self, move: Vector) -> Vector:
        """Return the (p,) variance of a gradient's change by a move, per curvature^2, from the noise of A."""
        d = len(self.matrix)
        lengths = (move**2 / self.raised).reshape(-1, d).sum(axis=1)
        return np.asarray(0.5 * self.deviation**2 * np.repeat(lengths, d) / self.raised)

    def repeated(self, blocks: int) -> "Whitening":
        """Return the same for so many blocks of parameters, each of all columns."""
        return replace(self, raised=np.tile(self.raised, blocks), seen=np.tile(self.seen, blocks))


def whitening(moments: Array, deviation: float) -> Whitening:
    """Whiten noisy second moments (p, p), whose entries' noise has that deviation (off the diagonal over sqrt(2))."""
    edge = deviation * math.sqrt(2 * len(moments))
    values, vectors = np.linalg.eigh(moments)
    part = min(max(edge, LEAST_FLOOR), FLOOR)
    raised = np.maximum(values, max(part * edge, 1e-6))
    return Whitening(vectors / np.sqrt(raised), raised, np.clip(values / raised, 0.0, 1.0), deviation)


def column_scales(released: Vector, deviation: float, low: float, high: float, width: float) -> Vector:
    """Estimate the (p,) sizes of columns from noisy means of `userdp.nodes.moments.column_scales`.

    A share C of users has the column, and their logarithms average l: its root mean square is near ``sqrt(C) e^l``.
    Where C is hardly more than noise, nothing is known of l: it is drawn towards the columns that are known, by how
    far these differ (an empirical Bayes estimate).
    """
    present, logs = np.split(released, 2)
    span = math.log(high / low)
    share = np.clip(present + 0.5, min(1.0, RARE * deviation), 1.0)
    # Users without the column count as if theirs were of the largest size.
    size = math.log(high) + span * np.clip((logs / width - 0.5) / share, -1.0, 0.0)
    variance = (span * deviation / width / share) ** 2
    weight = 1 / (variance + 0.25)
    centre = float((weight * size).sum() / weight.sum())
    spread = max(0.0, float((weight * ((size - centre) ** 2 - variance)).sum() / weight.sum()))
    known = spread / (spread + variance) if spread > 0 else np.zeros_like(variance)
    return np.asarray(np.sqrt(share) * np.exp(centre + known * (size - centre)))


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
