"""Heavy-tailed laws and regressions: exactly centred, of the moments they declare, with the optimum they name."""

import math
from functools import partial

import numpy as np
import pytest
from examples import SHIPPED
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import digamma

from simulations.comparison.config import load_comparison
from simulations.config.run_config import parse_config
from simulations.records.evaluation import Evaluation, main_metric
from simulations.runs.build import build_problem, load_datasets
from strategies.baselines.heavy_tailed.locations import LogLogistic, LogNormal, MultivariateT, Pareto, StudentT
from strategies.baselines.heavy_tailed.power_laws import LAWS, directional_moment
from strategies.baselines.heavy_tailed.regressions import HeavyTailedLinear, HeavyTailedLogistic
from strategies.baselines.regressions import HuberRegression, LpRegression
from userdp.data import Block, SyntheticFederation
from userdp.errors import BadInput
from userdp.problems import Logistic, Quadratic, Squared

REFERENCES = {
    "normal": lambda shape: stats.norm(),
    "logistic": lambda shape: stats.logistic(),
    "laplace": lambda shape: stats.laplace(),
    "chi_squared": lambda shape: stats.chi2(shape, loc=-shape),
    "log_gamma": lambda shape: stats.loggamma(shape, loc=-digamma(shape)),
    "log_normal": lambda shape: stats.lognorm(shape, loc=-1.0, scale=math.exp(-(shape**2) / 2)),
    "student_t": stats.t,
    "pareto": lambda shape: stats.pareto(shape, loc=-shape / (shape - 1)),
    "log_logistic": lambda shape: stats.fisk(shape, loc=-math.pi / shape / math.sin(math.pi / shape)),
}
every_law = pytest.mark.parametrize("name", LAWS)
INF = math.inf


def everything(population, users=4000, samples=25, seed=3) -> Block:
    return SyntheticFederation(population, users, seed, samples_per_user=samples).block(np.arange(users))


# Laws --------------------------------------------------------------------------------------------------------------


def test_every_law_has_a_reference():
    assert set(REFERENCES) == set(LAWS)


@every_law
@pytest.mark.parametrize("shape", [1.3, 2.2, 3.7])
def test_laws_have_mean_zero_and_the_tails_of_their_reference(name, shape):
    law, reference = LAWS[name](shape), REFERENCES[name](shape)
    assert reference.mean() == pytest.approx(0, abs=1e-9 * max(1.0, reference.std() if shape > 2 else 1.0))
    for t in (-30.0, -1.2, -0.9, -0.1, 0.0, 0.3, 2.0, 50.0):
        assert law.survival(t) == pytest.approx(reference.sf(t), rel=1e-9, abs=1e-14)
    if law.variance is None:
        assert shape < 2
        assert law.unit == 1.0
    else:
        assert law.variance == pytest.approx(reference.var(), rel=1e-9)
        assert law.moment(2.0) == pytest.approx(law.variance, rel=1e-8)
        assert law.unit == pytest.approx(reference.std())


@pytest.mark.sweep(6)
@every_law
@pytest.mark.parametrize("order", [0.5, 1.0, 1.7, 2.5, 3.0])
def test_moments_agree_with_integrals_over_the_quantiles(name, order):
    # Over u = v^8 and 1 - u = v^8 the quantiles' powers are bounded: the midpoint rule converges.
    law, reference = LAWS[name](1.5 if name == "log_normal" else 4.5), REFERENCES[name]
    reference = reference(law.shape)
    v = (np.arange(200_000) + 0.5) / 200_000 * 0.5 ** (1 / 8)
    weights = 8 * v**7 * 0.5 ** (1 / 8) / 200_000
    expected = weights @ (np.abs(reference.ppf(v**8)) ** order + np.abs(reference.isf(v**8)) ** order)
    assert law.moment(order) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("shape", [0.05, 0.5, 20.0])
def test_a_log_gamma_variable_of_any_shape_has_its_law(shape):
    law, rng = LAWS["log_gamma"](shape), np.random.default_rng(0)
    noise = [rng.standard_gamma(shape + 1, 5000, dtype=np.float32), rng.standard_exponential(5000, dtype=np.float32)]
    draws = law.centred([one[:, None] for one in noise])[:, 0]
    assert np.isfinite(draws).all()
    assert stats.kstest(draws, REFERENCES["log_gamma"](shape).cdf).pvalue > 1e-3


