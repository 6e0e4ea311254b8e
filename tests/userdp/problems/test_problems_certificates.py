"""Certificates by brute force: constants never exceeded, nearly attained; A4's threshold tight; contractive."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import CASES, CERTIFIED, Case
from scipy.special import expit, softmax

from strategies.baselines.regressions import BiweightRegression, HuberRegression, LpRegression
from userdp.arrays.sparse_rows import dense
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import BadInput, MissingAssumption
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
    Softmax,
    Squared,
)
from userdp.problems.registry import PROBLEMS

CURVATURE = {"logistic": lambda s: expit(s) * expit(-s), "squared": np.ones_like, "poisson": np.exp}
SEPARABLE_CURVATURE = {
    "linear": np.zeros_like,
    "quadratic": np.ones_like,
    "huber": lambda u: (np.abs(u) <= 0.7).astype(float),
    "bernoulli": lambda u: expit(u) * expit(-u),
}


def make_glm(family, columns, norm, radius, ridge, intercept, cell=np.inf):
    options = {"ridge": ridge, "intercept": intercept, "feature_bound": cell}
    if family == "softmax":
        return Softmax(3, columns, norm, radius, **options)
    if family == "logistic":
        return Logistic(columns, norm, radius, **options)
    if family == "squared":
        return Squared(columns, norm, radius, low=-0.5, high=1.0, **options)
    return Poisson(columns, norm, radius, count_bound=3.0, **options)


def rows_of(problem, block):
    """The model matrix: features with the intercept's 1, or one-hot rows."""
    if problem.name.startswith("one_hot"):
        return np.eye(problem.dimension)[block.features[:, 0]]
    rows = block.features.astype(np.float64)
    return np.hstack([rows, np.ones((len(rows), 1))]) if problem.intercept else rows


def hessians(problem, x, block):
    """(N, p, p), from the definitions."""
    eye = np.eye(problem.dimension)
    if problem.name in SEPARABLE_CURVATURE:
        at = x - block.features if problem.name == "huber" else np.tile(x, (block.samples, 1))
        return SEPARABLE_CURVATURE[problem.name](at)[:, :, None] * eye
    rows = rows_of(problem, block)
    if problem.name == "softmax":
        shares = softmax(rows @ x.reshape(problem.outputs, -1).T, axis=1)
        among = np.einsum("ic,ce->ice", shares, np.eye(problem.outputs)) - shares[:, :, None] * shares[:, None, :]
        blocks = np.einsum("ice,ij,ik->icjek", among, rows, rows)
        return blocks.reshape(len(rows), problem.dimension, problem.dimension) + problem.ridge * eye
    curvature = CURVATURE[problem.name.removeprefix("one_hot_")](rows @ x)
    return curvature[:, None, None] * rows[:, :, None] * rows[:, None, :] + problem.ridge * eye


def check_gradients(certificate, gradients):
    assert np.abs(gradients).max() <= certificate.lipschitz * (1 + 1e-12)
    assert np.linalg.norm(gradients, axis=1).max() <= certificate.gradient_norm * (1 + 1e-12)


def targets_of(problem):
    """The targets at which gradients are largest."""
    if problem.name in SEPARABLE_CURVATURE:
        return [None]
    return range(problem.outputs) if problem.name == "softmax" else (problem.family.low, problem.family.high)


def with_target(block, target):
    return block if target is None else Block(block.features, block.offsets, np.full(block.samples, target, np.float32))


