"""Classes: certificates by brute force, the loss against its definition, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from test_problems_certificates import extreme_block

from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems import Logistic, Softmax
from userdp.problems.registry import PROBLEMS
from userdp.problems.softmax import LEAST_SHARE

SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=2.0, classes=3)


def scores_of(problem, x, block):
    rows = block.features.astype(np.float64)
    rows = np.hstack([rows, np.ones((len(rows), 1))]) if problem.intercept else rows
    return rows @ x.reshape(problem.outputs, -1).T


def test_loss_metrics_and_predictions_are_those_of_their_definitions():
    rng = np.random.default_rng(2)
    problem = Softmax(4, 3, np.inf, np.inf, ridge=0.2, intercept=True)
    block = Block(rng.normal(size=(9, 3)).astype(np.float32), np.array([0, 2, 9]), np.float32(rng.integers(0, 4, 9)))
    x = rng.normal(size=16)
    logs = log_softmax(scores_of(problem, x, block), axis=1)
    losses = -logs[np.arange(9), block.targets.astype(int)]
    np.testing.assert_allclose(problem.sample_losses(x, block), losses + 0.1 * x @ x, rtol=1e-12)
    told = problem.predict(x, block)
    np.testing.assert_array_equal(told["prediction"], logs.argmax(axis=1))
    np.testing.assert_allclose([told[f"probability.{k}"] for k in range(4)], np.exp(logs).T, rtol=1e-12)
    metrics = problem.metrics(x, block)
    right = logs.argmax(axis=1) == block.targets
    np.testing.assert_allclose(metrics["accuracy"], [right[:2].mean(), right[2:].mean()])
    np.testing.assert_allclose(metrics["log_loss"], [losses[:2].mean(), losses[2:].mean()])


def test_two_classes_are_a_logistic_regression_of_the_difference():
    rng = np.random.default_rng(3)
    block = Block(rng.normal(size=(6, 2)).astype(np.float32), np.array([0, 4, 6]), np.float32([0, 1, 1, 0, 1, 0]))
    x = rng.normal(size=4)
    two, one = Softmax(2, 2, np.inf, np.inf), Logistic(2, np.inf, np.inf)
    np.testing.assert_allclose(two.sample_losses(x, block), one.sample_losses(x[2:] - x[:2], block))
    gradients = two.user_gradients(x, block)
    np.testing.assert_allclose(gradients[:, 2:], one.user_gradients(x[2:] - x[:2], block))
    np.testing.assert_allclose(gradients[:, :2], -gradients[:, 2:])


def test_scores_of_any_size_give_finite_losses():
    problem = Softmax(3, 1, np.inf, np.inf)
    block = Block(np.float32([[1.0], [-1.0]]), np.array([0, 1, 2]), np.float32([0, 2]))
    x = np.array([1e4, 0.0, -1e4])
    np.testing.assert_allclose(problem.sample_losses(x, block), [0.0, 0.0])
    np.testing.assert_allclose(problem.user_gradients(x, block), 0.0)


def test_a_target_that_is_none_of_the_classes_sets_its_own_sample_aside():
    targets = np.float32([0, 3, -1, 1.5, np.nan, 2])
    features = np.ones((6, 1), np.float32)
    block, clipped = Softmax(3, 1, np.inf, 1.0).bound(Block(features, np.arange(7), targets))
    assert block.usable.tolist() == [True, False, False, False, False, True]
    assert clipped == 0
    np.testing.assert_array_equal(block.targets, [0, 0, 0, 0, 0, 2])


def test_the_best_constant_model_predicts_the_shares_it_is_given():
    problem = Softmax(3, 2, 3.0, 9.0, intercept=True)
    x = problem.constant_model(np.array([0.7, 0.3, -0.01]))
    block = Block(np.zeros((1, 2), np.float32), np.array([0, 1]), np.zeros(1, np.float32))
    told = [problem.predict(x, block)[f"probability.{k}"][0] for k in range(3)]
    np.testing.assert_allclose(told, np.array([0.7, 0.3, LEAST_SHARE]) / (1 + LEAST_SHARE))
    assert not x.reshape(3, 3)[:, :2].any()
    assert abs(x.sum()) < 1e-12
    assert not Softmax(3, 2, 3.0, 9.0).constant_model(np.ones(3) / 3).any()


@given(st.integers(2, 6), st.integers(0, 999))
def test_curvature_at_the_mean_shares_is_no_less_than_that_on_average(classes, seed):
    shares = np.random.default_rng(seed).dirichlet(np.full(classes, 0.4), 20)
    problem = Softmax(classes, 1, 2.0, 1.0)
    average = np.mean([problem.hessian_at(one) for one in shares], axis=0)
    excess = problem.hessian_at(shares.mean(axis=0)) - average
    assert np.linalg.eigvalsh(excess).min() >= -1e-12
    assert np.linalg.eigvalsh(average).max() <= 0.5
    assert np.linalg.eigvalsh(problem.first_hessian)[-1] == pytest.approx(1 / classes)


def test_the_loss_is_as_steep_as_its_landscape_says_at_most():
    rng = np.random.default_rng(4)
    problem = Softmax(4, 2, 2.0, 1.5, intercept=True)
    block, x, deviation = extreme_block(problem, rng), rng.uniform(-1.5, 1.5, 12), 0.01
    losses = [problem.sample_losses(x + deviation * rng.normal(size=12), block) for _ in range(400)]
    grown = np.mean(losses, axis=0) - problem.sample_losses(x, block)
    assert grown.max() <= problem.landscape.steepness * deviation
    assert problem.sample_losses(np.zeros(12), block).max() <= problem.landscape.start + 1e-12


@pytest.mark.parametrize("classes", [1, 0, True, 2.5])
def test_a_number_of_classes_that_is_none_is_refused(classes):
    with pytest.raises(BadInput, match=r"problem.classes = .*: must be a whole number, two or more"):
        Softmax(classes, 2, 2.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "more", "classes", "told"),
    [
        ("softmax", {}, None, "'softmax' needs to know the classes of the target: set data.target_levels"),
        ("logistic", {}, 3, r"lists 3 classes, and problem.kind = 'logistic' tells two apart: use .*'softmax'"),
        ("squared", {"target_range": [0.0, 1.0]}, 3, "one of 3 classes, and problem.kind = 'squared' needs numbers"),
        ("squared", {}, 2, "one of 2 classes, and problem.kind = 'squared' needs numbers"),
        ("poisson", {"count_bound": 3.0}, 2, "needs numbers: leave data.target_levels out"),
        ("torch", {"loss": "mse"}, 3, "one of 3 classes, and problem.loss = 'mse' needs numbers"),
        ("torch", {"loss": "bce_with_logits"}, 3, "and problem.loss = 'bce_with_logits' tells two apart"),
        ("torch", {"loss": "cross_entropy", "outputs": 2}, 3, "problem.outputs = 2, but data.target_levels lists 3"),
    ],
)
def test_losses_and_targets_that_do_not_fit_are_refused_with_what_to_do(kind, more, classes, told):
    shape = Shape(2, has_target=True, bound=1.0, feature_norm=2.0, classes=classes)
    with pytest.raises(BadInput, match=told):
        PROBLEMS[kind].model_validate({"kind": kind, **more}).build(shape, seed=0)


def test_losses_that_fit_are_made_for_as_many_classes_as_there_are():
    assert PROBLEMS["softmax"].model_validate({"kind": "softmax"}).build(SHAPE, 0).dimension == 9
    two = Shape(2, has_target=True, bound=1.0, feature_norm=2.0, classes=2)
    assert PROBLEMS["logistic"].model_validate({"kind": "logistic"}).build(two, 0).dimension == 3
    torch = PROBLEMS["torch"].model_validate({"kind": "torch", "loss": "cross_entropy"})
    assert torch.build(SHAPE, 0).dimension == 9
