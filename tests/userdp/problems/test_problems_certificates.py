"""Certificates by brute force: constants never exceeded, nearly attained; A4's threshold tight; contractive."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import CASES, CERTIFIED, Case
from scipy.special import expit

from userdp.arrays.sparse_rows import dense
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import BadInput, MissingAssumption
from userdp.problems import (
    Bernoulli,
    BiweightRegression,
    Huber,
    HuberRegression,
    Linear,
    Logistic,
    LpRegression,
    OneHotLogistic,
    OneHotPoisson,
    OneHotSquared,
    Poisson,
    Quadratic,
    Squared,
)
from userdp.problems.registry import PROBLEMS

CURVATURE = {
    "logistic": lambda s: expit(s) * expit(-s),
    "squared": np.ones_like,
    "poisson": np.exp,
}
SEPARABLE_CURVATURE = {
    "linear": np.zeros_like,
    "quadratic": np.ones_like,
    "huber": lambda u: (np.abs(u) <= 0.7).astype(float),
    "bernoulli": lambda u: expit(u) * expit(-u),
}


def make_glm(family, columns, norm, radius, ridge, intercept, cell=np.inf):
    options = {"ridge": ridge, "intercept": intercept, "feature_bound": cell}
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


def glm_hessians(problem, x, block):
    rows = rows_of(problem, block)
    curvature = CURVATURE[problem.family.name](rows @ x)
    return curvature[:, None, None] * rows[:, :, None] * rows[:, None, :] + problem.ridge * np.eye(problem.dimension)


def check_hessians(certificate, hessians):
    off = np.abs(hessians).sum(axis=2) - np.abs(np.diagonal(hessians, axis1=1, axis2=2))
    diagonal = np.diagonal(hessians, axis1=1, axis2=2)
    tiny = 1e-12 * (1 + np.abs(hessians).max())
    if certificate.smoothness is not None:
        assert (off + diagonal).max() <= certificate.smoothness + tiny
    if certificate.diagonally_dominant:
        assert (diagonal - off).min() >= -tiny
    assert np.linalg.eigvalsh(hessians).min() >= certificate.strong_convexity - tiny


def check_gradients(certificate, gradients):
    assert np.abs(gradients).max() <= certificate.lipschitz * (1 + 1e-12)
    assert np.linalg.norm(gradients, axis=1).max() <= certificate.gradient_norm * (1 + 1e-12)


def extreme_glm_block(problem, rng, samples=24):
    """Samples far outside in the l1 sense, clipped on it: vertices, quarter points and random directions."""
    k, norm = problem.columns, problem.feature_norm
    features = rng.normal(size=(samples, k))
    features[:8] = 0.0
    features[:8, 0] = 1.0
    features[8:16] = 0.0
    features[8:16, 0] = rng.uniform(0.0, 0.6, 8)
    features[8:16, -1] += 1.0 - features[8:16, 0]
    features *= 10 * norm
    targets = rng.choice([problem.family.low, problem.family.high], samples)
    raw = Block(features.astype(np.float32), np.arange(samples + 1), targets.astype(np.float32))
    return problem.bound(raw)[0]


def models(problem, rng):
    radius, p = problem.domain.radius, problem.dimension
    return [
        np.zeros(p),
        np.full(p, radius),
        np.full(p, -radius),
        rng.choice([-radius, radius], p),
        rng.uniform(-1, 1, p) * radius,
    ]


glms = given(
    family=st.sampled_from(["logistic", "squared", "poisson"]),
    columns=st.integers(1, 5),
    norm=st.floats(1.01, 3.0),
    radius=st.floats(0.1, 2.0),
    share=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    intercept=st.booleans(),
    seed=st.integers(0, 10**6),
)


@pytest.mark.slow
@settings(max_examples=150)
@glms
def test_glm_constants_are_never_exceeded_within_the_bounds(family, columns, norm, radius, share, intercept, seed):
    rng = np.random.default_rng(seed)
    ridge = share * float(CURVATURE[family](np.array(norm * radius))) * norm**2 / 8
    problem = make_glm(family, columns, norm, radius, ridge, intercept)
    block = extreme_glm_block(problem, rng)
    for x in models(problem, rng):
        check_gradients(problem.certificate, problem.sample_gradients(x, block))
        check_hessians(problem.certificate, glm_hessians(problem, x, block))


@settings(max_examples=100)
@glms
def test_glm_constants_are_attained_within_a_factor_two(family, columns, norm, radius, share, intercept, seed):
    problem = make_glm(family, columns, norm, radius, share, intercept)
    block = extreme_glm_block(problem, np.random.default_rng(seed))
    low_high = [
        Block(block.features, block.offsets, np.full(block.samples, y, np.float32))
        for y in (problem.family.low, problem.family.high)
    ]
    ends = [np.full(problem.dimension, sign * radius) for sign in (-1, 1)]
    gradients = np.vstack([problem.sample_gradients(x, part) for x in ends for part in low_high])
    hessians = np.concatenate([glm_hessians(problem, x, block) for x in [*ends, 0 * ends[0]]])
    certificate = problem.certificate
    assert np.abs(gradients).max() >= certificate.lipschitz / 2
    assert np.linalg.norm(gradients, axis=1).max() >= certificate.gradient_norm / 2
    assert np.abs(hessians).sum(axis=2).max() >= certificate.smoothness / 2


bounded_cells = given(
    family=st.sampled_from(["logistic", "squared", "poisson"]),
    columns=st.integers(1, 5),
    share=st.floats(0.0, 1.3),
    cell=st.sampled_from([0.1, 0.3, 1.0, 1.7]),
    radius=st.floats(0.1, 1.0),
    ridge=st.sampled_from([0.0, 0.02, 0.5]),
    intercept=st.booleans(),
    seed=st.integers(0, 10**6),
)


def glm_of_cells(family, columns, share, cell, radius, ridge, intercept, strength=None):
    """With an l1 bound of any share, 1 for no more than cells imply, of what a sample of one full cell has at least."""
    norm = cell * (1 + share * (columns - 1)) + intercept
    return make_glm(family, columns, norm, radius, ridge if strength is None else strength, intercept, cell)


def block_of_cells(problem, rng, samples=32):
    """Samples from far outside and from inside the cells' bounds, as the problem bounds them; half at the corners."""
    k, cell = problem.columns, problem.feature_bound
    features = rng.choice([-cell, 0.0, cell], (samples, k))
    features[::4] = rng.uniform(-3, 3, (len(features[::4]), k)) * cell
    features[1] = cell
    # As many full cells as the l1 bound allows, and a part of one.
    room = problem.feature_norm - problem.intercept
    features[2] = np.clip(room - cell * np.arange(k), 0.0, cell)
    targets = rng.choice([problem.family.low, problem.family.high], samples).astype(np.float32)
    return problem.bound(Block(features.astype(np.float32), np.arange(samples + 1), targets))[0]


