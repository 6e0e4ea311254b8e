"""Excess risk in closed form and per-user metrics, against Monte Carlo, minimisers and loops."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import CASES, Case
from scipy.optimize import minimize
from scipy.special import expit

import userdp.problems
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.errors import BadInput
from userdp.problems import Bernoulli, Huber, Linear, Logistic, Poisson, Problem, Quadratic, Squared

KNOWN = {"linear": Linear(3, 1.0, 0.7), "quadratic": Quadratic(3, 1.0, 0.5), "bernoulli": Bernoulli(3, 1.2)}
MEANS = {
    "linear": np.array([0.4, -0.2, 0.0]),
    "quadratic": np.array([0.3, -0.8, 0.9]),
    "bernoulli": np.array([0.5, 0.02, 0.9]),
}
known = pytest.mark.parametrize("name", KNOWN)


def federation(problem, mean=None):
    return ColumnarFederation(Block(np.zeros((1, problem.columns), np.float32), np.array([0, 1])), mean)


@known
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), corner=st.booleans())
def test_excess_risk_is_never_negative_and_zero_at_the_minimiser(name, seed, corner):
    problem, rng = KNOWN[name], np.random.default_rng(seed)
    mean = rng.uniform(problem.low, problem.high, 3)
    if corner:
        mean[0] = problem.high
    radius = problem.domain.radius
    population = federation(problem, mean)
    for x in (rng.uniform(-radius, radius, 3), rng.choice([-radius, radius], 3)):
        assert problem.excess_risk(x, population) >= 0
    best = problem.minimiser(mean)
    assert np.abs(best).max() <= radius
    assert problem.excess_risk(best, population) == pytest.approx(0, abs=1e-15)


@known
def test_the_minimiser_beats_a_numerical_search(name):
    problem, mean = KNOWN[name], MEANS[name]
    population, radius = federation(problem, mean), problem.domain.radius
    one = Block(mean[None].astype(np.float32), np.array([0, 1]))  # affine in z up to a constant: the mean suffices
    found = minimize(
        lambda x: problem.sample_losses(x, one)[0],
        np.zeros(3),
        jac=lambda x: problem.sample_gradients(x, one)[0],
        bounds=[(-radius, radius)] * 3,
        tol=1e-12,
    )
    assert problem.excess_risk(found.x, population) == pytest.approx(0, abs=1e-7)
    x = np.array([0.3, 0.3, -0.4])
    at_x = problem.sample_losses(x, one)[0] - found.fun
    assert problem.excess_risk(x, population) == pytest.approx(at_x, abs=1e-6)


@known
def test_a_mean_of_another_dimension_is_refused(name):
    with pytest.raises(BadInput, match=r"population's mean has shape \(2,\), the problem needs \(3,\)"):
        KNOWN[name].excess_risk(np.zeros(3), federation(KNOWN[name], np.zeros(2)))


@pytest.mark.parametrize(
    "problem", [*KNOWN.values(), Huber(3, 1.0, 1.0, 0.5), Logistic(3, 1.0, 1.0)], ids=lambda p: p.name
)
def test_excess_risk_is_none_where_it_is_not_known(problem: Problem):
    with_mean = problem.name in ("huber", "logistic")
    population = federation(problem, np.zeros(3) if with_mean else None)
    assert problem.excess_risk(np.zeros(3), population) is None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_metrics_are_each_users_averages(case: Case):
    block, x = case.block([3, 1, 4]), case.model()
    metrics = case.problem.metrics(x, block)
    losses = case.problem.sample_losses(x, block)
    means = [losses[a:b].mean() for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]
    np.testing.assert_allclose(metrics["test_loss"], means, rtol=1e-12)
    assert all(values.shape == (3,) and np.isfinite(values).all() for values in metrics.values())


def test_family_metrics_match_their_definitions():
    features = np.array([[0.5, -0.5], [1.0, 0.0], [0.0, 0.2]], np.float32)
    x, ends = np.array([2.0, -1.0]), np.array([0, 2, 3])
    scores = features.astype(float) @ x

    def per_user(values):
        return [values[:2].mean(), values[2]]

    y = np.array([1, 0, 0], np.float32)
    logistic = Logistic(2, 1.0, 2.0, ridge=0.5).metrics(x, Block(features, ends, y))
    log_loss = -np.log(np.where(y == 1, expit(scores), expit(-scores)))
    np.testing.assert_allclose(logistic["log_loss"], per_user(log_loss))
    np.testing.assert_allclose(logistic["accuracy"], [0.5, 1.0])
    np.testing.assert_allclose(logistic["test_loss"], np.add(per_user(log_loss), 0.25 * 5.0))

    y = np.array([1, 0, -1], np.float32)
    squared = Squared(2, 1.0, 2.0, low=-1.0, high=1.0, ridge=0.5).metrics(x, Block(features, ends, y))
    np.testing.assert_allclose(squared["squared_error"], per_user((scores - y) ** 2))
    np.testing.assert_allclose(squared["test_loss"], np.add(per_user((scores - y) ** 2 / 2), 1.25))

    y = np.array([3, 0, 1], np.float32)
    poisson = Poisson(2, 1.0, 2.0, count_bound=5.0).metrics(x, Block(features, ends, y))
    terms = np.where(y > 0, y * np.log(np.maximum(y, 1) / np.exp(scores)), 0.0)
    np.testing.assert_allclose(poisson["deviance"], per_user(2 * (terms - y + np.exp(scores))))


@pytest.mark.slow
def test_torch_is_imported_on_first_use_only():
    loaded = "'torch' in sys.modules"
    code = f"import sys, userdp.problems as p; assert not {loaded}; p.TorchProblem; assert {loaded}"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = userdp.problems.Nothing
