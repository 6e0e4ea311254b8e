"""Sparse samples from block to released model: everything equals what dense samples give, at a cost by non-zeros."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, MetricRecord
from helpers import ChangedNode, final, local_grid, make, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array, csr_array

from simulations.grids import LocalGrid, RayGrid, shards
from strategies import AdaptiveClipping, DPFedSGD, LocalDPSGD, SampleClippedSGD
from strategies.protocol import answer_content, read_answer
from userdp.computations import Computation, LocalNoise, clip_rows, finite_rows
from userdp.data import Block, ColumnarFederation
from userdp.errors import BadInput, RunFailed
from userdp.node import Answer, Node
from userdp.partition import Partition
from userdp.problems import Logistic, SparseLogistic, SparseSquared, Squared
from userdp.sampling.coins import SampleCoins
from userdp.sparse_rows import add_rows, compacted, dense, placed_rows, scaled_rows, stacked, summed_rows

D = 12
seeds = st.integers(0, 10**6)
sizes_of_users = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def close(actual, expected):
    np.testing.assert_allclose(dense(actual), expected, rtol=1e-12, atol=1e-13)


def some_rows(seed, rows=7, columns=D, wild=False):
    """Sparse rows, some of them empty, with their array."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.3) * 10.0 ** rng.integers(-3, 4)
    if wild:
        values[rng.random(values.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    return csr_array(values), values


def pair_of_blocks(sizes, seed=0, columns=D, kept=0.4):
    """The same samples sparse and dense; some of them are empty."""
    rng, samples = np.random.default_rng(seed), sum(sizes)
    features = (rng.normal(size=(samples, columns)) * (rng.random((samples, columns)) < kept)).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    targets = rng.integers(0, 2, samples).astype(np.float32)
    return Block(csr_array(features), offsets, targets), Block(features, offsets, targets)


def pairs_of_problems(columns=D):
    """Sparse problems with the dense ones that have the same loss; the bounds change no sample of ours."""
    return {
        "logistic": (SparseLogistic(columns, 50.0, columns, 3.0), Logistic(columns, np.inf, 3.0)),
        "logistic_ridge": (SparseLogistic(columns, 50.0, columns, 3.0, ridge=0.3), Logistic(columns, np.inf, 3.0, ridge=0.3)),
        "squared": (
            SparseSquared(columns, 50.0, columns, 3.0, low=-1.0, high=1.0),
            Squared(columns, np.inf, 3.0, low=-1.0, high=1.0),
        ),
    }


every_pair = pytest.mark.parametrize("name", pairs_of_problems())


# Rows -----------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(seed=seeds, clip_norm=st.sampled_from([1e-3, 0.5, 1e3]), order=st.sampled_from([1, 2]))
def test_rows_are_clipped_as_dense_ones_are(seed, clip_norm, order):
    rows, values = some_rows(seed)
    clipped = clip_rows(rows, clip_norm, order)
    assert isinstance(clipped, csr_array)
    close(clipped, clip_rows(values, clip_norm, order))
    assert np.linalg.norm(dense(clipped), order, axis=1).max() <= clip_norm * (1 + 1e-12)


def test_huge_rows_do_not_escape_the_clip():
    clipped = dense(clip_rows(csr_array(np.array([[1e308, 0.0, -1e308], [5e-324, 0.0, 0.0]])), 1.0))
    np.testing.assert_allclose(clipped, [[0.5**0.5, 0.0, -(0.5**0.5)], [5e-324, 0.0, 0.0]])


@settings(deadline=None, max_examples=80)
@given(seed=seeds)
def test_rows_that_are_not_finite_become_zero_and_are_counted(seed):
    rows, values = some_rows(seed, wild=True)
    finite, bad = finite_rows(rows)
    expected, count = finite_rows(values)
    assert bad == count
    np.testing.assert_array_equal(dense(finite), expected)


@settings(deadline=None, max_examples=60)
@given(seed=seeds, sizes=sizes_of_users)
def test_rows_are_scaled_summed_placed_and_stacked_as_dense_ones_are(seed, sizes):
    samples, offsets = sum(sizes), np.concatenate([[0], np.cumsum(sizes)])
    rows, values = some_rows(seed, samples)
    before = rows.copy()
    factors = np.random.default_rng(seed).normal(size=samples)
    close(scaled_rows(rows, factors), values * factors[:, None])
    sums = summed_rows(rows, offsets)
    assert sums.has_canonical_format
    close(sums, np.stack([values[a:b].sum(axis=0) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]))
    placed = placed_rows(rows, 2 * np.arange(samples), 2 * samples)
    np.testing.assert_array_equal(dense(placed)[::2], values)
    assert not dense(placed)[1::2].any()
    np.testing.assert_array_equal(dense(stacked([rows, rows])), np.concatenate([values, values]))
    total = np.ones(D)
    add_rows(total, rows)
    close(total, 1.0 + values.sum(axis=0))
    np.testing.assert_array_equal(rows.indices, before.indices)  # nothing was sorted or summed in place
    np.testing.assert_array_equal(rows.data, before.data)


def test_a_vector_is_sparse_only_where_that_takes_fewer_bytes():
    vector = np.zeros((1, 30))
    vector[0, :19] = 1.0
    assert isinstance(compacted(vector), csr_array)
    vector[0, :20] = 1.0
    assert compacted(vector) is vector


# Blocks ---------------------------------------------------------------------------------------------------------------


def same_block(sparse, plain):
    np.testing.assert_array_equal(dense(sparse.features), plain.features)
    np.testing.assert_array_equal(sparse.offsets, plain.offsets)
    np.testing.assert_array_equal(sparse.targets, plain.targets)
    assert sparse.features.dtype == np.float32


@settings(deadline=None, max_examples=60)
@given(sizes=sizes_of_users, seed=seeds)
def test_blocks_are_cut_thinned_gathered_and_regrouped_as_dense_ones_are(sizes, seed):
    sparse, plain = pair_of_blocks(sizes, seed)
    rng, users = np.random.default_rng(seed), len(sizes)
    first, last = sorted(rng.choice(users + 1, 2, replace=False))
    same_block(sparse.part(first, last), plain.part(first, last))
    kept = rng.random(plain.samples) < 0.6
    (left, thinned), (also_left, expected) = sparse.thinned(kept), plain.thinned(kept)
    np.testing.assert_array_equal(left, also_left)
    assert (thinned is None) == (expected is None)
    if expected is not None:
        same_block(thinned, expected)
    chosen = rng.permutation(users)[: rng.integers(1, users + 1)]
    same_block(ColumnarFederation(sparse).block(chosen), ColumnarFederation(plain).block(chosen))
    partition = Partition.draw(users, max(sizes), min(3, users * max(sizes)), rng)
    (groups, regrouped), (also_groups, expected) = partition.regroup(sparse), partition.regroup(plain)
    np.testing.assert_array_equal(groups, also_groups)
    same_block(regrouped, expected)


def test_bytes_are_those_of_the_entries_and_parts_are_views():
    block, _ = pair_of_blocks([2, 3], columns=1000, kept=0.01)
    entries = len(block.features.data)
    assert block.nbytes == 8 * entries + 4 * 6 + 8 * 3 + 4 * 5
    assert ColumnarFederation(block).sample_bytes == (8 * entries + 4 * 6 + 4 * 5) // 5
    assert np.shares_memory(block.part(1, 2).features.data, block.features.data)


GOOD = csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], np.float32))


