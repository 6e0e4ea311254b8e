"""A lower bound on mu from guesses of coins: fair coins include canaries in a run, and an attacker guesses them.

A run may hold many canaries, each moving its own column, so that one run is as informative as many with one canary.
Guesses of one run may depend on each other in any way, so the run is the unit of the statistics: its share of right
guesses is one number in [0, 1], and different runs are independent.

Sources: auditing by many canaries in many runs, Pillutla, Andrew, Kairouz, McMahan, Oprea, Oh, "Unleashing the power of
randomization in auditing differentially private ML" (2023); auditing Gaussian claims, Nasr et al. (2023); tests of
bounded means by betting, Waudby-Smith, Ramdas (2024).
"""

import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from userdp.audit.scores import checked_confidence, checked_scores
from userdp.audit.trade_off import Approximate
from userdp.errors import BadInput

Floats = NDArray[np.float64]

_MOST = 30.0  # The largest mu reported.
_DELTAS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8)  # The promises that bound guesses; any deltas are valid.
_STEPS = 60  # Bisection steps.


def mu_lower_bound(learnt: ArrayLike, tested: ArrayLike, confidence: float = 0.95) -> float:
    """Compute a lower confidence bound, at least 0, on the mu of any Gaussian claim compatible with the guesses.

    *Formal guarantees.* Let coins be fair and independent, and changing one be one step of the neighbouring relation.
    If each run is mu-GDP, and the guessing rule was fixed before the ``tested`` runs, the result exceeds mu with
    probability at most ``1 - confidence``.

    *Proof.* Given all other coins, the two values of a coin make two neighbouring data sets, so a guess of it is right
    with probability at most ``Phi(mu / 2)``, the best for N(0, 1) and N(mu, 1) (`TradeOff`). So the share X of right
    guesses in a run has mean at most ``Phi(mu / 2)``, however guesses depend on each other. Runs are independent; the
    mean is tested as in `mean_exceeds`, and the result is the supremum of the rejected mu.

    ``learnt`` (R,) are shares of right guesses in the runs that fixed the guessing rule, and only set the bet;
    ``tested`` (R',) are those of the test. Raises `BadInput` for fewer than 20 runs of a kind, or a number out of
    range.
    """
    return min(_MOST, 2 * float(ndtri(accuracy_lower_bound(learnt, tested, confidence))))


def accuracy_lower_bound(learnt: ArrayLike, tested: ArrayLike, confidence: float = 0.95) -> float:
    """Compute a lower confidence bound, at least a half, on the mean share of right guesses; see `mu_lower_bound`.

    *Formal guarantees.* If runs are independent, and the guessing rule was fixed before the ``tested`` ones, the result
    exceeds that mean, or a half if the mean is less, with probability at most ``1 - confidence``. *Proof.* It is the
    supremum of the means that `mean_exceeds` rejects.
    """
    checked_confidence(confidence)
    known, fresh = _shares("learnt", learnt), _shares("tested", tested)
    low, high = 0.5, 1.0

    def rejected(most: float) -> bool:
        return mean_exceeds(known - most, fresh - most, most, confidence)

    if not rejected(low):
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def most_right(epsilon: Callable[[float], float]) -> float:
    """Bound the probability of guessing a fair coin right, for a run with this privacy profile (delta -> epsilon).

    *Formal guarantees.* For every d an (epsilon(d), d)-DP run lets an attacker tell two equally likely neighbours apart
    with probability at most `Approximate.membership_accuracy`, so with at most the least over several d, as here.
    """
    return min(Approximate(epsilon(delta), delta).membership_accuracy for delta in _DELTAS)


def mean_exceeds(learnt: Floats, tested: Floats, lowest: float, confidence: float) -> bool:
    """Test whether independent numbers, none below ``-lowest`` < 0, have a mean above 0, at level ``1 - confidence``.

    *Formal guarantees.* If the mean is at most 0, the answer is yes with probability at most ``1 - confidence``.
    *Proof.* With a bet b in [0, 1 / lowest) that does not depend on the tested numbers, ``prod (1 + b Z_i)`` is not
    negative and has mean at most 1, so it reaches ``1 / (1 - confidence)`` with at most that probability (Markov). The
    bet maximises the mean of ``log(1 + b Z)`` over the learnt numbers.
    """
    if learnt.mean() <= 0:
        return False
    bounds = (0.0, 0.99 / lowest)
    found = scipy.optimize.minimize_scalar(lambda b: -np.log1p(b * learnt).mean(), bounds=bounds, method="bounded")
    return bool(np.log1p(float(found.x) * tested).sum() >= -math.log1p(-confidence))


def _shares(name: str, values: ArrayLike) -> Floats:
    shares = checked_scores(name, values)
    if shares.min() < 0 or shares.max() > 1:
        raise BadInput(f"{name} must be shares, from 0 to 1, one for each run")
    return shares
