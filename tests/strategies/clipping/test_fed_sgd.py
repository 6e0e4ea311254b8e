"""Clipped mean with noise, and no privacy at all: guarantees, and faults of other libraries that cannot happen here."""

import logging
import math

import dp_accounting
import numpy as np
import pytest
from flwr.app import ConfigRecord
from helpers import WILD, Wild, federation_of, final, gathered, local_grid, make, requested, run, silenced, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import DPFedSGD, NonPrivate
from strategies.wire.replies import Gathered
from userdp.data import Gaussian, SyntheticFederation
from userdp.problems import Huber, Linear, Logistic, Quadratic
from userdp.randomness import stream

codes = st.integers(0, len(WILD) - 1)


def population(users=60, d=3, m=4, seed=1):
    return SyntheticFederation(Gaussian(dimension=d), users=users, seed=seed, samples_per_user=m)


# --- Formal guarantee: the sum moves by at most 2C ---------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=150)
@given(arrays(np.int64, (5, 3), elements=codes), arrays(np.int64, (3,), elements=codes), st.integers(0, 4))
def test_replacing_one_user_moves_the_mean_by_at_most_its_stated_sensitivity(users, other, who):
    method = make(DPFedSGD, Wild(3), 5, delta=1e-3, clip_norm=0.7)
    neighbour = users.copy()
    neighbour[who] = other
    x = np.array([0.1, -0.2, 5.0])
    means = [gathered(method, federation_of(data), 0, x).values / method.plan.cohort for data in (users, neighbour)]
    assert np.linalg.norm(means[0] - means[1]) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-12)


def test_the_stated_sensitivity_is_attained_by_opposite_users():
    method = make(DPFedSGD, Wild(2), 5, delta=1e-3, clip_norm=0.7)
    data = np.zeros((5, 2), dtype=int)
    data[2, 0] = 4
    opposite = data.copy()
    opposite[2, 0] = 5
    means = [gathered(method, federation_of(users), 0, np.zeros(2)).values / 5 for users in (data, opposite)]
    distance = np.linalg.norm(means[0] - means[1])
    assert distance == pytest.approx(2 * 0.7 / 5, rel=1e-12)
    assert distance == pytest.approx(method.scheme.mechanism.l2_sensitivity, rel=1e-12)
    assert method.plan.numbers["l2_sensitivity"] == method.scheme.mechanism.l2_sensitivity


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("epsilon", "rounds", "cohort"), [(0.5, 1, None), (1, 20, None), (8, 10, 25), (1, 7, 30)])
def test_the_plan_spends_the_budget_and_not_more(epsilon, rounds, cohort):
    method = make(DPFedSGD, Quadratic(3, 1.0, 1.0), 100, epsilon, 1e-4, rounds=rounds, cohort=cohort)
    plan = method.plan
    assert 0.99 * epsilon < plan.guarantee.epsilon <= epsilon
    assert plan.guarantee.holds
    takes_part = math.ceil(rounds / (100 // (cohort or 100)))
    assert plan.numbers["participations"] == takes_part
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.GaussianDpEvent(plan.numbers["noise_multiplier"]), takes_part
    )
    # Sensitivity is that of the relation in use, so the accountant's own relation must add no factor of two.
    accountant = dp_accounting.pld.PLDAccountant().compose(event)
    assert accountant.get_epsilon(1e-4) == pytest.approx(epsilon, rel=0.01)


def test_a_round_by_hand():
    problem, federation = Quadratic(3, 5.0, 2.0), population()
    method = make(DPFedSGD, problem, 60, seed=9, clip_norm=0.5, rounds=1, cohort=20, learning_rate=0.25)
    result = run(method, federation)
    cohort = method.scheme.sampler.cohort(0)
    rows = problem.user_gradients(np.zeros(3), problem.bound(federation.block(cohort))[0])
    rows *= np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1, keepdims=True))
    noise = stream(9, "noise", 0, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=3)
    np.testing.assert_allclose(final(result), -0.25 * (rows.mean(axis=0) + noise), rtol=1e-9)
    assert final(result).dtype == np.float64


# --- Faults of other libraries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 10, 19])
def test_flower_too_few_replies_leave_divisor_and_noise_as_planned(missing):
    method = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 20, rounds=1, clip_norm=1.0, learning_rate=1.0, delta=1e-3)
    answered = np.array([1.0, 0.0]) * (20 - missing)
    x = taken(method, 0, np.zeros(2), Gathered(answered, missing, 0)).following
    noise = stream(0, "noise", 0, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=2)
    np.testing.assert_allclose(-x, np.clip(answered / 20 + noise, -2, 2))
    assert method.scheme.mechanism.standard_deviation == pytest.approx(method.plan.numbers["noise_multiplier"] * 2 / 20)


def test_flower_a_zero_update_goes_through():
    federation = federation_of(np.zeros((20, 2)))
    method = silenced(make(DPFedSGD, Quadratic(2, 1.0, 2.0), 20, rounds=3, delta=1e-3))
    result = run(method, federation)
    np.testing.assert_allclose(final(result), 0.0, atol=1e-12)
    assert len(result.rounds) == 3