def broken(**arrays):
    matrix = GOOD.copy()
    for name, values in arrays.items():
        setattr(matrix, name, np.asarray(values, dtype=getattr(matrix, name).dtype))
    return matrix


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (csc_array(GOOD), "must be an array or a scipy.sparse.csr_array, got csc_array"),
        (GOOD.astype(np.float64), "must be float32, got float64; use astype"),
        (broken(indices=[2, 0, 1]), "columns that do not rise within a row: call sum_duplicates"),
        (broken(indices=[0, 0, 1]), "columns that do not rise"),
        (broken(indices=[0, 3, 1]), "a column lies outside 0..2"),
        (broken(indices=[-1, 2, 1]), "a column lies outside 0..2"),
        (broken(indptr=[0, 2, 9]), "indptr must rise from 0"),
        (broken(indptr=[0, 4, 3]), "indptr must not fall"),
    ],
)
def test_features_that_are_no_canonical_csr_array_are_refused(features, message):
    with pytest.raises(BadInput, match=message):
        Block(features, np.array([0, 2]), np.zeros(2, np.float32))


def test_a_row_may_begin_at_a_lower_column_than_the_last_one_ended():
    assert Block(broken(indptr=[0, 2, 3], indices=[1, 2, 0]), np.array([0, 2])).samples == 2


