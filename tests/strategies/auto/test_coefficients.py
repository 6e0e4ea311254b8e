"""Coefficients with standard errors: against exact fits, against the truth many times, and where they refuse."""

import math

import numpy as np
import pytest
from helpers import federation_of, make, run
from scipy.special import expit, exprel
from test_auto import Watched

from strategies import Auto
from strategies.auto.coefficients import SlopeSizes
from strategies.auto.inference import Inference
from strategies.auto.progress import Progress
from userdp.data.coefficients import CoefficientMap
from userdp.errors import BadInput
from userdp.problems import Cloglog, Huber, Logistic, Poisson, Softmax, Squared

COLUMNS, TRUTH = 2, np.array([0.8, -0.5, 0.3])


def problem(kind, ridge=0.0):
    options = {"feature_bound": 1.0, "intercept": True, "ridge": ridge}
    if kind == "squared":
        return Squared(COLUMNS, math.inf, 5.0, low=-4.0, high=4.0, **options)
    if kind in ("logistic", "cloglog"):
        return (Logistic if kind == "logistic" else Cloglog)(COLUMNS, math.inf, 5.0, **options)
    return Poisson(COLUMNS, math.inf, 5.0, count_bound=30.0, **options)


def population(kind, users, seed):
    """Users of 1 to 20 samples, whose errors are alike within a user."""
    rng = np.random.default_rng([seed, users])
    sizes = rng.integers(1, 21, users)
    owners, total = np.repeat(np.arange(users), sizes), int(sizes.sum())
    features = np.clip(rng.normal(size=(users, COLUMNS))[owners] * 0.3 + rng.normal(size=(total, COLUMNS)) * 0.3, -1, 1)
    scores = features @ TRUTH[:-1] + TRUTH[-1]
    own = rng.normal(size=users)[owners]
    if kind == "squared":
        targets = scores + 0.4 * own + 0.6 * rng.normal(size=total)
    elif kind in ("logistic", "cloglog"):
        chance = expit(scores) if kind == "logistic" else -np.expm1(-np.exp(scores))
        # The user's part of a uniform number leaves each sample's probability as it is.
        shared = rng.random(users)[owners]
        uniform = np.where(rng.random(total) < 0.3, shared, rng.random(total))
        targets = (uniform < chance).astype(float)
    else:
        targets = rng.poisson(np.exp(scores) * rng.gamma(5.0, 0.2, users)[owners])
    return federation_of(features, sizes.tolist(), targets)


def found(kind, users, seed, epsilon, share=0.5):
    method = make(Auto, problem(kind), users, epsilon, seed=seed, coefficients=share)
    run(method, population(kind, users, seed))
    return method.memory.inference


def weighted_fit(kind, federation, inference):
    """The exact fit with the same weights, and its sandwich errors with users as clusters."""
    block = federation.block(np.arange(federation.users))
    rows = np.column_stack([block.features.astype(float), np.ones(block.samples)])
    owners = np.repeat(np.arange(block.users), block.sizes)
    slopes_at, curvature = {
        "squared": (lambda s, y: s - y, np.ones_like),
        "logistic": (lambda s, y: expit(s) - y, lambda s: expit(s) * expit(-s)),
        "cloglog": (lambda s, y: (1 - y) * np.exp(s) - y / exprel(np.exp(s)), lambda s: np.exp(s) / exprel(np.exp(s))),
        "poisson": (lambda s, y: np.exp(s) - y, np.exp),
    }[kind]

    def curvatures(x, directions):
        seen = rows @ directions
        each = curvature(rows @ x)[:, None, None] * seen[:, :, None] * seen[:, None, :]
        return np.add.reduceat(each, block.offsets[:-1]) / block.sizes[:, None, None]

    sizes = np.linalg.norm(curvatures(inference.start, inference.directions), axis=(1, 2))
    weights = np.minimum(1.0, inference.size / sizes)
    x = np.zeros(COLUMNS + 1)
    for _ in range(30):
        residuals = slopes_at(rows @ x, block.targets) / block.sizes[owners]
        slopes = weights[:, None] * np.add.reduceat(residuals[:, None] * rows, block.offsets[:-1])
        whole = (weights[:, None, None] * curvatures(x, np.eye(COLUMNS + 1))).sum(axis=0)
        x = x - np.linalg.solve(whole, slopes.sum(axis=0))
    influences = np.linalg.solve(whole, slopes.T)
    return x, np.sqrt(np.square(influences).sum(axis=1))


@pytest.mark.parametrize("kind", ["squared", "logistic", "cloglog", "poisson"])
def test_without_noise_they_are_the_fit_and_its_sandwich_errors(kind):
    """The budget hides nothing, and so few slopes are large that the clip cuts none."""
    federation, inference = population(kind, 1500, 1), found(kind, 1500, 1, 3000.0)
    estimate, error = weighted_fit(kind, federation, inference)
    assert inference.trusted.all()
    part = 0.3 if kind == "cloglog" else 0.15  # steps by mean curvatures, not by those of the targets
    np.testing.assert_allclose(inference.estimate, estimate, atol=part * error.min())
    np.testing.assert_allclose(inference.error, error, rtol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["squared", "logistic", "cloglog", "poisson"])
