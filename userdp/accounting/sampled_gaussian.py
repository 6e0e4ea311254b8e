"""Privacy of Poisson-sampled Gaussians whose rounds have rates and noises of their own, or are about groups.

Functions raise `BadInput` for an argument out of range.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
import scipy

from userdp.accounting.amplified import loss_cell
from userdp.accounting.checks import check_delta, check_least, check_rate
from userdp.accounting.costs import Cost, epsilon_of
from userdp.errors import BadInput

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_CELLS = 3000  # Cells of the privacy loss of one round of a group.


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
