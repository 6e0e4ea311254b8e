"""An audit by many runs of a small instance on neighbouring data sets: what is claimed against what was measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.audit.instance import Instance
from simulations.audit.neighbours import worst_cases
from simulations.audit.trials import Laboratory, Observer, Runs, laboratory
from simulations.config.run_config import RunConfig
from userdp.accounting.guarantee import Guarantee
from userdp.audit.events import epsilon_lower_bound, error_rates
from userdp.audit.gaussian import mu_lower_bound
from userdp.audit.statistic import Direction
from userdp.audit.trade_off import Approximate, Gaussian, TradeOff
from userdp.errors import BadInput

Floats = NDArray[np.float64]

GAUSSIAN = "analytic Gaussian mechanism"
"""How an accountant's name begins whose claim is that a whole run is as good as one Gaussian."""

LEAST_RUNS = 200
_PILOT = 100
"""Runs of each data set that choose among attacks, where there are several."""


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        strategy: its name.
        guarantee: what the small instance claims.
        attack: the pair of data sets.
        users: of the small instance.
        rounds: of one run.
        runs: of each data set, the half that chose the statistic among them.
        confidence: of the bound.
        mu: lower bound on mu where the claim is Gaussian; None where it is not.
        measured: lower bound on epsilon at the claim's delta.
        false_positives: (P,) measured on the second half of the runs, for the chart.
        false_negatives: (P,) likewise.
    """

    strategy: str
    guarantee: Guarantee
    attack: str
    users: int
    rounds: int
    runs: int
    confidence: float
    mu: float | None
    measured: float
    false_positives: Floats
    false_negatives: Floats

    @property
    def claim(self) -> TradeOff:
        """The promised trade-off between the two errors."""
        guarantee = self.guarantee
        if is_gaussian(guarantee):
            return Gaussian.of(guarantee.epsilon, guarantee.delta)
        return Approximate(guarantee.epsilon, guarantee.delta)

    @property
    def refuted(self) -> bool:
        """Whether more was measured than is claimed."""
        return self.measured > self.guarantee.epsilon * (1 + 1e-6)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "strategy": self.strategy,
            "claimed_epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "unit": self.guarantee.unit,
            "relation": self.guarantee.relation,
            "claimed_mu": claim.mu if isinstance(claim := self.claim, Gaussian) else None,
            "measured_epsilon": self.measured,
            "measured_mu": self.mu,
            "bound": "events" if self.mu is None else "Gaussian pairs",
            "confidence": self.confidence,
            "refuted": self.refuted,
            "attack": self.attack,
            "users": self.users,
            "rounds": self.rounds,
            "runs_of_each_data_set": self.runs,
            "membership_accuracy": claim.membership_accuracy,
        }


def is_gaussian(guarantee: Guarantee) -> bool:
    """Whether the claim is that of one Gaussian mechanism, beyond its (epsilon, delta)."""
    # Parts around a strategy, such as a preparation, add their own accountant's name to it.
    return guarantee.accountant.startswith(GAUSSIAN) and ";" not in guarantee.accountant


def audit(
    config: RunConfig,
    *,
    runs: int = 2000,
    confidence: float = 0.95,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Audit:
    """Attack a small instance of a configuration's strategy.

    *Formal guarantees.* If what is claimed holds, the bound exceeds it with probability at most ``1 - confidence``: the
    attack is chosen on runs of its own, the statistic and the threshold on the first half of the rest, and the
    bound is computed on the second half, whose runs are independent of all that (`epsilon_lower_bound`,
    `mu_lower_bound`).

    Args:
        config: of the run; its plan must be complete without data.
        runs: of each of the two data sets, at least 200.
        confidence: of the bound.
        workers: processes; one a CPU if not given, and 0 or 1 for this one alone.
        progress: called with the number of runs made since the last call.

    Raises:
        BadInput: the strategy promises nothing, or a number is out of range.
    """
    if runs < LEAST_RUNS:
        raise BadInput(f"runs = {runs}: fewer than {LEAST_RUNS} of each data set support no bound worth having")
    instance = Instance.of(config)
    with laboratory(instance, workers) as rooms:
        attack = _best_attack(rooms, progress)
        made = rooms.runs(attack, range(runs), progress)
    half = runs // 2
    learnt = Runs(made.first[:half], made.second[:half])
    direction = Direction.learnt(learnt.first, learnt.second, Observer.of(instance).alike)
    first, second = direction.scores(made.first), direction.scores(made.second)
    guarantee = instance.plan.guarantee
    mu = None
    if is_gaussian(guarantee):
        mu = mu_lower_bound(first[half:], second[half:], confidence)
        measured = Gaussian(mu).epsilon(guarantee.delta)
    else:
        # It halves the runs in the same way: thresholds are chosen where the direction was.
        measured = epsilon_lower_bound(first, second, guarantee.delta, confidence)
    return Audit(
        instance.plan.strategy,
        guarantee,
        worst_cases(instance)[attack].name,
        instance.facts.users,
        instance.plan.rounds,
        runs,
        confidence,
        mu,
        measured,
        *error_rates(first[half:], second[half:]),
    )


def runs_in_all(config: RunConfig, runs: int) -> int:
    """How many runs `audit` makes, for a progress bar."""
    cases = len(worst_cases(Instance.of(config)))
    return 2 * runs + (2 * _PILOT * cases if cases > 1 else 0)


def _best_attack(rooms: Laboratory, progress: Callable[[int], None]) -> int:
    """The attack that tells most, by runs that nothing else uses."""
    cases = len(worst_cases(rooms.instance))
    if cases == 1:
        return 0
    alike = Observer.of(rooms.instance).alike
    told = []
    for attack in range(cases):
        # Numbers that no run of the audit itself has.
        made = rooms.runs(attack, range(1 << 30, (1 << 30) + _PILOT), progress)
        half = _PILOT // 2
        direction = Direction.learnt(made.first[:half], made.second[:half], alike)
        first, second = direction.scores(made.first[half:]), direction.scores(made.second[half:])
        told.append(float((first[:, None] > second[None, :]).mean()))
    return int(np.argmax(told))