@every_law
def test_draws_follow_the_law(name):
    features = everything(HeavyTailedLinear(dimension=1, feature_law=name, feature_shape=2.5), users=200).features
    law = LAWS[name](2.5)
    draws = features[:, 0].astype(float) * law.unit
    # 5000 draws, seed fixed: a right law fails once in a thousand seeds.
    assert stats.kstest(draws, REFERENCES[name](2.5).cdf).pvalue > 1e-3


@settings(max_examples=40)
@given(
    name=st.sampled_from(["normal", "laplace", "chi_squared", "log_gamma", "log_normal", "student_t", "pareto"]),
    seed=st.integers(0, 10**6),
    dimension=st.integers(1, 6),
)
def test_the_directional_moment_of_order_four_bounds_every_direction_exactly(name, seed, dimension):
    law = LAWS[name](0.7 if name == "log_normal" else 5.0)
    u = np.random.default_rng(seed).normal(size=dimension)
    u /= np.linalg.norm(u)
    # Independent, mean zero: E (sum u_j Z_j)^4 = 3 v^2 + sum u_j^4 (m4 - 3 v^2).
    exact = 3 * law.variance**2 + (u**4).sum() * (law.moment(4.0) - 3 * law.variance**2)
    assert exact <= directional_moment(law, 4.0, spherical=False) ** 4 * (1 + 1e-7)
    assert directional_moment(law, 2.0, spherical=False) == pytest.approx(math.sqrt(law.variance))


# Locations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        *((StudentT, "student_t", 1.5), (StudentT, "student_t", 3.0), (Pareto, "pareto", 1.5), (Pareto, "pareto", 3.0)),
        *((LogNormal, "log_normal", 1.0), (LogLogistic, "log_logistic", 3.0)),
    ],
)
def test_locations_follow_the_law_they_are_named_for_at_deviation_one_where_there_is_one(kind, name, shape):
    reference = REFERENCES[name](shape)
    unit = reference.std() if name == "log_normal" or shape > 2 else 1.0
    rows = everything(kind(dimension=1, mean=0.0, shape=shape), 500, 20, seed=4).features[:, 0]
    assert stats.kstest(rows.astype(float) * unit, reference.cdf).pvalue > 1e-3


def test_the_multivariate_t_has_its_law_in_every_direction():
    population = MultivariateT(dimension=4, mean=0.0, shape=3.2, deviation=2.0)
    rows = everything(population, users=300).features.astype(float)
    reference = stats.t(3.2, scale=2.0 / math.sqrt(3.2 / 1.2))
    for u in (np.eye(4)[0], np.full(4, 0.5), np.array([0.6, -0.8, 0.0, 0.0])):
        assert stats.kstest(rows @ u, reference.cdf).pvalue > 1e-3
    assert population.directional_moment(3.0) == population.coordinate_moment(3.0)
    assert population.coordinate_moment(2.0) == pytest.approx(2.0)
    assert population.coordinate_moment(3.0) ** 3 == pytest.approx(reference.expect(lambda z: abs(z) ** 3), rel=1e-4)


def test_mean_estimation_without_bounds_knows_its_excess_risk():
    federation = SyntheticFederation(StudentT(dimension=3, shape=2.2, mean=[1.0, 2.0, -1.0]), 50, 1)
    problem = Quadratic(3, INF, INF)
    assert problem.bound(federation.block(np.arange(50)))[1] == 0
    assert problem.excess_risk(np.zeros(3), federation) == pytest.approx(3.0)


# Regressions: the optimum ------------------------------------------------------------------------------------------

