"""The rows that users send of columns, second moments and weighted gradients: bounds that hold for any data."""

import math

import numpy as np
import pytest
from helpers import federation_of, rows_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.moments import (
    class_shares,
    column_scales,
    curvature_along,
    improved,
    mean_target,
    moment_size,
    second_moments,
    symmetric,
    triangle,
    weighted_gradient,
)
from userdp.nodes.node import Node
from userdp.problems import Logistic, Poisson, Quadratic, Softmax, Squared

P = 4
MODELS = [
    Squared(3, np.inf, 5.0, low=-2.0, high=2.0, intercept=True),
    Logistic(4, np.inf, 5.0, ridge=0.3),
    Poisson(3, 6.0, 1.0, count_bound=9.0, intercept=True),
]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
wild = st.floats(-(2.0**99), 2.0**99, width=32) | st.floats(-1.0, 1.0, width=32)


def block_of(model, sizes, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(sum(sizes), model.columns)).astype(np.float32)
    targets = rng.integers(0, 2, sum(sizes)).astype(np.float32)
    return model.bound(Block(rows, np.concatenate([[0], np.cumsum(sizes)]), targets))[0]


def with_intercept(model, block):
    features = block.features.astype(np.float64)
    return np.column_stack([features, np.ones(len(features))]) if model.intercept else features


def slices(block):
    return [slice(*ends) for ends in zip(block.offsets[:-1], block.offsets[1:], strict=True)]


def test_a_triangle_keeps_the_frobenius_norm_and_gives_its_matrix_back():
    raw = np.random.default_rng(1).normal(size=(5, 3, 3))
    matrices = raw + raw.transpose(0, 2, 1)
    entries = triangle(matrices)
    np.testing.assert_allclose(np.linalg.norm(entries, axis=1), np.linalg.norm(matrices, axis=(1, 2)))
    np.testing.assert_allclose([symmetric(row) for row in entries], matrices)


@each_model
def test_second_moments_and_their_sizes_are_those_of_each_user_alone(model):
    sizes, scales = [3, 1, 3, 7, 1, 4], np.array([0.5, 1.0, 2.0, 1.5])
    block = block_of(model, sizes)
    features = with_intercept(model, block) / scales
    means = [features[own].T @ features[own] / len(features[own]) for own in slices(block)]
    found = second_moments(model, np.zeros(P), block, scales)
    np.testing.assert_allclose([symmetric(row) for row in found], means, atol=1e-12)
    norms = np.linalg.norm(means, axis=(1, 2))
    told = moment_size(model, np.zeros(P), block, 1e-3, 1e3, scales).ravel()
    np.testing.assert_allclose(1e-3 * 1e6 ** (told + 0.5), norms, rtol=1e-9)


def test_a_user_who_does_not_fit_into_one_piece_has_the_second_moments_of_all_samples(monkeypatch):
    model, scales = MODELS[0], np.ones(P)
    block = block_of(model, [40, 2, 9])

    def found():
        sizes = moment_size(model, np.zeros(P), block, 1e-3, 1e3, scales)
        return np.column_stack([second_moments(model, np.zeros(P), block, scales), sizes])

    whole = found()
    monkeypatch.setattr("userdp.problems.segments.CHUNK_BYTES", 100)
    monkeypatch.setattr("userdp.nodes.moments.CHUNK_BYTES", 100)
    np.testing.assert_allclose(found(), whole, rtol=1e-12)


@given(arrays(np.float32, (6, 3), elements=wild), st.floats(1e-3, 1e3), st.floats(0.1, 10.0))
def test_whatever_anybodys_data_clipped_moments_are_positive_semidefinite_within_the_size(rows, scale, size):
    model = MODELS[0]
    block = model.bound(Block(rows, np.array([0, 2, 6]), np.zeros(6, dtype=np.float32)))[0]
    asked = Computation("second_moments", "rows", size, arrays={"scales": np.full(P, scale)})
    found, bad = rows_of(model, np.zeros(P), block, asked)
    assert bad == 0
    for row in found:
        assert np.linalg.norm(row) <= size * (1 + 1e-9)
        assert np.linalg.eigvalsh(symmetric(row)).min() >= -1e-9 * size


def test_two_users_moments_differ_by_the_diagonal_of_a_square_at_most():
    """Positive semidefinite matrices have no negative inner product: replacing one moves by sqrt(2) size."""
    rng = np.random.default_rng(3)
    model, farthest = Squared(3, np.inf, 5.0, low=-1.0, high=1.0), 0.0
    asked = Computation("second_moments", "rows", 2.0, arrays={"scales": np.ones(3)})
    for _ in range(300):
        rows = rng.normal(size=(2, 3)).astype(np.float32) * 10.0 ** rng.uniform(-3, 3)
        rows[rng.random((2, 3)) < 0.5] = 0.0
        block = Block(rows, np.array([0, 1, 2]), np.zeros(2, dtype=np.float32))
        (one, two), _ = rows_of(model, np.zeros(3), block, asked)
        farthest = max(farthest, float(np.linalg.norm(one - two)))
    assert 0.9 * math.sqrt(2) * 2.0 < farthest <= math.sqrt(2) * 2.0 * (1 + 1e-9)


