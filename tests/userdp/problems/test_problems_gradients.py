"""Gradients of every problem: against finite differences, each other, and any grouping of users."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import CASES, Case, binary
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.special import expit

from strategies.baselines.regressions import HuberFamily, LpFamily
from userdp.arrays.sparse_rows import dense
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems import (
    Logistic,
    OneHotLogistic,
    OneHotPoisson,
    Poisson,
    Problem,
    Quadratic,
    Squared,
    one_pass,
    segments,
)
from userdp.problems.families import LogisticFamily, PoissonFamily, SquaredFamily
from userdp.problems.segments import clip_factors, float64_parts, parts, user_means, weighted_sums

RAGGED = [3, 1, 5, 2, 2]
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def by_user(values, block):
    return np.stack([values[a:b].sum(axis=0) for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)])


@pytest.mark.sweep(5)
@every_case
@pytest.mark.parametrize("sizes", [RAGGED, [4], [1, 1]], ids=["ragged", "one_user", "one_sample"])
def test_sample_gradients_are_derivatives_of_sample_losses(case: Case, sizes):
    block, x, step = case.block(sizes), case.model(), 1e-5
    losses = case.problem.sample_losses
    numeric = [
        (losses(x + step * e, block) - losses(x - step * e, block)) / (2 * step) for e in np.eye(case.problem.dimension)
    ]
    gradients = dense(case.problem.sample_gradients(x, block))
    assert gradients.shape == (block.samples, case.problem.dimension)
    np.testing.assert_allclose(gradients, np.stack(numeric, axis=1), atol=2e-8, rtol=1e-6)


@pytest.mark.sweep(9)
@every_case
@pytest.mark.parametrize("sizes", [RAGGED, [3, 3, 3], [5], [1], [1, 1, 1]])
def test_user_gradient_is_the_average_of_the_users_sample_gradients(case: Case, sizes):
    block, x = case.block(sizes), case.model()
    expected = by_user(dense(case.problem.sample_gradients(x, block)), block) / block.sizes[:, None]
    actual = dense(case.problem.user_gradients(x, block))
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.sweep(9)
@every_case
@pytest.mark.parametrize("sizes", [RAGGED, [3, 3, 3], [1]])
@pytest.mark.parametrize("chunk_bytes", [None, 40, 100, 1 << 20])
def test_rough_gradients_are_those_to_seven_digits_of_their_largest_terms(case: Case, sizes, chunk_bytes, monkeypatch):
    """Gradients are computed in pieces of so many bytes, or (None) by a compiled loop."""
    if chunk_bytes is None:
        monkeypatch.setattr("userdp.problems.generalised_linear.COMPILED_BYTES", 0)
    else:
        monkeypatch.setattr(segments, "AT_HAND_BYTES", chunk_bytes)
    block, x = case.block(sizes), case.model()
    exact, rough = (dense(make(x, block)) for make in (case.problem.user_gradients, case.problem.rough_user_gradients))
    assert rough.dtype == np.float64
    largest = np.abs(dense(case.problem.sample_gradients(x, block))).max()
    np.testing.assert_allclose(rough, exact, rtol=0, atol=1e-5 * largest)


FAMILIES = {
    "logistic": LogisticFamily(),
    "squared": SquaredFamily(-3.0, 3.0),
    "huber": HuberFamily(-3.0, 3.0, 0.7),
    "lp": LpFamily(-3.0, 3.0, 1.4),
    "poisson": PoissonFamily(5.0),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_compiled_slope_is_that_of_its_family(name):
    family, rng = FAMILIES[name], np.random.default_rng(1)
    scores = np.float32([*rng.uniform(-3, 3, 200), -90.0, 80.0, 0.5])
    targets = np.float32([*rng.integers(0, 2, 202), 0.5])
    kind, parameter = one_pass.KINDS.index(family.kind), np.float32(family.parameter)
    slopes = [one_pass.slope(kind, *one, parameter) for one in zip(scores, targets, strict=True)]
    np.testing.assert_allclose(slopes, family.slopes(scores, targets), rtol=2e-6, atol=1e-6)


def test_a_loss_that_is_not_compiled_takes_two_products(monkeypatch):
    monkeypatch.setattr("userdp.problems.generalised_linear.COMPILED_BYTES", 0)
    monkeypatch.setattr(one_pass, "average_gradients", None)
    monkeypatch.setattr(SquaredFamily, "kind", None)
    block = Block(np.float32([[1.0, 2.0]]), np.array([0, 1]), np.float32([0.5]))
    problem, x = Squared(2, np.inf, np.inf, low=-1.0, high=1.0), np.array([1.0, -1.0])
    np.testing.assert_allclose(problem.rough_user_gradients(x, block), [[-1.5, -3.0]])


def test_many_samples_take_a_compiled_loop(monkeypatch):
    rng, users, columns = np.random.default_rng(1), 60, 600
    offsets = np.arange(users + 1) * 30
    block = Block(rng.normal(size=(users * 30, columns)).astype(np.float32), offsets, np.zeros(users * 30, np.float32))
    problem, x = Logistic(columns, np.inf, 1.0, ridge=0.1, intercept=True), rng.normal(size=columns + 1) / 30
    asked = []
    real = one_pass.average_gradients
    monkeypatch.setattr(one_pass, "average_gradients", lambda *arguments: asked.append(1) or real(*arguments))
    np.testing.assert_allclose(problem.rough_user_gradients(x, block), problem.user_gradients(x, block), atol=1e-5)
    assert asked
    problem.rough_user_gradients(x, block.part(0, 25))
    assert len(asked) == 1


@pytest.mark.parametrize("compiled_from", [0, 1 << 21])
def test_whose_products_overflow_in_float32_gets_those_of_float64_and_nobody_else_does(compiled_from, monkeypatch):
    monkeypatch.setattr("userdp.problems.generalised_linear.COMPILED_BYTES", compiled_from)
    features = np.array([[1e30, 1.0], [0.5, 0.25], [1.0, np.nan], [0.1, 3.0]], dtype=np.float32)
    block = Block(features, np.array([0, 1, 3, 4]), np.array([1.0, 0.0, 1.0, 0.0], dtype=np.float32))
    problem, x = Squared(2, np.inf, np.inf, low=-1.0, high=1.0), np.array([1e12, -1.0])
    exact, rough = problem.user_gradients(x, block), problem.rough_user_gradients(x, block)
    np.testing.assert_array_equal(rough[0], exact[0])
    assert np.isfinite(rough[0]).all()
    assert np.isnan(rough[1]).any()
    np.testing.assert_allclose(rough[2], exact[2], rtol=1e-5)
    assert not np.array_equal(rough[2], exact[2])


@pytest.mark.sweep(60)
@every_case
@pytest.mark.parametrize("sizes", [RAGGED, [3, 3, 3], [1]])
@pytest.mark.parametrize("chunk_bytes", [40, 1 << 20])
def test_gradients_at_users_own_models_are_those_of_each_user_alone(case: Case, sizes, chunk_bytes, monkeypatch):
    monkeypatch.setattr(segments, "CHUNK_BYTES", chunk_bytes)
    block, problem = case.block(sizes), case.problem
    models = np.stack([case.model(seed) for seed in range(len(sizes))])
    expected = [dense(problem.user_gradients(x, block.part(user, user + 1))) for user, x in enumerate(models)]
    actual = dense(problem.user_gradients_at(models, block))
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, np.concatenate(expected), rtol=1e-9, atol=1e-13)
    one_by_one = dense(Problem.user_gradients_at(problem, models, block))
    np.testing.assert_array_equal(one_by_one, np.concatenate(expected))


@pytest.mark.sweep(14)
@every_case
@pytest.mark.parametrize("chunk_bytes", [1, 40, 1 << 20])
def test_results_do_not_depend_on_how_users_are_grouped(case: Case, chunk_bytes, monkeypatch):
    block, x = case.block([7, 2, 2, 1, 4, 4]), case.model()
    problem = case.problem

    def answers(part):
        gradients, losses = dense(problem.user_gradients(x, part)), problem.sample_losses(x, part)
        return gradients, losses, dense(problem.sample_clipped_sums(x, part, 0.3))

    whole = answers(block)
    monkeypatch.setattr(segments, "CHUNK_BYTES", chunk_bytes)
    for cuts in ([0, 6], [0, 3, 6], list(range(7))):
        pieces = zip(*(answers(block.part(a, b)) for a, b in itertools.pairwise(cuts)), strict=True)
        for expected, piece in zip(whole, pieces, strict=True):
            np.testing.assert_allclose(np.concatenate(piece), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.sweep(40)
@every_case
@pytest.mark.parametrize("clip_norm", [1e-3, 0.4, 50.0])
def test_clipped_sums_equal_clipping_every_sample(case: Case, clip_norm):
    block, x = case.block(RAGGED), case.model()
    gradients = dense(case.problem.sample_gradients(x, block))
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    expected = by_user(gradients * np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300)), block)
    actual = dense(case.problem.sample_clipped_sums(x, block, clip_norm))
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-11 * clip_norm)


@every_case
def test_no_sample_passes_the_clip(case: Case):
    block, x = case.block([1] * 12), case.model()
    sums = dense(case.problem.sample_clipped_sums(x, block, 0.05))
    assert np.linalg.norm(sums, axis=1).max() <= 0.05 * (1 + 1e-12)


@pytest.mark.sweep(30)
@every_case
@pytest.mark.parametrize("clip_norm", [0.0, -1.0, np.nan, np.inf])
def test_a_clip_that_is_not_positive_and_finite_is_refused(case: Case, clip_norm):
    with pytest.raises(BadInput, match="clip_norm = "):
        case.problem.sample_clipped_sums(case.model(), case.block([2]), clip_norm)


@every_case
def test_a_model_that_is_not_finite_gives_zero_clipped_sums_and_no_warning(case: Case):
    block = case.block(RAGGED)
    sums = dense(case.problem.sample_clipped_sums(np.full(case.problem.dimension, np.nan), block, 1.0))
    if case.problem.name == "linear":  # its gradient depends on no model
        assert np.isfinite(sums).all()
    else:
        np.testing.assert_array_equal(sums, 0.0)


@pytest.mark.sweep(20)
@every_case
def test_data_may_be_read_only(case: Case):
    block = case.block(RAGGED)
    expected = dense(case.problem.user_gradients(case.model(), block))
    sparse = isinstance(block.features, csr_array)
    values = [block.features.data, block.features.indices, block.features.indptr] if sparse else [block.features]
    for array in (*values, block.offsets, block.targets):
        if array is not None:
            array.setflags(write=False)
    assert case.problem.bound(block)[0] is block
    np.testing.assert_array_equal(dense(case.problem.user_gradients(case.model(), block)), expected)
    assert case.problem.metrics(case.model(), block)["test_loss"].shape == (5,)


def test_clipped_sums_of_a_generalised_linear_model_hold_no_gradient_of_a_sample():
    rng, users, samples, d = np.random.default_rng(0), 200, 20_000, 200
    features = rng.normal(size=(samples, d)).astype(np.float32)
    block = Block(features, np.arange(users + 1) * (samples // users), binary(rng, samples))
    problem, x = Logistic(d, np.inf, 1.0, ridge=0.1), rng.normal(size=d)
    tracemalloc.start()
    problem.sample_clipped_sums(x, block, 0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 8 * samples * d == 32e6  # what the gradients would take
    assert peak < 8 * users * d + 3 * segments.CHUNK_BYTES


def test_one_overflowing_sample_counts_as_zero_and_spares_the_others():
    block = Block(np.array([[1.0], [1e-3], [0.3]], np.float32), np.array([0, 2, 3]), np.zeros(3, np.float32))
    sums = Poisson(1, 1.0, 1000.0, count_bound=1.0).sample_clipped_sums(np.array([800.0]), block, 1.0)
    small = np.exp(0.8 * np.float64(block.features[1, 0]) / 1e-3) * block.features[1, 0]
    np.testing.assert_allclose(sums, [[small], [1.0]], rtol=1e-6)
    codes = Block(np.array([[0], [1], [0]], np.int32), np.array([0, 2, 3]), np.zeros(3, np.float32))
    one_hot = OneHotPoisson(2, 1000.0, count_bound=1.0).sample_clipped_sums(np.array([800.0, -1.0]), codes, 9.0)
    np.testing.assert_allclose(one_hot, [[0.0, np.exp(-1.0)], [0.0, 0.0]])


def test_default_clipping_zeroes_gradients_whose_norm_overflows():
    block = Block(np.zeros((2, 2), np.float32), np.array([0, 1, 2]))
    sums = Quadratic(2, 1.0, np.inf).sample_clipped_sums(np.array([1e300, 0.0]), block, 1.0)
    np.testing.assert_array_equal(sums, 0.0)


@pytest.mark.parametrize("one_hot", [False, True])
def test_ghost_clipping_never_clips_too_mildly_when_terms_cancel(one_hot):
    """The gradient is zero but for a relative 1e-11 to 1e-8, and its squared norm is lost in rounding.

    Linear: r a = -ridge x, three terms. One-hot: phi' + ridge x_0 is nothing, and the ridge's pull on x_1 is lost in
    ``||pull||^2 - pull_0^2``.
    """
    problem = OneHotLogistic(2, 100.0, ridge=0.01) if one_hot else Logistic(2, 1.0, 100.0, ridge=0.01)
    features = np.zeros((1, 1), np.int32) if one_hot else np.array([[1.0, 0.0]], np.float32)
    block = Block(features, np.array([0, 1]), np.ones(1, np.float32))
    balance = brentq(lambda s: expit(s) - 1.0 + problem.ridge * s, 0.0, 100.0, xtol=1e-14)
    for offset in np.geomspace(1e-11, 1e-8, 200):
        x = np.array([balance, offset] if one_hot else [balance * (1 + offset), 0.0])
        assert np.linalg.norm(problem.sample_gradients(x, block)) > 1e-14
        assert np.linalg.norm(problem.sample_clipped_sums(x, block, 1e-14)) <= 1.001e-14


sizes_of_users = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@settings(max_examples=60)
@given(sizes=sizes_of_users, row_bytes=st.integers(1, 64), chunk=st.integers(1, 200))
def test_parts_cover_every_sample_once_in_order(sizes, row_bytes, chunk):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    features = np.arange(2 * offsets[-1], dtype=np.float32).reshape(-1, 2)
    block = Block(features, offsets, features[:, 0].copy())
    owner = np.repeat(np.arange(len(sizes)), sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "CHUNK_BYTES", chunk)
        pieces = list(parts(block, row_bytes))
        casts = [features.copy() for _, _, features in float64_parts(block)]
    owners = [np.arange(users.start, users.stop).repeat(part.sizes) for users, part in pieces]
    np.testing.assert_array_equal(np.concatenate(owners), owner)
    np.testing.assert_array_equal(np.concatenate([part.features for _, part in pieces]), features)
    np.testing.assert_array_equal(np.concatenate([part.targets for _, part in pieces]), block.targets)
    assert all(part.samples <= max(1, chunk // row_bytes) for _, part in pieces)
    np.testing.assert_array_equal(np.concatenate(casts), features)


@settings(max_examples=60)
@given(sizes=sizes_of_users, columns=st.integers(1, 4), seed=st.integers(0, 99))
def test_weighted_sums_and_means_match_a_loop_over_users(sizes, columns, seed):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values, weights = rng.normal(size=(offsets[-1], columns)), rng.normal(size=offsets[-1])
    block = Block(values.astype(np.float32), offsets)
    np.testing.assert_allclose(
        weighted_sums(values, offsets, weights), by_user(values * weights[:, None], block), rtol=1e-12, atol=1e-13
    )
    means = by_user(block.features.astype(np.float64), block) / block.sizes[:, None]
    np.testing.assert_allclose(user_means(block), means, rtol=1e-12, atol=1e-14)


def test_clip_factors_scale_down_only_and_zero_what_is_not_finite():
    factors = clip_factors(np.array([0.0, 0.25, 4.0, np.nan, np.inf, -1e-20]), 1.0)
    np.testing.assert_array_equal(factors, [1.0, 1.0, 0.5, 0.0, 0.0, 1.0])
