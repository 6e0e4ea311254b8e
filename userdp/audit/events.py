"""Auditing a privacy claim from outside: a lower bound on epsilon, from outputs alone.

Run a mechanism many times on two neighbouring data sets chosen to be as far apart as possible, turn each output into a
number, and measure how well the numbers tell the data sets apart. A lower bound above the claimed epsilon refutes the
claim, or finds the bug; a bound below it proves nothing, but a bound close to it shows that the claim is not wasteful.

Sources: Ding, Wang, Wang, Zhang, Kifer, "Detecting violations of differential privacy" (2018); Jagielski, Ullman,
Oprea, "Auditing differentially private machine learning" (2020); intervals by Clopper, Pearson (1934).
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from userdp.accounting.checks import check_delta
from userdp.errors import BadInput

_CANDIDATES = 1000  # Thresholds tried, at even ranks of the first half's scores.
_MINIMUM_RUNS = 20  # Runs of each data set; fewer could not support any bound.

Floats = NDArray[np.float64]


def epsilon_lower_bound(
    scores_a: ArrayLike, scores_b: ArrayLike, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Compute a lower confidence bound, at least 0, on the epsilon of any guarantee that is compatible with the runs.

    *Formal guarantee.* Let the scores of each data set be independent and identically distributed. If the mechanism is
    (epsilon, delta)-DP for these two data sets, the result exceeds epsilon with probability at most ``1 - confidence``.

    *Proof.* The event (scores on one side of a threshold, under one order of the data sets) is chosen on the first half
    of the runs, so it is fixed given the second half. There its counts are binomial with probabilities p and q, and
    each of ``p >= p_low``, ``q <= q_high`` fails with probability at most ``(1 - confidence) / 2`` (Clopper, Pearson).
    When both hold, ``p <= e^epsilon q + delta`` gives ``log((p_low - delta) / q_high) <= epsilon``.

    Scores are one number for each run; infinities are allowed (an output "nothing released"). Raises `BadInput` for
    fewer than 20 runs of a data set, a NaN, or a number out of range.
    """
    check_delta(delta, or_zero=True)
    checked_confidence(confidence)
    a, b = checked_scores("scores_a", scores_a), checked_scores("scores_b", scores_b)
    level = (1 - confidence) / 2
    half_a, half_b = len(a) // 2, len(b) // 2
    event = _choose(np.sort(a[:half_a]), np.sort(b[:half_b]), delta, level)
    bound = _bounds(np.sort(a[half_a:]), np.sort(b[half_b:]), event, delta, level)
    return max(0.0, float(bound[0]))


@dataclass(frozen=True)
class _Events:
    """Events "score at or above a threshold", or below; likelier on the first data set, or on the second if swapped."""

    thresholds: Floats
    above: bool
    swapped: bool


def _choose(a: Floats, b: Floats, delta: float, level: float) -> _Events:
    """Choose the one event with the largest bound on these (sorted) scores."""
    pooled = np.unique(np.concatenate([a, b]))
    ranks = np.linspace(0, len(pooled) - 1, min(_CANDIDATES, len(pooled))).astype(np.int64)
    families = [_Events(pooled[ranks], above, swapped) for above in (True, False) for swapped in (True, False)]
    bounds = [_bounds(a, b, family, delta, level) for family in families]
    best = max(range(len(families)), key=lambda index: float(bounds[index].max()))
    place = int(bounds[best].argmax())
    return replace(families[best], thresholds=families[best].thresholds[place : place + 1])


def _bounds(a: Floats, b: Floats, events: _Events, delta: float, level: float) -> Floats:
    """Compute ``log((p_low - delta) / q_high)`` of each event, on sorted scores; minus infinity for no bound."""
    likely, rare = (b, a) if events.swapped else (a, b)
    hits, misses = _count(likely, events), _count(rare, events)
    p_low = np.where(hits > 0, scipy.stats.beta.ppf(level, np.maximum(hits, 1), len(likely) - hits + 1), 0.0)
    room = len(rare) - misses
    q_high = np.where(room > 0, scipy.stats.beta.ppf(1 - level, misses + 1, np.maximum(room, 1)), 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(p_low - delta, 0.0)) - np.log(q_high))


def _count(scores: Floats, events: _Events) -> NDArray[np.intp]:
    below = np.searchsorted(scores, events.thresholds, side="left")
    return len(scores) - below if events.above else below


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