@settings(max_examples=150)
@bounded_cells
def test_constants_of_bounded_cells_are_never_exceeded(family, columns, share, cell, radius, ridge, intercept, seed):
    rng = np.random.default_rng(seed)
    problem = glm_of_cells(family, columns, share, cell, radius, ridge, intercept)
    needed = problem._ridge_for_dominance(float(CURVATURE[family](np.array(problem.feature_norm * radius))))
    for strength in (ridge, needed):
        problem = glm_of_cells(family, columns, share, cell, radius, ridge, intercept, strength)
        block = block_of_cells(problem, rng)
        assert np.abs(block.features).max() <= problem.feature_bound
        for x in models(problem, rng):
            check_gradients(problem.certificate, problem.sample_gradients(x, block))
            check_hessians(problem.certificate, glm_hessians(problem, x, block))


@settings(max_examples=60)
@bounded_cells
def test_smoothness_of_bounded_cells_is_attained(family, columns, share, cell, radius, ridge, intercept, seed):
    problem = glm_of_cells(family, columns, share, cell, radius, ridge, intercept)
    block = block_of_cells(problem, np.random.default_rng(seed))
    ends = [np.full(problem.dimension, radius), np.zeros(problem.dimension)]
    rows = np.concatenate([np.abs(glm_hessians(problem, x, block)).sum(axis=2) for x in ends])
    assert rows.max() == pytest.approx(problem.certificate.smoothness, rel=1e-5)


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
        hessian = glm_hessians(tried, np.zeros(tried.dimension), tried.bound(block)[0])[0]
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


SEPARABLE = [Linear(3, 0.8, 2.0), Quadratic(3, 1.5, 2.0), Huber(3, 1.5, 2.0, 0.7), Bernoulli(3, 3.0)]


@pytest.mark.parametrize("problem", SEPARABLE, ids=lambda p: p.name)
def test_separable_constants_are_never_exceeded_and_are_attained(problem):
    rng = np.random.default_rng(0)
    z = np.vstack(
        [rng.uniform(problem.low, problem.high, (60, 3)), np.full((1, 3), problem.low), np.full((1, 3), problem.high)]
    )
    block = problem.bound(Block(z.astype(np.float32), np.arange(63)))[0]
    xs = models(problem, rng)
    gradients = np.vstack([problem.sample_gradients(x, block) for x in xs])
    check_gradients(problem.certificate, gradients)
    assert np.abs(gradients).max() >= problem.certificate.lipschitz / 2
    assert np.linalg.norm(gradients, axis=1).max() >= problem.certificate.gradient_norm / 2
    curvature = SEPARABLE_CURVATURE[problem.name]
    at = np.vstack([x - z if problem.name == "huber" else np.tile(x, (len(z), 1)) for x in xs])
    check_hessians(problem.certificate, curvature(at)[:, :, None] * np.eye(3))
    assert curvature(at).max() >= problem.certificate.smoothness / 2
    assert curvature(at).min() <= problem.certificate.strong_convexity + 1e-12


