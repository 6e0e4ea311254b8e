"""One number of a run out of many: the direction in which two data sets' runs differ most, learnt from other runs."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDING = 1e-12
"""Of a feature's size; less than that is no difference."""

_RIDGE = 1e-6
"""Added to correlations, so that features which are almost the same cannot be told apart by rounding."""


@dataclass(frozen=True)
class Direction:
    """A linear score of a run: the likelihood ratio of two Gaussians that differ in their mean (Fisher 1936).

    It is worth its power and proves nothing: bounds hold for any score that was fixed before the runs it is used on.

    Attributes:
        weights: (F,) of the features.
    """

    weights: Floats

    @classmethod
    def learnt(cls, features_a: Floats, features_b: Floats, alike: NDArray[np.bool_]) -> Self:
        """From (R, F) features of runs on each data set.

        The difference of means is measured with noise, which would drown it where features are many. Those that are
        ``alike``, such as how far each round moved the model, are first taken to differ by the same amount, and each
        feature's own difference is believed as far as all of them together exceed noise (James, Stein 1961).

        Args:
            features_a: of runs on the first data set, finite.
            features_b: of runs on the second.
            alike: (F,) features that are expected to differ by about the same.
        """
        centred = np.vstack([features_a - features_a.mean(axis=0), features_b - features_b.mean(axis=0)])
        scale, size = centred.std(axis=0), np.abs(np.vstack([features_a, features_b])).max(axis=0)
        used = scale > _ROUNDING * size
        difference = features_a.mean(axis=0) - features_b.mean(axis=0)
        difference = np.where(np.abs(difference) > _ROUNDING * size, difference, 0.0)
        weights = np.zeros(len(scale))
        if not used.all():
            # What never varies within a data set and differs between them tells them apart by itself.
            certain = np.where(used, 0.0, difference)
            if certain.any():
                return cls(certain)
        if not used.any():
            return cls(weights)
        correlation = centred[:, used].T @ centred[:, used] / len(centred) / np.outer(scale[used], scale[used])
        root = np.linalg.cholesky(correlation + _RIDGE * np.eye(int(used.sum())))
        white = np.linalg.solve(root, difference[used] / scale[used])
        common = np.linalg.solve(root, np.where(alike[used], 1 / scale[used], 0.0))
        length = float(common @ common)
        fitted = common * (common @ white) / length if length > 0 else np.zeros_like(white)
        rest = white - fitted
        runs, count = len(centred), len(white)
        # What noise alone adds, with two standard deviations of it, and with what the covariance was learnt from.
        noise = (1 / len(features_a) + 1 / len(features_b)) * (count - 1 + 2 * np.sqrt(2.0 * count))
        noise *= runs / max(1, runs - count - 2)
        believed = max(0.0, 1 - noise / max(float(rest @ rest), 1e-300))
        weights[used] = np.linalg.solve(root.T, fitted + believed * rest) / scale[used]
        return cls(weights)

    def scores(self, features: Floats) -> Floats:
        """(...,) the scores of (..., F) features."""
        return np.asarray(features @ self.weights)
