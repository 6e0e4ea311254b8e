"""Privacy of Poisson-sampled Gaussians whose rounds have rates and noises of their own.

Functions raise `BadInput` for an argument out of range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from userdp.accounting.amplified import loss_cell, poisson_round
from userdp.accounting.checks import check_delta, check_least, check_rate, check_relation
from userdp.accounting.costs import Cost, epsilon_of
from userdp.accounting.guarantee import Relation
from userdp.errors import BadInput


@dataclass(frozen=True)
class SampledRounds:
    """Equal rounds: a Gaussian of sensitivity one, seen by each record with probability ``rate``."""

    noise_multiplier: float  # noise over the most that a record moves the sum, under the relation of the price; > 0
    rate: float  # probability that a record takes part, in (0, 1]
    rounds: int = 1  # number of rounds; >= 0

    def __post_init__(self) -> None:
        if not self.noise_multiplier > 0:
            raise BadInput(f"noise multiplier = {self.noise_multiplier}: must be positive")
        check_rate(self.rate)
        check_least("rounds", self.rounds, 0)


def unequal_rounds_epsilon(steps: Sequence[SampledRounds], delta: float, relation: Relation = "add_or_remove") -> float:
    """Compute epsilon of all rounds together from their privacy loss distribution, for one record.

    Rounds are dominated as in `userdp.accounting.amplified.poisson_epsilon`, under either relation, and composed
    adaptively, in any order (Zhu, Dong, Wang 2022), with pessimistic rounding (Doroshenko et al. 2022); rounds at rate
    1 are one Gaussian (Dong, Roth, Su 2022). Plain composition is a bound as well, since sampling costs no privacy, and
    the smaller is returned.
    """
    check_delta(delta)
    check_relation(relation)
    drawn = [step for step in steps if step.rounds and step.rate < 1]
    squared = sum(step.rounds / step.noise_multiplier**2 for step in steps)
    if not squared:
        return 0.0
    plain = epsilon_of(Cost(noise_multiplier=squared**-0.5), 1, delta)
    if not drawn:
        return plain
    # All rounds share one grid, so that they compose.
    faintest = min(step.rate / step.noise_multiplier for step in drawn)
    grid = loss_cell(min(step.noise_multiplier for step in drawn), faintest)
    certain = sum(step.rounds / step.noise_multiplier**2 for step in steps if step.rate == 1)
    parts = [] if not certain else [poisson_round(certain**-0.5, 1.0, grid, relation)]
    for step in drawn:
        one = poisson_round(step.noise_multiplier, step.rate, grid, relation)
        parts.append(one.self_compose(step.rounds))
    composed = reduce(lambda before, one: before.compose(one), parts)
    return min(plain, float(composed.get_epsilon_for_delta(delta)))
