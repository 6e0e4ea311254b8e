"""Auditing a privacy claim from outside: a lower bound on epsilon, from outputs alone.

Run a mechanism many times on two neighbouring data sets chosen to be as far apart as possible, turn each output into a
number, and measure how well the numbers tell the data sets apart. A lower bound above the claimed epsilon refutes the
claim, or finds the bug; a bound below it proves nothing, but a bound close to it shows that the claim is not wasteful.

Sources: Ding, Wang, Wang, Zhang, Kifer, "Detecting violations of differential privacy" (2018); Jagielski, Ullman,
Oprea, "Auditing differentially private machine learning" (2020); intervals by Clopper, Pearson (1934).
"""

from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

Floats = NDArray[np.float64]
CANDIDATES = 1000
"""Thresholds tried, at even ranks of the first half's scores."""


def epsilon_lower_bound(
    scores_a: ArrayLike, scores_b: ArrayLike, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """A lower confidence bound, at least 0, on the epsilon of any guarantee that is compatible with the runs.

    Let the scores of each data set be independent and identically distributed. If the mechanism is (epsilon, delta)-DP
    for these two data sets, the result exceeds epsilon with probability at most ``1 - confidence``.

    *Proof.* The event (scores on one side of a threshold, under one order of the data sets) is chosen on the first half
    of the runs, so it is fixed given the second half. There its counts are binomial with probabilities p and q, and
    each of ``p >= p_low``, ``q <= q_high`` fails with probability at most ``(1 - confidence) / 2`` (Clopper, Pearson).
    When both hold, ``p <= e^epsilon q + delta`` gives ``log((p_low - delta) / q_high) <= epsilon``.
    """
    level = (1 - confidence) / 2
    (a, last_a), (b, last_b) = (halves(np.asarray(scores, dtype=np.float64)) for scores in (scores_a, scores_b))
    pooled = np.unique(np.concatenate([a, b]))
    thresholds = pooled[np.linspace(0, len(pooled) - 1, min(CANDIDATES, len(pooled))).astype(np.int64)]
    bounds = [of_events(a, b, thresholds, *event, delta, level) for event in product((True, False), repeat=2)]
    best, place = np.unravel_index(np.argmax(bounds), np.shape(bounds))
    event = list(product((True, False), repeat=2))[best]
    return max(0.0, float(of_events(last_a, last_b, thresholds[[place]], *event, delta, level)[0]))


def halves(scores: Floats) -> tuple[Floats, Floats]:
    """The two halves of the runs, each sorted."""
    first, second = np.split(scores, [len(scores) // 2])
    return np.sort(first), np.sort(second)


def of_events(
    a: Floats, b: Floats, thresholds: Floats, above: bool, swapped: bool, delta: float, level: float
) -> Floats:
    """``log((p_low - delta) / q_high)`` of the events "at or above a threshold", or below; -inf for no bound.

    They are likelier on the first data set, or on the second if swapped.
    """
    likely, rare = (b, a) if swapped else (a, b)
    hits, misses = (
        len(scores) - below if above else below
        for scores in (likely, rare)
        for below in [np.searchsorted(scores, thresholds, side="left")]
    )
    p_low = np.where(hits > 0, beta.ppf(level, np.maximum(hits, 1), len(likely) - hits + 1), 0.0)
    room = len(rare) - misses
    q_high = np.where(room > 0, beta.ppf(1 - level, misses + 1, np.maximum(room, 1)), 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(p_low - delta, 0.0)) - np.log(q_high))
