"""Sparse samples from block to released model: everything equals what dense samples give, at a cost by non-zeros."""

import gc
import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, MetricRecord
from helpers import PATIENCE, ChangedNode, final, local_grid, make, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array, csr_array
from scipy.special import expit

from simulations.config.run_config import parse_config
from simulations.engines.grids import LocalGrid, shards
from simulations.engines.ray_grid import RayGrid
from simulations.runs.build import build_problem, load_datasets
from strategies import AdaptiveClipping, DPFedSGD, LocalDP, SampleClippedSGD
from strategies.baselines.heavy_tailed.partitions import shuffled
from strategies.baselines.sparse_gradients.populations import SparseRegression
from strategies.wire.protocol import answer_content, read_answer
from userdp.arrays.sparse_rows import (
    add_rows,
    clip_rows,
    compacted,
    dense,
    finite_rows,
    part_of,
    placed_rows,
    scaled_rows,
    sparse_rows,
    stacked,
    summed_rows,
)
from userdp.data import Block, ColumnarFederation, SyntheticFederation
from userdp.errors import BadInput, RunFailed
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Answer, Node
from userdp.problems import Logistic, SparseLogistic, SparseSquared, Squared
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.sampling.coins import SampleCoins

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
        "logistic_ridge": (
            SparseLogistic(columns, 50.0, columns, 3.0, ridge=0.3),
            Logistic(columns, np.inf, 3.0, ridge=0.3),
        ),
        "squared": (
            SparseSquared(columns, 50.0, columns, 3.0, low=-1.0, high=1.0),
            Squared(columns, np.inf, 3.0, low=-1.0, high=1.0),
        ),
    }


every_pair = pytest.mark.parametrize("name", pairs_of_problems())


# Rows -----------------------------------------------------------------------------------------------------------------


def test_huge_rows_do_not_escape_the_clip():
    clipped = dense(clip_rows(csr_array(np.array([[1e308, 0.0, -1e308], [5e-324, 0.0, 0.0]])), 1.0))
    np.testing.assert_allclose(clipped, [[0.5**0.5, 0.0, -(0.5**0.5)], [5e-324, 0.0, 0.0]])


@settings(max_examples=80)
@given(seed=seeds)
def test_rows_that_are_not_finite_become_zero_and_are_counted(seed):
    rows, values = some_rows(seed, wild=True)
    finite, bad = finite_rows(rows)
    expected, count = finite_rows(values)
    assert bad == count
    np.testing.assert_array_equal(dense(finite), expected)


@settings(max_examples=60)
@given(seed=seeds, sizes=sizes_of_users)
def test_rows_are_scaled_summed_placed_and_stacked_as_dense_ones_are(seed, sizes):
    samples, offsets = sum(sizes), np.concatenate([[0], np.cumsum(sizes)])
    rows, values = some_rows(seed, samples)
    before = rows.copy()
    factors = np.random.default_rng(seed).normal(size=samples)
    close(scaled_rows(rows, factors), values * factors[:, None])
    sums = summed_rows(rows, offsets)
    assert sums.has_canonical_format
    close(sums, np.stack([values[a:b].sum(axis=0) for a, b in itertools.pairwise(offsets)]))
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


@settings(max_examples=60)
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
    partition = shuffled(users, max(sizes), min(3, users * max(sizes)), rng)
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
    with pytest.raises(
        BadInput, match="samples are sparse rows, which this problem cannot use: choose sparse_logistic"
    ):
        Logistic(D, 1.0, 1.0).bound(sparse)
    with pytest.raises(BadInput, match="samples are dense rows, and this problem needs a scipy"):
        SparseLogistic(D, 1.0, 2).bound(plain)


# Problems -------------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@every_pair
@settings(max_examples=40)
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


@settings(max_examples=80)
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
            expected[row] *= norm / length
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


@settings(max_examples=40)
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


