"""Localised weighting: its proof on brute-force neighbours, its rounds by hand, and why outliers are not removed."""

import math

import numpy as np
import pytest
from helpers import afresh, federation_of, gathered, make, silenced, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import each_wide_problem

from strategies import LocalizedWeighting
from strategies.baselines.outlier_removal.neighbour_mean import IndicatorKernel, NeighbourMean
from strategies.wire.replies import Gathered
from userdp.errors import MissingAssumption, PopulationTooSmall, RunFailed
from userdp.mechanisms import GaussianMechanism
from userdp.problems import Linear, Poisson, Quadratic, Softmax

BATCH, STEPS = 2, 4


def people(problem, rng, count, samples=2):
    features = rng.choice([-5.0, -1.0, -0.1, 0.0, 0.3, 1.0, 5.0], (count, samples, 2))
    targets = rng.integers(0, 3 if isinstance(problem, Softmax) else 2, (count, samples))
    return features, targets if problem.has_targets else None


def federation(features, targets):
    return federation_of(features, targets=None if targets is None else targets.ravel())


def replaced(problem, rng, features, targets, user):
    """The same people, but for one: another person, or the opposite one."""
    features, targets = features.copy(), None if targets is None else targets.copy()
    other, others = people(problem, rng, 1, features.shape[1])
    features[user] = other[0] if rng.random() < 0.5 else -features[user]
    if targets is not None:
        targets[user] = others[0]
    return features, targets


def average(method, people, reach, longest):
    """The average iterate of the second phase, before noise, by the strategy's own steps."""
    data, x = federation(*people), afresh(method).problem.initial()
    method.program.own.memory = memory = method.scheme.new_memory()
    memory.begin(x)
    memory.reach, memory.longest = reach, longest
    for index in range(3, 3 + STEPS):  # after a measuring round and a step of the first phase, and a measuring round
        x = taken(method, index, x, gathered(method, data, index, x)).following
    return memory.average.value


@pytest.mark.sweep(1)
@each_wide_problem
@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.1, 1.0, 10.0, 50.0]),
    st.sampled_from([0.05, 0.5, 3.0]),
    st.sampled_from([0.1, 1.0, 20.0]),
)
def test_replacing_one_user_moves_the_average_iterate_by_at_most_the_stated_sensitivity(
    problem, seed, rate, longest, reach
):
    rng, users = np.random.default_rng(seed), BATCH * (3 + STEPS)
    method = make(LocalizedWeighting, problem, users, 2.0, 1e-3, phases=2, steps=STEPS, learning_rate=rate)
    one = people(problem, rng, users)
    user = rng.choice(method.scheme.sampler.cohort(rng.integers(3, 3 + STEPS)))
    moved = average(method, one, reach, longest)
    moved = moved - average(method, replaced(problem, rng, *one, user), reach, longest)
    method.memory.longest = longest
    assert np.linalg.norm(moved) <= method.scheme.stepped(method.memory)[1].l2_sensitivity * (1 + 1e-9)


def test_the_stated_sensitivity_is_attained_by_opposite_users_of_the_first_step():
    problem, users = Linear(2, 5.0), BATCH * (3 + STEPS)
    method = make(LocalizedWeighting, problem, users, 2.0, 1e-3, phases=2, steps=STEPS, learning_rate=0.1)
    features = np.zeros((users, 1, 2))
    opposite, user = features.copy(), method.scheme.sampler.cohort(3)[0]
    features[user], opposite[user] = 5.0, -5.0
    moved = average(method, (features, None), 1.0, 0.3) - average(method, (opposite, None), 1.0, 0.3)
    stated = method.scheme.stepped(method.memory)[1].l2_sensitivity
    assert np.linalg.norm(moved) == pytest.approx(stated)
    assert stated == pytest.approx(2 * 0.1 * 0.3 / BATCH)


# --- Rounds ---------------------------------------------------------------------------------------------------------