def test_problems_refuse_the_other_kind_of_samples():
    sparse, plain = pair_of_blocks([2, 2])
    with pytest.raises(BadInput, match="samples are sparse rows, which this problem cannot use: choose sparse_logistic"):
        Logistic(D, 1.0, 1.0).bound(sparse)
    with pytest.raises(BadInput, match="samples are dense rows, and this problem needs a scipy.sparse.csr_array"):
        SparseLogistic(D, 1.0, 2).bound(plain)


# Problems -------------------------------------------------------------------------------------------------------------


@every_pair
@settings(deadline=None, max_examples=40)
@given(sizes=sizes_of_users, seed=seeds, clip_norm=st.sampled_from([1e-3, 0.3, 100.0]))
def test_gradients_losses_and_metrics_are_those_of_the_dense_problem(name, sizes, seed, clip_norm):
    problem, plain_problem = pairs_of_problems()[name]
    sparse, plain = pair_of_blocks(sizes, seed)
    assert problem.bound(sparse)[1] == 0
    rng = np.random.default_rng(seed)
    x, models = rng.uniform(-1, 1, D), rng.uniform(-1, 1, (len(sizes), D))
    answers = {
        "user_gradients": (x,),
        "sample_gradients": (x,),
        "user_gradients_at": (models,),
        "sample_clipped_sums": (x,),
    }
    for method, arguments in answers.items():
        more = (clip_norm,) if method == "sample_clipped_sums" else ()
        actual = getattr(problem, method)(*arguments, sparse, *more)
        assert isinstance(actual, csr_array) == problem.sparse
        close(actual, getattr(plain_problem, method)(*arguments, plain, *more))
    close(problem.sample_losses(x, sparse), plain_problem.sample_losses(x, plain))
    expected = plain_problem.metrics(x, plain)
    for key, values in problem.metrics(x, sparse).items():
        close(values, expected[key])


@settings(deadline=None, max_examples=80)
@given(seed=seeds, sparsity=st.integers(1, D), norm=st.floats(0.1, 5.0))
def test_samples_are_cut_to_their_largest_entries_within_the_ball_exactly(seed, sparsity, norm):
    block, plain = pair_of_blocks([3, 2, 4], seed)
    problem = SparseLogistic(D, norm, sparsity)
    bounded, changed = problem.bound(block)
    assert isinstance(bounded.features, csr_array)
    after = dense(bounded.features).astype(np.float64)
    assert np.count_nonzero(after, axis=1).max() <= sparsity
    assert np.linalg.norm(after, axis=1).max() <= norm
    expected, moved = plain.features.astype(np.float64), np.zeros(9, bool)
    for row, values in enumerate(expected):
        order = np.argsort(-np.abs(values), kind="stable")
        moved[row] = np.count_nonzero(values) > sparsity
        values[order[sparsity:]] = 0.0
        length = np.linalg.norm(values)
        if length > norm:
            moved[row] = True
            values *= norm / length
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-12)
    assert changed == moved.sum()
    again, none = problem.bound(bounded)
    assert again is bounded
    assert none == 0


worst_of = pytest.mark.parametrize("sparsity", [1, 2, 5])