def test_a_sum_of_many_samples_in_one_column_does_not_depend_on_whether_other_rows_are_in_order():
    samples = csr_array(np.random.default_rng(0).normal(size=(60, 1)))
    rows = sparse_rows(
        np.append(samples.data, [1.0, 1.0]), np.append(samples.indices, [2, 1]), np.arange(63, dtype=np.int32), 3
    )
    both, alone = summed_rows(rows, np.array([0, 60, 62])), summed_rows(part_of(rows, 0, 60), np.array([0, 60]))
    np.testing.assert_array_equal(dense(both)[:1], dense(alone))


# Nodes and messages ---------------------------------------------------------------------------------------------------

SIZES = [3, 1, 5, 2, 2, 4]
USERS = np.array([0, 1, 3, 5])


def pair_of_nodes(name="logistic", seed=0, columns=D):
    (problem, plain_problem), (sparse, plain) = pairs_of_problems(columns)[name], pair_of_blocks(SIZES, seed, columns)
    return (
        Node(problem, ColumnarFederation(sparse), np.arange(6)),
        Node(plain_problem, ColumnarFederation(plain), np.arange(6)),
    )


COINS = SampleCoins(0.5, np.arange(4, dtype=np.uint64) + 3)
COMPUTATIONS = {
    "rows": (Computation(), True),
    "sum": (Computation(reduce="sum"), False),
    "clipped_sum": (Computation(reduce="sum", clip_norm=0.2), False),
    "l1_rows": (Computation(clip_norm=0.3, l1_norm=0.2), True),
    "separate": (Computation(clip_norm=0.2, separate=True), True),
    "sample_sum": (Computation("sample_sum"), True),
    "clipped_sample_sum": (Computation("clipped_sample_sum", parameters={"sample_clip_norm": 0.1}), True),
    "coins": (Computation("clipped_sample_sum", parameters={"sample_clip_norm": 0.1}, coins=COINS), True),
    "centre": (Computation(clip_norm=0.2, centre=np.full(D, 0.1)), False),
    "statistic": (Computation(clip_norm=0.2, statistic="unclipped"), False),
    "noise": (Computation(clip_norm=0.2, noise=LocalNoise(0.1, 3, 1)), False),
    "local_update": (Computation("local_update", parameters={"steps": 3.0, "step_size": 0.1}), False),
    "truncated": (Computation("truncated_sample_sum", parameters={"scale": 0.5, "inverse_variance": 4.0}), False),
    "groups": (
        Computation(
            "clipped_sample_sum",
            "sum",
            parameters={"sample_clip_norm": 0.1},
            partition=shuffled(4, 5, 3, np.random.default_rng(0)),
        ),
        False,
    ),
}


@pytest.fixture
def dense_in_float64(monkeypatch):
    """Sparse gradients are; dense ones that are clipped have products in float32."""
    monkeypatch.setattr(GeneralisedLinear, "rough_user_gradients", GeneralisedLinear.user_gradients)


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_a_node_answers_as_a_dense_one_does(name, dense_in_float64):
    computation, sparse = COMPUTATIONS[name]
    node, plain_node = pair_of_nodes()
    x = np.random.default_rng(1).uniform(-1, 1, D)
    answer, expected = node.compute(x, USERS, computation), plain_node.compute(x, USERS, computation)
    assert isinstance(answer.values, csr_array) == sparse
    assert answer.values.shape == expected.values.shape
    close(answer.values, expected.values)
    assert answer.non_finite == expected.non_finite


def test_nobody_drawn_gives_sparse_zeros():
    node, _ = pair_of_nodes()
    coins = SampleCoins(1e-9, np.arange(4, dtype=np.uint64))
    answer = node.compute(np.zeros(D), USERS, Computation("sample_sum", coins=coins))
    assert isinstance(answer.values, csr_array)
    assert answer.values.nnz == 0
    assert answer.values.shape == (4, D)


