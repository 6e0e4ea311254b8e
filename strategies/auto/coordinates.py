"""Coordinates from released sizes and second moments: post-processing, on which no privacy rests."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from userdp.arrays.types import Array, Vector
from userdp.state import Stateful

FLOOR, LEAST_FLOOR = 0.5, 0.25
"""Eigenvalues are raised to this part of the largest that noise alone is expected to have: few below can be seen. Where
that is small, beside columns of size one, the noise of gradients is too, and slow directions cost more than steps that
`Progress.heed` may shorten: the part is that eigenvalue itself, held between these two."""

RARE = 3.0
"""Standard deviations of its noise that the share of users who have a column is taken to be at least."""


@dataclass(frozen=True)
class Whitening(Stateful):
    """Coordinates in which second moments are about one at most.

    Attributes:
        matrix: (d, d) W with ``W^T A W`` near the identity.
        raised: (p,) the second moments along its columns, at least the floor; once for each block of d parameters.
        seen: (p,) what they were before, over that: 1 but where they were raised.
        deviation: of the noise of A.
    """

    remembered: ClassVar[tuple[str, ...]] = ("matrix", "raised", "seen", "deviation")
    matrix: Array
    raised: Vector
    seen: Vector
    deviation: float

    @property
    def floored(self) -> int:
        """Directions whose second moment was raised to what noise allows to tell."""
        return int((self.seen < 1).sum())

    def doubt(self, move: Vector) -> Vector:
        """(p,) variance of the change of a gradient by a move, per curvature^2, for A is only known with its noise."""
        d = len(self.matrix)
        lengths = (move**2 / self.raised).reshape(-1, d).sum(axis=1)
        return np.asarray(0.5 * self.deviation**2 * np.repeat(lengths, d) / self.raised)

    def repeated(self, blocks: int) -> "Whitening":
        """The same for so many blocks of parameters, each of all columns."""
        return replace(self, raised=np.tile(self.raised, blocks), seen=np.tile(self.seen, blocks))


def whitening(moments: Array, deviation: float) -> Whitening:
    """From the noisy second moments (p, p), whose entries' noise has that deviation (off the diagonal over sqrt(2))."""
    edge = deviation * math.sqrt(2 * len(moments))
    values, vectors = np.linalg.eigh(moments)
    part = min(max(edge, LEAST_FLOOR), FLOOR)
    raised = np.maximum(values, max(part * edge, 1e-6))
    return Whitening(vectors / np.sqrt(raised), raised, np.clip(values / raised, 0.0, 1.0), deviation)


def column_scales(released: Vector, deviation: float, low: float, high: float, width: float) -> Vector:
    """(p,) the size of each column, from means of `userdp.nodes.moments.column_scales` with noise of that deviation.

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
