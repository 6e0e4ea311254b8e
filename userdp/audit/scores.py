"""Scores of runs, one number for each run: how well they tell two data sets apart, and one that is learnt."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.errors import BadInput

_MINIMUM_RUNS = 20  # Runs of each data set; fewer could not support any bound.
_ROUNDING = 1e-12  # Relative to a feature's size; smaller differences count as none.
_RIDGE = 1e-6  # Added to correlations, so that rounding cannot tell almost equal features apart.

Floats = NDArray[np.float64]


def checked_confidence(confidence: float) -> None:
    """Refuse (`BadInput`) a confidence outside (0, 1)."""
    if not 0 < confidence < 1:
        raise BadInput(f"confidence = {confidence}: must lie strictly between 0 and 1, such as 0.95")


def checked_scores(name: str, scores: ArrayLike) -> Floats:
    """Return (R,) one number for each run; `BadInput` refuses fewer than 20, or a NaN."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) < _MINIMUM_RUNS or np.isnan(values).any():
        raise BadInput(f"{name} must be at least {_MINIMUM_RUNS} numbers, one for each run, none of them NaN")
    return values


def error_rates(scores_a: ArrayLike, scores_b: ArrayLike, points: int = 50) -> tuple[Floats, Floats]:
    """Measure (false positives, false negatives) of the tests "the first data set, if the score reaches a threshold".

    Both are (P,) shares for charts, with P at most ``points`` thresholds at even ranks of all scores; false positives
    rise. Raises `BadInput` for fewer than 20 runs of a data set, or a NaN.
    """
    a, b = np.sort(checked_scores("scores_a", scores_a)), np.sort(checked_scores("scores_b", scores_b))
    pooled = np.unique(np.concatenate([a, b]))
    ranks = np.linspace(0, len(pooled) - 1, min(points, len(pooled))).astype(np.int64)
    thresholds = pooled[ranks][::-1]
    alarms = 1 - np.searchsorted(b, thresholds, side="left") / len(b)
    return np.asarray(alarms), np.searchsorted(a, thresholds, side="left") / len(a)


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