def test_a_wide_sum_travels_sparse_and_a_narrow_one_dense():
    computation = Computation(reduce="sum", clip_norm=0.2)
    wide, plain = pair_of_nodes(columns=2000)
    narrow, _ = pair_of_nodes()
    few = np.array([1])
    answer = wide.compute(np.zeros(2000), few, computation)
    assert isinstance(narrow.compute(np.zeros(D), USERS, computation).values, np.ndarray)
    close(answer.values, plain.compute(np.zeros(2000), few, computation).values)


class Envelope:
    """A reply, as far as `read_answer` looks at it."""

    def __init__(self, content):
        self.content = content


def sparse_answer():
    return Answer(np.array([4, 7, 9]), csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])), 1)


@pytest.mark.parametrize("share", [False, True])
def test_a_sparse_answer_survives_its_message(share):
    answer = sparse_answer()
    content = answer_content(answer, counts=True, share=share)
    read = read_answer(Envelope(content), answer.users, Computation(), 3)
    np.testing.assert_array_equal(read.users, answer.users)
    assert read.non_finite == 1
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(read.values, name), getattr(answer.values, name))
        assert np.shares_memory(getattr(read.values, name), getattr(answer.values, name)) == share


MALFORMED = {
    "indices_unsorted": ({"indices": [2, 0, 1]}, "columns that do not rise"),
    "indices_twice": ({"indices": [2, 2, 1]}, "columns that do not rise"),
    "indices_beyond": ({"indices": [0, 3, 1]}, "a column lies outside"),
    "indices_negative": ({"indices": [-1, 2, 1]}, "a column lies outside"),
    "indices_of_floats": ({"indices": [0.0, 2.0, 1.0]}, "does not follow the protocol"),
    "indices_square": ({"indices": [[0, 2, 1]]}, "does not follow the protocol"),
    "indices_short": ({"indices": [0, 2]}, "indptr must rise"),
    "data_short": ({"data": [1.0, 2.0]}, "indptr must rise"),
    "data_of_objects": ({"data": ["a", "b", "c"]}, "does not follow the protocol"),
    "indptr_beyond": ({"indptr": [0, 2, 3, 9]}, "indptr must rise"),
    "indptr_falls": ({"indptr": [0, 4, 3, 3]}, "indptr must not fall"),
    "indptr_falls_by_more_than_integers_hold": ({"indptr": [0, 2**62 + 1, -(2**62) - 1, 3]}, "indptr must not fall"),
    "indptr_falls_by_more_than_a_byte_holds": ({"indptr": np.array([0, 100, -56, 3], np.int8)}, "indptr must not fall"),
    "indptr_empty": ({"indptr": np.empty(0, np.int32)}, "indptr must be whole numbers of shape"),
    "no_columns": ({"columns": 0}, "sparse values must have 3 columns"),
    "too_many_columns": ({"columns": 2**40}, "columns must be a whole number from 0 to 3"),
    "no_indptr": ({"indptr": None}, "answer must be one ArrayRecord of data, indices, indptr, users"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_sparse_answers_are_refused(name):
    changes, message = MALFORMED[name]
    content = answer_content(sparse_answer(), counts=True, share=False)
    for key, values in changes.items():
        if key == "columns":
            content["facts"] = MetricRecord({"non_finite": 0, "columns": values})
        elif values is None:
            del content["answer"][key]
        else:
            content["answer"][key] = Array(np.asarray(values))
    with pytest.raises(BadInput, match=message):
        read_answer(Envelope(content), sparse_answer().users, Computation(), 3)


# Whole runs -----------------------------------------------------------------------------------------------------------

PEOPLE = [3, 1, 2, 4] * 15
FACTS = {"min_samples": 1, "max_samples": 4, "samples": 150}
METHODS = {
    "dp_fed_sgd": (DPFedSGD, {"rounds": 3, "cohort": 30, "clip_norm": 0.3}),
    "adaptive_clipping": (AdaptiveClipping, {"rounds": 3, "cohort": 30}),
    "local_dp_sgd": (LocalDP, {"rounds": 2, "clip_norm": 0.3}),
    "sample_clipped_sgd": (SampleClippedSGD, {"rounds": 2, "clip_norm": 0.3}),
}


def pair_of_runs(name, columns=40, **start):
    method, options = METHODS[name]
    problems, blocks = pairs_of_problems(columns)["logistic"], pair_of_blocks(PEOPLE, 5, columns, 0.05)
    # The same step size: certificates differ, as one speaks of the l1 ball and the other of the l2 ball.
    strategies = [
        make(method, problem, len(PEOPLE), 5.0, 1e-4, seed=3, facts=FACTS, learning_rate=0.5, **options)
        for problem in problems
    ]
    return strategies, [ColumnarFederation(block) for block in blocks]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_on_sparse_samples_releases_what_dense_ones_give(name, dense_in_float64):
    strategies, federations = pair_of_runs(name)
    sparse, plain = (run(strategy, people, 7) for strategy, people in zip(strategies, federations, strict=True))
    assert np.abs(final(plain)).max() > 1e-3
    np.testing.assert_allclose(final(sparse), final(plain), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_agrees_with_the_local_grid_bit_for_bit():
    (strategy, _), (people, _) = pair_of_runs("dp_fed_sgd")
    (again, _), _ = pair_of_runs("dp_fed_sgd")
    expected = final(run(strategy, people, 7))
    with RayGrid(again.problem, people, shards(people.users, 7), workers=2) as grid:
        np.testing.assert_array_equal(final(again.start(grid, roster_timeout=PATIENCE)), expected)
    gc.collect()  # here, where the warnings about Ray's handles are expected


def test_secure_noise_asks_for_users_one_by_one_and_runs():
    strategies, (people, _) = pair_of_runs("dp_fed_sgd")
    privacy = replace(strategies[0].privacy, noise="secure")
    secure = DPFedSGD(rounds=2, cohort=30).strategy(strategies[0].problem, strategies[0].public, privacy)
    with local_grid(secure.problem, people, 7) as grid:
        result = secure.start(grid)
    assert secure._request.computation.separate
    assert np.isfinite(final(result)).all()


def lying_run(change, name="dp_fed_sgd", **options):
    """A run in which one of nine nodes changes its answers; its users may be missing."""
    method, settings = METHODS[name]
    problem, people = pairs_of_problems(40)["logistic"][0], ColumnarFederation(pair_of_blocks(PEOPLE, 5, 40, 0.05)[0])
    strategy = make(method, problem, len(PEOPLE), 5.0, 1e-4, facts=FACTS, **{**settings, **options})
    nodes = [Node(problem, people, users) for users in shards(people.users, 7)]
    with LocalGrid([ChangedNode(nodes[0], change), *nodes[1:]]) as grid:
        return strategy.start(grid)


def one_entry(value):
    return lambda answer: replace(answer, values=csr_array(([value], ([0], [3])), shape=(1, 40)))


def test_a_sparse_sum_that_is_too_long_or_of_another_width_counts_as_missing():
    everybody = {"cohort": len(PEOPLE), "rounds": 1}
    assert lying_run(one_entry(7 * 0.3), **everybody).rounds[0].missing_users == 0
    assert lying_run(one_entry(7 * 0.3001), **everybody).rounds[0].missing_users == 7
    wider = lambda answer: replace(answer, values=csr_array((1, 41)))  # noqa: E731
    assert lying_run(wider, **everybody).rounds[0].missing_users == 7
    with pytest.raises(RunFailed, match="the norm of its sum exceeds"):
        lying_run(one_entry(np.inf), max_missing=0.0, **everybody)


def test_sparse_values_of_a_computation_that_fills_entries_count_as_missing():
    change = lambda answer: replace(answer, values=csr_array((1, 41)))  # noqa: E731
    with pytest.raises(RunFailed, match="sparse values of a computation that leaves no entry zero"):
        lying_run(change, "adaptive_clipping", cohort=len(PEOPLE), rounds=1, max_missing=0.0)


def test_a_round_at_a_million_columns_takes_memory_for_models_and_entries_alone():
    columns, users, samples, entries = 1_000_000, 400, 5, 20
    rng = np.random.default_rng(0)
    indices = rng.integers(columns, size=users * samples * entries, dtype=np.int32)
    ends = np.arange(users * samples + 1) * entries
    features = csr_array((np.full(len(indices), 0.2, np.float32), indices, ends), shape=(len(ends) - 1, columns))
    features.sum_duplicates()
    block = Block(features, np.arange(users + 1) * samples, rng.integers(0, 2, users * samples).astype(np.float32))
    people, problem = ColumnarFederation(block), SparseLogistic(columns, 1.0, entries)
    strategy = make(DPFedSGD, problem, users, 5.0, 1e-4, rounds=1, cohort=users)
    with local_grid(problem, people, 50) as grid:
        tracemalloc.start()
        strategy.start(grid)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert users * columns * 8 == 3.2e9  # what rows would take
    # A dozen vectors as long as the model (iterates, records, sum, noise), and 100 bytes for each entry.
    assert peak < 12 * 8 * columns + 100 * users * samples * entries


# Configurations -------------------------------------------------------------------------------------------------------


SPARSE = {"population": "sparse_regression", "dimension": 500, "nonzeros": 5, "skew": 1.0}


def config_of(problem, population=SPARSE, **data):
    return parse_config(
        {
            "name": "sparse",
            "problem": problem,
            "data": {"kind": "synthetic", "users": 60, "test_users": 10, "samples_per_user": 4, **population, **data},
            "strategy": {"kind": "dp_fed_sgd", "rounds": 2},
            "privacy": {"epsilon": 5.0, "delta": 1e-4},
            "engine": {"kind": "local"},
        }
    )


def test_a_configuration_declares_sparse_samples_before_any_are_made():
    logistic = build_problem(config_of({"kind": "sparse_logistic"}))
    assert (logistic.columns, logistic.sparsity, logistic.feature_norm) == (500, 5, 1.0)
    assert logistic.certificate.gradient_norm == 1.0
    config = config_of({"kind": "sparse_squared", "target_range": [-2.0, 2.0]}, link="linear", parameter_nonzeros=10)
    squared, users = build_problem(config), load_datasets(config).users
    bounded, _ = squared.bound(users.block(np.arange(60)))
    assert squared.bound(bounded) == (bounded, 0)
    assert not users.truth[10:].any()


def test_configurations_that_mix_sparse_and_dense_are_refused():
    with pytest.raises(BadInput, match="needs dense samples, and the data's are sparse: use sparse_logistic"):
        build_problem(config_of({"kind": "logistic"}))
    with pytest.raises(BadInput, match="needs sparse samples, and the data's are dense"):
        build_problem(config_of({"kind": "sparse_logistic"}, {"population": "logistic_regression", "dimension": 3}))


def test_synthetic_sparse_samples_have_their_norm_law_and_rates():
    law = SparseRegression(dimension=8, nonzeros=3, skew=1.0, feature_norm=2.0, parameter_deviation=2.0)
    federation = SyntheticFederation(law, 4000, seed=2, samples_per_user=5)
    block = federation.block(np.arange(4000))
    features = dense(block.features).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 2.0, rtol=2e-5)
    assert np.linalg.norm(features, axis=1).max() <= 2.0
    shares = 1 / np.arange(1, 9) / (1 / np.arange(1, 9)).sum()
    np.testing.assert_allclose((features != 0).mean(axis=0), 1 - (1 - shares) ** 3, atol=0.018)
    predictors = features @ federation.truth
    for part in np.array_split(np.argsort(predictors), 5):
        rates = expit(predictors[part])
        error = np.sqrt((rates * (1 - rates)).mean() / len(part))
        assert abs(block.targets[part].mean() - rates.mean()) < 4.5 * error
