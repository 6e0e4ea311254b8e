"""The exact privacy cost of a run, and the noise that a budget needs.

One participation of a user may meet a Gaussian mechanism and a test that is (pure_epsilon, failure_delta)-DP. All
participations may share one more mechanism, (shared_epsilon, 0)-DP as a whole: a test that is paid for once.
Composition is exact for the worst such mechanisms, without discretisation:

1. A dominating pair. For any history, the neighbouring transcripts of one participation are those of an (pure_epsilon,
   0)-DP step followed by a Gaussian, or within total variation failure_delta of each other (see
   `userdp.mechanisms.concentration_tests`). Both are dominated by the product of randomised response at pure_epsilon
   (Kairouz, Oh, Viswanath 2015), a Gaussian, and an event of probability failure_delta that reveals everything.
   Products of dominating pairs dominate adaptive compositions (Zhu, Dong, Wang 2022).
2. k participations: the Gaussians are one Gaussian of noise multiplier ``z / sqrt(k)``; the privacy loss of k
   randomised responses is ``(2J - k) pure_epsilon`` with J binomial(k, e^t / (1 + e^t)); the revealing event has
   probability at most ``k failure_delta``, which is added to delta. The shared mechanism is one more randomised
   response: any (shared_epsilon, 0)-DP mechanism that is asked in between, however questions follow from answers, can
   be answered from it alone (Vadhan, Wang 2021; for tests, the proof of `userdp.mechanisms.concentration_tests`).
3. The hockey-stick divergence of a product averages that of the Gaussian over the other's privacy loss L:
   ``delta(epsilon) = E_L[delta_Gaussian(epsilon - L)]``, where for ``mu = sqrt(k) / z`` and every real x
   ``delta_Gaussian(x) = Phi(mu/2 - x/mu) - e^x Phi(-mu/2 - x/mu)`` (Balle, Wang 2018, Theorem 8).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import log_ndtr

# scipy.stats.binom.pmf calls this; importing scipy.stats would take half a second. A test compares the two.
from scipy.special._ufuncs import _binom_pmf

from userdp.accounting.checks import check_delta, check_least, check_positive
from userdp.errors import BadInput

ACCOUNTANT = "exact hockey-stick divergence of composed Gaussians and randomised responses"
"""The method that computes epsilons, for `Guarantee.accountant`."""

_TOLERANCE = 1e-10  # The relative width of the last bracket of root finding; the safe end is returned.
_NOISE_RANGE = (1e-4, 1e8)


@dataclass(frozen=True)
class Cost:
    """The cost of ONE participation of one user, under the run's own neighbouring relation."""

    noise_multiplier: float = math.inf  # of a Gaussian, deviation over l2 sensitivity; infinity for none
    pure_epsilon: float = 0.0  # of a pure mechanism beside it (a test, Laplace noise, a choice); 0 for none
    failure_delta: float = 0.0  # probability that the pure or the shared mechanism fails to protect; 0 for none
    shared_epsilon: float = 0.0  # of a pure mechanism that all of a user's participations share, paid once; 0 for none

    def __post_init__(self) -> None:
        if not self.noise_multiplier > 0:
            raise BadInput(f"noise multiplier = {self.noise_multiplier}: must be positive")
        for name, epsilon in (("pure", self.pure_epsilon), ("shared", self.shared_epsilon)):
            if not 0 <= epsilon < math.inf:
                raise BadInput(f"{name} epsilon = {epsilon}: must be zero or a positive number")
        if not 0 <= self.failure_delta < 1:
            raise BadInput(f"failure delta = {self.failure_delta}: must lie in [0, 1)")


def together(*costs: Cost) -> Cost:
    """Add the costs of several mechanisms that one participation meets, one after the other.

    Gaussians compose as one whose squared inverse noise multiplier is the sum of theirs; epsilons and failures add up.
    """
    return Cost(
        noise_multiplier=_composed(*(cost.noise_multiplier for cost in costs)),
        pure_epsilon=sum(cost.pure_epsilon for cost in costs),
        failure_delta=sum(cost.failure_delta for cost in costs),
        shared_epsilon=sum(cost.shared_epsilon for cost in costs),
    )


def _composed(*multipliers: float) -> float:
    try:
        precision = sum(multiplier**-2 for multiplier in multipliers)
    except OverflowError:  # hardly any noise still has a price
        return max(1 / math.hypot(*(1 / multiplier for multiplier in multipliers)), math.ulp(0.0))
    return precision**-0.5 if precision else math.inf


