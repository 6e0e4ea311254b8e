"""An audit by many runs of a small instance: what is claimed against what guesses of coins show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from simulations.audit.canaries import Coins
from simulations.audit.exact import exact_step
from simulations.audit.finding import Audit
from simulations.audit.instance import Instance
from simulations.audit.trials import Case, Laboratory, Runs, laboratory
from simulations.config.run_config import RunConfig
from userdp.accounting.guarantee import Guarantee
from userdp.audit.coins import accuracy_lower_bound, most_right, mu_lower_bound
from userdp.audit.events import error_rates
from userdp.audit.one_run import best_guesses, guessed, one_run_lower_bound
from userdp.audit.statistic import Direction
from userdp.audit.trade_off import Gaussian
from userdp.errors import BadInput
from userdp.sampling import Sampler

Floats = NDArray[np.float64]

LEAST_RUNS = 200
LESSONS = 4
"""One run of so many teaches how to guess; the others are guessed."""
_LEAST_NOISE, _MOST_NOISE = 0.3, 300.0
"""Noise multipliers that are tried."""
_LEAST_PILOT, _PILOT = 100, 1 / 5
"""Runs of each attack that choose among them, where there are several: at least, and as a share of the audit's own."""
_FINALISTS = 2
"""Attacks among which they choose: those that reach furthest."""


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
    attack is chosen on runs of its own, how to guess on the first quarter of the rest, and the bound is computed on
    the others, which are independent of all that (`mu_lower_bound` for claims of one Gaussian, `bound_of` for claims
    that a sampler accounts, `one_run_lower_bound` for others). Where a round begins with one of finitely many outcomes
    the bound is at least what that outcome costs, exactly (`exact_step`).

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
    pilot = max(_LEAST_PILOT, round(_PILOT * runs))
    with laboratory(config, workers) as rooms:
        cases = _promising(rooms, runs)
        count = _Count(runs + (pilot * len(cases) if len(cases) > 1 else 0), progress)
        count(0)
        case = _best_attack(rooms, cases, pilot, runs, count)
        made, exact = rooms.runs(case, range(runs), count), _exact(rooms.instances)
    observer = rooms.observer(case)
    instance, guarantee = observer.instance, observer.instance.plan.guarantee
    found = bound_of(made, observer.alike, guarantee, confidence, accounted_sampler(instance))
    return Audit(
        strategy=instance.plan.strategy,
        guarantee=guarantee,
        attack=observer.attack.name,
        bound=found.kind,
        canaries=len(observer.attack.canaries),
        users=instance.facts.users,
        rounds=instance.plan.rounds,
        runs=runs,
        confidence=confidence,
        exact=exact,
        mu=found.mu,
        measured=max(found.measured, exact or 0.0),
        guesses=found.guesses,
        correct=found.correct,
        false_positives=found.false_positives,
        false_negatives=found.false_negatives,
    )


@dataclass(frozen=True)
class Bound:
    """What runs show; the fields are those of `Audit`, and ``kind`` is its bound."""

    kind: Literal["Gaussian", "rounds", "coins"]
    mu: float | None
    measured: float
    guesses: int
    correct: int
    false_positives: Floats
    false_negatives: Floats