ONE_HOT = [
    OneHotLogistic(4, 2.0, ridge=0.3),
    OneHotSquared(4, 2.0, low=-3.0, high=1.0, ridge=0.3),
    OneHotPoisson(4, 2.0, count_bound=9.0),
    OneHotPoisson(1, 0.1, count_bound=9.0, ridge=2.0),
]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_no_sample_has_more_entries_than_certified_with_a_ridge_or_without(case: Case):
    sparsity = case.problem.certificate.sparsity
    rows = dense(case.problem.sample_gradients(case.model(), case.block([3, 1, 4])))
    assert sparsity is None or np.count_nonzero(rows, axis=1).max() <= sparsity
    if case.problem.dimension > 1 and getattr(case.problem, "ridge", 0.0):
        assert sparsity is None  # the ridge pulls every entry


@pytest.mark.parametrize("problem", ONE_HOT, ids=lambda p: f"{p.name}-{p.dimension}")
def test_one_hot_constants_are_never_exceeded_and_are_attained(problem):
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(problem.dimension), 2)[:, None].astype(np.int32)
    targets = np.tile([problem.family.low, problem.family.high], problem.dimension).astype(np.float32)
    block = Block(codes, np.arange(len(codes) + 1), targets)
    xs = models(problem, rng)
    gradients = np.vstack([problem.sample_gradients(x, block) for x in xs])
    hessians = np.concatenate([glm_hessians(problem, x, block) for x in xs])
    certificate = problem.certificate
    check_gradients(certificate, gradients)
    check_hessians(certificate, hessians)
    assert certificate.diagonally_dominant
    assert np.abs(gradients).max() >= certificate.lipschitz / 2
    assert np.linalg.norm(gradients, axis=1).max() >= certificate.gradient_norm / 2
    assert np.abs(hessians).sum(axis=2).max() >= certificate.smoothness / 2


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
    row = glm_hessians(below, x, block)[0, 0]
    assert row[0] < np.abs(row[1:]).sum()


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
    block = extreme_glm_block(problem, rng)
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
    block, certificate = extreme_glm_block(problem, rng), problem.certificate
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
    assert "not smooth where a prediction is perfect" in problem.certificate.reason
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
    }
    expected = {f"{name}-d1" for name in d1} | {f"{name}-d4" for name in d1 - {"logistic"}}
    expected |= {"softmax-d1"}
    expected |= {"sparse_logistic-d1", "sparse_squared-d1", "sparse_squared_ridge-d1"}
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


@settings(max_examples=60)
@given(
    family=st.sampled_from(["logistic", "squared", "poisson"]),
    norm=st.floats(0.3, 3.0),
    radius=st.floats(0.2, 1.0),
    seed=st.integers(0, 10**6),
)
def test_steps_are_contractive_at_the_least_ridge_certified_and_the_worst_samples(family, norm, radius, seed):
    rng = np.random.default_rng(seed)
    ridge = float({"logistic": 0.25, "squared": 1.0, "poisson": np.exp(norm * radius)}[family]) * norm**2 / 8
    problem = make_glm(family, 3, norm, radius, ridge * (1 + 1e-12), False)
    problem.certificate.require_contractive("a strategy")
    eta = 2 / problem.certificate.smoothness
    block = extreme_glm_block(problem, rng)
    x = rng.uniform(-radius, radius, 3)
    y = problem.domain.project(x + rng.choice([-1.0, 1.0], 3) * rng.choice([1e-3, radius]))
    moved = (x - eta * problem.user_gradients(x, block)) - (y - eta * problem.user_gradients(y, block))
    assert np.abs(moved).max() <= np.abs(x - y).max() * (1 + 1e-10)


def test_a_loss_that_breaks_a4_expands_distances_and_is_refused():
    problem = Logistic(2, 1.0, 1.0, ridge=0.01)
    block = Block(np.array([[0.25, 0.75]], np.float32), np.array([0, 1]), np.zeros(1, np.float32))
    x, y = np.array([0.01, -0.01]), np.array([-0.01, 0.01])
    eta = 1 / problem.certificate.smoothness
    moved = (x - eta * problem.user_gradients(x, block)) - (y - eta * problem.user_gradients(y, block))
    assert np.abs(moved).max() > 1.05 * np.abs(x - y).max()
    with pytest.raises(MissingAssumption, match=r"needs a loss certified for A1 to A4; missing: A4 .*0\.03125"):
        problem.certificate.require_contractive("localized_robust_sgd")
