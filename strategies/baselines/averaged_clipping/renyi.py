"""Renyi privacy of Poisson-sampled Gaussians at integer orders, in a formula that is short enough to check by hand.

The privacy loss distributions of `userdp.accounting` are tighter. Functions raise `BadInput` for an argument out of
range.
"""

import math
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln

from userdp.accounting import SampledRounds, check_delta, check_positive
from userdp.errors import BadInput

MOST_ORDER = 1024  # The highest order tried; the lowest is 2

_TOLERANCE = 1e-6  # The relative width of the bracket around a calibrated noise multiplier; the safe end is returned.


@lru_cache(maxsize=256)
def sampled_gaussian_rdp(noise_multiplier: float, rate: float) -> NDArray[np.float64]:
    """Compute (1023,) Renyi divergences of one round at the orders 2..1024, for adding or removing one record.

    ``rho(a) = ln(sum_k C(a, k) (1-q)^(a-k) q^k exp((k^2 - k) / (2 z^2))) / (a - 1)`` and ``a / (2 z^2)`` for q = 1
    (Mironov, Talwar, Zhang 2019, section 3.3). It holds for any function of the drawn records that one record moves by
    at most one unit, also for a clipped average.
    """
    SampledRounds(noise_multiplier, rate)
    orders = np.arange(2, MOST_ORDER + 1, dtype=np.float64)
    if rate == 1:
        return np.asarray(orders / (2 * noise_multiplier**2))
    picked = np.arange(MOST_ORDER + 1, dtype=np.float64)
    terms = _log_binomials() + (orders[:, None] - picked) * math.log1p(-rate) + picked * math.log(rate)
    terms += (picked**2 - picked) / (2 * noise_multiplier**2)
    largest = terms.max(axis=1)
    sums = largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))
    divergences = np.asarray(sums / (orders - 1))
    divergences.setflags(write=False)
    return divergences


def sampled_gaussian_epsilon(steps: Sequence[SampledRounds], delta: float) -> float:
    """Compute epsilon of all rounds together, for adding or removing one record.

    ``min_a sum rho(a) + ln(1 - 1/a) - (ln delta + ln a) / (a - 1)`` (Canonne, Kamath, Steinke 2020).
    """
    check_delta(delta)
    if not any(step.rounds for step in steps):
        return 0.0
    orders = np.arange(2, MOST_ORDER + 1, dtype=np.float64)
    spent = np.sum([step.rounds * sampled_gaussian_rdp(step.noise_multiplier, step.rate) for step in steps], axis=0)
    epsilons = spent + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(epsilons.min()))


def calibrate_sampled_gaussian(rates: Sequence[tuple[float, int]], epsilon: float, delta: float) -> float:
    """Compute the smallest noise multiplier (rounded up) that keeps rounds of several rates together within the budget.

    ``rates`` lists (rate, rounds at that rate). Raises `BadInput` for a budget that no noise up to 1e6 keeps.
    """
    check_positive(epsilon=epsilon)

    def excess(log_noise: float) -> float:
        steps = [SampledRounds(math.exp(log_noise), rate, rounds) for rate, rounds in rates]
        return sampled_gaussian_epsilon(steps, delta) - epsilon

    low, high = math.log(0.05), math.log(1e6)
    if excess(low) <= 0:
        return math.exp(low)
    if excess(high) > 0:
        raise BadInput(f"epsilon = {epsilon:g}, delta = {delta:g}: no noise keeps that budget; raise it")
    root = brentq(excess, low, high, xtol=_TOLERANCE / 2)
    while excess(root) > 0:
        root += _TOLERANCE
    return math.exp(root)


@cache
def _log_binomials() -> NDArray[np.float64]:
    """Compute ln C(a, k), one row an order a, for k from 0 to the last order; minus infinity where k > a."""
    order, picked = np.arange(2, MOST_ORDER + 1)[:, None], np.arange(MOST_ORDER + 1)
    logs = gammaln(order + 1) - gammaln(picked + 1) - gammaln(np.maximum(order - picked, 0) + 1)
    return np.asarray(np.where(picked <= order, logs, -np.inf))
