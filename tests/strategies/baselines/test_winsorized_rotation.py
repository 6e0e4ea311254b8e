"""Winsorised mean after a rotation: the rotation, the selection, sensitivities of a round, budget and behaviour."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import WILD, Wild, afresh, federation_of, final, gathered, make, run, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import hadamard

from strategies import WinsorizedRotation
from strategies.baselines.rotation.rotation import CellGrid, HadamardRotation, _hadamard
from userdp.accounting import epsilon_of, zcdp_to_epsilon
from userdp.errors import BadInput, PopulationTooSmall
from userdp.noise import SeededNoise
from userdp.problems import Quadratic
from userdp.randomness import stream

codes = st.integers(0, len(WILD) - 1)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_the_fast_transform_is_the_matrix(size):
    rows = np.random.default_rng(0).normal(size=(5, size))
    np.testing.assert_allclose(_hadamard(rows), rows @ hadamard(size) / math.sqrt(size), atol=1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 5, 100])
def test_a_rotation_keeps_distances_and_can_be_undone(dimension):
    rotation = HadamardRotation(dimension, 3)
    rows = np.random.default_rng(0).normal(size=(7, dimension))
    np.testing.assert_allclose(np.linalg.norm(rotation(rows), axis=1), np.linalg.norm(rows, axis=1))
    np.testing.assert_allclose(rotation.inverse(rotation(rows)), rows, atol=1e-12)
    assert rotation.size == {1: 1, 2: 2, 5: 8, 100: 128}[dimension]


def test_rotated_rows_of_any_finite_size_are_never_nan_and_choose_cells():
    rotation, grid = HadamardRotation(5, 3), CellGrid(1.0, 0.1)
    rows = np.array([[1.7e308] * 5, [1.7e308, -1.7e308, 0.0, 5e-324, 1e154], [5e-324] * 5, [0.0] * 5])
    rotated, smaller = rotation(rows), rotation(rows / 2**10)
    assert not np.isnan(rotated).any()
    within = np.isfinite(rotated)
    assert within[1:].all()
    np.testing.assert_allclose(rotated[within] / 2**10, smaller[within], rtol=1e-12)
    assert grid.scores(rotated).values.shape == (8, grid.cells)


def test_a_rotation_spreads_a_vector_as_far_as_stated():
    """The worst vector for a fixed matrix, all on one coordinate or spread evenly; 400 draws of the signs."""
    exceeded = 0
    for seed in range(400):
        rotation = HadamardRotation(64, seed)
        rows = rotation(np.array([np.eye(64)[0], np.ones(64) / 8]))
        exceeded += bool(np.abs(rows).max() > rotation.largest_coordinate(1.0, 2, 0.1))
    assert exceeded < 0.1 * 400


@pytest.mark.slow
@settings(max_examples=200)
@given(arrays(np.int64, (7, 2), elements=st.integers(-96, 96)), arrays(np.int64, 2, elements=st.integers(-96, 96)))
def test_one_user_changes_the_score_of_every_cell_by_at_most_one(rows, other):
    grid = CellGrid(4.0, 0.5)
    rows = rows / 16  # many of them exactly on the edge of a cell
    neighbour = rows.copy()
    neighbour[3] = other / 16
    scores, other = grid.scores(rows).values, grid.scores(neighbour)
    assert np.abs(scores - other.values).max() <= 1 == other.moved
    edges = np.append(grid.centres - 0.5, grid.centres[-1] + 0.5)
    inside = np.clip(rows, -3.999999, 3.999999)
    for column in range(2):
        for cell in range(8):
            left = (inside[:, column] < edges[cell]).sum()
            right = (inside[:, column] >= edges[cell + 1]).sum()
            assert scores[column, cell] == -max(left, right)


def test_a_choice_follows_the_law_of_the_exponential_mechanism():
    grid, rows = CellGrid(3.0, 1.0), np.array([[-2.0], [0.0], [0.1], [2.5]])
    draws = grid.select(np.repeat(rows, 20000, axis=1), 1.5, SeededNoise(np.random.default_rng(0)))
    weights = np.exp(0.75 * grid.scores(rows).values[0])
    shares = [(np.abs(draws - centre) < 0.1).mean() for centre in grid.centres]
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.015)  # over four standard errors


@pytest.mark.slow
@settings(max_examples=100)
@given(
    arrays(np.int64, (5, 3), elements=codes),
    arrays(np.int64, 3, elements=codes),
    arrays(np.float64, 4, elements=st.floats(-1, 1)),
    st.sampled_from([0.01, 0.1, 1.0]),
)
def test_replacing_one_user_moves_the_clamped_mean_by_at_most_what_is_stated(users, other, centres, deviation):
    method = make(WinsorizedRotation, Wild(3), 5, delta=1e-3, rounds=1, deviation=deviation)
    neighbour = users.copy()
    neighbour[2] = other
    rows = [gathered(method, federation_of(data), 0, np.zeros(3)).values for data in (users, neighbour)]
    means = [method.scheme.estimator.clamped_mean(method.scheme.estimator.rotation(values), centres) for values in rows]
    assert np.linalg.norm(means[0] - means[1]) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-12)


@pytest.mark.parametrize(("deviation", "far"), [(0.01, 100.0), (0.1, 0.5)], ids=["narrow intervals", "wide ones"])
def test_the_stated_sensitivity_of_the_mean_is_attained(deviation, far):
    """A user at the corners of the box attains it, or a user with a clipped row that is reversed within the box."""
    method = make(WinsorizedRotation, Wild(3), 5, delta=1e-3, rounds=1, deviation=deviation)
    rows = np.zeros((5, 4))
    other = rows.copy()
    rows[0], other[0] = far, -far
    mean = method.scheme.estimator.clamped_mean
    moved = mean(rows, np.zeros(4)) - mean(other, np.zeros(4))
    assert np.linalg.norm(moved) == pytest.approx(method.scheme.mechanism.l2_sensitivity)


def test_rows_are_clipped_by_the_server_too():
    """Noise is for clipped rows, so that it protects whomever a node answers too much for."""
    problem, ends = Quadratic(3, 1e3, 1e9), []
    method = make(WinsorizedRotation, problem, 5, delta=1e-3, rounds=1, deviation=1.0, clip_norm=1.0)
    assert method.scheme.mechanism.l2_sensitivity == 2.0 / 5
    for far in (1e6, 1.0, -1.0, -1e6):
        values = np.zeros((5, 3))
        values[0, 0] = far
        round_ = gathered(method, federation_of(np.zeros((5, 3))), 0, np.zeros(3))
        ends.append(taken(afresh(method), 0, np.zeros(3), replace(round_, values=values)).released)
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[2], ends[3])
    assert np.linalg.norm(ends[0] - ends[3]) == pytest.approx(method.scheme.rate * 2 / 5)


@pytest.mark.parametrize("size", [1, 8, 1 << 14])
def test_a_rotation_errs_by_less_than_its_proof_says(size):
    rows = np.random.default_rng(0).standard_t(1.1, size=(3, size))
    exact = rows.astype(np.longdouble)
    half = 1
    while half < size:
        pairs = exact.reshape(3, size // (2 * half), 2, half)
        exact = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    exact = exact.reshape(3, size) / np.sqrt(np.longdouble(size))
    errors = np.linalg.norm((_hadamard(rows) - exact).astype(float), axis=1)
    assert np.all(errors <= 2.0**-48 * np.linalg.norm(rows, axis=1))


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 1), (4, 1), (4, 3)])
@pytest.mark.parametrize("deviation", [0.1, 100.0])
def test_choices_and_means_together_spend_the_budget(rounds, epochs, deviation):
    method = make(WinsorizedRotation, Quadratic(5, 9.0, 9.0), 5000, rounds=rounds, epochs=epochs, deviation=deviation)
    estimator, mechanism = method.scheme.estimator, method.scheme.mechanism
    if estimator.grid.cells == 1:  # no choice: one Gaussian an epoch, and nothing else
        assert deviation == 100.0
        assert estimator.selection_epsilon == 0
        epsilon = epsilon_of(mechanism.cost, epochs, 1e-6)
    else:
        rho = 8 * estimator.selection_epsilon**2 / 8 + 1 / (2 * mechanism.noise_multiplier**2)
        epsilon = zcdp_to_epsilon(epochs * rho, 1e-6)
    assert 0.9999 < epsilon <= 1 + 1e-9
    assert method.plan.guarantee.epsilon == pytest.approx(epsilon, rel=1e-9)


def test_a_round_by_hand():
    """Intervals chosen with the planned epsilon, and the mean, each with noise of its own stream."""
    problem = Quadratic(4, 9.0, 9.0)
    samples = np.random.default_rng(5).normal(size=(40, 4))
    method = make(WinsorizedRotation, problem, 40, 4.0, 1e-3, seed=8, rounds=1, deviation=0.05, clip_norm=9.0)
    estimator, epsilon = method.scheme.estimator, method.plan.numbers["selection_epsilon"]
    rotated = estimator.rotation(-samples.astype(np.float32))
    centres, sure = (
        estimator.grid.select(rotated, each, SeededNoise(stream(8, "noise", 0, 1))) for each in (epsilon, 1e9)
    )
    assert np.any(centres != sure)
    reach = method.plan.numbers["interval"]
    mean = np.clip(rotated, centres - reach, centres + reach).mean(axis=0)
    mean += stream(8, "noise", 0, 2).normal(scale=method.scheme.mechanism.standard_deviation, size=4)
    x = problem.domain.project(-estimator.rotation.inverse(mean[None])[0])
    np.testing.assert_allclose(final(run(method, federation_of(samples))), x, rtol=1e-6)


def test_what_cannot_be_planned_is_refused_and_what_cannot_work_is_warned_of():
    with pytest.raises(PopulationTooSmall, match=r"fewer strategy\.rounds"):
        make(WinsorizedRotation, Quadratic(2, 1.0, 1.0), 3, delta=1e-3, rounds=5)
    plan = make(WinsorizedRotation, Quadratic(50, 1.0, 1.0), 50, delta=1e-3, rounds=1, deviation=0.01).plan
    assert any("half of the budget" in each for each in plan.warnings)
    with pytest.raises(BadInput, match="positive numbers"):
        CellGrid(0.0, 1.0)
