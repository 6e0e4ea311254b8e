"""Declared bounds: samples clipped into them exactly, counted, and what cannot be clipped set aside, one by one."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import CASES, Case, binary
from scipy.sparse import csr_array

from strategies.baselines.regressions import HuberRegression, LpRegression
from userdp.arrays.sparse_rows import dense
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems import (
    Bernoulli,
    Huber,
    Linear,
    Logistic,
    OneHotLogistic,
    OneHotPoisson,
    OneHotSquared,
    Poisson,
    Quadratic,
    Squared,
    bounds,
)

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
ONE_USER = np.array([0, 4])


def block_of(features, targets=None, offsets=ONE_USER):
    return Block(
        np.asarray(features, np.float32), offsets, None if targets is None else np.asarray(targets, np.float32)
    )


def like(block, features):
    """These features, sparse if the block's are."""
    return csr_array(features) if isinstance(block.features, csr_array) else features


@every_case
def test_a_block_within_the_bounds_is_returned_itself_and_nothing_counted(case: Case):
    block = case.block([3, 2])
    bounded, changed = case.problem.bound(block)
    assert bounded is block
    assert changed == 0


NEAR, HELD = (
    [[0.05, -0.05], [5.0, -5.0], [0.0, -7.0], [0.1, 0.0]],
    [[0.05, -0.05], [0.1, -0.1], [0.0, -0.1], [0.1, 0.0]],
)
HUGE, CODES = [[1e38], [-1e38], [0.0], [1.0]], [[0], [1], [2], [2]]
CLIPS = [  # the problem, features and targets before and after, how many samples change
    # float32(0.1) exceeds 0.1, so the last sample moves by one rounding too.
    *[(p, NEAR, None, HELD, None, 3) for p in (Linear(2, 0.1), Quadratic(2, 0.1, 1.0), Huber(2, 0.1, 1.0, 1.0))],
    (Bernoulli(1, 2.0), [[-0.5], [0.0], [1.0], [3.0]], None, [[0.0], [0.0], [1.0], [1.0]], None, 2),
    (Linear(1, 1e300), HUGE, None, HUGE, None, 0),
    (
        *(Squared(1, 1.0, 1.0, low=-0.5, high=0.5), [[3.0], [0.5], [0.5], [-9.0]], [2.0, 2.0, 0.0, 0.0]),
        *([[1.0], [0.5], [0.5], [-1.0]], [0.5, 0.5, 0.0, 0.0], 3),
    ),
    (OneHotPoisson(3, 1.0, count_bound=3.0), CODES, [-1.0, 0.0, 7.0, 2.0], CODES, [0.0, 0.0, 3.0, 2.0], 2),
]


@pytest.mark.parametrize(("problem", "features", "targets", "after", "targets_after", "count"), CLIPS)
def test_samples_are_clipped_into_their_bounds_and_counted_once(
    problem, features, targets, after, targets_after, count
):
    raw = block_of(features, targets)
    if features is CODES:
        raw = Block(np.array(CODES, np.int32), ONE_USER, raw.targets)
    before = raw.features.copy()
    bounded, changed = problem.bound(raw)
    assert changed == count
    np.testing.assert_allclose(bounded.features, after, rtol=1e-6)
    np.testing.assert_array_equal(bounded.targets, targets_after)
    assert np.abs(bounded.features.astype(np.float64)).max() <= np.abs(after).max()
    assert bounded.features.dtype == raw.features.dtype
    np.testing.assert_array_equal(raw.features, before)
    assert problem.bound(bounded) == (bounded, 0)


