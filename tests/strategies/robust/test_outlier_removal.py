"""Outlier removal: counts, sensitivities on brute-force neighbours, the plan, and its behaviour."""

import math

import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, final, gathered, make, run

from strategies import OutlierRemoval
from strategies.wire.replies import Gathered
from userdp.data import Gaussian, SyntheticFederation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import IndicatorKernel, NeighbourMean, neighbour_counts
from userdp.problems import Quadratic


def aligned(rows, radius=1.0):
    return neighbour_counts(rows, radius).max() >= 2 * len(rows) / 3


# --- The strategy ---------------------------------------------------------------------------------------------------


def test_one_round_on_neighbours_is_within_its_stated_sensitivities():
    """Two thirds of the users agree, the others and the replaced one answer anything at all."""
    method = make(OutlierRemoval, Wild(2), 60, epsilon=20.0, delta=0.01, rounds=1, radius=1.0)
    agreement, rng = method.scheme.agreement, np.random.default_rng(0)
    for _ in range(200):
        data = np.concatenate([rng.choice([0, 3, 6], (42, 2)), rng.integers(0, len(WILD), (18, 2))])
        neighbour = data.copy()
        neighbour[rng.integers(60)] = rng.integers(0, len(WILD), 2)
        rows = [gathered(method, federation_of(users), 0, np.zeros(2)).values for users in (data, neighbour)]
        assert abs(agreement.score(rows[0]) - agreement.score(rows[1])) <= agreement.test.sensitivity
        if aligned(rows[0]) and aligned(rows[1]):
            moved = agreement.estimator(rows[0]) - agreement.estimator(rows[1])
            assert np.linalg.norm(moved) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-9)


def test_agreement_is_measured_within_the_radius_that_the_noise_is_for():
    """A test that looked wider would pass batches for which the mean's sensitivity is not proven."""
    method = make(OutlierRemoval, Wild(2), 60, epsilon=20.0, delta=0.01, rounds=1, radius=0.5)
    rows = np.random.default_rng(0).normal(size=(60, 2)) * 0.3
    near = np.linalg.norm(rows[:, None] - rows, axis=2) <= 0.5
    assert 10 < near.sum(axis=1).mean() < 50
    agreement = method.scheme.agreement
    assert agreement.score(rows) == pytest.approx(near.sum(axis=1).mean(), abs=1.0)  # with or without oneself
    assert agreement.test.kernel == IndicatorKernel(0.5)
    assert agreement.estimator.radius == method.plan.numbers["radius"] == 0.5


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_plan_spends_the_budget_and_asks_for_at_most_four_fifths(epochs):
    method = make(OutlierRemoval, Quadratic(3, 1.0, 1.0), 20000, rounds=6, epochs=epochs)
    test = method.scheme.agreement.test
    assert 0.99 < method.plan.guarantee.epsilon <= 1
    assert 2 / 3 * method.plan.cohort < test.threshold <= 0.8 * method.plan.cohort
    assert test.pass_probability(float(method.plan.cohort)) > 0.999
    assert method.plan.numbers["l2_sensitivity"] == method.scheme.agreement.estimator.l2_sensitivity(method.plan.cohort)


def test_the_population_that_a_refusal_names_is_enough_and_one_less_is_not():
    problem = Quadratic(3, 1.0, 1.0)
    with pytest.raises(PopulationTooSmall, match="takes") as refusal:
        make(OutlierRemoval, problem, 20, rounds=1)
    needed = int(str(refusal.value).split("takes ")[1].split(":")[0])
    assert make(OutlierRemoval, problem, needed, rounds=1).plan.users_needed == needed
    with pytest.raises(PopulationTooSmall):
        make(OutlierRemoval, problem, needed - 1, rounds=1)


def test_a_loss_without_bounds_needs_a_radius():
    problem = Quadratic(2, 1.0, math.inf)
    with pytest.raises(BadInput, match=r"strategy.radius"):
        make(OutlierRemoval, problem, 5000)
    assert make(OutlierRemoval, problem, 5000, radius=1.0).plan.signal == math.inf


@pytest.mark.slow
def test_it_beats_the_initial_model_despite_outliers_and_follows_its_seed():
    population = Gaussian(dimension=5, mean=1.0, outliers=0.05, outlier_shift=20.0)
    federation = SyntheticFederation(population, users=6000, seed=2, samples_per_user=50)
    problem = Quadratic(5, 90.0, 90.0)

    def trained(seed):
        method = make(OutlierRemoval, problem, 6000, seed=seed, rounds=2, deviation=1.0, facts={"min_samples": 50})
        result = run(method, federation)
        assert all(record.facts["passed"] == 1 for record in result.rounds)
        return final(result)

    x = trained(0)
    assert np.abs(x - 1.0).max() < 0.5  # the plain mean would be off by one
    np.testing.assert_array_equal(x, trained(0))
    assert not np.array_equal(x, trained(1))


def test_users_that_disagree_leave_the_model_where_it_was():
    method = make(OutlierRemoval, Quadratic(1, 9.0, 9.0), 2000, rounds=1, radius=1.0)
    rows = np.arange(2000.0)[:, None] * 10
    step = method._step(0, np.ones(1), Gathered(rows, 0, 0))
    assert step.following == step.released == 1.0
    assert step.facts["passed"] == 0


def test_noise_that_drowns_the_gradient_is_a_warning():
    method = make(OutlierRemoval, Quadratic(50, 1.0, 1.0), 2000, rounds=1, radius=100.0)
    assert method.plan.drowned
    assert "Doing nothing is better" in method.plan.warnings[0]


@pytest.mark.parametrize("near", [31, 33, 35, 37])
def test_a_weight_grows_with_the_neighbours_as_stated(near):
    """Of 60 users, who has 30.5 neighbours or fewer weighs nothing, who has 39 weighs one."""
    rows = np.concatenate([np.zeros(near), 100.0 * np.arange(1, 61 - near)])[:, None]
    weights = NeighbourMean(1.0).weights(rows)
    np.testing.assert_allclose(weights[:near], (near - 30.5) / 8.5)
    np.testing.assert_array_equal(weights[near:], 0.0)
