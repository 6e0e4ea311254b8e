"""A lower bound on mu from guesses of coins: each run throws canaries in by fair coins, and an attacker guesses these.

A run may hold many canaries, each of whom moves a column of its own: then one run tells as much as many with one canary
each. Guesses of one run may depend on each other in any way, so the run is the unit of the statistics: its share of
right guesses is one number in [0, 1], and different runs are independent.

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

from userdp.audit.events import checked_confidence, checked_scores
from userdp.audit.trade_off import Approximate
from userdp.errors import BadInput

Floats = NDArray[np.float64]

_MOST = 30.0
"""Largest mu that is told."""

_DELTAS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Of the promises that bound guesses; any would do."""

_STEPS = 60
"""Halvings of the interval in which a bound lies."""


def mu_lower_bound(learnt: ArrayLike, tested: ArrayLike, confidence: float = 0.95) -> float:
    """Lower confidence bound on the mu of any Gaussian claim that guesses are compatible with.

    *Formal guarantees.* Let coins be fair and independent, and changing one be one step of the neighbouring relation.
    If each run is mu-GDP, and how to guess was fixed before the ``tested`` runs, the result exceeds mu with probability
    at most ``1 - confidence``.

    *Proof.* Given all other coins, the two values of a coin make two neighbouring data sets, so a guess of it is right
    with probability at most ``Phi(mu / 2)``, the best for N(0, 1) and N(mu, 1) (`TradeOff`). So the share X of right
    guesses in a run has mean at most ``Phi(mu / 2)``, however guesses depend on each other. Runs are independent; the
    mean is tested as `mean_exceeds` says, and the result is the supremum of those mu that are rejected.

    Args:
        learnt: (R,) shares of right guesses in runs that decided how to guess; they only decide how much is bet.
        tested: (R',) likewise in the runs of the test.
        confidence: in (0, 1).

    Returns:
        The bound, at least 0.

    Raises:
        BadInput: fewer than 20 runs of a kind, what is no share, or a confidence out of range.
    """
    return min(_MOST, 2 * float(ndtri(accuracy_lower_bound(learnt, tested, confidence))))


def accuracy_lower_bound(learnt: ArrayLike, tested: ArrayLike, confidence: float = 0.95) -> float:
    """Lower confidence bound on the mean share of right guesses, at least a half.

    *Formal guarantees.* If runs are independent, and how to guess was fixed before the ``tested`` ones, the result
    exceeds that mean, or a half where it is less, with probability at most ``1 - confidence``. *Proof.* It is the
    supremum of the means that `mean_exceeds` rejects.

    Args:
        learnt: (R,) shares of right guesses in runs that decided how to guess; they only decide how much is bet.
        tested: (R',) likewise in the runs of the test.
        confidence: in (0, 1).

    Raises:
        BadInput: as for `mu_lower_bound`.
    """
    checked_confidence(confidence)
    known, fresh = _shares("learnt", learnt), _shares("tested", tested)

    def rejected(most: float) -> bool:
        return mean_exceeds(known - most, fresh - most, most, confidence)

    return _largest_rejected(rejected)


def most_right(epsilon: Callable[[float], float]) -> float:
    """Most probability with which a guess of a fair coin is right, of a run with that privacy profile.

    *Formal guarantees.* A run that is (epsilon(d), d)-DP for every d tells two equally likely neighbours apart with at
    most the probability that each of these promises leaves (`Approximate.membership_accuracy`), so with at most the
    least of some of them, as here.

    Args:
        epsilon: from a delta in (0, 1) to the epsilon that holds with it.
    """
    return min(Approximate(epsilon(delta), delta).membership_accuracy for delta in _DELTAS)


def mean_exceeds(learnt: Floats, tested: Floats, lowest: float, confidence: float) -> bool:
    """Whether the mean of independent numbers, none below ``-lowest``, is above 0, at a level ``1 - confidence``.

    *Formal guarantees.* If the mean is at most 0, the answer is yes with probability at most ``1 - confidence``.
    *Proof.* With a bet b in [0, 1 / lowest) that the tested numbers have no part in, ``prod (1 + b Z_i)`` is not
    negative and has mean at most 1, so it reaches ``1 / (1 - confidence)`` with at most that probability (Markov).

    Args:
        learnt: (R,) numbers that choose the bet: the one with the largest mean of ``log(1 + b Z)``.
        tested: (R',) the numbers.
        lowest: > 0.
        confidence: in (0, 1).
    """
    if learnt.mean() <= 0:
        return False
    most = 0.99 / lowest
    bet = float(
        scipy.optimize.minimize_scalar(lambda b: -np.log1p(b * learnt).mean(), bounds=(0.0, most), method="bounded").x
    )
    return bool(np.log1p(bet * tested).sum() >= -math.log1p(-confidence))


def _largest_rejected(rejected: Callable[[float], bool]) -> float:
    """The largest share below which all are rejected, by halving; a half if none is."""
    if not rejected(0.5):
        return 0.5
    low, high = 0.5, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _shares(name: str, values: ArrayLike) -> Floats:
    shares = checked_scores(name, values)
    if shares.min() < 0 or shares.max() > 1:
        raise BadInput(f"{name} must be shares, from 0 to 1, one for each run")
    return shares