@settings(max_examples=80)
@given(seed=st.integers(0, 10**6), norm=st.floats(1.01, 100.0), columns=st.integers(1, 30), intercept=st.booleans())
def test_features_are_scaled_into_the_l1_ball_exactly(seed, norm, columns, intercept):
    rng = np.random.default_rng(seed)
    raw = block_of(rng.normal(0, 1, (4, columns)) * 10.0 ** rng.uniform(-3, 3, (4, 1)), rng.integers(0, 2, 4))
    problem = Logistic(columns, norm, 1.0, intercept=intercept)
    bounded, changed = problem.bound(raw)
    limit = norm - 1 if intercept else norm
    norms = np.abs(raw.features.astype(np.float64)).sum(axis=1)
    assert changed == (norms > limit).sum()
    after = np.abs(bounded.features.astype(np.float64)).sum(axis=1)
    assert after.max() <= limit
    np.testing.assert_allclose(after, np.minimum(norms, limit), rtol=1e-6)
    directions = raw.features * (after / norms)[:, None]
    np.testing.assert_allclose(bounded.features, directions, rtol=1e-5, atol=1e-9)
    assert problem.bound(bounded) == (bounded, 0)


@pytest.mark.parametrize("code", [-1, 3, 99, 2**31 - 1])
def test_a_code_outside_the_levels_sets_its_own_sample_aside(code):
    codes = Block(np.array([[0], [code], [2], [code]], np.int32), ONE_USER, np.zeros(4, np.float32))
    bounded, clipped = OneHotLogistic(3, 1.0).bound(codes)
    np.testing.assert_array_equal(bounded.usable, [True, False, True, False])
    np.testing.assert_array_equal(bounded.features[:, 0], [0, 0, 2, 0])
    assert clipped == 0


@every_case
def test_other_columns_are_refused(case: Case):
    block = case.block([4])
    features = dense(block.features)
    wide = Block(like(block, np.hstack([features, features])), block.offsets, block.targets)
    wanted = case.problem.columns
    with pytest.raises(BadInput, match=f"samples have {2 * wanted} feature columns, the problem needs {wanted}"):
        case.problem.bound(wide)


@every_case
def test_features_of_the_wrong_kind_are_refused(case: Case):
    block = case.block([4])
    other = np.int32 if block.features.dtype == np.float32 else np.float32
    message = f"features (have type|must be float32, got) {np.dtype(other)}"
    with pytest.raises(BadInput, match=message):
        case.problem.bound(Block(block.features.astype(other), block.offsets, block.targets))


@every_case
def test_missing_targets_are_refused_where_there_must_be_some(case: Case):
    block = case.block([4])
    bare = Block(block.features, block.offsets)
    if not case.problem.has_targets:
        assert case.problem.bound(bare) == (bare, 0)
        return
    for use in (case.problem.bound, lambda b: case.problem.user_gradients(case.model(), b)):
        with pytest.raises(BadInput, match="samples have no target, the problem needs one"):
            use(bare)


@pytest.mark.sweep(114)
@every_case
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_sets_its_own_sample_aside_and_changes_no_other(case: Case, bad):
    block = case.block([4, 2])
    features, targets = dense(block.features).copy(), None if block.targets is None else block.targets.copy()
    wrong = np.zeros(6, dtype=bool)
    if features.dtype == np.float32:
        features[[1, 4], -1] = bad
        wrong[[1, 4]] = True
    if targets is not None:
        targets[[0, 4]] = bad
        wrong[[0, 4]] |= case.problem.has_targets
    bounded, clipped = case.problem.bound(Block(like(block, features), block.offsets, targets))
    assert clipped == 0
    np.testing.assert_array_equal(bounded.usable, ~wrong)
    np.testing.assert_array_equal(dense(bounded.features)[~wrong], dense(block.features)[~wrong])
    np.testing.assert_array_equal(dense(bounded.features)[wrong], 0)
    if case.problem.has_targets:
        np.testing.assert_array_equal(bounded.targets[~wrong], block.targets[~wrong])
        assert np.isfinite(bounded.targets).all()


@every_case
def test_what_is_set_aside_stays_so_when_a_block_is_cut_or_bounded_again(case: Case):
    block = case.block([3, 3])
    usable = np.array([True, False, True, True, True, False])
    aside = bounds.set_aside(block, ~usable)
    again = case.problem.bound(aside)[0]
    np.testing.assert_array_equal(again.usable, usable)
    np.testing.assert_array_equal(again.part(1, 2).usable, usable[3:])
    np.testing.assert_array_equal(again.gathered(np.array([5, 0]), np.array([0, 2])).usable, [False, True])
    assert bounds.set_aside(block, np.zeros(6, dtype=bool)) is block


