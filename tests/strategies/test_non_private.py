"""The reference without privacy: it finds the minimiser of every convex loss, or says that it did not."""

import logging
from math import inf

import numpy as np
import pytest
from helpers import federation_of, final, make, requested, run, taken
from problem_cases import network
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit

from strategies import DPFedAvg, DPFedSGD, NonPrivate
from strategies.baselines.regressions import HuberRegression, LpRegression
from strategies.wire.replies import Gathered
from userdp.data import ColumnarFederation
from userdp.data.block import Block
from userdp.errors import BadInput, PopulationTooSmall
from userdp.problems import (
    Huber,
    Linear,
    Logistic,
    OneHotLogistic,
    OneHotPoisson,
    Poisson,
    Quadratic,
    SparseSquared,
    Squared,
    TorchProblem,
)

USERS = 60
LOSSES = {  # (phi, phi') of a score and a target
    "squared": (lambda s, y: (s - y) ** 2 / 2, lambda s, y: s - y),
    "logistic": (lambda s, y: np.logaddexp(0, s) - y * s, lambda s, y: expit(s) - y),
    "poisson": (lambda s, y: np.exp(s) - y * s, lambda s, y: np.exp(s) - y),
    "huber_regression": (
        lambda s, y: np.where(np.abs(s - y) < 0.2, (s - y) ** 2 / 2, 0.2 * (np.abs(s - y) - 0.1)),
        lambda s, y: np.clip(s - y, -0.2, 0.2),
    ),
    "lp_regression": (lambda s, y: np.abs(s - y) ** 1.5 / 1.5, lambda s, y: np.sign(s - y) * np.abs(s - y) ** 0.5),
}


def table(columns=6, seed=0):
    """A table's rows in users of unequal sizes: columns in [-1, 1] and the levels of a categorical one."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 15, USERS)
    rows = np.hstack(
        [np.clip(rng.normal(0.4, 0.4, (sizes.sum(), columns)), -1, 1), np.eye(4)[rng.integers(0, 4, sizes.sum())]]
    ).astype(np.float32)
    return rows, sizes, rows @ rng.normal(0, 1.5, columns + 4), rng


def targets_for(kind, scores, rng):
    if kind in ("logistic", "one_hot_logistic"):
        return (rng.random(len(scores)) < expit(scores)).astype(np.float32)
    if kind in ("poisson", "one_hot_poisson"):
        return rng.poisson(np.exp(np.clip(scores, -3, 3))).astype(np.float32)
    return np.clip(scores + rng.normal(0, 0.5, len(scores)), -3, 3).astype(np.float32)


def weighted_loss(kind, rows, targets, sizes, ridge):
    """(x -> value and gradient) of the mean over users of each user's average loss, as weights of single samples."""
    phi, slope = LOSSES[kind]
    weights = np.repeat(1 / (len(sizes) * sizes), sizes)
    rows, targets = rows.astype(np.float64), targets.astype(np.float64)

    def loss(x):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = rows @ x
            value = weights @ phi(scores, targets) + ridge / 2 * x @ x
            return value, rows.T @ (weights * slope(scores, targets)) + ridge * x

    return loss


def excess(loss, found, radius):
    """The excess of a model's loss over another solver's optimum, as a share of what there was to gain."""
    start, bounds = np.zeros(len(found)), None if radius == inf else [(-radius, radius)] * len(found)
    options = {"maxiter": 20_000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-10}
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun
    return (loss(found)[0] - best) / (loss(start)[0] - best)


def problem_of(kind, columns, radius, ridge, **bounds):
    norm, options = 8.0, {"ridge": ridge, "intercept": True, "feature_bound": 1.0} | bounds
    if kind == "logistic":
        return Logistic(columns, norm, radius, **options)
    if kind == "poisson":
        return Poisson(columns, norm, radius, count_bound=50.0, **options)
    options |= {"low": -3.0, "high": 3.0}
    if kind == "huber_regression":
        return HuberRegression(columns, norm, radius, threshold=0.2, **options)
    if kind == "lp_regression":
        return LpRegression(columns, norm, radius, order=1.5, **options)
    return Squared(columns, norm, radius, **options)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(("radius", "ridge"), [(5.0, 0.0), (0.5, 0.0), (20.0, 0.01)])
