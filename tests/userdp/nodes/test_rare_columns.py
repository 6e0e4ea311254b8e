"""The rows that users send of sparse and one-hot columns: equal to the formulas, and within bounds for any data."""

from itertools import pairwise

import numpy as np
import pytest
from helpers import rows_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import dense
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.nodes.columns import column_moments, scaled_gradient, sum_of_columns
from userdp.nodes.computations import Computation
from userdp.problems import OneHotLogistic, SparseLogistic, SparseSquared, Squared

P, OFFSETS = 5, np.array([0, 2, 3, 6])
SPARSE = SparseSquared(P, 2.0, 3, 4.0, low=-1.0, high=1.0)
MODELS = [SPARSE, SparseLogistic(P, 2.0, 3, 4.0, ridge=0.2), OneHotLogistic(P, 4.0)]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.name}-{model.ridge}")


def block_of(model, seed=0):
    """A block, and its samples' features as an array."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 2, 6).astype(np.float32)
    if isinstance(model, OneHotLogistic):
        codes = rng.integers(0, P, (6, 1)).astype(np.int32)
        return Block(codes, OFFSETS, targets), np.eye(P)[codes[:, 0]]
    cells = rng.normal(size=(6, P)) * (rng.random((6, P)) < 0.5)
    block, _ = model.bound(Block(csr_array(cells.astype(np.float32)), OFFSETS, targets))
    return block, block.sparse_features.toarray().astype(float)


def means(values):
    return np.stack([values[first:last].mean(axis=0) for first, last in pairwise(OFFSETS)])


@each_model
def test_rows_are_what_the_formulas_say(model):
    block, features = block_of(model)
    x, scales = np.linspace(-1, 1, P), np.linspace(0.5, 3.0, P + 1)
    np.testing.assert_allclose(dense(column_moments(model, x, block)), means(features**2), rtol=1e-6)
    gradient = dense(model.user_gradients(x, block))
    wanted = np.column_stack([gradient, gradient.sum(axis=1)]) * scales
    np.testing.assert_allclose(dense(scaled_gradient(model, x, block, scales)), wanted, atol=1e-12)
    sent = sum_of_columns(model, x, block, 10.0, 8.0)
    roots = np.sqrt(means(features.sum(axis=1)[:, None] ** 2))[:, 0]
    np.testing.assert_allclose(sent, np.column_stack([gradient.sum(axis=1) / 160, roots / 8 - 0.5]), rtol=1e-6)


@each_model
def test_the_gradient_over_scales_is_that_by_the_coordinates(model):
    block, _ = block_of(model, 1)
    scales, z = np.linspace(0.5, 2.0, P + 1), np.random.default_rng(2).normal(size=P + 1)

    def losses(place):
        return means(model.sample_losses(scales[:-1] * place[:-1] + scales[-1] * place[-1], block)[:, None])[:, 0]

    x = scales[:-1] * z[:-1] + scales[-1] * z[-1]
    slopes = [(losses(z + step) - losses(z - step)) / 2e-5 for step in 1e-5 * np.eye(P + 1)]
    np.testing.assert_allclose(dense(scaled_gradient(model, x, block, scales)), np.array(slopes).T, atol=1e-7)


@given(arrays(np.float32, (6, P), elements=st.sampled_from([0.0, 0.0, 1.0, -1.0, 1e-9, 1e18, -1e18])))
def test_the_slope_and_size_of_the_sum_of_columns_lie_in_their_intervals(cells):
    block, _ = SPARSE.bound(Block(csr_array(cells), OFFSETS, np.float32([1, -1, 9e9, 0, -9e9, 1])))
    sent = sum_of_columns(SPARSE, np.full(P, 4.0), block, 0.1, 1.0)
    assert np.abs(sent).max() <= 0.5
    moments = dense(column_moments(SPARSE, np.zeros(P), block))
    assert moments.min() >= 0
    assert moments.sum(axis=1).max() <= SPARSE.feature_norm**2 * (1 + 1e-6)


def test_an_unusable_user_sends_zeros_as_wide_as_everybody():
    cells, targets = np.eye(6, P, dtype=np.float32), np.float32([np.nan, np.nan, 1, 1, 0, 1])
    block, _ = SPARSE.bound(Block(csr_array(cells), OFFSETS, targets))
    asked = Computation("scaled_gradient", clip_norm=1.0, arrays={"scales": np.ones(P + 1)})
    rows, unusable = rows_of(SPARSE, np.zeros(P), block, asked)
    assert unusable == 1
    assert rows.shape == (3, P + 1)
    np.testing.assert_array_equal(dense(rows)[0], 0.0)


def test_dense_features_have_other_questions():
    block = Block(np.ones((2, 1), np.float32), np.array([0, 2]), np.ones(2, np.float32))
    with pytest.raises(BadInput, match="no generalised linear model on sparse or one-hot features"):
        column_moments(Squared(1, 2.0, 1.0, low=0.0, high=1.0), np.zeros(1), block)
