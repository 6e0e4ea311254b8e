"""Renyi privacy of Poisson-sampled Gaussians at integer orders: a second accountant, and one for unequal rounds.

`userdp.accounting.amplified` is tighter for rounds that are all alike. Here every round may have its own rate and its
own noise, and the formula is short enough to check by hand.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import gammaln

from userdp.accounting.costs import Cost, epsilon_of
from userdp.errors import BadInput

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

MOST_ORDER = 1024
"""Orders 2, 3, ..., 1024 are tried."""

_GRID = 1e-3
"""Width of a cell of the privacy loss of unequal rounds; any width is valid."""

_CELLS = 3000
"""Cells of the privacy loss of one round of a group."""

_TOLERANCE = 1e-6
"""Relative width of the bracket around a calibrated noise multiplier; the safe end is returned."""


@dataclass(frozen=True)
class SampledRounds:
    """Rounds that are alike: a Gaussian of sensitivity one, seen by each record with probability ``rate``.

    Attributes:
        noise_multiplier: noise over what adding or removing one record moves; > 0.
        rate: chance that a record takes part, in (0, 1].
        rounds: how many; >= 0.

    Raises:
        BadInput: an argument out of range.
    """

    noise_multiplier: float
    rate: float
    rounds: int = 1

    def __post_init__(self) -> None:
        if not self.noise_multiplier > 0:
            raise BadInput(f"noise multiplier = {self.noise_multiplier}: must be positive")
        if not 0 < self.rate <= 1:
            raise BadInput(f"rate = {self.rate}: the chance to take part in a round must lie in (0, 1]")
        if self.rounds < 0:
            raise BadInput(f"rounds = {self.rounds}: must not be negative")


@lru_cache(maxsize=256)
def sampled_gaussian_rdp(noise_multiplier: float, rate: float) -> NDArray[np.float64]:
    """(1023,) Renyi divergence of one round at the orders 2..1024, for adding or removing one record.

    ``rho(a) = ln(sum_k C(a, k) (1-q)^(a-k) q^k exp((k^2 - k) / (2 z^2))) / (a - 1)`` and ``a / (2 z^2)`` for q = 1
    (Mironov, Talwar, Zhang 2019, section 3.3), which holds for any function of the drawn records that one of them
    moves by at most one unit, also for a clipped average.

    Raises:
        BadInput: an argument out of range.
    """
    SampledRounds(noise_multiplier, rate)
    orders = np.arange(2, MOST_ORDER + 1, dtype=np.float64)
    if rate == 1:
        return np.asarray(orders / (2 * noise_multiplier**2))
    picked = np.arange(MOST_ORDER + 1, dtype=np.float64)
    terms = _log_binomials() + (orders[:, None] - picked) * math.log1p(-rate) + picked * math.log(rate)
    terms += (picked**2 - picked) / (2 * noise_multiplier**2)
    largest = terms.max(axis=1)
    terms -= largest[:, None]
    np.exp(terms, out=terms)
    divergences = np.asarray((largest + np.log(terms.sum(axis=1))) / (orders - 1))
    divergences.setflags(write=False)
    return divergences


def sampled_gaussian_epsilon(steps: Sequence[SampledRounds], delta: float) -> float:
    """Epsilon of all rounds together, for adding or removing one record.

    ``min_a sum rho(a) + ln(1 - 1/a) - (ln delta + ln a) / (a - 1)`` (Canonne, Kamath, Steinke 2020).

    Raises:
        BadInput: a delta outside (0, 1).
    """
    if not 0 < delta < 1:
        raise BadInput(f"delta = {delta}: must lie strictly between 0 and 1, such as 1e-6")
    if not any(step.rounds for step in steps):
        return 0.0
    orders = np.arange(2, MOST_ORDER + 1, dtype=np.float64)
    spent = np.sum([step.rounds * sampled_gaussian_rdp(step.noise_multiplier, step.rate) for step in steps], axis=0)
    epsilons = spent + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(epsilons.min()))


def calibrate_sampled_gaussian(rates: Sequence[tuple[float, int]], epsilon: float, delta: float) -> float:
    """Smallest noise multiplier (rounded up) that keeps rounds of several rates together within the budget.

    Args:
        rates: (rate, rounds at that rate).
        epsilon: > 0.
        delta: in (0, 1).

    Raises:
        BadInput: an argument out of range, or a budget that no noise up to 1e6 keeps.
    """
    if not 0 < epsilon < math.inf:
        raise BadInput(f"epsilon = {epsilon}: must be a positive number")

    def excess(log_noise: float) -> float:
        steps = [SampledRounds(math.exp(log_noise), rate, rounds) for rate, rounds in rates]
        return sampled_gaussian_epsilon(steps, delta) - epsilon

    return smallest_noise(excess, epsilon, delta)


def smallest_noise(excess: Callable[[float], float], epsilon: float, delta: float) -> float:
    """Where ``excess(ln noise)``, falling, becomes zero; rounded up.

    Raises:
        BadInput: no noise from 0.05 to 1e6 does it.
    """
    low, high = math.log(0.05), math.log(1e6)
    if excess(low) <= 0:
        return math.exp(low)
    if excess(high) > 0:
        raise BadInput(f"epsilon = {epsilon:g}, delta = {delta:g}: no noise keeps that budget; raise it")
    root = scipy.optimize.brentq(excess, low, high, xtol=_TOLERANCE / 2)
    while excess(root) > 0:
        root += _TOLERANCE
    return math.exp(root)


def unequal_rounds_epsilon(steps: Sequence[SampledRounds], delta: float) -> float:
    """Epsilon of all rounds together by their privacy loss distribution, for adding or removing one record.

    Rounds are composed adaptively, in any order (Zhu, Dong, Wang 2022), with pessimistic rounding (Doroshenko et al.
    2022); those that every record takes part in are one Gaussian (Dong, Roth, Su 2022). Plain composition bounds it as
    well, since sampling costs no privacy, and the smaller is returned.

    Raises:
        BadInput: a delta outside (0, 1).
    """
    if not 0 < delta < 1:
        raise BadInput(f"delta = {delta}: must lie strictly between 0 and 1, such as 1e-6")
    drawn = [step for step in steps if step.rounds and step.rate < 1]
    squared = sum(step.rounds / step.noise_multiplier**2 for step in steps)
    if not squared:
        return 0.0
    plain = epsilon_of(Cost(noise_multiplier=squared**-0.5), 1, delta)
    if not drawn:
        return plain
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # noqa: PLC0415 -- slow to import

    # One grid for all: fine enough for a typical loss of the faintest rounds, coarser for little noise.
    least = min(step.noise_multiplier for step in drawn)
    faint = min(step.rate / step.noise_multiplier for step in drawn)
    grid = min(_GRID * max(1.0, 0.25 / least**2), faint / 5)
    certain = sum(step.rounds / step.noise_multiplier**2 for step in steps if step.rate == 1)
    parts = [] if not certain else [from_gaussian_mechanism(certain**-0.5, value_discretization_interval=grid)]
    for step in drawn:
        one = from_gaussian_mechanism(
            step.noise_multiplier, sampling_prob=step.rate, value_discretization_interval=grid
        )
        parts.append(one.self_compose(step.rounds))
    composed = reduce(lambda before, one: before.compose(one), parts)
    return min(plain, float(composed.get_epsilon_for_delta(delta)))


@lru_cache(maxsize=1024)
def grouped_poisson_epsilon(noise_multiplier: float, rate: float, group: int, rounds: int, delta: float) -> float:
    """Epsilon of Poisson-sampled Gaussian sums for adding or removing ``group`` records at once.

    Each record is drawn by its own coin, so the group moves the sum by at most J units with J binomial(group, rate);
    the pair of N(0, z^2) and the mixture of N(j, z^2) over J dominates every round, for vectors and adaptively too
    (Ganesh 2024, mixtures of Gaussians). Plain composition at ``group`` units bounds it as well, and the smaller is
    returned.

    Args:
        noise_multiplier: noise over what ONE record moves the sum.
        rate: chance of each record, in (0, 1].
        group: most records that come or go together.
        rounds: rounds released.
        delta: in (0, 1).

    Raises:
        BadInput: an argument out of range.
    """
    if group < 1:
        raise BadInput(f"group = {group}: must be at least 1")
    SampledRounds(noise_multiplier, rate, rounds)
    plain = epsilon_of(Cost(noise_multiplier=noise_multiplier / group), rounds, delta)
    if rounds == 0 or rate == 1:
        return plain
    mixture = _mixture_round(noise_multiplier, rate, group).self_compose(rounds)
    return min(plain, float(mixture.get_epsilon_for_delta(delta)))


def group_rate(rate: float, group: int) -> float:
    """Chance that at least one of ``group`` records is drawn: ``1 - (1 - rate)^group``."""
    return 1.0 if rate == 1 else -math.expm1(group * math.log1p(-rate))


@lru_cache(maxsize=16)
def _mixture_round(noise_multiplier: float, rate: float, group: int) -> "PrivacyLossDistribution":
    from dp_accounting.pld.privacy_loss_distribution import (  # noqa: PLC0415 -- slow to import
        from_mixture_gaussian_mechanism,
    )

    counts = np.arange(group + 1)
    chances = scipy.stats.binom.pmf(counts, group, rate)
    # Counts that hardly ever occur are taken together with the largest, which can only cost more.
    last = max(1, int(np.searchsorted(np.cumsum(chances), 1 - 1e-14)))
    kept = np.append(chances[:last], max(0.0, 1 - chances[:last].sum()))
    sizes = np.append(counts[:last], group)
    ratio = group / noise_multiplier
    # Fine enough for the loss of a typical round, within a fixed number of cells; any width is valid.
    width = max((ratio * ratio / 2 + 8 * ratio) / _CELLS, rate * ratio / 5)
    return from_mixture_gaussian_mechanism(
        noise_multiplier, sizes.tolist(), kept.tolist(), value_discretization_interval=width
    )


@lru_cache(maxsize=1)
def _log_binomials() -> NDArray[np.float64]:
    """(1023, 1025): ln C(a, k) for a = 2..1024, minus infinity for k > a."""
    orders, picked = np.arange(2, MOST_ORDER + 1)[:, None], np.arange(MOST_ORDER + 1)
    rest = np.maximum(orders - picked, 0)
    logs = gammaln(orders + 1) - gammaln(picked + 1) - gammaln(rest + 1)
    return np.asarray(np.where(picked <= orders, logs, -np.inf))
