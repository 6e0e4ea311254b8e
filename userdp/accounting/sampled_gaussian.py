"""Renyi privacy of Poisson-sampled Gaussians at integer orders: a second accountant, and one for unequal rounds.

`userdp.accounting.amplified` is tighter for equal rounds. Here every round may have its own rate and noise, and the
formula is short enough to check by hand. Functions raise `BadInput` for an argument out of range.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

from userdp.accounting.amplified import log_binomials, log_sums, loss_cell
from userdp.accounting.checks import check_delta, check_epsilon, check_least, check_rate
from userdp.accounting.costs import Cost, epsilon_of
from userdp.errors import BadInput

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

MOST_ORDER = 1024  # The highest order tried; the lowest is 2

_CELLS = 3000  # Cells of the privacy loss of one round of a group.
_TOLERANCE = 1e-6  # The relative width of the bracket around a calibrated noise multiplier; the safe end is returned.


@dataclass(frozen=True)
class SampledRounds:
    """Equal rounds: a Gaussian of sensitivity one, seen by each record with probability ``rate``."""

    noise_multiplier: float  # noise over the effect of adding or removing one record; > 0
    rate: float  # probability that a record takes part, in (0, 1]
    rounds: int = 1  # number of rounds; >= 0

    def __post_init__(self) -> None:
        if not self.noise_multiplier > 0:
            raise BadInput(f"noise multiplier = {self.noise_multiplier}: must be positive")
        check_rate(self.rate)
        check_least("rounds", self.rounds, 0)


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
    terms = (
        log_binomials(range(2, MOST_ORDER + 1), 0)
        + (orders[:, None] - picked) * math.log1p(-rate)
        + picked * math.log(rate)
    )
    terms += (picked**2 - picked) / (2 * noise_multiplier**2)
    divergences = np.asarray(log_sums(terms) / (orders - 1))
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
    check_epsilon(epsilon)

    def excess(log_noise: float) -> float:
        steps = [SampledRounds(math.exp(log_noise), rate, rounds) for rate, rounds in rates]
        return sampled_gaussian_epsilon(steps, delta) - epsilon

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
    """Compute epsilon of all rounds together from their privacy loss distribution, for adding or removing one record.

    Rounds are composed adaptively, in any order (Zhu, Dong, Wang 2022), with pessimistic rounding (Doroshenko et al.
    2022); rounds at rate 1 are one Gaussian (Dong, Roth, Su 2022). Plain composition is a bound as well, since sampling
    costs no privacy, and the smaller is returned.
    """
    check_delta(delta)
    drawn = [step for step in steps if step.rounds and step.rate < 1]
    squared = sum(step.rounds / step.noise_multiplier**2 for step in steps)
    if not squared:
        return 0.0
    plain = epsilon_of(Cost(noise_multiplier=squared**-0.5), 1, delta)
    if not drawn:
        return plain
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # noqa: PLC0415 -- slow to import

    # All rounds share one grid, so that they compose.
    faintest = min(step.rate / step.noise_multiplier for step in drawn)
    grid = loss_cell(min(step.noise_multiplier for step in drawn), faintest)
    certain = sum(step.rounds / step.noise_multiplier**2 for step in steps if step.rate == 1)
    parts = [] if not certain else [from_gaussian_mechanism(certain**-0.5, value_discretization_interval=grid)]
    for step in drawn:
        noise, rate = step.noise_multiplier, step.rate
        one = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=grid)
        parts.append(one.self_compose(step.rounds))
    composed = reduce(lambda before, one: before.compose(one), parts)
    return min(plain, float(composed.get_epsilon_for_delta(delta)))


@lru_cache(maxsize=1024)
def grouped_poisson_epsilon(noise_multiplier: float, rate: float, group: int, rounds: int, delta: float) -> float:
    """Compute epsilon of Poisson-sampled Gaussian sums for adding or removing up to ``group`` records at once.

    Each record is drawn independently, so the group moves the sum by at most J units with J binomial(group, rate). The
    pair of N(0, z^2) and the mixture of N(j, z^2) over J dominates every round, for vectors and adaptively too (Ganesh
    2024, mixtures of Gaussians). Plain composition at ``group`` units is a bound as well, and the smaller is returned.
    ``noise_multiplier`` is noise over the effect of ONE record on the sum.
    """
    check_least("group", group)
    SampledRounds(noise_multiplier, rate, rounds)
    plain = epsilon_of(Cost(noise_multiplier=noise_multiplier / group), rounds, delta)
    if rounds == 0 or rate == 1:
        return plain
    mixture = _mixture_round(noise_multiplier, rate, group).self_compose(rounds)
    return min(plain, float(mixture.get_epsilon_for_delta(delta)))


def group_rate(rate: float, group: int) -> float:
    """Compute the probability that at least one of ``group`` records is drawn: ``1 - (1 - rate)^group``."""
    return 1.0 if rate == 1 else -math.expm1(group * math.log1p(-rate))


@lru_cache(maxsize=16)
def _mixture_round(noise_multiplier: float, rate: float, group: int) -> "PrivacyLossDistribution":
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415 -- slow to import

    counts = np.arange(group + 1)
    chances = scipy.stats.binom.pmf(counts, group, rate)
    # Very rare counts are merged into the largest, which can only cost more.
    last = max(1, int(np.searchsorted(np.cumsum(chances), 1 - 1e-14)))
    kept = np.append(chances[:last], max(0.0, 1 - chances[:last].sum()))
    sizes = np.append(counts[:last], group)
    ratio = group / noise_multiplier
    # Fine enough for the loss of a typical round, within a fixed number of cells; any width is valid.
    width = max((ratio * ratio / 2 + 8 * ratio) / _CELLS, rate * ratio / 5)
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise_multiplier, sizes.tolist(), kept.tolist(), value_discretization_interval=width
    )
