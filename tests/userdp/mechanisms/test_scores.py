"""Choices and tests take scores with a bound: whoever is priced for less than that refuses them."""

import math

import numpy as np
import pytest

from strategies.baselines.peeling import Peeling
from userdp.accounting import Cost
from userdp.errors import BadInput, RunFailed
from userdp.estimators.concentration import RampKernel
from userdp.mechanisms import AboveThreshold, ExponentialMechanism, MinimumScore
from userdp.noise import Scores, SecureNoise, SeededNoise


def seeded():
    return SeededNoise(np.random.default_rng(0))


def agreeing(kind):
    return kind(batch=60, kernel=RampKernel(1.0), epsilon=1.0, delta=0.01)


DOORS = {
    "seeded": (1.0, lambda scores: seeded().choose(scores, 1.0)),
    "secure": (1.0, lambda scores: SecureNoise().choose(scores, 1.0)),
    "exponential": (0.5, lambda scores: ExponentialMechanism(0.5, 1.0).choose(scores, seeded())),
    "flips": (0.5, lambda scores: ExponentialMechanism(0.5, 1.0, flips=True).choose(scores, seeded())),
    "peeling": (0.5, lambda scores: Peeling(1, 0.5, 1.0, 0.0).release(scores, seeded())),
    "above threshold": (2 * 59 / 60, lambda score: agreeing(AboveThreshold).session(seeded()).observe(score)),
    "minimum score": (2 * 59 / 60, lambda score: agreeing(MinimumScore).session(seeded()).observe(score)),
}
"""Whatever chooses, or tests, by scores, with the bound that it is priced for."""
PRICED = [name for name in DOORS if name not in ("seeded", "secure")]  # noise has the price that the bound gives it


@pytest.mark.parametrize("door", DOORS)
def test_scores_without_a_bound_are_refused(door):
    with pytest.raises(BadInput, match="scores that do not say how far one user moves them"):
        DOORS[door][1](np.array([[3.0, 1.0]]))
    for moved in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(BadInput, match="state a positive number"):
            Scores(np.zeros(2), moved)


@pytest.mark.parametrize("door", PRICED)
def test_scores_that_move_further_than_is_charged_are_refused_before_they_are_used(door):
    charged, choose = DOORS[door]
    for moved in (charged, charged / 2):
        choose(Scores(np.array([50.0]), moved))
    for values in ([50.0], [math.nan]):  # whatever they are: the refusal follows from public facts
        with pytest.raises(RunFailed, match=r"one user moves scores by up to .* is charged"):
            choose(Scores(np.array(values), charged * 1.01))


def test_a_refused_choice_costs_nothing_and_draws_nothing():
    noise, before = seeded(), seeded().state()
    with pytest.raises(RunFailed):
        ExponentialMechanism(0.5, 1.0).choose(Scores(np.zeros(2), 1.0), noise)
    assert (noise.state(), noise.spent) == (before, Cost())


def test_noise_divides_scores_by_their_bound():
    """A choice at epsilon among scores that move by ten is that among scores of a tenth that move by one."""
    scores = np.random.default_rng(1).normal(size=(50, 7))
    drawn = [seeded().choose(Scores(scores * moved, moved), 2.0) for moved in (1.0, 8.0)]
    np.testing.assert_array_equal(*drawn)


def test_a_cohort_larger_than_its_test_is_for_is_refused():
    test = agreeing(AboveThreshold)
    assert test.scored(60.0, 61).moved > test.sensitivity
    with pytest.raises(RunFailed, match="one user moves scores"):
        test.session(seeded()).observe(test.scored(60.0, 61))


@pytest.mark.parametrize("movement", [0.01, 0.3])
def test_scores_of_a_phase_state_how_far_later_steps_move(movement):
    test = AboveThreshold(batch=60, kernel=RampKernel(1.0), epsilon=1.0, delta=0.01, movement=movement)
    assert test.scored(60.0, 60).moved == test.sensitivity >= 59 * 2 * movement
