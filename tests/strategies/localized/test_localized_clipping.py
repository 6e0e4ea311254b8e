"""Localised clipping: its proof on brute-force neighbours, its plan, and its behaviour."""

import math

import numpy as np
import pytest
from helpers import afresh, federation_of, gathered, make, taken
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import LocalizedClipping
from strategies.wire.replies import Gathered
from userdp.errors import BadInput, MissingAssumption, PopulationTooSmall
from userdp.problems import Bernoulli, Linear, Logistic, Quadratic, Squared
from userdp.randomness import stream

PROBLEMS = {
    "linear": Linear(2, 5.0),
    "quadratic": Quadratic(2, 5.0, 1.0),
    "bernoulli": Bernoulli(2, 1.0),
    "ridge": Logistic(2, 1.0, 1.0, ridge=0.05),
}
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
USERS, STEPS = 12, 4


def tiny(problem, rate, clip=0.3, **options):
    """One phase of four steps with three users each; ``rate`` in units of the longest step that is allowed."""
    step = rate * 2 / problem.certificate.smoothness if problem.certificate.smoothness else rate
    options = {"phases": 1, "steps": STEPS, "clip": clip, "learning_rate": step} | options
    return make(LocalizedClipping, problem, USERS, epsilon=2.0, delta=1e-3, **options)


def people(problem, rng, count):
    samples = rng.choice([-5.0, -1.0, -0.1, 0.0, 0.3, 1.0, 5.0], (count, 2))
    return samples, rng.integers(0, 2, count) if problem.has_targets else None


def average(method, samples, targets):
    """The average iterate of the first phase, before noise, by the strategy's own steps."""
    federation, x = federation_of(samples, targets=targets), afresh(method).problem.initial()
    for index in range(method.recipe.steps):
        x = taken(method, index, x, gathered(method, federation, index, x)).following
    return method.memory.value


@pytest.mark.sweep(1)
@each_problem
@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from([0.05, 0.3, 2.0]))
def test_replacing_one_user_moves_the_average_iterate_by_at_most_the_stated_sensitivity(problem, seed, rate, clip):
    rng = np.random.default_rng(seed)
    method = tiny(problem, rate, clip)
    samples, targets = people(problem, rng, USERS)
    user = rng.integers(USERS)
    other, other_targets = samples.copy(), None if targets is None else targets.copy()
    other[user] = -samples[user] if rng.random() < 0.5 else people(problem, rng, 1)[0]
    if other_targets is not None:
        other_targets[user] = 1 - other_targets[user]
    moved = average(method, samples, targets) - average(method, other, other_targets)
    stated = method.scheme.phases[0].mechanism.l2_sensitivity
    assert np.abs(moved).max() <= stated / math.sqrt(2) * (1 + 1e-9)
    assert np.linalg.norm(moved) <= stated * (1 + 1e-9)


def test_the_stated_sensitivity_is_attained_by_opposite_users_of_the_first_step():
    method = tiny(Linear(2, 5.0), 0.01, clip=0.3)
    samples = np.zeros((USERS, 2))
    opposite = samples.copy()
    user = method.scheme.sampler.cohort(0)[0]
    samples[user], opposite[user] = 5.0, -5.0
    distance = np.linalg.norm(average(method, samples, None) - average(method, opposite, None))
    assert distance == pytest.approx(method.scheme.phases[0].mechanism.l2_sensitivity)
    assert distance == pytest.approx(math.sqrt(2) * 0.01 * 2 * 0.3 / 3)


# --- The plan -------------------------------------------------------------------------------------------------------


def test_widths_narrow_towards_the_spread_of_users_and_never_widen():
    facts = {"min_samples": 400}
    method = make(LocalizedClipping, Quadratic(5, 9.0, 9.0), 10**5, phases=5, deviation=1.0, facts=facts)
    widths = [phase.width for phase in method.scheme.phases]
    assert widths[0] == 18.0
    assert widths == sorted(widths, reverse=True)
    assert 2 / math.sqrt(400) < widths[-1] < 0.2
    wide = make(LocalizedClipping, Quadratic(5, 9.0, 9.0), 100, phases=5)
    assert {phase.width for phase in wide.scheme.phases} == {18.0}


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(MissingAssumption, match="A4"):
        make(LocalizedClipping, Squared(2, 2.0, 50.0, low=-5.0, high=5.0), 100)
    with pytest.raises(BadInput, match=r"strategy.clip and strategy.learning_rate must be given"):
        make(LocalizedClipping, Squared(2, 2.0, 50.0, low=-5.0, high=5.0), 100, without_certificate=True)
    with pytest.raises(BadInput, match="at most 2 / smoothness = 2"):
        make(LocalizedClipping, Quadratic(2, 1.0, 1.0), 100, learning_rate=2.1)
    with pytest.raises(PopulationTooSmall, match="take 6"):
        make(LocalizedClipping, Quadratic(2, 1.0, 1.0), 5)


# --- Behaviour ------------------------------------------------------------------------------------------------------


def test_every_phase_clips_at_its_own_width_and_gets_the_noise_of_its_own_width():
    """Every user pulls each coordinate as far as the clip lets it; the expected models are computed by hand."""
    facts = {"min_samples": 400}
    problem = Quadratic(2, 9.0, 900.0)
    method = make(LocalizedClipping, problem, 10**5, phases=3, steps=2, clip=9.0, deviation=1.0, shrink=0, facts=facts)
    widths, rate = [phase.width for phase in method.scheme.phases], method.scheme.phases[0].learning_rate
    assert widths[0] > widths[1] > widths[2]
    batch, x = 10**5 // 6, np.zeros(2)
    for phase, width in enumerate(widths):
        first, second = x - width * rate, x - 2 * width * rate
        pulled = Gathered(np.full((4, 2), 1e6), 0, 0)
        x = taken(method, 2 * phase, x, pulled).following
        np.testing.assert_allclose(x, first)
        step = taken(method, 2 * phase + 1, x, pulled)
        x = step.following
        deviation = method.plan.numbers["noise_multiplier"] * math.sqrt(2) * rate * 2 * width / batch
        noise = stream(0, "noise", phase, 0).normal(scale=deviation, size=2)
        np.testing.assert_allclose(step.released - (first + second) / 2, noise, rtol=1e-6)