def test_it_ends_at_the_optimum_that_another_solver_finds_for_weighted_samples(kind, radius, ridge, caplog):
    rows, sizes, scores, rng = table()
    targets = targets_for(kind, scores, rng)
    problem = problem_of(kind, rows.shape[1], radius, ridge)
    with caplog.at_level(logging.WARNING, "userdp"):
        result = run(make(NonPrivate, problem, USERS), federation_of(rows, list(sizes), targets))
    with_ones = np.hstack([rows, np.ones((len(rows), 1))])
    assert -1e-9 < excess(weighted_loss(kind, with_ones, targets, sizes, ridge), final(result), radius) < 1e-4
    assert not caplog.records
    assert len(result.rounds) < 150


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_columns_without_bounds_and_of_any_scale_take_no_step_size(scale):
    rows, sizes, scores, rng = table()
    targets = targets_for("squared", scores, rng)
    wide = (rows * np.geomspace(1, scale, rows.shape[1])).astype(np.float32)
    problem = Squared(rows.shape[1], inf, inf, low=-inf, high=inf)
    result = run(make(NonPrivate, problem, USERS), federation_of(wide, list(sizes), targets))
    assert problem.certificate.smoothness is None
    assert excess(weighted_loss("squared", wide, targets, sizes, 0.0), final(result), inf) < 1e-4


@pytest.mark.parametrize("kind", ["one_hot_logistic", "one_hot_poisson"])
def test_one_hot_problems_reach_the_optimum_although_their_domain_allows_enormous_curvature(kind):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 15, USERS)
    codes = rng.integers(0, 6, (sizes.sum(), 1)).astype(np.int32)
    targets = targets_for(kind, codes[:, 0] / 2.0 - 1, rng)
    problem = OneHotPoisson(6, 40.0, count_bound=100.0) if kind == "one_hot_poisson" else OneHotLogistic(6, 40.0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    result = run(make(NonPrivate, problem, USERS), ColumnarFederation(Block(codes, offsets, targets)))
    loss = weighted_loss(kind.removeprefix("one_hot_"), np.eye(6)[codes[:, 0]], targets, sizes, 0.0)
    assert excess(loss, final(result), 40.0) < 1e-4


def test_sparse_problems_reach_the_optimum():
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 15, USERS)
    rows = rng.normal(size=(sizes.sum(), 30)) * (rng.random((sizes.sum(), 30)) < 0.1)
    rows = (rows / np.maximum(1, np.linalg.norm(rows, axis=1))[:, None]).astype(np.float32)
    targets = targets_for("squared", rows @ rng.normal(size=30), rng)
    problem = SparseSquared(30, 1.01, 30, 3.0, low=-3.0, high=3.0)
    block = Block(csr_array(rows), np.concatenate([[0], np.cumsum(sizes)]), targets)
    result = run(make(NonPrivate, problem, USERS), ColumnarFederation(block))
    assert excess(weighted_loss("squared", rows, targets, sizes, 0.0), final(result), 3.0) < 1e-4


@pytest.mark.parametrize(
    "problem",
    [Quadratic(3, 2.0, 0.3), Huber(3, 2.0, 5.0, 0.1), Linear(3, 5.0, radius=2.0)],
    ids=["quadratic", "huber", "linear"],
)
def test_losses_without_targets_end_where_no_free_gradient_is_left(problem):
    rng = np.random.default_rng(5)
    sizes = list(rng.integers(1, 9, USERS))
    federation = federation_of(rng.normal([0.1, 0.8, -0.9], 0.7, (sum(sizes), 3)), sizes)
    result = run(make(NonPrivate, problem, USERS), federation)
    block = problem.bound(federation.block(np.arange(USERS)))[0]
    x = final(result)
    gradient = problem.user_gradients(x, block).mean(axis=0)
    assert np.abs(problem.domain.project(x - gradient) - x).max() < 1e-6


def test_it_says_so_where_it_did_not_converge_and_only_there(caplog):
    rows, sizes, scores, rng = table()
    federation = federation_of(rows, list(sizes), targets_for("poisson", scores, rng))
    with caplog.at_level(logging.WARNING, "userdp"):
        stopped = run(make(NonPrivate, problem_of("poisson", 10, 5.0, 0.0), USERS, rounds=4), federation)
        assert "did not converge in 4 rounds" in caplog.text
        assert "strategy.rounds" in caplog.text
        caplog.clear()
        ended = run(make(NonPrivate, problem_of("poisson", 10, 5.0, 0.0), USERS), federation)
    assert not caplog.records
    assert stopped.rounds[-1].facts["gradient_share_private"] > 1e-7 >= ended.rounds[-1].facts["gradient_share_private"]


def test_a_point_at_which_gradients_overflow_is_no_minimum():
    method = make(NonPrivate, OneHotPoisson(1, 1e4, count_bound=1e9), 10)
    first = taken(method, 0, np.zeros(1), Gathered(np.array([-1e7]), 0, 0))
    overflowed = taken(method, 1, first.following, Gathered(np.array([0.0]), 0, 10))
    assert not method.memory.descent.converged
    assert overflowed.released == pytest.approx([0.0])
    assert 0 < overflowed.following[0] < first.following[0]


