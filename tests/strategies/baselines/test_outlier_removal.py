"""Outlier removal: counts, sensitivities on brute-force neighbours, the plan, and its behaviour."""

import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, gathered, make

from strategies import OutlierRemoval
from strategies.baselines.outlier_removal.neighbour_mean import NeighbourMean, neighbour_counts
from userdp.problems import Quadratic


def aligned(rows, radius=1.0):
    return neighbour_counts(rows, radius).max() >= 2 * len(rows) / 3


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


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_plan_spends_the_budget_and_asks_for_at_most_four_fifths(epochs):
    method = make(OutlierRemoval, Quadratic(3, 1.0, 1.0), 20000, rounds=6, epochs=epochs)
    test = method.scheme.agreement.test
    assert 0.99 < method.plan.guarantee.epsilon <= 1
    assert 2 / 3 * method.plan.cohort < test.threshold <= 0.8 * method.plan.cohort
    assert test.pass_probability(float(method.plan.cohort)) > 0.999
    assert method.plan.numbers["l2_sensitivity"] == method.scheme.agreement.estimator.l2_sensitivity(method.plan.cohort)


@pytest.mark.parametrize("near", [31, 33, 35, 37])
def test_a_weight_grows_with_the_neighbours_as_stated(near):
    """A user with at most 30.5 neighbours among 60 users weighs nothing, a user with 39 weighs one."""
    rows = np.concatenate([np.zeros(near), 100.0 * np.arange(1, 61 - near)])[:, None]
    weights = NeighbourMean(1.0).weights(rows)
    np.testing.assert_allclose(weights[:near], (near - 30.5) / 8.5)
    np.testing.assert_array_equal(weights[near:], 0.0)