def extreme_block(problem, rng, samples=40):
    """Samples far outside of the bounds, as the problem bounds them.

    Of linear models: vertices of the l1 ball, mixtures of two columns in all shares and in halves, random directions;
    where cells are bounded, corners of their cube too, and as many full cells as the l1 bound allows.
    """
    ends = np.arange(samples + 1)
    if problem.name in SEPARABLE_CURVATURE:
        features = rng.uniform(problem.low, problem.high, (samples, problem.columns))
        features[0], features[1] = problem.low, problem.high
        return problem.bound(Block(features.astype(np.float32), ends))[0]
    targets = rng.choice(list(targets_of(problem)), samples).astype(np.float32)
    if problem.name.startswith("one_hot"):
        return Block((np.arange(samples) % problem.dimension)[:, None].astype(np.int32), ends, targets)
    k, cell = problem.columns, problem.feature_bound
    features = rng.normal(size=(samples, k))
    features[:20] = 0.0
    features[:8, 0] = 1.0
    features[8:20, 0] = np.append(rng.uniform(0.0, 0.6, 8), [0.5] * 4)
    features[8:20, -1] += 1.0 - features[8:20, 0]
    features *= 10 * problem.feature_norm
    if np.isfinite(cell) and problem.name != "softmax":
        room = problem.feature_norm - problem.intercept
        features[20:] = rng.choice([-cell, 0.0, cell], (samples - 20, k))
        features[20::4] = rng.uniform(-3, 3, features[20::4].shape) * cell
        features[21], features[22] = cell, np.clip(room - cell * np.arange(k), 0.0, cell)
    return problem.bound(Block(features.astype(np.float32), ends, targets))[0]


def models(problem, rng):
    """Models of the domain: its middle, corners, random ones; for classes, one as likely as all others together."""
    radius, p = problem.domain.radius, problem.dimension
    found = [np.zeros(p), np.full(p, radius), np.full(p, -radius)]
    found += [rng.choice([-radius, radius], p), rng.uniform(-1, 1, p) * radius]
    if problem.name == "softmax":
        wrong, even = np.full((2, problem.outputs, problem.width), [[[radius]], [[0.0]]])
        wrong[0], even[0] = -radius, min(radius, np.log(problem.outputs - 1) / problem.feature_norm)
        found += [wrong.ravel(), -wrong.ravel(), even.ravel()]
    return found


def linear_model(family, cells):
    """A maker of models of any size: no ridge, too little, as A4 needs, or more; any share of the cells' l1 bound."""

    def make(rng):
        columns, intercept, radius = int(rng.integers(1, 6)), bool(rng.integers(2)), rng.uniform(0.1, 2.0)
        cell = rng.choice([0.1, 0.3, 1.0, 1.7]) if cells else np.inf
        norm = cell * (1 + rng.uniform(0.0, 1.3) * (columns - 1)) + intercept if cells else rng.uniform(1.01, 3.0)
        size = (family, columns, norm, radius)
        bare = make_glm(*size, 0.0, intercept, cell)
        steepest = 0.5 if family == "softmax" else float(CURVATURE[family](np.array(bare.feature_norm * radius)))
        strength = rng.choice([0.0, 0.5, 1.0, 3.0]) * bare._ridge_for_dominance(steepest)
        return make_glm(*size, strength, intercept, cell)

    return make


def softmax_of_classes(rng):
    made = linear_model("softmax", False)(rng)
    options = {"intercept": made.intercept, "feature_bound": rng.choice([0.3, 1.0, np.inf])}
    problem = Softmax(
        int(rng.integers(2, 6)), int(rng.integers(1, 4)), made.feature_norm, made.domain.radius, **options
    )
    needed = rng.choice([0.0, 0.5, 1.0, 3.0]) * problem._ridge_for_dominance(0.5)
    return Softmax(problem.outputs, problem.columns, made.feature_norm, made.domain.radius, ridge=needed, **options)