def test_what_is_set_aside_survives_a_clip():
    bounded, clipped = Quadratic(1, 1.0, 1.0).bound(block_of([[np.nan], [0.5], [9.0], [-np.inf]]))
    assert clipped == 1
    np.testing.assert_array_equal(bounded.usable, [False, True, True, False])
    np.testing.assert_array_equal(bounded.features[:, 0], [0.0, 0.5, 1.0, 0.0])


@pytest.mark.parametrize("neighbours", [0, 1, 2, 3, 5, 8, 17])
def test_how_a_sample_is_scaled_does_not_depend_on_how_many_others_there_are(neighbours):
    rng = np.random.default_rng(5)
    features = rng.normal(size=(64 + neighbours, 7)).astype(np.float32)
    problem, targets = Logistic(7, 1.0, 1.0), np.zeros(64 + neighbours, np.float32)
    alone = problem.bound(Block(features[:64], np.array([0, 64]), targets[:64]))[0]
    with_others = problem.bound(Block(features, np.array([0, 64 + neighbours]), targets))[0]
    np.testing.assert_array_equal(with_others.features[:64], alone.features)


@pytest.mark.parametrize("size", [10, 5000])
def test_bounding_does_not_depend_on_the_size_of_pieces(size, monkeypatch):
    rng = np.random.default_rng(1)
    raw = Block(rng.normal(size=(size, 3)).astype(np.float32), np.array([0, size // 2, size]), binary(rng, size))
    problem = Logistic(3, 1.0, 1.0)
    expected, changed = problem.bound(raw)
    monkeypatch.setattr("userdp.problems.segments.CHUNK_BYTES", 50)
    again, counted = problem.bound(raw)
    assert counted == changed > 0
    np.testing.assert_array_equal(again.features, expected.features)


def test_pieces_are_clipped_as_one_array_and_the_samples_themselves_stay(monkeypatch):
    monkeypatch.setattr("userdp.problems.segments.CHUNK_BYTES", 100)
    values = np.random.default_rng(2).normal(size=(500, 3)).astype(np.float32)
    values[100:300] /= 100  # pieces without a sample to clip
    values[::7, 1] = 0.5  # on the edge, and not beyond it
    given = values.copy()
    bounded, changed = Quadratic(3, 0.5, 1.0).bound(Block(values, np.array([0, 250, 500])))
    np.testing.assert_array_equal(bounded.features, np.clip(given, np.float32(-0.5), np.float32(0.5)))
    assert changed == (np.abs(given) > 0.5).any(axis=1).sum()
    np.testing.assert_array_equal(values, given)


BAD_ARGUMENTS = {
    "problem.dimension = 0": lambda: Linear(0, 1.0),
    "problem.dimension = 1.5": lambda: Linear(1.5, 1.0),
    "problem.bound = -1.0": lambda: Quadratic(1, -1.0, 1.0),
    "problem.bound = nan": lambda: Huber(1, float("nan"), 1.0, 1.0),
    "problem.bound = inf": lambda: Linear(1, float("inf")),
    "problem.radius = inf": lambda: Linear(1, 1.0, float("inf")),
    "problem.radius = 0": lambda: Bernoulli(1, 0),
    "problem.radius = nan": lambda: OneHotLogistic(2, float("nan")),
    "problem.threshold = 0.0": lambda: Huber(1, 1.0, 1.0, 0.0),
    "problem.columns = 0": lambda: Logistic(0, 1.0, 1.0),
    "problem.feature_norm = nan": lambda: Logistic(2, float("nan"), 1.0),
    "problem.target_range = [nan, 1.0]": lambda: Squared(2, 1.0, 1.0, low=float("nan"), high=1.0),
    "problem.target_range = [inf, inf]": lambda: Squared(2, 1.0, 1.0, low=float("inf"), high=float("inf")),
    "problem.order = 1.0": lambda: LpRegression(2, 1.0, 1.0, order=1.0, low=0.0, high=1.0),
    "problem.order = 2.5": lambda: LpRegression(2, 1.0, 1.0, order=2.5, low=0.0, high=1.0),
    "problem.threshold = 0": lambda: HuberRegression(2, 1.0, 1.0, threshold=0, low=0.0, high=1.0),
    "problem.feature_norm = 1.0: must exceed 1": lambda: Logistic(2, 1.0, 1.0, intercept=True),
    "problem.ridge = -0.1": lambda: Logistic(2, 1.0, 1.0, ridge=-0.1),
    "problem.ridge = inf": lambda: Logistic(2, 1.0, 1.0, ridge=float("inf")),
    "problem.ridge = nan": lambda: OneHotLogistic(2, 1.0, ridge=float("nan")),
    "problem.target_range = [1.0, 1.0]": lambda: Squared(2, 1.0, 1.0, low=1.0, high=1.0),
    "problem.target_range = [0.0, inf]": lambda: OneHotSquared(2, 1.0, low=0.0, high=float("inf")),
    "problem.count_bound = 0": lambda: Poisson(2, 1.0, 1.0, count_bound=0),
    "problem.levels = 0": lambda: OneHotPoisson(0, 1.0, count_bound=1.0),
}


@pytest.mark.parametrize(("message", "make"), BAD_ARGUMENTS.items(), ids=BAD_ARGUMENTS.keys())
def test_arguments_out_of_range_are_refused_by_field_and_value(message, make):
    with pytest.raises(BadInput, match=re.escape(message)):
        make()


@pytest.mark.parametrize("ends", [(math.inf, math.inf), (-math.inf, -math.inf), (1, 1), (math.nan, 1), (1, math.nan)])
def test_an_interval_without_a_number_inside_is_refused(ends):
    with pytest.raises(BadInput, match=r"problem\.range = .*: must be two numbers"):
        bounds.interval("problem.range", *ends)
    assert bounds.interval("problem.range", -math.inf, math.inf) == (-math.inf, math.inf)


@pytest.mark.parametrize("value", ["7", [2], None, True, 2.0, float("nan"), float("inf"), -1])
def test_a_count_that_is_no_whole_number_is_refused(value):
    with pytest.raises(BadInput, match=r"problem\.levels = "):
        bounds.count("problem.levels", value)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_target_that_is_no_class_has_none(classes):
    wrong = [-1.0, -0.5, 0.5, classes - 0.5, float(classes), 1e30, np.inf, -np.inf]
    targets = np.array([*wrong, *range(classes)], dtype=np.float32)
    block = Block(np.zeros((len(targets), 1), dtype=np.float32), np.arange(len(targets) + 1), targets)
    assert bounds.without_class(block, classes).tolist() == [True] * len(wrong) + [False] * classes


@pytest.mark.parametrize("far", [-9.0, 9.0, 1.0 + 1e-6, -1.0 - 1e-6])
@pytest.mark.parametrize("place", [0, 1, 4, 9])
def test_one_cell_beyond_one_end_is_clipped_wherever_it_is(place, far):
    """All others lie within, and so do its sample and its user but for it."""
    features, targets = np.full((5, 2), 0.5, dtype=np.float32), np.full(10, 0.5, dtype=np.float32)
    features.flat[place] = targets[place] = far
    for users in ([0, 5], [0, 1, 2, 5], [0, 1, 2, 3, 4, 5]):
        held, changed = bounds.clip_features(Block(features, np.array(users)), -1.0, 1.0)
        assert np.abs(held).max() == 1.0
        assert np.flatnonzero(changed).tolist() == [place // 2]
        short, changed = bounds.scale_features(Block(features, np.array(users)), 1.25)
        assert np.abs(short).sum(axis=1).max() <= 1.25
        assert np.flatnonzero(changed).tolist() == [place // 2]
    block = Block(np.zeros((10, 1), dtype=np.float32), np.arange(11), targets)
    held, changed = bounds.clip_targets(block, -1.0, 1.0)
    assert np.abs(held).max() == 1.0
    assert np.flatnonzero(changed).tolist() == [place]