def test_a_run_by_hand():
    """Everybody's point is (3, 4), and so far from it everybody weighs as much as two gradients of length 1 allow."""
    problem, users, rate = Quadratic(2, 9.0, 900.0), 7000, 0.5
    method = silenced(make(LocalizedWeighting, problem, users, 2.0, 1e-3, phases=2, steps=4, learning_rate=rate))
    data = federation_of(np.full((users, 2), (3.0, 4.0)))
    x, facts = problem.initial(), []
    for index in range(7):
        step = taken(method, index, x, gathered(method, data, index, x))
        assert (step.released is None) == (index not in (1, 6))
        x, facts = step.following, [*facts, step.facts]
    # Phase 1: steepness 5, at the end of what is told apart; gradients of length 7.5 need no weight: half the way.
    assert facts[0]["longest"] == pytest.approx(7.5)
    assert facts[1]["reach"] == 0.0
    # Phase 2 starts at 2.5 from the point, and may go as far as phase 1 went: steepness 2.5 + 1 * 2.5.
    assert facts[2]["reach"] == pytest.approx(2.5)
    assert facts[2]["longest"] == pytest.approx(1.5 * 5)
    # Weight 1: half of the rest at every step; the average is that of the last three of four.
    rest = 2.5 * np.mean([0.5**2, 0.5**3, 0.5**4])
    np.testing.assert_allclose(x, (1 - rest / 5) * np.array([3.0, 4.0]), rtol=1e-6)


def test_the_question_of_a_step_holds_the_start_and_the_limits_of_the_proof():
    method = make(LocalizedWeighting, Quadratic(2, 9.0, 900.0), 700, phases=2, steps=2, learning_rate=0.5)
    memory = method.memory
    memory.begin(np.array([3.0, 4.0]))
    memory.reach, memory.longest = 2.0, 7.0
    asked = method.scheme.ask(4, memory).computation
    assert (asked.name, asked.clip_norm) == ("weighed_gradient", 7.0)
    assert asked.parameters == {"longest": 7.0, "reach": 2.0, "curvature": 2 / 0.5}
    np.testing.assert_array_equal(asked.arrays["start"], [3.0, 4.0])


def test_users_answer_within_reach_of_the_start():
    """Whatever they answered before; where the last step of a phase ends, nobody answers."""
    method = make(LocalizedWeighting, Quadratic(2, 9.0, 900.0), 700, phases=2, steps=2, learning_rate=0.5)
    start = np.array([3.0, 4.0])
    method.memory.begin(start)
    method.memory.reach = 2.0
    far = Gathered(np.array([-6e5, -8e5]), 0, 0)
    np.testing.assert_allclose(taken(method, 3, start, far).following, [4.2, 5.6])


def test_a_round_whose_users_could_move_the_release_further_is_refused(monkeypatch):
    method = make(LocalizedWeighting, Quadratic(2, 9.0, 900.0), 700, phases=2, steps=2, learning_rate=0.5)
    asked, mechanism = method.scheme.stepped(method.memory)
    half = GaussianMechanism(mechanism.l2_sensitivity / 2, 1.0)
    monkeypatch.setattr(type(method.scheme), "stepped", lambda scheme, memory: (asked, half))
    with pytest.raises(RunFailed, match="clip what users send"):
        method.scheme.ask(1, method.memory)


def test_losses_without_the_proof_and_populations_too_small_are_refused():
    with pytest.raises(MissingAssumption, match="lacks a bound on users' curvatures"):
        make(LocalizedWeighting, Poisson(2, 1.0, 1.0, count_bound=5.0), 100)
    with pytest.raises(PopulationTooSmall, match="take 12 rounds"):
        make(LocalizedWeighting, Quadratic(2, 1.0, 1.0), 11)


# --- What it is for -------------------------------------------------------------------------------------------------


# --- Why outliers are not removed instead ---------------------------------------------------------------------------


def test_steps_along_means_without_outliers_drift_apart_though_all_tests_pass():
    """One user of each later batch crosses the edge of the others' neighbourhood between two neighbouring runs."""
    batch, steps, rate = 30, 60, 0.5
    mean, kernel = NeighbourMean(1.0), IndicatorKernel(1.0)
    edge, x, y = 2 * (1 + 2.0**-20), 0.0, 0.0
    for step in range(steps):
        rows = np.zeros((2, batch, 1))
        # A convex loss of smoothness 1, but for the first step, in which the runs differ by a user who hardly matters.
        point = (x + y) / 2 - edge
        rows[:, 0, 0] = (0.01, -0.01) if step == 0 else (x - point, y - point)
        assert min(kernel.score(one) for one in rows) > batch - 2
        x, y = x - rate * mean(rows[0])[0], y - rate * mean(rows[1])[0]
    assert abs(x - y) > 3 * rate * mean.l2_sensitivity(batch)
    assert math.isclose(abs(x - y), (steps - 1) * rate * edge / batch, rel_tol=0.4)
