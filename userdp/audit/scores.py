"""Scores of runs on two data sets, one number for each run, and how well they tell the data sets apart."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.errors import BadInput

_MINIMUM_RUNS = 20  # Runs of each data set; fewer could not support any bound.

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