@lru_cache(maxsize=4096)
def delta_of(cost: Cost, participations: int, epsilon: float) -> float:
    """Compute the smallest delta, at most 1, for which ``participations`` participations are (epsilon, delta)-DP."""
    check_least("participations", participations, 0)
    if not epsilon >= 0:
        raise BadInput(f"epsilon = {epsilon}: must not be negative")
    if participations == 0:
        return 0.0
    mu = math.sqrt(participations) / cost.noise_multiplier
    pure, shared = _test_losses(cost.pure_epsilon, participations), _test_losses(cost.shared_epsilon, 1)
    losses, chances = np.add.outer(pure[0], shared[0]).ravel(), np.multiply.outer(pure[1], shared[1]).ravel()
    return min(1.0, float(chances @ _gaussian_delta(mu, epsilon - losses)) + participations * cost.failure_delta)


@lru_cache(maxsize=4096)
def epsilon_of(cost: Cost, participations: int, delta: float) -> float:
    """Compute the smallest epsilon (rounded up) for which ``participations`` participations are (epsilon, delta)-DP.

    The result is infinite if the tests' deltas alone exceed ``delta``. It is also infinite if they use up all of it (as
    at delta = 0, pure privacy) and there is a Gaussian.
    """
    check_least("participations", participations, 0)
    if delta != 0:
        check_delta(delta)
    left = delta - participations * cost.failure_delta
    if left < 0:
        return math.inf
    most = math.inf
    if math.isinf(cost.noise_multiplier) or participations == 0:
        # Pure epsilons add up, and randomised response attains the sum: there is no root to find.
        most = participations * cost.pure_epsilon + (cost.shared_epsilon if participations else 0.0)
    if left == 0:
        return most
    if delta_of(cost, participations, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(cost, participations, high) > delta:
        high *= 2
        if high > 1e12:  # the noise is negligible beside the sensitivity
            return math.inf
    root = scipy.optimize.brentq(lambda e: delta_of(cost, participations, e) - delta, 0.0, high, xtol=1e-14, rtol=1e-14)
    return min(most, _nudged_up(root, lambda e: delta_of(cost, participations, e) <= delta))


@lru_cache(maxsize=1024)
def calibrate_noise(
    epsilon: float,
    delta: float,
    participations: int,
    pure_epsilon: float = 0.0,
    failure_delta: float = 0.0,
    shared_epsilon: float = 0.0,
) -> float:
    """Compute the smallest noise multiplier (rounded up) of (epsilon, delta)-DP; `BadInput` if tests exceed it."""
    check_least("participations", participations)
    check_delta(delta)
    check_positive(epsilon=epsilon)

    def excess(noise_multiplier: float) -> float:
        cost = Cost(noise_multiplier, pure_epsilon, failure_delta, shared_epsilon)
        return delta_of(cost, participations, epsilon) - delta

    def fits(noise_multiplier: float) -> bool:
        return excess(noise_multiplier) <= 0

    low, high = _NOISE_RANGE
    if not fits(high):
        raise BadInput(
            f"epsilon = {epsilon:g}, delta = {delta:g} leaves nothing for noise after {participations} tests of "
            f"epsilon {pure_epsilon or shared_epsilon:g} and delta {failure_delta:g}: raise the budget or lower the "
            "tests' share"
        )
    if fits(low):
        return low
    ends = math.log(low), math.log(high)
    root = math.exp(scipy.optimize.brentq(lambda log_z: excess(math.exp(log_z)), *ends, xtol=1e-13))
    # A margin wider than that of `epsilon_of`, so that accounting calibrated noise never exceeds the budget.
    return _nudged_up(root * (1 + 10 * _TOLERANCE), fits)


def _gaussian_delta(mu: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the hockey-stick divergence of order e^x between N(mu, 1) and N(0, 1), for any real x."""
    if mu == 0:
        return np.maximum(0.0, -np.expm1(np.minimum(x, 0.0)))
    upper: NDArray[np.float64] = np.exp(log_ndtr(mu / 2 - x / mu))
    return np.maximum(0.0, upper - np.exp(x + log_ndtr(-mu / 2 - x / mu)))


@lru_cache(maxsize=256)
def _test_losses(pure_epsilon: float, participations: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if pure_epsilon == 0:
        return np.zeros(1), np.ones(1)
    heads = np.arange(participations + 1, dtype=np.float64)
    probability = 1 / (1 + math.exp(-pure_epsilon))
    losses: NDArray[np.float64] = (2.0 * heads - participations) * pure_epsilon
    return losses, _binom_pmf(heads, participations, probability)


def _nudged_up(value: float, is_safe: Callable[[float], bool]) -> float:
    """Raise the value step by step until it is safe; rounding of a root may leave it slightly too low."""
    step = _TOLERANCE
    while not is_safe(value):
        value *= 1 + step
        step *= 2
    return value