def test_no_node_is_asked_to_evaluate_on_its_users():
    """What they would answer is covered by no guarantee."""
    method = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 20, rounds=1, delta=1e-3)
    with local_grid(method.problem, federation_of(np.zeros((20, 2)))) as grid:
        method.start(grid)
        assert list(method.configure_evaluate(1, method.result.arrays, ConfigRecord(), grid)) == []
    assert method.aggregate_evaluate(1, []) is None


def test_pfl_nan_from_one_user_is_counted_and_the_run_goes_on():
    data = np.zeros((20, 2), dtype=int)
    data[3], data[8, 1] = 7, 9  # NaN and minus infinity
    result = run(make(DPFedSGD, Wild(2), 20, rounds=4, delta=1e-3), federation_of(data))
    assert [record.non_finite_users for record in result.rounds] == [2, 2, 2, 2]
    assert result.non_finite_users == 8
    assert np.isfinite(final(result)).all()


def test_flower_the_clip_that_is_used_is_the_clip_that_noise_is_calibrated_to_in_every_round():
    method = make(DPFedSGD, Quadratic(3, 1.0, 1.0), 60, rounds=5, clip_norm=0.3)
    result = run(method, population())
    assert {record.facts["noise_deviation"] for record in result.rounds} == {method.plan.numbers["noise_deviation"]}
    assert all(requested(method, index).computation.clip_norm == 0.3 for index in range(5))


@pytest.mark.parametrize("epsilon", [4.0, 16.0, 64.0])
def test_flower_local_dp_mod_the_classical_formula_is_not_used_above_epsilon_one(epsilon):
    method = make(DPFedSGD, Quadratic(1, 1.0, 1.0), 100, epsilon, 1e-5, rounds=1)
    exact = dp_accounting.get_sigma_gaussian(epsilon, 1e-5)
    assert exact * (1 - 1e-9) <= method.plan.numbers["noise_multiplier"] <= exact * (1 + 1e-6)


def test_noise_that_drowns_the_clip_is_a_warning(caplog):
    method = make(DPFedSGD, Quadratic(500, 1.0, 1.0), 50, epsilon=0.1, delta=1e-4)
    assert method.plan.drowned
    with caplog.at_level(logging.INFO, logger="userdp"):
        method.summary()
    assert "Doing nothing is better" in caplog.text
    assert "dp_fed_sgd: 20 rounds of 50 of 50 users" in caplog.text


def test_noise_of_the_size_of_nothing_leaves_gradient_descent_on_the_mean():
    problem, federation = Quadratic(3, 10.0, 10.0), population(m=50)
    method = silenced(make(DPFedSGD, problem, 60, clip_norm=100.0, rounds=2))
    block = problem.bound(federation.block(np.arange(60)))[0]
    mean = -problem.user_gradients(np.zeros(3), block).mean(axis=0)
    np.testing.assert_allclose(final(run(method, federation)), mean, rtol=1e-9)


# --- No privacy at all -------------------------------------------------------------------------------------------


def test_non_private_finds_the_minimum_and_promises_nothing():
    problem, federation = Quadratic(3, 10.0, 10.0), population(m=50)
    method = make(NonPrivate, problem, 60)
    result = run(method, federation)
    block = problem.bound(federation.block(np.arange(60)))[0]
    np.testing.assert_allclose(final(result), -problem.user_gradients(np.zeros(3), block).mean(axis=0), rtol=1e-9)
    assert not result.guarantee.holds
    assert result.guarantee.sentence() == "no privacy guarantee: this strategy adds no noise"
    assert all(record.spent_epsilon is None for record in result.rounds)
    assert len(result.rounds) < 5


def test_non_private_reaches_the_corner_of_a_linear_loss():
    problem = Linear(4, 5.0, radius=2.0)
    federation = SyntheticFederation(Gaussian(dimension=4), users=200, seed=3, samples_per_user=50)
    result = run(make(NonPrivate, problem, 200), federation)
    assert problem.excess_risk(final(result), federation) < 0.05
    assert set(np.abs(final(result))) == {2.0}


@pytest.mark.parametrize(
    "problem", [Huber(2, 3.0, 3.0, 0.5), Logistic(1, 1.0, 5.0, ridge=0.05)], ids=["huber", "ridge"]
)
def test_non_private_ends_where_the_mean_gradient_vanishes(problem):
    rng = np.random.default_rng(0)
    features = rng.normal(0.5, 1.0, (40, problem.columns))
    targets = rng.integers(0, 2, 40) if problem.has_targets else None
    federation = federation_of(features, targets=targets)
    result = run(make(NonPrivate, problem, 40, rounds=500), federation)
    block = problem.bound(federation.block(np.arange(40)))[0]
    assert np.abs(problem.user_gradients(final(result), block).mean(axis=0)).max() < 1e-5
    assert len(result.rounds) < 500


def test_non_private_divides_by_those_who_answered():
    method = make(NonPrivate, Quadratic(1, 1.0, 5.0), 10, learning_rate=1.0)
    released = taken(method, 0, np.zeros(1), Gathered(np.array([-8.0]), 2, 0)).released
    assert released == pytest.approx([1.0])