LINEAR = {
    "t_noise": HeavyTailedLinear(dimension=3, noise_shape=2.1),
    "t_features": HeavyTailedLinear(dimension=3, feature_law="student_t", feature_shape=4.5, spherical=True),
    "skewed": HeavyTailedLinear(
        dimension=3, feature_law="log_normal", feature_shape=0.8, noise_law="pareto", noise_shape=2.5
    ),
    "log_logistic": HeavyTailedLinear(
        dimension=3, feature_law="log_logistic", feature_shape=5.0, feature_deviation=2.0, noise_law="log_logistic"
    ),
}
LOGISTIC = {
    "logistic": HeavyTailedLogistic(dimension=3, feature_law="pareto", feature_shape=3.5, parameter_norm=2.0),
    "wide_logistic": HeavyTailedLogistic(dimension=3, noise_deviation=4.0),
    "t": HeavyTailedLogistic(dimension=3, noise_law="student_t", noise_shape=2.0, noise_deviation=1.0),
    "laplace": HeavyTailedLogistic(dimension=3, noise_law="laplace", noise_deviation=1.0, parameter_norm=3.0),
    "chi_squared": HeavyTailedLogistic(dimension=3, noise_law="chi_squared", noise_shape=1.0),
    "log_normal": HeavyTailedLogistic(dimension=3, noise_law="log_normal", noise_shape=1.0, noise_deviation=2.0),
    "t_features": HeavyTailedLogistic(
        dimension=3, feature_law="student_t", feature_shape=3.0, spherical=True, noise_law="laplace"
    ),
}


def problems_of(link, intercept=False):
    if link == "logistic":
        return [Logistic(3, INF, 50.0, intercept=intercept)]
    targets = {"low": -INF, "high": INF, "intercept": intercept}
    return [
        Squared(3, INF, 50.0, **targets),
        HuberRegression(3, INF, 50.0, threshold=0.7, **targets),
        LpRegression(3, INF, 50.0, order=1.5, **targets),
    ]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", [*LINEAR, *LOGISTIC])
def test_the_population_gradient_vanishes_at_the_optimum_and_nowhere_near(name):
    population = (LINEAR | LOGISTIC)[name]
    federation = SyntheticFederation(population, 8000, 3, samples_per_user=25)
    block = federation.block(np.arange(8000))
    symmetric = population._noise.symmetric
    for problem in [*problems_of(population.link), *(problems_of(population.link, True) if symmetric else [])]:
        assert problem.bound(block)[0] is block
        best = problem.optimum(federation)
        for shift, still in ((0.0, True), (0.3, False)):
            rows = problem.user_gradients(best + shift * np.eye(problem.dimension)[0], block)
            error = rows.std(axis=0) / math.sqrt(len(rows))
            # 5 standard errors, seed fixed.
            assert bool((np.abs(rows.mean(axis=0)) < 5 * error).all()) is still


def test_the_optimum_is_not_claimed_where_it_is_not_known():
    def best(problem, population):
        return problem.optimum(SyntheticFederation(population, 5))

    skewed, plain = LINEAR["skewed"], LINEAR["t_noise"]
    squared, huber, lp = problems_of("linear")
    _, huber_with_intercept, _ = problems_of("linear", intercept=True)
    targets = {"low": -INF, "high": INF}
    assert best(huber_with_intercept, skewed) is None  # skewed noise moves the intercept
    assert best(huber_with_intercept, plain) is not None
    assert best(HuberRegression(3, INF, 50.0, ridge=0.1, **targets), plain) is None
    assert best(huber, HeavyTailedLinear(dimension=3, heterogeneity=0.1)) is None
    assert best(squared, HeavyTailedLinear(dimension=3, heterogeneity=0.1)) is not None
    assert best(Squared(3, 100.0, 50.0, **targets), plain) is None  # features would be clipped
    assert best(Squared(3, INF, 50.0, low=-9.0, high=9.0), plain) is None  # targets would be
    assert best(squared, HeavyTailedLinear(dimension=3, feature_law="pareto", feature_shape=1.5)) is None
    assert best(squared, HeavyTailedLinear(dimension=2)) is None
    assert best(LpRegression(3, INF, 0.1, order=1.5, **targets), plain) is None  # outside the domain
    (logistic,) = problems_of("logistic")
    assert best(logistic, plain) is None
    assert best(squared, LOGISTIC["t"]) is None
    independent = HeavyTailedLogistic(dimension=3, feature_law="student_t", noise_law="laplace")
    assert best(logistic, independent) is None
    assert best(logistic, HeavyTailedLogistic(dimension=3, parameter=0.0, noise_law="laplace")) is None
    assert best(logistic, HeavyTailedLogistic(dimension=3, noise_law="normal", noise_deviation=1e-9)) is None
    assert best(lp, plain) is not None


# Regressions: the excess -------------------------------------------------------------------------------------------