FIXED = {
    "linear": Linear(3, 0.8, 2.0),
    "quadratic": Quadratic(3, 1.5, 2.0),
    "huber": Huber(3, 1.5, 2.0, 0.7),
    "bernoulli": Bernoulli(3, 3.0),
    "one_hot_logistic": OneHotLogistic(4, 2.0, ridge=0.3),
    "one_hot_squared": OneHotSquared(4, 2.0, low=-3.0, high=1.0, ridge=0.3),
    "one_hot_poisson": OneHotPoisson(4, 2.0, count_bound=9.0),
    "one_hot_poisson_of_one": OneHotPoisson(1, 0.1, count_bound=9.0, ridge=2.0),
}
KINDS = {
    **{family: linear_model(family, False) for family in CURVATURE},
    **{f"{family}_of_cells": linear_model(family, True) for family in CURVATURE},
    "softmax": softmax_of_classes,
    **{name: lambda rng, problem=problem: problem for name, problem in FIXED.items()},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_constants_are_never_exceeded_within_the_bounds(kind, seed):
    """A1 to A4, the l2 norm and the curvature, of samples and models as far out as they can be."""
    rng = np.random.default_rng(seed)
    problem = KINDS[kind](rng)
    block, certificate = extreme_block(problem, rng), problem.certificate
    if kind.endswith("cells"):
        assert np.abs(block.features).max() <= problem.feature_bound
    for x in models(problem, rng):
        for target in targets_of(problem):
            check_gradients(certificate, problem.sample_gradients(x, with_target(block, target)))
        found = hessians(problem, x, block)
        sums, diagonal = np.abs(found).sum(axis=2), np.diagonal(found, axis1=1, axis2=2)
        tiny = 1e-12 * (1 + np.abs(found).max())
        if certificate.smoothness is not None:
            assert sums.max() <= certificate.smoothness + tiny
        if certificate.diagonally_dominant:
            assert (2 * diagonal - sums).min() >= -tiny
        assert np.linalg.eigvalsh(found).min() >= certificate.strong_convexity - tiny
    if certificate.first_gradient is not None:
        start = problem.sample_gradients(np.zeros(problem.dimension), block)
        assert np.abs(start).max() <= certificate.first_gradient * (1 + 1e-12)
    assert certificate.diagonally_dominant or not kind.startswith("one_hot")


@every_kind
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_constants_are_attained_within_a_factor_two(kind, seed):
    """Bounded cells attain the row sums of Hessians exactly; how close gradients come is then not claimed."""
    rng = np.random.default_rng(seed)
    problem = KINDS[kind](rng)
    block, certificate, places = extreme_block(problem, rng), problem.certificate, models(problem, rng)
    rows = np.concatenate([hessians(problem, x, block) for x in places])
    if kind.endswith("cells"):
        assert np.abs(rows).sum(axis=2).max() == pytest.approx(certificate.smoothness, rel=1e-5)
        return
    blocks = [with_target(block, target) for target in targets_of(problem)]
    gradients = np.vstack([problem.sample_gradients(x, part) for x in places for part in blocks])
    assert np.abs(gradients).max() >= certificate.lipschitz / 2
    assert np.linalg.norm(gradients, axis=1).max() >= certificate.gradient_norm / (4 if kind == "softmax" else 2)
    assert np.abs(rows).sum(axis=2).max() >= certificate.smoothness / 2
    if kind in SEPARABLE_CURVATURE:
        assert rows[:, np.arange(3), np.arange(3)].min() <= certificate.strong_convexity + 1e-12


@pytest.mark.parametrize(("columns", "cell", "intercept"), [(12, 0.25, True), (6, 1.0, True), (8, 0.25, False)])
def test_the_ridge_that_a4_takes_is_tight_where_cells_are_bounded(columns, cell, intercept):
    problem = make_glm("logistic", columns, np.inf, 1.0, 0.0, intercept, cell)
    norm = columns * cell + intercept
    assert problem.feature_norm == pytest.approx(norm)
    largest = min(norm / 4, cell)
    needed = 0.25 * max(largest * (norm - 2 * largest), (norm - 2) * intercept)
    block = Block(np.full((1, columns), cell, np.float32), np.array([0, 1]), np.zeros(1, np.float32))
    for share, dominated in ((1 + 1e-6, True), (0.99, False)):
        tried = make_glm("logistic", columns, np.inf, 1.0, share * needed, intercept, cell)
        assert tried.certificate.diagonally_dominant == dominated
        hessian = hessians(tried, np.zeros(tried.dimension), tried.bound(block)[0])[0]
        off = np.abs(hessian).sum(axis=1) - np.diagonal(hessian)
        assert np.all(np.diagonal(hessian) >= off) == dominated


def test_cells_are_clipped_one_by_one_before_samples_are_scaled():
    problem = make_glm("logistic", 3, 3.0, 1.0, 0.0, True, 1.0)
    raw = np.array([[5.0, 0.0, -0.5], [1.0, -1.0, 0.0], [4.0, 4.0, -4.0]], np.float32)
    block, clipped = problem.bound(Block(raw, np.arange(4), np.zeros(3, np.float32)))
    np.testing.assert_allclose(block.features, [[1, 0, -0.5], [1, -1, 0], [2 / 3, 2 / 3, -2 / 3]], rtol=1e-6)
    assert clipped == 2
    with pytest.raises(BadInput, match=r"problem\.feature_bound = 0: must be a positive number"):
        make_glm("logistic", 3, 3.0, 1.0, 0.0, True, 0)


def test_a_table_of_scaled_columns_is_certified_by_curvature_times_the_l1_bound():
    shape = Shape(14, True, bound=1.0, feature_norm=12.0)
    settings_of = {"radius": 5.0, "ridge": 0.01}
    problem = PROBLEMS["logistic"](kind="logistic", **settings_of).build(shape, 0)
    assert (problem.feature_bound, problem.feature_norm) == (1.0, 13.0)
    assert problem.certificate.smoothness == pytest.approx(0.25 * 13.0 + 0.01)
    assert problem.certificate.lipschitz < 1.06
    assert problem.certificate.gradient_norm == pytest.approx(np.sqrt(13.0) + 0.05 * np.sqrt(15.0), rel=1e-3)
    wide = PROBLEMS["logistic"](kind="logistic", feature_bound=np.inf, **settings_of).build(shape, 0)
    assert wide.certificate.smoothness == pytest.approx(0.25 * 13.0 * 12.0 + 0.01)
    # Declared nowhere, the l1 bound follows from the cells'.
    alone = PROBLEMS["squared"](kind="squared", target_range=[0.0, 1.0], feature_norm=np.inf).build(shape, 0)
    assert alone.certificate.smoothness == pytest.approx(15.0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_no_sample_has_more_entries_than_certified_with_a_ridge_or_without(case: Case):
    sparsity = case.problem.certificate.sparsity
    rows = dense(case.problem.sample_gradients(case.model(), case.block([3, 1, 4])))
    assert sparsity is None or np.count_nonzero(rows, axis=1).max() <= sparsity
    if case.problem.dimension > 1 and getattr(case.problem, "ridge", 0.0):
        assert sparsity is None  # the ridge pulls every entry


@pytest.mark.parametrize("family", ["logistic", "squared", "poisson"])
@pytest.mark.parametrize(("norm", "intercept"), [(1.0, False), (2.5, False), (1.1, True), (2.5, True)])
def test_the_ridge_that_a4_takes_is_tight(family, norm, intercept):
    radius, columns = 0.5, 2
    curvature = {"logistic": 0.25, "squared": 1.0, "poisson": np.exp(norm * radius)}[family]
    first = min(norm / 4, norm - 1) if intercept else norm / 4
    threshold = curvature * first * (norm - 2 * first)
    if first == norm / 4:
        assert threshold == pytest.approx(curvature * norm**2 / 8)
    assert make_glm(family, columns, norm, radius, threshold * (1 + 1e-12), intercept).certificate.diagonally_dominant
    below = make_glm(family, columns, norm, radius, threshold * 0.99, intercept)
    assert not below.certificate.diagonally_dominant
    rest = norm - first - intercept
    block = Block(np.array([[first, rest]], np.float32), np.array([0, 1]), np.zeros(1, np.float32))
    x = np.full(below.dimension, radius if family == "poisson" else 0.0)
    row = hessians(below, x, block)[0, 0]
    assert row[0] < np.abs(row[1:]).sum()


@pytest.mark.parametrize(("columns", "intercept"), [(2, False), (3, False), (1, True), (3, True)])
def test_a_ridge_just_below_what_classes_need_leaves_a_row_that_is_not_dominated(columns, intercept):
    norm, radius = 2.0, 3.0
    needed = Softmax(3, columns, norm, radius, intercept=intercept)._ridge_for_dominance(0.5)
    assert Softmax(3, columns, norm, radius, ridge=needed, intercept=intercept).certificate.diagonally_dominant
    problem = Softmax(3, columns, norm, radius, ridge=0.99 * needed, intercept=intercept)
    assert not problem.certificate.diagonally_dominant
    assert "it takes at least" in problem.certificate.reason
    block = extreme_block(problem, np.random.default_rng(0))
    worst = np.inf
    for x in models(problem, np.random.default_rng(1)):
        found = hessians(problem, x, block)
        gaps = 2 * np.diagonal(found, axis1=1, axis2=2) - np.abs(found).sum(axis=2)
        worst = min(worst, float(gaps.min()))
    assert worst < 0


@pytest.mark.parametrize("family", ["logistic", "squared", "poisson"])
def test_the_reason_names_a_ridge_that_is_enough_and_hardly_more(family):
    refused = make_glm(family, 3, 1.7, 0.9, 0.001, False)
    with pytest.raises(MissingAssumption, match=r"A4.*problem\.ridge = 0\.001 is too small") as caught:
        refused.certificate.require_contractive("localized_robust_sgd")
    enough = float(re.search(r"at least ([0-9.e+-]+)\)", str(caught.value)).group(1))
    make_glm(family, 3, 1.7, 0.9, enough, False).certificate.require_contractive("localized_robust_sgd")
    assert make_glm(family, 3, 1.7, 0.9, enough * 0.9999, False).certificate.missing() == [
        "A4 (diagonally dominant Hessian)"
    ]


def residual_regression(kind, norm, radius, ridge=0.0, intercept=False):
    bounds = {"low": -0.5, "high": 1.0, "ridge": ridge, "intercept": intercept}
    if kind == "huber":
        return HuberRegression(3, norm, radius, threshold=0.7, **bounds)
    return LpRegression(3, norm, radius, order=kind, **bounds)


residual_regressions = given(
    kind=st.sampled_from(["huber", 1.05, 1.5, 2.0]),
    norm=st.floats(1.01, 3.0),
    radius=st.floats(0.1, 2.0),
    ridge=st.sampled_from([0.0, 0.4]),
    intercept=st.booleans(),
    seed=st.integers(0, 10**6),
)


@settings(max_examples=100)
@residual_regressions
def test_huber_and_lp_gradients_stay_within_their_bounds_and_reach_half(kind, norm, radius, ridge, intercept, seed):
    rng = np.random.default_rng(seed)
    problem = residual_regression(kind, norm, radius, ridge, intercept)
    block = extreme_block(problem, rng)
    low_high = [Block(block.features, block.offsets, np.full(block.samples, y, np.float32)) for y in (-0.5, 1.0)]
    ends = [np.full(problem.dimension, sign * radius) for sign in (-1, 1)]
    gradients = [problem.sample_gradients(x, part) for x in [*ends, *models(problem, rng)] for part in low_high]
    check_gradients(problem.certificate, np.vstack(gradients))
    assert np.abs(gradients).max() >= problem.certificate.lipschitz / 2
    assert np.linalg.norm(gradients, axis=2).max() >= problem.certificate.gradient_norm / 2


@pytest.mark.slow
@settings(max_examples=100)
@residual_regressions
def test_huber_and_lp_gradients_move_no_faster_than_certified(kind, norm, radius, ridge, intercept, seed):
    rng = np.random.default_rng(seed)
    problem = residual_regression(kind, norm, radius, ridge, intercept)
    block, certificate = extreme_block(problem, rng), problem.certificate
    for x in models(problem, rng):
        for reach in (1e-9, 1e-3, 1.0):
            y = problem.domain.project(x + reach * rng.uniform(-1, 1, problem.dimension))
            moved = problem.sample_gradients(x, block) - problem.sample_gradients(y, block)
            if certificate.smoothness is not None:  # A3: absolute row sums of the Hessian
                assert np.abs(moved).max() <= certificate.smoothness * np.abs(x - y).max() * (1 + 1e-9) + 1e-14
            else:
                nu, constant = certificate.hoelder
                bound = constant * np.linalg.norm(x - y) ** nu
                assert np.linalg.norm(moved, axis=1).max() <= bound * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("order", [1.05, 1.5, 1.9])
def test_lp_regression_is_hoelder_with_the_best_constant_and_not_smooth(order):
    problem = LpRegression(2, 2.0, 1.0, order=order, low=-1.0, high=1.0)
    assert problem.certificate.smoothness is None
    assert problem.certificate.missing() == ["A3 (bounded Hessian row sums)", "A4 (diagonally dominant Hessian)"]
    assert "not smooth at a perfect prediction" in problem.certificate.reason
    nu, constant = problem.certificate.hoelder
    assert nu == pytest.approx(order - 1)
    block = Block(np.array([[2.0, 0.0]], np.float32), np.array([0, 1]), np.zeros(1, np.float32))

    def moved(reach):
        x = np.array([reach, 0.0])
        return np.linalg.norm(problem.sample_gradients(x, block) - problem.sample_gradients(-x, block))

    for reach in (0.5, 1e-3, 1e-8):
        assert moved(reach) == pytest.approx(constant * (2 * reach) ** nu, rel=1e-12)
    # Not smooth: the same change of gradient over ever shorter ways.
    assert moved(1e-8) / 1e-8 > 10 ** (5 * (1 - nu)) * 0.99 * moved(1e-3) / 1e-3
    unbounded = LpRegression(2, 2.0, float("inf"), order=order, low=-1.0, high=1.0, ridge=0.1)
    assert unbounded.certificate.hoelder is None


@pytest.mark.parametrize(
    "problem",
    [
        Squared(2, np.inf, 1.0, low=-1.0, high=1.0, ridge=1.0),
        Squared(2, 1.0, 1.0, low=-np.inf, high=1.0),
        Logistic(2, np.inf, 1.0, intercept=True),
        Logistic(1, np.inf, 1.0),
        HuberRegression(2, np.inf, 1.0, low=-np.inf, high=np.inf, ridge=1.0),
        LpRegression(2, np.inf, 1.0, order=1.5, low=-1.0, high=1.0),
        Poisson(2, np.inf, 1.0, count_bound=3.0),
        Quadratic(2, np.inf, 1.0),
    ],
    ids=lambda problem: problem.name,
)
def test_data_without_bounds_certify_no_bounded_gradient(problem):
    certificate = problem.certificate
    assert certificate.convex
    assert certificate.lipschitz is None
    assert certificate.gradient_norm is None
    assert certificate.hoelder is None
    assert certificate.reason
    with pytest.raises(MissingAssumption, match=r"A2 \(bounded gradient"):
        certificate.require_contractive("localized_robust_sgd")


def test_huber_regression_has_a_bounded_slope_where_targets_have_no_bound():
    certificate = HuberRegression(2, 2.0, 1.0, low=-np.inf, high=np.inf, threshold=0.5).certificate
    assert certificate.lipschitz == pytest.approx(1.0)
    assert certificate.smoothness == pytest.approx(4.0)


def test_the_biweight_has_the_slopes_that_it_claims_and_is_refused_where_convexity_is_needed():
    problem = BiweightRegression(2, 1.0, 1.0, low=-np.inf, high=np.inf, threshold=2.0)
    residuals = np.linspace(-3, 3, 60_001)
    slopes = problem.family.slopes(residuals, np.zeros(1))
    losses = problem.family.losses(residuals, np.zeros(1))
    np.testing.assert_allclose(np.gradient(losses, residuals), slopes, atol=1e-4)
    assert np.abs(slopes).max() == pytest.approx(problem.certificate.lipschitz, rel=1e-6)
    bends = np.gradient(slopes, residuals)
    assert (bends.min(), bends.max()) == pytest.approx((-0.8, 1.0), abs=1e-3)
    assert problem.certificate.smoothness == 1.0
    assert problem.landscape is None
    with pytest.raises(MissingAssumption, match=r"A1 \(convex\), A4 .*is not convex: residuals"):
        problem.certificate.require_contractive("localized_robust_sgd")


def test_without_a_domain_certificates_say_what_is_unbounded():
    free = float("inf")
    logistic = Logistic(2, 1.0, free, ridge=1.0).certificate
    assert logistic.missing() == ["A2 (bounded gradient, sup norm)"]
    assert "problem.radius = inf" in logistic.reason
    assert Logistic(2, 1.0, free).certificate.lipschitz == 1.0
    assert Quadratic(2, 1.0, free).certificate.missing() == ["A2 (bounded gradient, sup norm)"]
    assert "problem.radius" in Quadratic(2, 1.0, free).certificate.reason
    assert Huber(2, 1.0, free, 0.5).certificate.lipschitz == 0.5
    poisson = Poisson(2, 1.0, 1e4, count_bound=1.0, ridge=1.0).certificate
    assert poisson.smoothness is None
    assert not poisson.diagonally_dominant
    assert poisson.missing()[0].startswith("A2")
    assert "lower them" in poisson.reason
    one_hot = OneHotPoisson(2, free, count_bound=1.0).certificate
    assert one_hot.lipschitz is None
    assert one_hot.smoothness is None
    assert "lower it" in one_hot.reason
    assert OneHotSquared(2, free, low=0.0, high=1.0).certificate.missing() == ["A2 (bounded gradient, sup norm)"]


def test_which_problems_are_certified():
    d1 = {"linear", "quadratic", "huber", "bernoulli", "logistic", "logistic_ridge_intercept", "squared_ridge"}
    d1 |= {
        "huber_regression_ridge",
        "lp_regression_of_order_two",
        "poisson_ridge",
        "softmax_ridge_intercept",
        "sparse_logistic_single",
        "sparse_logistic_ridge",
        "one_hot_logistic",
        "one_hot_logistic_ridge",
        "one_hot_squared",
        "one_hot_poisson",
        "one_hot_cloglog",
        "cloglog_ridge",
    }
    expected = {f"{name}-d1" for name in d1} | {f"{name}-d4" for name in d1 - {"logistic"}}
    expected |= {"softmax-d1"}
    expected |= {"sparse_logistic-d1", "sparse_squared-d1", "sparse_squared_ridge-d1", "sparse_cloglog-d1"}
    assert set(CERTIFIED) == expected
    for name in set(CASES) - expected:
        with pytest.raises(MissingAssumption):
            CASES[name].problem.certificate.require_contractive("a strategy")


@pytest.mark.sweep(7)
@pytest.mark.parametrize("case", CERTIFIED.values(), ids=CERTIFIED.keys())
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.5, 1.0]), near=st.booleans())
def test_a_step_of_each_user_is_contractive_for_every_certified_loss(case: Case, seed, share, near):
    rng, problem = np.random.default_rng(seed), case.problem
    block = case.block([1, 1, 3, 20], seed)
    radius = problem.domain.radius
    eta = share * 2 / problem.certificate.smoothness if problem.certificate.smoothness else 100.0
    x = rng.uniform(-radius, radius, problem.dimension)
    signs = rng.choice([-1.0, 1.0], problem.dimension)
    y = problem.domain.project(x + signs * (1e-3 if near else rng.uniform(0, 2) * radius))
    at_x, at_y = dense(problem.user_gradients(x, block)), dense(problem.user_gradients(y, block))
    moved = (x - eta * at_x) - (y - eta * at_y)
    assert np.abs(moved).max() <= np.abs(x - y).max() * (1 + 1e-11) + 1e-13 * eta


def test_a_loss_that_breaks_a4_expands_distances_and_is_refused():
    problem = Logistic(2, 1.0, 1.0, ridge=0.01)
    block = Block(np.array([[0.25, 0.75]], np.float32), np.array([0, 1]), np.zeros(1, np.float32))
    x, y = np.array([0.01, -0.01]), np.array([-0.01, 0.01])
    eta = 1 / problem.certificate.smoothness
    moved = (x - eta * problem.user_gradients(x, block)) - (y - eta * problem.user_gradients(y, block))
    assert np.abs(moved).max() > 1.05 * np.abs(x - y).max()
    with pytest.raises(MissingAssumption, match=r"needs a loss certified for A1 to A4; missing: A4 .*0\.03125"):
        problem.certificate.require_contractive("localized_robust_sgd")
