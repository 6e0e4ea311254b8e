"""An audit by many runs of a small instance: what is claimed against what guesses of coins show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.audit.canaries import Coins, attacks
from simulations.audit.instance import Instance
from simulations.audit.trials import Laboratory, Observer, Runs, laboratory
from simulations.config.run_config import RunConfig
from userdp.accounting.guarantee import Guarantee
from userdp.audit.coins import mu_lower_bound
from userdp.audit.events import error_rates
from userdp.audit.one_run import best_guesses, guessed, one_run_lower_bound
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
        attack: who the canaries were.
        canaries: in each run.
        users: of the small instance.
        rounds: of one run.
        runs: all of them, with the half that taught how to guess.
        confidence: of the bound.
        mu: lower bound on mu where the claim is Gaussian; None where it is not.
        measured: lower bound on epsilon at the claim's delta.
        false_positives: (P,) measured on the second half of the runs, for the chart.
        false_negatives: (P,) likewise.
    """

    strategy: str
    guarantee: Guarantee
    attack: str
    canaries: int
    users: int
    rounds: int
    runs: int
    confidence: float
    mu: float | None
    measured: float
    false_positives: Floats
    false_negatives: Floats

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
            "claimed_mu": claim.mu if isinstance(claim := claim_of(self.guarantee), Gaussian) else None,
            "measured_epsilon": self.measured,
            "measured_mu": self.mu,
            "bound": "coins" if self.mu is None else "Gaussian",
            "confidence": self.confidence,
            "refuted": self.refuted,
            "attack": self.attack,
            "users": self.users,
            "rounds": self.rounds,
            "canaries": self.canaries,
            "runs": self.runs,
        }


def claim_of(guarantee: Guarantee) -> TradeOff:
    """The promised trade-off between an attacker's two errors."""
    if is_gaussian(guarantee):
        return Gaussian.of(guarantee.epsilon, guarantee.delta)
    return Approximate(guarantee.epsilon, guarantee.delta)


def is_gaussian(guarantee: Guarantee) -> bool:
    """Whether the claim is that of one Gaussian mechanism, beyond its (epsilon, delta)."""
    # Parts around a strategy, such as a preparation, add their own accountant's name to it.
    return guarantee.accountant.startswith(GAUSSIAN) and ";" not in guarantee.accountant


def audit(
    config: RunConfig,
    *,
    runs: int = 1000,
    confidence: float = 0.95,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Audit:
    """Attack a small instance of a configuration's strategy.

    *Formal guarantees.* If what is claimed holds, the bound exceeds it with probability at most ``1 - confidence``: the
    attack is chosen on runs of its own, how to guess on the first half of the rest, and the bound is computed on the
    second half, whose runs are independent of all that (`mu_lower_bound` for claims of one Gaussian,
    `one_run_lower_bound` for others).

    Args:
        config: of the run; its plan must be complete without data.
        runs: at least 200.
        confidence: of the bound.
        workers: processes; one a CPU if not given, and 0 or 1 for this one alone.
        progress: called with the runs made so far and the number that there will be.

    Raises:
        BadInput: the strategy promises nothing, or a number is out of range.
    """
    if runs < LEAST_RUNS:
        raise BadInput(f"runs = {runs}: fewer than {LEAST_RUNS} support no bound worth having")
    instance = Instance.of(config)
    cases = len(attacks(instance))
    count = _Count(runs + (_PILOT * cases if cases > 1 else 0), progress)
    with laboratory(instance, workers) as rooms:
        attack = _best_attack(rooms, cases, runs, count)
        made = rooms.runs(attack, range(runs), count)
    observer = Observer.of(instance, attack)
    half = runs // 2
    learnt, tested = made[:half], made[half:]
    scores = _scorer(learnt, observer.alike)
    before, after = scores(learnt), scores(tested)
    guarantee = instance.plan.guarantee
    mu = None
    if is_gaussian(guarantee):
        mu = mu_lower_bound(_right(before, learnt.coins), _right(after, tested.coins), confidence)
        measured = Gaussian(mu).epsilon(guarantee.delta)
    else:
        share = best_guesses(before, learnt.coins, guarantee.delta)
        guesses = max(2, int(share * after.size))
        right = int(np.count_nonzero(guessed(after.ravel(), guesses) == tested.coins.ravel()))
        measured = one_run_lower_bound(after.size, guesses, right, guarantee.delta, confidence)
    return Audit(
        instance.plan.strategy,
        guarantee,
        observer.attack.name,
        len(observer.attack.canaries),
        instance.facts.users,
        instance.plan.rounds,
        runs,
        confidence,
        mu,
        measured,
        *error_rates(after[tested.coins == 1], after[tested.coins == -1]),
    )


@dataclass
class _Count:
    """How many runs have been made."""

    total: int
    told: Callable[[int, int], None]
    done: int = 0

    def __call__(self, more: int) -> None:
        self.done += more
        self.told(self.done, self.total)


def _scorer(learnt: Runs, alike: NDArray[np.bool_]) -> Callable[[Runs], Floats]:
    """From runs to (R, m) scores, whose signs are guesses, learnt from some of them."""
    direction = Direction.learnt(learnt.features[learnt.coins == 1], learnt.features[learnt.coins == -1], alike)
    ones, others = (direction.scores(learnt.features[learnt.coins == coin]).mean() for coin in (1, -1))
    return lambda runs: direction.scores(runs.features) - (ones + others) / 2


def _right(scores: Floats, coins: Coins) -> Floats:
    """(R,) the share of right guesses."""
    return np.asarray((np.sign(scores) == coins).mean(axis=1))


def _best_attack(rooms: Laboratory, cases: int, runs: int, count: Callable[[int], None]) -> int:
    """The attack that tells most, by runs that nothing else uses."""
    if cases == 1:
        return 0
    told = []
    for attack in range(cases):
        # Numbers that no run of the audit itself has.
        made = rooms.runs(attack, range(1 << 30, (1 << 30) + _PILOT), count)
        learnt, tested = made[: _PILOT // 2], made[_PILOT // 2 :]
        right = _right(_scorer(learnt, Observer.of(rooms.instance, attack).alike)(tested), tested.coins)
        # Less what so many guesses leave open, here and in the audit.
        told.append(float(right.mean()) - (tested.coins.size**-0.5 + (runs * tested.coins.shape[1]) ** -0.5))
    return int(np.argmax(told))