def test_intervals_cover_the_truth(kind):
    """In 40 repetitions, 120 intervals of 95 %: at least 87 % hold the truth, four deviations of the count below."""
    repetitions = [found(kind, 800, seed, 4.0) for seed in range(40)]
    inside = [np.abs(one.estimate - TRUTH) <= 1.96 * one.error for one in repetitions if one.trusted.all()]
    assert len(inside) >= 36
    assert np.mean(inside) >= 0.87


def test_the_noise_of_slopes_is_in_the_errors():
    """The error is noise over curvature: one coefficient per direction, curvature 2, no step and no users' variance."""
    found = Inference(np.zeros(2), np.eye(2), 1.0, np.ones(1))
    found.curvature, found.curvature_deviation = 2 * np.eye(2), 0.0
    found.step, found.slope_deviation, found.clip_norm, found.cut = np.zeros(2), 0.06, 1.0, 0.0
    found.conclude(CoefficientMap.plain(2, intercept=True), np.zeros(2), 0.0, 100.0)
    np.testing.assert_allclose(found.error, 0.03)
    assert found.trusted.all()


def test_where_noise_hides_the_curvature_no_error_is_given():
    assert not found("squared", 60, 0, 0.5).trusted.any()
    few, many = (make(Auto, problem("squared"), users, 0.5, coefficients=0.5).plan.warnings for users in (60, 6000))
    assert any("hide how certain coefficients are" in warning for warning in few)
    assert not any("coefficients" in warning for warning in many)


def test_a_share_for_coefficients_leaves_training_the_rest_of_the_budget():
    alone, half = (make(Auto, problem("squared"), 500, coefficients=share) for share in (0.0, 0.5))
    before, after = alone.scheme.sampler.shares, half.scheme.sampler.shares
    assert sum(after) == pytest.approx(1.0)
    assert len(after) == len(before) + 4
    np.testing.assert_allclose(after[: len(before) - 1], np.array(before[:-1]) / 2)
    assert alone.plan.guarantee.epsilon == pytest.approx(half.plan.guarantee.epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (problem("squared", ridge=0.1), r"problem\.ridge = 0\.1 shrinks coefficients; set problem\.ridge = 0"),
        (Huber(COLUMNS, 5.0, 3.0, 1.0), "problem.kind = 'huber' has no coefficients with standard errors"),
        (
            Squared(1000, math.inf, 5.0, low=-4.0, high=4.0, intercept=True),
            "1001 parameters are too many; name at most 999 features",
        ),
        (Softmax(3, COLUMNS, math.inf, 5.0, intercept=True), "use squared, logistic or poisson, or set it to 0"),
    ],
)
def test_losses_without_coefficients_are_refused_before_anything_is_asked(loss, sentence):
    with pytest.raises(BadInput, match=sentence):
        make(Auto, loss, 500, coefficients=0.5)


def test_levels_that_are_left_out_do_not_move_and_others_are_compared_with_them():
    """Features are two levels that exclude each other, and the intercept; the first level is the reference."""
    of_model = np.array([[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    model_of = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    reading = CoefficientMap(("b", "intercept"), ("", ""), np.array([1.0, 0.0]), of_model, model_of, np.zeros(2))
    rng = np.random.default_rng(0)
    second = rng.integers(0, 2, 4000)
    targets = np.where(second, 1.5, -0.5) + rng.normal(size=4000)
    users = federation_of(np.column_stack([1 - second, second]), [2] * 2000, targets)
    method = make(Auto, problem("squared"), 2000, 4.0, coefficients=0.5, facts={"reading": reading})
    run(method, users)
    inference = method.memory.inference
    assert not inference.directions[0].any()
    assert inference.model[0] == 0.0
    np.testing.assert_allclose(inference.estimate, [2.0, -0.5], atol=4 * inference.error.max())
    assert inference.trusted.all()
    assert inference.error.max() < 0.1


def test_the_clip_lies_where_hardly_any_user_is_seen_beyond():
    """The slopes of 10,000 users are short for 60 %, longer for 39 %, and very long for 1 %."""
    edges = 2.0 ** np.arange(0, 8)
    progress, shares = Progress(np.zeros(3), 1.0, None), np.zeros(9)
    progress.inference = Inference(np.zeros(3), np.eye(3), 1.0, edges)
    shares[[1, 3, 6]] = 0.6, 0.39, 0.01
    watched = Watched(deviation=1e-4)
    watched.users = 10_000
    watched.mean = lambda sums, movement: (shares, watched.deviation)
    stage = SlopeSizes(CoefficientMap.plain(3, intercept=True))
    stage.take(progress, shares, watched)
    assert (progress.inference.typical, progress.inference.clip_norm) == (2.0, 64.0)
    watched.deviation = 0.01  # hides the one in a hundred
    stage.take(progress, shares, watched)
    assert progress.inference.clip_norm == 8.0
    assert progress.inference.cut == pytest.approx(0.03)


def test_a_run_that_ended_amid_their_rounds_has_no_coefficients():
    method = make(Auto, problem("squared"), 300, 4.0, coefficients=0.5)
    run(method, population("squared", 300, 0))
    assert len(method.scheme.report(method.state.released, method.memory)["coefficients"]) == COLUMNS + 1
    method.memory.inference.estimate = np.zeros(0)  # as before the last of their rounds
    assert method.scheme.report(method.state.released, method.memory).keys() == {"hidden_columns"}
    plain = make(Auto, problem("squared"), 300, 4.0).scheme
    assert plain.report(np.zeros(COLUMNS + 1), plain.new_memory()).keys() == {"hidden_columns"}