@each_model
def test_weighted_gradients_are_derivatives_of_the_weighted_loss_in_the_coordinates(model):
    rng = np.random.default_rng(4)
    block, size, scales = block_of(model, [4, 1, 6], seed=5), 2.0, np.array([1.0, 0.3, 2.0, 1.0])
    coordinates, z = rng.normal(size=(P, P)), 0.1 * rng.normal(size=P)
    features = with_intercept(model, block)
    norms = np.linalg.norm(second_moments(model, np.zeros(P), block, scales), axis=1)
    weights = np.minimum(1.0, size / norms)
    assert 0 < (weights < 1).sum() < 4

    def loss(point):
        x = coordinates @ point
        each = model.family.losses(features @ x, block.targets)
        return weights * (np.array([each[own].mean() for own in slices(block)]) + 0.5 * model.ridge * float(x @ x))

    found = weighted_gradient(model, coordinates @ z, block, size, scales, coordinates)
    step = 1e-6
    for j in range(P):
        shift = step * np.eye(P)[j]
        np.testing.assert_allclose(found[:, j], (loss(z + shift) - loss(z - shift)) / (2 * step), rtol=1e-5, atol=1e-7)


@each_model
def test_column_scales_tell_the_size_of_every_column(model):
    block = block_of(model, [500, 1], seed=6)
    block.features[:500, 0] *= np.float32(0.01)
    block.features[:500, 1] = 0.0
    found = column_scales(model, np.zeros(P), block, 1e-3, 10.0, 2.0)
    assert found.shape == (2, 2 * P)
    present, logs = found[0, :P], found[0, P:] / 2
    assert present.tolist() == [0.5, -0.5, 0.5, 0.5]
    lengths = np.sqrt((with_intercept(model, block)[:500] ** 2).mean(axis=0))
    np.testing.assert_allclose(1e-3 * 1e4 ** (logs + 0.5)[[0, 2, 3]], lengths[[0, 2, 3]], rtol=1e-6)
    assert logs[1] == 0.5


@given(arrays(np.float32, (4, 3), elements=wild))
def test_no_data_take_column_scales_out_of_their_box(rows):
    block = MODELS[0].bound(Block(rows, np.array([0, 1, 4]), np.zeros(4, dtype=np.float32)))[0]
    found = column_scales(MODELS[0], np.zeros(P), block, 1e-3, 1.0, 3.0)
    assert np.abs(found[:, :P]).max() <= 0.5
    assert np.abs(found[:, P:]).max() <= 1.5


def test_a_users_gain_is_held_to_its_interval_and_without_one_says_which_model_is_better():
    model = Squared(1, np.inf, np.inf, low=-2.0, high=2.0)
    block = Block(np.ones((3, 1), dtype=np.float32), np.array([0, 1, 2, 3]), np.array([1, -1, 0], dtype=np.float32))
    assert improved(model, np.array([0.5]), block, np.zeros(1)).ravel().tolist() == [0.5, -0.5, -0.5]
    assert improved(model, np.zeros(1), block, np.zeros(1)).ravel().tolist() == [0.0, 0.0, 0.0]
    gains = improved(model, np.array([0.5]), block, np.zeros(1), most=0.5)
    assert gains.ravel().tolist() == [0.375, -0.5, -0.125]
    for most in (0.0, 0.5, math.inf):
        assert (improved(model, np.array([1e200]), block, np.zeros(1), most) == -0.5).all()
        assert (improved(model, np.array([np.nan]), block, np.zeros(1), most) == -0.5).all()


def test_a_mean_target_is_that_of_a_users_targets_held_to_their_interval():
    targets = np.array([1, 3, 90, -5], dtype=np.float32)
    block = Block(np.ones((4, 1), dtype=np.float32), np.array([0, 2, 4]), targets)
    found = mean_target(MODELS[2], np.zeros(4), block, 0.0, 10.0)
    np.testing.assert_allclose(found, [[-0.3, 2 * 0.2 * 0.8], [0.0, 2 * 0.5 * 0.5]])