def bound_of(
    made: Runs, alike: NDArray[np.bool_], guarantee: Guarantee, confidence: float, sampler: Sampler | None = None
) -> Bound:
    """How much of a claim the guesses of some runs prove.

    *Formal guarantees.* Those of `audit`: how to guess is learnt from the first quarter of the runs, and the bound is
    that of the others alone, which the first are independent of. Where a sampler accounts the claim, the claim is
    what it finds of some noise multiplier z, at every delta. A guess is right with at most the probability that it
    leaves (`most_right`), which falls with z; so every z is rejected for which that lies below
    `accuracy_lower_bound`, and the result is the epsilon, at the claim's delta, of the least z that is.

    Args:
        made: the runs.
        alike: (F,) which features are expected to differ by about the same.
        guarantee: what is claimed.
        confidence: of the bound.
        sampler: that accounts the claim; None if none does.
    """
    lessons = len(made.coins) // LESSONS
    learnt, tested = made[:lessons], made[lessons:]
    scores = _scorer(learnt, alike)
    before, after = scores(learnt), scores(tested)
    mu, guesses = None, after.size
    kind: Literal["Gaussian", "rounds", "coins"]
    if guarantee.is_one_gaussian:
        right = _right(after, tested.coins)
        mu = mu_lower_bound(_right(before, learnt.coins), right, confidence)
        measured, correct = Gaussian(mu).epsilon(guarantee.delta), round(float(right.sum()) * after.shape[1])
        kind = "Gaussian"
    elif sampler is not None:
        right = _right(after, tested.coins)
        share = accuracy_lower_bound(_right(before, learnt.coins), right, confidence)
        measured, correct = _least_epsilon(sampler, share, guarantee), round(float(right.sum()) * after.shape[1])
        kind = "rounds"
    else:
        kind = "coins"
        guesses = 2 * max(1, int(best_guesses(before, learnt.coins, guarantee.delta) * after.size) // 2)
        correct = int(np.count_nonzero(guessed(after.ravel(), guesses) == tested.coins.ravel()))
        measured = one_run_lower_bound(after.size, guesses, correct, guarantee.delta, confidence)
    errors = error_rates(after[tested.coins == 1], after[tested.coins == -1])
    return Bound(kind, mu, measured, guesses, correct, *errors)


def accounted_sampler(instance: Instance) -> Sampler | None:
    """The sampler whose accounting an instance's claim is, of a run that noise on its rounds alone protects."""
    sampler = getattr(instance.template.scheme, "sampler", None)
    told = instance.plan.guarantee.accountant
    return sampler if isinstance(sampler, Sampler) and sampler.accountant == told else None


def _least_epsilon(sampler: Sampler, share: float, guarantee: Guarantee) -> float:
    """The epsilon of the most noise with which guesses can be right that often."""

    def excess(loudness: float) -> float:
        """Of what a noise multiplier, given by its logarithm, leaves."""
        return most_right(partial(sampler.epsilon, math.exp(loudness))) - share

    low, high = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    if excess(high) >= 0:
        return 0.0
    # Least privacy first: where even that is not enough, it is what is shown.
    loudness = low if excess(low) <= 0 else float(scipy.optimize.brentq(excess, low, high, xtol=1e-3)) + 1e-3
    return float(sampler.epsilon(math.exp(loudness), guarantee.delta))


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


def _exact(instances: Sequence[Instance]) -> float | None:
    """The largest of what an outcome costs in some instance; None where no round has finitely many."""
    return max((each for one in instances if (each := exact_step(one)) is not None), default=None)


def _promising(rooms: Laboratory, runs: int) -> list[Case]:
    """The attacks that reach furthest, of all on all instances."""
    cases = rooms.cases()
    canaries = np.array([len(rooms.observer(case).attack.canaries) for case in cases])
    # Less what so many guesses leave open.
    told = np.array(rooms.reach(cases)) - (runs * canaries) ** -0.5
    names = [rooms.observer(case).attack.name for case in cases]
    best = {names[place]: place for place in np.argsort(told, kind="stable")}  # of several instances the furthest
    return [cases[place] for place in sorted(best.values(), key=lambda place: -told[place])[:_FINALISTS]]


def _best_attack(rooms: Laboratory, cases: Sequence[Case], pilot: int, runs: int, count: Callable[[int], None]) -> Case:
    """The attack that tells most, by runs that nothing else uses."""
    if len(cases) == 1:
        return cases[0]
    told = []
    for case in cases:
        # Numbers that no run of the audit itself has.
        made = rooms.runs(case, range(1 << 30, (1 << 30) + pilot), count)
        halves, alike = (made[: pilot // 2], made[pilot // 2 :]), rooms.observer(case).alike
        # Each half is guessed as the other teaches.
        right = [_right(_scorer(learnt, alike)(tested), tested.coins) for learnt, tested in (halves, halves[::-1])]
        # Less what so many guesses leave open, here and in the audit.
        told.append(float(np.mean(right)) - (made.coins.size**-0.5 + (runs * made.coins.shape[1]) ** -0.5))
    return cases[int(np.argmax(told))]
