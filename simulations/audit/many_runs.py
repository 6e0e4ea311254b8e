"""An audit by many runs of a small instance: what is claimed against what guesses of coins show."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulations.audit.canaries import Coins, attacks
from simulations.audit.exact import exact_step
from simulations.audit.finding import Audit
from simulations.audit.instance import Instance
from simulations.audit.trials import Laboratory, Observer, Runs, laboratory
from simulations.config.run_config import RunConfig
from userdp.accounting.guarantee import Guarantee
from userdp.audit.coins import mu_lower_bound
from userdp.audit.events import error_rates
from userdp.audit.one_run import best_guesses, guessed, one_run_lower_bound
from userdp.audit.statistic import Direction
from userdp.audit.trade_off import Gaussian
from userdp.errors import BadInput

Floats = NDArray[np.float64]

LEAST_RUNS = 200
_LEAST_PILOT, _PILOT = 100, 1 / 5
"""Runs of each attack that choose among them, where there are several: at least, and as a share of the audit's own."""


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
    `one_run_lower_bound` for others). Where a round begins with one of finitely many outcomes the bound is at least
    what that outcome costs, exactly (`exact_step`).

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
    pilot = max(_LEAST_PILOT, round(_PILOT * runs))
    count = _Count(runs + (pilot * cases if cases > 1 else 0), progress)
    with laboratory(instance, workers) as rooms:
        attack = _best_attack(rooms, cases, pilot, runs, count)
        made = rooms.runs(attack, range(runs), count)
    observer, guarantee = Observer.of(instance, attack), instance.plan.guarantee
    found, exact = bound_of(made, observer.alike, guarantee, confidence), exact_step(instance)
    return Audit(
        strategy=instance.plan.strategy,
        guarantee=guarantee,
        attack=observer.attack.name,
        bound="coins" if found.mu is None else "Gaussian",
        canaries=len(observer.attack.canaries),
        users=instance.facts.users,
        rounds=instance.plan.rounds,
        runs=runs,
        confidence=confidence,
        exact=exact,
        **(vars(found) | {"measured": max(found.measured, exact or 0.0)}),
    )


@dataclass(frozen=True)
class Bound:
    """What runs show; the fields are those of `Audit`."""

    mu: float | None
    measured: float
    guesses: int
    correct: int
    false_positives: Floats
    false_negatives: Floats


def bound_of(made: Runs, alike: NDArray[np.bool_], guarantee: Guarantee, confidence: float) -> Bound:
    """How much of a claim the guesses of some runs prove.

    *Formal guarantees.* Those of `audit`: how to guess is learnt from the first half of the runs, and the bound is that
    of the second half alone, which the first is independent of.

    Args:
        made: the runs.
        alike: (F,) which features are expected to differ by about the same.
        guarantee: what is claimed.
        confidence: of the bound.
    """
    half = len(made.coins) // 2
    learnt, tested = made[:half], made[half:]
    scores = _scorer(learnt, alike)
    before, after = scores(learnt), scores(tested)
    mu, guesses = None, after.size
    if guarantee.is_one_gaussian:
        right = _right(after, tested.coins)
        mu = mu_lower_bound(_right(before, learnt.coins), right, confidence)
        measured, correct = Gaussian(mu).epsilon(guarantee.delta), round(float(right.sum()) * after.shape[1])
    else:
        guesses = 2 * max(1, int(best_guesses(before, learnt.coins, guarantee.delta) * after.size) // 2)
        correct = int(np.count_nonzero(guessed(after.ravel(), guesses) == tested.coins.ravel()))
        measured = one_run_lower_bound(after.size, guesses, correct, guarantee.delta, confidence)
    errors = error_rates(after[tested.coins == 1], after[tested.coins == -1])
    return Bound(mu, measured, guesses, correct, *errors)


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


def _best_attack(rooms: Laboratory, cases: int, pilot: int, runs: int, count: Callable[[int], None]) -> int:
    """The attack that tells most, by runs that nothing else uses."""
    if cases == 1:
        return 0
    told = []
    for attack in range(cases):
        # Numbers that no run of the audit itself has.
        made = rooms.runs(attack, range(1 << 30, (1 << 30) + pilot), count)
        halves, alike = (made[: pilot // 2], made[pilot // 2 :]), Observer.of(rooms.instance, attack).alike
        # Each half is guessed as the other teaches.
        right = [_right(_scorer(learnt, alike)(tested), tested.coins) for learnt, tested in (halves, halves[::-1])]
        # Less what so many guesses leave open, here and in the audit.
        told.append(float(np.mean(right)) - (made.coins.size**-0.5 + (runs * made.coins.shape[1]) ** -0.5))
    return int(np.argmax(told))