def module():
    return TorchProblem(network(2, 1), "mse", 2, precision="double")


@pytest.mark.parametrize(
    "settings", [{"optimiser": "descent"}, {"learning_rate": 0.2}], ids=["uncertified", "with_a_step_size"]
)
def test_without_a_certified_convexity_or_with_a_step_size_steps_have_one_length(settings):
    problem = Quadratic(2, 9.0, 9.0) if "learning_rate" in settings else module()
    rate = settings.get("learning_rate", 0.5)
    method = make(NonPrivate, problem, 10, **settings)
    assert method.plan.numbers["learning_rate"] == rate
    x, gradient = problem.initial(), np.linspace(-1, 1, problem.dimension)
    np.testing.assert_allclose(taken(method, 0, x, Gathered(10 * gradient, 0, 0)).released, x - rate * gradient)


def test_modules_are_trained_by_adam_over_cohorts_and_certified_losses_are_not():
    method = make(NonPrivate, module(), 5000)
    assert (method.plan.cohort, method.plan.rounds, method.plan.numbers["learning_rate"]) == (500, 200, 0.02)
    assert not method.plan.guarantee.holds
    cohorts = [requested(method, index).users for index in range(3)]
    assert all(len(np.unique(users)) == 500 for users in cohorts)
    assert not np.array_equal(cohorts[0], cohorts[1])
    for problem in (Quadratic(2, 9.0, 9.0), Squared(2, inf, inf, low=-inf, high=inf)):
        assert len(requested(make(NonPrivate, problem, 5000), 0).users) == 5000


@pytest.mark.parametrize(("users", "cohort"), [(7, 7), (539, 100), (4000, 400), (10**6, 1000)])
def test_cohorts_of_adam_are_a_tenth_of_the_users_within_bounds(users, cohort):
    assert make(NonPrivate, module(), users).plan.cohort == cohort


def test_steps_of_adam_divide_by_those_who_answered_and_fall_over_the_second_half():
    options = {"rounds": 8, "cohort": 10, "learning_rate": 0.1}
    lengths, problem = [], module()
    for index in range(8):
        method = make(NonPrivate, problem, 50, **options)
        sums = Gathered(np.full(problem.dimension, -4.0), 2, 0)
        lengths.append((taken(method, index, problem.initial(), sums).released - problem.initial())[0])
        assert method.memory.optimiser.squares[0] == pytest.approx((4.0 / 8) ** 2)
    np.testing.assert_allclose(lengths, [0.1] * 5 + [0.075, 0.05, 0.025], rtol=1e-5)


def test_adam_never_says_that_it_did_not_converge(caplog):
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(USERS * 3, 2))
    targets = rows @ [0.5, -0.3]
    federation = federation_of(rows, [3] * USERS, targets)
    with caplog.at_level(logging.WARNING, "userdp"):
        result = run(make(NonPrivate, module(), USERS, rounds=60), federation)
    assert not caplog.records
    assert len(result.rounds) == 60
    problem, block = module(), federation.block(np.arange(USERS))
    losses = [problem.sample_losses(x, block).mean() for x in (problem.initial(), final(result))]
    assert losses[1] < 0.1 * losses[0]


def test_a_cohort_without_adam_is_refused_and_so_is_one_of_more_than_all():
    with pytest.raises(BadInput, match=r"strategy.cohort = 5 without optimiser = 'adam'.*leave strategy.cohort out"):
        make(NonPrivate, Quadratic(2, 9.0, 9.0), 50, cohort=5)
    with pytest.raises(PopulationTooSmall, match="60"):
        make(NonPrivate, module(), 50, cohort=60)


@pytest.mark.parametrize(("strategy", "field"), [(DPFedSGD, "learning_rate"), (DPFedAvg, "local_rate")])
def test_a_plan_warns_of_a_default_step_that_cannot_move_the_model(strategy, field):
    astronomic, modest = Poisson(40, 41.0, 1.0, count_bound=9.0, intercept=True), Poisson(4, 2.0, 1.0, count_bound=9.0)

    def warnings(problem, **options):
        plan = make(strategy, problem, 1000, rounds=3, clip_norm=1.0, **options).plan
        return [warning for warning in plan.warnings if "would stay where it starts" in warning]

    (warning,) = warnings(astronomic)
    assert warning.startswith(f"strategy.{field} is ")
    assert "problem.radius" in warning
    assert not warnings(astronomic, **{field: 0.1})
    assert not warnings(modest)
    assert not warnings(Squared(3, 1e5, 5.0, low=-1.0, high=1.0))  # small steps of large gradients
