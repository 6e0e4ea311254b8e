"""A lower bound on mu from blind pairs, for claims that a whole run is one Gaussian mechanism.

The claim of a Gaussian mechanism says more than one (epsilon, delta): it bounds the errors of every test, and so do a few
thousand runs which are much too few to see events of probability delta. Source of the idea, with single thresholds: Nasr,
Hayes, Steinke, Balle, Tramer, Jagielski, Carlini, Terzis, "Tight auditing of differentially private machine learning"
(2023), Section 4; intervals by Clopper, Pearson (1934).
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import beta

from userdp.audit.events import checked_confidence, checked_scores


def mu_lower_bound(scores_a: ArrayLike, scores_b: ArrayLike, confidence: float = 0.95) -> float:
    """Lower confidence bound on the mu of any Gaussian claim that the runs are compatible with.

    *Formal guarantees.* Let the scores of each data set be independent and identically distributed, and computed by a
    function that does not depend on them. If the mechanism is mu-GDP for these two data sets, the result exceeds mu
    with probability at most ``1 - confidence``.

    *Proof.* Pair the runs, each once. In a pair an attacker who says that the larger score belongs to the first data set
    is right with probability ``A = P[a > b]``, which is at most the area under the curve of true against false
    positives of the tests "score above a threshold". That curve lies below ``1 - G_mu`` by the claim, whose area is
    ``Phi(mu / sqrt 2)``: it is attained by N(mu, 1) and N(0, 1), for which ``a - b`` is N(mu, 2). Pairs are
    independent, so the number of right ones is binomial, ``A >= A_low`` fails with probability at most
    ``1 - confidence`` (Clopper, Pearson; ties count as wrong), and when it holds ``sqrt 2 Phi^-1(A_low) <= mu``.

    No law of the scores is assumed; they are worth most where they are nearly Gaussian.

    Args:
        scores_a: one number for each run on the first data set, larger where the first data set is likelier.
        scores_b: likewise for the second; the longer of the two is cut.
        confidence: in (0, 1).

    Returns:
        The bound, at least 0.

    Raises:
        BadInput: fewer than 20 runs of a data set, a NaN, or a confidence out of range.
    """
    checked_confidence(confidence)
    a, b = checked_scores("scores_a", scores_a), checked_scores("scores_b", scores_b)
    pairs = min(len(a), len(b))
    right = int(np.count_nonzero(a[:pairs] > b[:pairs]))
    if right == 0:
        return 0.0
    least = float(beta.ppf(1 - confidence, right, pairs - right + 1))
    return max(0.0, math.sqrt(2) * float(ndtri(least)))
