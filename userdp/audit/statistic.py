"""One score for a run's features: the direction in which two data sets' runs differ most, learnt on other runs."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDING = 1e-12  # Relative to a feature's size; smaller differences count as none.
_RIDGE = 1e-6  # Added to correlations, so that rounding cannot tell almost equal features apart.


@dataclass(frozen=True)
class Direction:
    """A linear score with weights (F,): the likelihood ratio of two Gaussians with different means (Fisher 1936).

    A better score makes audits more powerful and proves nothing: bounds hold for any score fixed before its runs.
    """

    weights: Floats

    @classmethod
    def learnt(cls, features_a: Floats, features_b: Floats, alike: NDArray[np.bool_]) -> Self:
        """Learn from finite (R, F) features of runs on each data set.

        The difference of means is measured with noise, which would drown it if features are many. ``alike`` (F,) marks
        features expected to differ by about the same, such as the distance that each round moved the model. They are
        first assumed to differ by the same amount. Each feature's own difference is then shrunk by the share of noise
        in all of them together (James, Stein 1961).
        """
        centred = np.vstack([features_a - features_a.mean(axis=0), features_b - features_b.mean(axis=0)])
        scale, size = centred.std(axis=0), np.abs(np.vstack([features_a, features_b])).max(axis=0)
        used = scale > _ROUNDING * size
        difference = features_a.mean(axis=0) - features_b.mean(axis=0)
        difference = np.where(np.abs(difference) > _ROUNDING * size, difference, 0.0)
        if not used.all():
            # A feature that never varies within a data set and differs between them tells them apart by itself.
            certain = np.where(used, 0.0, difference)
            if certain.any() or not used.any():
                return cls(certain)
        correlation = centred[:, used].T @ centred[:, used] / len(centred) / np.outer(scale[used], scale[used])
        root = np.linalg.cholesky(correlation + _RIDGE * np.eye(int(used.sum())))
        white = np.linalg.solve(root, difference[used] / scale[used])
        common = np.linalg.solve(root, np.where(alike[used], 1 / scale[used], 0.0))
        length = float(common @ common)
        fitted = common * (common @ white) / length if length > 0 else np.zeros_like(white)
        rest = white - fitted
        runs, count = len(centred), len(white)
        # The expected noise plus two standard deviations, enlarged for the covariance's own error.
        noise = (1 / len(features_a) + 1 / len(features_b)) * (count - 1 + 2 * np.sqrt(2.0 * count))
        noise *= runs / max(1, runs - count - 2)
        believed = max(0.0, 1 - noise / max(float(rest @ rest), 1e-300))
        weights = np.zeros(len(scale))
        weights[used] = np.linalg.solve(root.T, fitted + believed * rest) / scale[used]
        return cls(weights)

    def scores(self, features: Floats) -> Floats:
        """Compute (...,) the scores of (..., F) features."""
        return np.asarray(features @ self.weights)