def worst_samples(problem, angles):
    """Samples on the bounds: one entry ``A cos t``, the others equal; signs all equal."""
    s = problem.sparsity
    rows = np.zeros((len(angles), problem.columns))
    rows[:, 0] = problem.feature_norm * (np.cos(angles) if s > 1 else 1.0)
    rows[:, 1:s] = problem.feature_norm * np.sin(angles)[:, None] / np.sqrt(max(1, s - 1))
    return rows


@worst_of
@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_constants_of_the_certificate_hold_and_are_attained(sparsity, ridge):
    problem = SparseSquared(6, 1.5, sparsity, 2.0, low=-1.0, high=0.5, ridge=ridge)
    certificate, radius = problem.certificate, problem.domain.radius
    rng = np.random.default_rng(0)
    angles = np.linspace(0, np.pi / 2, 2001)
    rows = worst_samples(problem, angles)
    products = np.abs(rows[:, :, None] * rows[:, None, :])
    sums = products.sum(axis=2) + ridge
    assert sums.max() <= certificate.smoothness * (1 + 1e-12)
    assert sums.max() >= certificate.smoothness * (1 - 1e-5)
    # Gradients: all of the domain's score against a target on the other side.
    features = csr_array((rows * (1 - 1e-6)).astype(np.float32))
    block = problem.bound(Block(features, np.arange(2002), np.full(2001, -1.0, np.float32)))[0]
    corners = [np.full(6, radius), *(rng.choice([-radius, radius], 6) for _ in range(10))]
    gradients = np.vstack([dense(problem.sample_gradients(x, block)) for x in corners])
    longest, steepest = np.linalg.norm(gradients, axis=1).max(), np.abs(gradients).max()
    assert 0.8 * certificate.gradient_norm <= longest <= certificate.gradient_norm
    assert steepest <= certificate.lipschitz
    if ridge:
        assert certificate.sparsity is None
    else:
        assert certificate.sparsity == np.count_nonzero(gradients, axis=1).max() == sparsity


@worst_of
def test_the_ridge_that_diagonal_dominance_needs_is_tight(sparsity):
    needed = 1.5**2 * (np.sqrt(sparsity) - 1) / 2
    problem = SparseSquared(6, 1.5, sparsity, 2.0, low=-1.0, high=1.0, ridge=needed)
    rows = worst_samples(problem, np.linspace(0, np.pi / 2, 2001))
    excess = np.abs(rows) * (np.abs(rows).sum(axis=1, keepdims=True) - 2 * np.abs(rows))
    assert problem.certificate.diagonally_dominant
    assert needed * (1 - 1e-5) <= max(excess.max(), 0.0) <= needed * (1 + 1e-12)
    if sparsity > 1:
        less = SparseSquared(6, 1.5, sparsity, 2.0, low=-1.0, high=1.0, ridge=0.99 * needed)
        assert not less.certificate.diagonally_dominant


def test_logistic_on_all_of_space_has_slope_one_and_squared_has_no_bound():
    certificate = SparseLogistic(100, 2.0, 9).certificate
    assert (certificate.lipschitz, certificate.gradient_norm, certificate.smoothness) == (2.0, 2.0, 0.25 * 4 * 4 / 2)
    unbounded = SparseSquared(100, 2.0, 9, np.inf, low=0.0, high=1.0).certificate
    assert unbounded.gradient_norm is None
    assert "problem.radius = inf" in unbounded.reason


@settings(deadline=None, max_examples=40)
@given(sizes=sizes_of_users, seed=seeds)
def test_a_users_row_has_the_norms_of_a_sample_and_does_not_depend_on_its_neighbours(sizes, seed):
    problem = SparseLogistic(D, 1.3, 3)
    block = problem.bound(pair_of_blocks(sizes, seed)[0])[0]
    x = np.random.default_rng(seed).normal(size=D)
    rows = dense(problem.user_gradients(x, block))
    assert np.linalg.norm(rows, axis=1).max() <= problem.certificate.gradient_norm
    assert np.abs(rows).sum(axis=1).max() <= problem.certificate.gradient_norm * np.sqrt(3)
    alone = [dense(problem.user_gradients(x, block.part(user, user + 1))) for user in range(len(sizes))]
    np.testing.assert_array_equal(np.concatenate(alone), rows)
