"""An audit by many runs of a small instance: the claim against the bound that guesses of coins prove."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from simulations.audit.canaries import Coins, attacks
from simulations.audit.finding import Audit, Bound
from simulations.audit.instance import Instance
from simulations.audit.trials import Case, Laboratory, Runs, exact_step, laboratory
from simulations.config.run_config import RunConfig
from userdp.accounting.guarantee import Guarantee
from userdp.arrays.types import Array
from userdp.audit.coins import accuracy_lower_bound, most_right, mu_lower_bound
from userdp.audit.one_run import best_guesses, guessed, one_run_lower_bound
from userdp.audit.scores import Direction, error_rates
from userdp.audit.trade_off import Gaussian
from userdp.errors import BadInput
from userdp.sampling import Sampler

LEAST_RUNS = 200
LESSONS = 4  # the attacker learns how to guess from one run in this many, and guesses the others
_LEAST_NOISE, _MOST_NOISE = 0.3, 300.0  # range of the noise multipliers to try
_LEAST_PILOT, _PILOT = 100, 1 / 5  # pilot runs of each attack: at least, and as a share of the audit's own runs
_FINALISTS = 2  # number of attacks, those with the largest reach, for the pilot runs


def audit(
    config: RunConfig,
    *,
    runs: int = 1000,
    confidence: float = 0.95,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Audit:
    """Attack a small instance of a configuration's strategy.

    *Formal guarantees.* If the claim holds, the bound exceeds it with probability at most ``1 - confidence``: the
    attack is chosen on runs of its own, the score is learnt from the first quarter of the rest, and the bound is
    computed on the others, which are independent of all that (`mu_lower_bound` for claims of one Gaussian, `bound_of`
    for claims that a sampler accounts, `one_run_lower_bound` for others). If a round begins with a discrete outcome,
    the bound is at least the exact cost of that outcome (`exact_step`).

    There are at least 200 ``runs``, in one process for each CPU if ``workers`` is None, in this one for 0 or 1;
    ``progress`` is called with the runs so far and their total. BadInput if the strategy promises nothing, its plan
    needs data, or a number is out of range.
    """
    if runs < LEAST_RUNS:
        raise BadInput(f"runs = {runs}: fewer than {LEAST_RUNS} runs prove no useful bound; make more")
    pilot = max(_LEAST_PILOT, round(_PILOT * runs))
    with laboratory(config, workers) as rooms:
        cases = _promising(rooms, runs)
        total, done = runs + (pilot * len(cases) if len(cases) > 1 else 0), 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            progress(done, total)

        count(0)
        case = _best_attack(rooms, cases, pilot, runs, count)
        made = rooms.runs(case, range(runs), count)
        exact = max((each for one in rooms.instances if (each := exact_step(one)) is not None), default=None)
    observer = rooms.observer(case)
    instance, guarantee = observer.instance, observer.instance.plan.guarantee
    found = bound_of(made, observer.alike, guarantee, confidence, accounted_sampler(instance))
    return Audit(
        strategy=instance.plan.strategy,
        guarantee=guarantee,
        attack=observer.attack.name,
        canaries=len(observer.attack.canaries),
        users=instance.facts.users,
        rounds=instance.plan.rounds,
        runs=runs,
        confidence=confidence,
        exact=exact,
        **vars(found) | {"measured": max(found.measured, exact or 0.0)},
    )


def bound_of(
    made: Runs, alike: NDArray[np.bool_], guarantee: Guarantee, confidence: float, sampler: Sampler | None = None
) -> Bound:
    """Compute how much of a claim the guesses of some runs prove; ``alike`` features differ by about the same.

    *Formal guarantees.* Those of `audit`: the score is learnt from the first quarter of the runs, and the bound is that
    of the others alone, which are independent of the first. If a sampler accounts the claim, the claim is its
    accounting of some noise multiplier z, at every delta. A guess is right with at most the probability that z leaves
    (`most_right`), which falls with z. So every z with a probability below `accuracy_lower_bound` is rejected, and the
    result is the epsilon, at the claim's delta, of the least rejected z.
    """
    lessons = len(made.coins) // LESSONS
    learnt, tested = made[:lessons], made[lessons:]
    scores = _scorer(learnt, alike)
    before, after = scores(learnt), scores(tested)
    alarms, misses = error_rates(after[tested.coins == 1], after[tested.coins == -1])
    proven = partial(Bound, false_positives=alarms, false_negatives=misses)
    if not guarantee.is_one_gaussian and sampler is None:
        guesses = 2 * max(1, int(best_guesses(before, learnt.coins, guarantee.delta) * after.size) // 2)
        correct = int(np.count_nonzero(guessed(after.ravel(), guesses) == tested.coins.ravel()))
        measured = one_run_lower_bound(after.size, guesses, correct, guarantee.delta, confidence)
        return proven(bound="coins", measured=measured, guesses=guesses, correct=correct)
    rehearsed, right = _right(before, learnt.coins), _right(after, tested.coins)
    correct = round(float(right.sum()) * after.shape[1])
    if guarantee.is_one_gaussian:
        mu = mu_lower_bound(rehearsed, right, confidence)
        measured = Gaussian(mu).epsilon(guarantee.delta)
        return proven(bound="Gaussian", mu=mu, measured=measured, guesses=after.size, correct=correct)
    assert sampler is not None
    measured = _least_epsilon(sampler, accuracy_lower_bound(rehearsed, right, confidence), guarantee)
    return proven(bound="rounds", measured=measured, guesses=after.size, correct=correct)


def accounted_sampler(instance: Instance) -> Sampler | None:
    """Return the sampler whose accounting is an instance's whole claim; None if other noise is part of it."""
    sampler, accountant = instance.template.scheme.sampler, instance.plan.guarantee.accountant
    return sampler if sampler is not None and sampler.accountant == accountant else None


