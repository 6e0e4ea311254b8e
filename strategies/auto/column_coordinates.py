"""Coordinates of models with many columns, most of them rare: a scale for each column, and the sum of all."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Vector
from userdp.state import Stateful

PAIRED = 2.0  # Curvature over that of a column alone, which steps assume: as if columns came in pairs
SHOWN = 3.0  # Standard deviations of noise that a column's second moment must exceed to be told from others
RARE = 3.0  # Least share of users who have a column, in standard deviations of its noise
_LEAST = 1e-12  # Least second moment of a column


@dataclass
class ColumnCoordinates(Stateful):
    """Coordinates of a model of p columns: one for each column, and the last for the sum of all columns.

    Models are ``start + scales[:p] z[:p] + scales[p] z[p]``. Columns are about equally curved where noise shows their
    second moments; where it hides them, they are taken as equal, and shrunk: noise on a column that few users have
    outweighs what it could teach, and the clip is left to the others.
    """

    remembered: ClassVar[tuple[str, ...]] = ("scales", "seen", "followed", "common")
    given: ClassVar[tuple[str, ...]] = ("entries",)
    scales: Vector  # (p + 1,)
    seen: Vector  # (p + 1,) second moments in the coordinates
    followed: Vector  # (p + 1,) the move of the last step for each unit of descent
    common: float  # root mean square of samples' sums of columns; 0 if unknown
    entries: int  # most columns of one sample

    @classmethod
    def plain(cls, dimension: int, entries: int, common: float) -> "ColumnCoordinates":
        """Return the coordinates before the first release."""
        ones = np.ones(dimension + 1)
        return cls(ones, ones, ones, common, entries)

    @property
    def doubtful(self) -> NDArray[np.bool_]:
        """(p + 1,) the directions in which curvature may exceed the assumed one: all, as columns come together."""
        return np.ones(len(self.seen), dtype=bool)

    @property
    def reach(self) -> float:
        """The typical length of a gradient in the coordinates, over that of a slope."""
        return math.sqrt(float(self.seen.sum()))

    def learn(self, moments: Vector, deviation: float, ridge: float) -> NDArray[np.bool_]:
        """Set the scales by the released moments (p,) of columns; return the mask of those that noise hides."""
        floor = max(SHOWN * deviation, 1e-9)
        hidden = moments < floor
        count = int(hidden.sum())
        # Their mean is known better than any of them.
        rare = max(float(moments[hidden].mean()), deviation / math.sqrt(count)) if count else 0.0
        curved = np.maximum(np.where(hidden, rare, moments) + ridge, _LEAST)
        common = 1 / self.common if self.common > 0 else 0.0
        self.scales = np.append(np.sqrt(curved) / np.maximum(curved, floor), common)
        self.seen = np.append(curved, self.common**2) * self.scales**2
        return hidden

    def doubt(self, move: Vector) -> Vector:
        """Return the (p + 1,) variance of a gradient's change by a move, per curvature^2: columns come together."""
        return np.square(self.seen * move) * min(self.entries - 1, 1)

    def step(self, descent: Vector, variance: Vector, z: Vector) -> Vector:
        """Return the (p + 1,) step from z to the expected minimum, if columns' effects are drawn from one normal law.

        The variance of the law is that of the descent at zero beyond its noise (an empirical Bayes estimate). The
        common level is free.

        Args:
            descent: (p + 1,) minus the gradient at z, over the curvature.
            variance: (p + 1,) of the error of the descent.
            z: (p + 1,) the position.
        """
        whole = descent + self.seen * z
        per_effect = np.square(self.seen[:-1] / self.scales[:-1])  # variance of the descent, over that of the law
        weights = per_effect / variance[:-1] ** 2
        law = float(weights @ (whole[:-1] ** 2 - variance[:-1])) / float(weights @ per_effect)
        signal = max(law, 0.0) * per_effect
        kept = np.append(signal / (signal + variance[:-1]), 1.0 if self.common > 0 else 0.0)
        self.followed = kept / np.where(self.seen > 0, self.seen, 1.0)
        return np.asarray(self.followed * whole - z)

    def moved(self, z: Vector) -> Vector:
        """Return the (p,) move of the model to z."""
        return np.asarray(self.scales[:-1] * z[:-1] + self.scales[-1] * z[-1])

    def placed(self, move: Vector, z: Vector) -> Vector:
        """Return the coordinates of a move (p,) of the model, with the common level of z."""
        return np.append((move - self.scales[-1] * z[-1]) / self.scales[:-1], z[-1])


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
