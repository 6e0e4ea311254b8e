"""Gradient descent on means that are recovered from noisy measurements: its sensitivity, its algorithm, its choices."""

import math

import numpy as np
import pytest
from helpers import federation_of, final, gathered, make, requested, run

from strategies import ProjectedSGD, RecoveredSGD
from strategies.baselines.sparse_gradients.recovery import basis_pursuit, gershgorin_stretch
from userdp.errors import BadInput
from userdp.problems import Quadratic

FAR = np.array([0.0, 1e6, -1e6, 0.5, -0.5])


def strategy(users=40, dimension=6, epsilon=2.0, delta=1e-5, **options):
    options = {"sparsity": 2, "measurements": 3, "rounds": 2} | options
    return make(RecoveredSGD, Quadratic(dimension, 1e7, 2.0), users, epsilon, delta, **options)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("sampling", ["disjoint", "poisson"])
@pytest.mark.parametrize("sparsity", [1, 2, 5])
def test_no_user_moves_the_measurements_further_than_the_noise_is_for(sampling, sparsity):
    """All rows of the worst users there can be, through nodes and their clips; also rows that are not sparse."""
    rng, worst = np.random.default_rng(0), 0.0
    cohort = {"cohort": 20} if sampling == "poisson" else {}
    method = strategy(sparsity=sparsity, sampling=sampling, **cohort)
    scheme, zero = method.scheme, np.zeros(6)
    users = requested(method, 0).users
    assert len(users)
    for _ in range(300):
        rows = rng.choice(FAR, (40, 6))
        other = rows.copy()
        # Replaced; or, under add-or-remove, gone: a user at the model sends nothing.
        other[users[0]] = rng.choice(FAR, 6) if sampling == "disjoint" else 0.0
        ends = [scheme.mean(gathered(method, federation_of(data), 0, zero).values) for data in (rows, other)]
        worst = max(worst, float(np.linalg.norm(ends[0] - ends[1])))
    assert 0.3 * scheme.mechanism.l2_sensitivity < worst <= scheme.mechanism.l2_sensitivity * (1 + 1e-9)


def test_noise_is_for_the_stretch_of_the_matrix_that_measures():
    method, other = strategy(), strategy(seed=1)
    matrix = method.scheme.mean.__self__.matrix
    assert matrix.shape == (3, 6)
    assert not np.array_equal(matrix, other.scheme.mean.__self__.matrix)
    stretch = gershgorin_stretch(matrix, 2)
    assert method.plan.numbers["stretch"] == stretch
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(2 * stretch / 40)


def test_without_noise_it_is_descent_along_recovered_means():
    values = np.zeros((40, 6), np.float32)
    values[:, 2] = 0.5
    method = strategy(epsilon=1e9, measurements=5, rounds=1, learning_rate=1.0)
    matrix = method.scheme.mean.__self__.matrix
    wanted = -basis_pursuit(matrix, matrix @ np.array([0, 0, -0.5, 0, 0, 0]))
    found = final(run(method, federation_of(values), 10))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    np.testing.assert_allclose(found, [0, 0, 0.5, 0, 0, 0], atol=1e-3)


def test_where_measurements_do_not_pay_it_is_the_projection_mechanism():
    values = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    settings = {"sparsity": 2, "rounds": 2}
    ends = []
    for recipe in (RecoveredSGD, ProjectedSGD):
        method = make(recipe, Quadratic(6, 1e7, 2.0), 40, 50.0, 1e-5, seed=3, **settings)
        ends.append(final(run(method, federation_of(values), 10)))
    np.testing.assert_array_equal(*ends)


def test_as_many_measurements_are_taken_as_balance_noise_and_what_they_leave_open():
    plan = strategy(100, 5000, 1.0, measurements=None, rounds=1).plan
    multiplier = plan.numbers["noise_multiplier"]
    assert plan.numbers["measurements"] == math.ceil(100 * math.sqrt(4 * math.log(2500)) / multiplier)
    assert strategy(40_000, 50, 1.0, measurements=None, rounds=1).plan.numbers["measurements"] == 50
    for none in ({"measurements": 6}, {"measurements": 100}, {"measurements": None, "sparsity": 6}):
        assert strategy(**none).plan.numbers["measurements"] == 6
        assert strategy(**none).plan.numbers["stretch"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measurements": 0}, "strategy.measurements = 0"),
        ({"sparsity": None}, "strategy.sparsity is not set, and quadratic certifies none"),
        ({"noise_corrected": True, "server_optimiser": "adam"}, "how much noise a recovery leaves is not known"),
        ({"delta": 0.0}, "cannot promise pure privacy"),
    ],
)
def test_what_cannot_be_is_refused_before_data_are_read(options, message):
    with pytest.raises(BadInput, match=message):
        strategy(**options)