def test_shares_of_classes_are_those_of_a_users_samples_and_no_other_class_counts():
    several, targets = Softmax(3, 1, np.inf, 5.0), np.array([2, 0, 2, 1, 7, 1, 1, np.nan], dtype=np.float32)
    block = Block(np.ones((8, 1), dtype=np.float32), np.array([0, 3, 6, 7, 8]), targets)
    told = class_shares(several, np.zeros(3), block, np.arange(3.0))
    np.testing.assert_allclose(told, [[1 / 3, 0, 2 / 3], [0, 2 / 3, 0], [0, 1, 0], [0, 0, 0]])
    asked = Computation("class_shares", "rows", 1.0, arrays={"classes": np.arange(3.0)})
    assert asked.length(several.dimension) == 3
    # A sample of a class that is not declared is set aside; a user without any other is silent.
    rows, silent = rows_of(several, np.zeros(3), several.bound(block)[0], asked)
    np.testing.assert_allclose(rows, [[1 / 3, 0, 2 / 3], [0, 1, 0], [0, 1, 0], [0, 0, 0]])
    assert silent == 1


def test_a_node_answers_with_rows_of_the_length_that_is_announced():
    model, rows = MODELS[1], np.random.default_rng(7).normal(size=(6, 4)).astype(np.float32)
    federation = federation_of(rows, sizes=[2, 4], targets=np.zeros(6))
    node = Node(model, federation, np.arange(2))
    asked = {
        "column_scales": ({"low": 1e-3, "high": 1.0, "width": 2.0}, {}, 2 * P),
        "moment_size": ({"low": 1e-3, "high": 1.0}, {"scales": np.ones(P)}, 1),
        "second_moments": ({}, {"scales": np.ones(P)}, P * (P + 1) // 2),
        "improved": ({}, {"initial": np.zeros(P)}, 1),
    }
    for name, (parameters, public, length) in asked.items():
        computation = Computation(name, "sum", 3.0, parameters=parameters, arrays=public)
        assert node.compute(np.zeros(P), np.arange(2), computation).values.shape == (1, length)


def test_classes_share_the_columns_that_they_are_about():
    """Columns, sizes and second moments are those of one score; a gradient is turned class by class."""
    rng, one = np.random.default_rng(8), MODELS[0]
    several = Softmax(3, 3, np.inf, 5.0, ridge=0.1, intercept=True)
    block, scales = block_of(one, [3, 1, 4]), np.array([0.5, 2.0, 1.0, 1.5])
    x, coordinates = rng.normal(size=3 * P), rng.normal(size=(P, P))
    for compute, more in (
        (column_scales, (1e-3, 10.0, 2.0, scales)),
        (moment_size, (1e-3, 1e3, scales)),
        (second_moments, (scales,)),
    ):
        np.testing.assert_array_equal(compute(several, x, block, *more), compute(one, np.zeros(P), block, *more))
    found = weighted_gradient(several, x, block, 2.0, scales, coordinates).reshape(3, 3, P)
    weights = 2.0 / np.maximum(2.0, np.linalg.norm(second_moments(one, np.zeros(P), block, scales), axis=1))
    gradients = several.user_gradients(x, block).reshape(3, 3, P)
    np.testing.assert_allclose(found, weights[:, None, None] * gradients @ coordinates)
    asked = Computation("second_moments", "sum", 1.0, arrays={"scales": scales})
    assert asked.length(3 * P) == P * (P + 1) // 2


def test_columns_over_their_scales_are_as_much_larger():
    block = block_of(MODELS[0], [5, 2])
    plain = column_scales(MODELS[0], np.zeros(P), block, 1e-6, 1e6, 2.0)
    halved = column_scales(MODELS[0], np.zeros(P), block, 1e-6, 1e6, 2.0, np.full(P, 0.5))
    np.testing.assert_allclose(halved[:, P:] - plain[:, P:], 2.0 * math.log(2.0) / math.log(1e12))


def test_other_losses_have_no_second_moments():
    block = Block(np.ones((1, 2), dtype=np.float32), np.array([0, 1]), None)
    with pytest.raises(BadInput, match="no generalised linear model"):
        second_moments(Quadratic(2, 1.0, 2.0), np.zeros(2), block, np.ones(2))


def test_curvature_along_a_direction_is_that_of_the_hessian():
    model = Logistic(3, np.inf, 5.0)
    rng = np.random.default_rng(2)
    rows, x = rng.normal(size=(12, 3)), rng.normal(size=3)
    direction = np.array([0.6, 0.0, -0.8])
    block = federation_of(rows, sizes=[4, 8], targets=rng.integers(0, 2, 12)).block(np.arange(2))
    features = block.features.astype(float)
    slopes = 1 / (1 + np.exp(-features @ x))
    each = slopes * (1 - slopes) * (features @ direction) ** 2
    expected = np.sqrt(np.array([each[:4].mean(), each[4:].mean()]) / 2.0) - 0.5
    np.testing.assert_allclose(curvature_along(model, x, block, 2.0, direction)[:, 0], expected, atol=1e-4)
    assert curvature_along(model, x, block, 1e-6, direction).max() == 0.5
    assert curvature_along(model, x, block, 2.0, np.zeros(3)).max() == -0.5