def _least_epsilon(sampler: Sampler, share: float, guarantee: Guarantee) -> float:
    """Return the epsilon of the most noise that allows this share of right guesses."""

    def excess(log_noise: float) -> float:
        return most_right(partial(sampler.epsilon, math.exp(log_noise))) - share

    low, high = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    if excess(high) >= 0:
        return 0.0
    # If even the least noise leaves too few right guesses, its epsilon is the bound.
    log_noise = low if excess(low) <= 0 else float(scipy.optimize.brentq(excess, low, high, xtol=1e-3)) + 1e-3
    return float(sampler.epsilon(math.exp(log_noise), guarantee.delta))


def _scorer(learnt: Runs, alike: NDArray[np.bool_]) -> Callable[[Runs], Array]:
    """Learn a function from runs to (R, m) scores, whose signs are guesses."""
    direction = Direction.learnt(learnt.features[learnt.coins == 1], learnt.features[learnt.coins == -1], alike)
    ones, others = (direction.scores(learnt.features[learnt.coins == coin]).mean() for coin in (1, -1))
    return lambda runs: direction.scores(runs.features) - (ones + others) / 2


def _right(scores: Array, coins: Coins) -> Array:
    return np.asarray((np.sign(scores) == coins).mean(axis=1))


def _promising(rooms: Laboratory, runs: int) -> list[Case]:
    cases = [(place, each) for place, one in enumerate(rooms.instances) for each in range(len(attacks(one)))]
    found = [rooms.observer(case).attack for case in cases]
    canaries = np.array([len(attack.canaries) for attack in found])
    # Less the statistical uncertainty of this many guesses.
    reach = np.array(rooms.reach(cases)) - (runs * canaries) ** -0.5
    best = {found[place].name: place for place in np.argsort(reach, kind="stable")}  # its best instance for each attack
    return [cases[place] for place in sorted(best.values(), key=lambda place: -reach[place])[:_FINALISTS]]


def _best_attack(rooms: Laboratory, cases: Sequence[Case], pilot: int, runs: int, count: Callable[[int], None]) -> Case:
    """Return the attack with the most right guesses in pilot runs, which nothing else uses."""
    if len(cases) == 1:
        return cases[0]
    success = []
    for case in cases:
        # No run of the audit itself has these numbers.
        made = rooms.runs(case, range(1 << 30, (1 << 30) + pilot), count)
        halves, alike = (made[: pilot // 2], made[pilot // 2 :]), rooms.observer(case).alike
        # The score learnt from each half guesses the other.
        right = [_right(_scorer(learnt, alike)(tested), tested.coins) for learnt, tested in (halves, halves[::-1])]
        # Less the statistical uncertainty of this many guesses, here and in the audit.
        success.append(float(np.mean(right)) - (made.coins.size**-0.5 + (runs * made.coins.shape[1]) ** -0.5))
    return cases[int(np.argmax(success))]