@pytest.mark.sweep(3)
@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("radius", [0.4, 9.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_excess_risk_of_least_squares_is_exact(ridge, radius, intercept):
    population = HeavyTailedLinear(
        dimension=3, parameter=[0.5, -1.0, 0.3], feature_law="laplace", feature_deviation=1.5, noise_law="pareto"
    )
    federation = SyntheticFederation(population, 8000, 5, samples_per_user=25)
    problem = Squared(3, INF, radius, low=-INF, high=INF, ridge=ridge, intercept=intercept)
    block = federation.block(np.arange(8000))
    best = problem.optimum(federation)
    expected = np.clip(np.array([0.5, -1.0, 0.3]) * 2.25 / (2.25 + ridge), -radius, radius)
    np.testing.assert_allclose(best[:3], expected)
    assert problem.excess_risk(best, federation) == 0.0
    rng = np.random.default_rng(1)
    for _ in range(3):
        x = problem.domain.project(rng.uniform(-1, 1, problem.dimension))
        gaps = problem.sample_losses(x, block) - problem.sample_losses(best, block)
        gaps = gaps.reshape(8000, -1).mean(axis=1)
        risk = problem.excess_risk(x, federation)
        assert risk >= 0
        # 5 standard errors, seed fixed.
        assert abs(risk - gaps.mean()) < 5 * gaps.std() / math.sqrt(8000)


def test_excess_risk_needs_no_variance_of_the_noise():
    federation = SyntheticFederation(HeavyTailedLinear(dimension=2, noise_shape=2.0, parameter=[3.0, 4.0]), 5)
    problem = Squared(2, INF, 9.0, low=-INF, high=INF)
    assert problem.excess_risk(np.zeros(2), federation) == pytest.approx(12.5)
    assert problem.excess_risk(np.zeros(2), federation.select(np.array([1, 2]))) == pytest.approx(12.5)


def config(problem, population, **data):
    raw = {
        "name": "tails",
        "seed": 1,
        "problem": {"radius": 5.0, "intercept": False, **problem},
        "data": {
            "kind": "synthetic",
            "population": population,
            "users": 400,
            "test_users": 200,
            "dimension": 3,
            **data,
        },
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "unit": "sample"},
        "strategy": {"kind": "sample_clipped_sgd", "rounds": 3, "clip_norm": 3.0},
    }
    return parse_config(raw)


@pytest.mark.parametrize(
    ("problem", "population", "measured"),
    [
        ({"kind": "squared"}, "heavy_tailed_linear", "excess_risk"),
        ({"kind": "huber_regression", "threshold": 0.5}, "heavy_tailed_linear", "excess_loss"),
        ({"kind": "lp_regression", "order": 1.5}, "heavy_tailed_linear", "excess_loss"),
        ({"kind": "biweight_regression"}, "heavy_tailed_linear", "excess_loss"),
        ({"kind": "logistic"}, "heavy_tailed_logistic", "excess_loss"),
        ({"kind": "logistic", "ridge": 0.1}, "heavy_tailed_logistic", "test_loss"),
    ],
)
def test_held_out_metrics_measure_the_excess_where_the_optimum_is_known(problem, population, measured):
    settings_ = config(problem, population, feature_law="student_t", feature_shape=3.0, spherical=True)
    loss, datasets = build_problem(settings_), load_datasets(settings_)
    assert math.isinf(loss.feature_norm)
    evaluation = Evaluation(loss, datasets.train, datasets.test)
    at_zero = evaluation(np.zeros(3))
    assert main_metric(at_zero) == next(iter(at_zero)) == measured
    best = loss.optimum(datasets.train)
    if measured == "test_loss":
        assert best is None
        assert "distance" not in at_zero
        return
    at_best = evaluation(best)
    assert at_best[measured] == 0.0
    assert at_best["distance"] == 0.0
    assert at_zero[measured] > 0
    assert at_zero["distance"] == pytest.approx(np.linalg.norm(best))
    if measured == "excess_loss":
        assert at_zero["excess_loss"] == pytest.approx(at_zero["test_loss"] - at_best["test_loss"])


def test_without_held_out_users_the_distance_is_all_there_is():
    settings_ = config({"kind": "lp_regression"}, "heavy_tailed_linear", test_users=0)
    loss, datasets = build_problem(settings_), load_datasets(settings_)
    assert set(Evaluation(loss, datasets.train, datasets.test)(np.zeros(3))) == {"distance"}


# Regressions: the moments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [2, 3, 4])
def test_shipped_comparisons_declare_moments_that_are_true_and_no_larger_than_they_must_be(order):
    comparison = load_comparison(SHIPPED[f"heavy-tailed-p{order}"])
    cell = next(cell for cell in comparison.cells if cell.strategy == "sample_clipped_sgd")
    settings_ = cell.config()
    options, population, problem = cell.raw["strategy"], settings_.data.recipe, build_problem(settings_)
    assert options["moment_order"] == order
    # The gradient is x - z: Minkowski, with the corner of the domain that is farthest from the mean.
    mean = SyntheticFederation(population, 1).population_mean
    farthest = np.linalg.norm(problem.domain.radius + np.abs(mean))
    needed = population.directional_moment(order) + farthest
    assert needed <= options["moment"] <= 1.01 * needed
    with pytest.raises(BadInput, match="moments of orders"):
        population.directional_moment(order + 0.2)
    start = problem.excess_risk(problem.initial(), SyntheticFederation(population, 1))
    assert start == pytest.approx(0.125, rel=1e-6)


# What is refused ------------------------------------------------------------------------------

HEAVY = partial(HeavyTailedLinear, dimension=2)
TAILED = HEAVY(feature_law="student_t", feature_shape=3.0, noise_shape=3.0)


REFUSED = [
    # (make, the arguments that are wrong, words of the message)
    *[(partial(kind, dimension=1), {"shape": 1.0}, "shape must be .* above 1") for kind in (StudentT, LogLogistic)],
    (partial(Pareto, dimension=1), {"shape": 0.5}, "shape"),
    (partial(LogNormal, dimension=1), {"shape": 0.0}, "shape"),
    (partial(LogNormal, dimension=1), {"shape": 5.0}, "at most 4"),
    (HEAVY, {"feature_law": "pareto", "feature_shape": 1.0}, "feature_shape of pareto: shape must be .* above 1"),
    (HEAVY, {"noise_law": "student_t", "noise_shape": 0.5}, "noise_shape of student_t: shape must be"),
    (HEAVY, {"noise_law": "log_normal", "noise_shape": 5.0}, "noise_shape of log_normal: shape of .* at most 4"),
    (HEAVY, {"feature_deviation": 0.0}, "feature_deviation = 0.0: must be"),
    (HEAVY, {"noise_deviation": -1.0}, "noise_deviation = -1.0: must be"),
    (HEAVY, {"feature_law": "pareto", "spherical": True}, "spherical = true needs feature_law normal or student_t"),
    (LAWS["log_logistic"], {"shape": 0.1}, r"shape must be a finite number above 1, got 0\.1"),
    *[
        (LAWS[name](2.5).moment, {"order": order}, f"{name} with shape 2.5 has moments of orders above 0 and below 2.5")
        for name in ("student_t", "pareto", "log_logistic")
        for order in (2.5, 3.0, 0.0)
    ],
    (partial(directional_moment, LAWS["student_t"](3.0)), {"order": 1.5, "spherical": True}, "from order 2 on"),
    (partial(TAILED.gradient_moment, 2.0), {"growth": 2.0, "distance": 1.0}, "orders above 0 and below 3, not 4"),
    (partial(TAILED.gradient_moment, 2.0), {"growth": 2.5, "distance": 1.0}, r"growth = 2.5: must lie in \[1, 2\]"),
    (partial(HEAVY(heterogeneity=0.1).gradient_moment, 2.0), {"growth": 1.0, "distance": 0.0}, "one parameter"),
]


@pytest.mark.parametrize(("make", "wrong", "words"), REFUSED)
def test_what_no_population_can_be_is_refused_by_name_and_value(make, wrong, words):
    with pytest.raises(BadInput, match=words):
        make(**wrong)


def test_a_gradients_moment_is_that_of_its_features_alone_where_residuals_do_not_count():
    assert TAILED.gradient_moment(2.0, 1.0, 5.0) == pytest.approx(1.0)
    assert TAILED.gradient_moment(2.0, 2.0, 0.0) == pytest.approx(1.0)
