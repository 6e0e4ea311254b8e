"""Torch modules as problems: against the generalised linear model, and what must not leak into a gradient."""

import numpy as np
import pytest
import torch
from problem_cases import binary, classes, real
from torch import nn

from userdp.data.block import Block
from userdp.errors import BadInput, MissingAssumption
from userdp.problems import Logistic, Squared, TorchProblem

SIZES = [3, 1, 40, 7, 2, 2]
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


def linear_module():
    return nn.Linear(4, 1)


def data(targets, seed=0):
    rng = np.random.default_rng(seed)
    samples = OFFSETS[-1]
    return Block(rng.normal(size=(samples, 4)).astype(np.float32), OFFSETS, targets(rng, samples))


@pytest.mark.parametrize(("precision", "tolerance"), [("single", 2e-5), ("double", 1e-11)])
@pytest.mark.parametrize("loss", ["bce_with_logits", "mse"])
def test_a_linear_module_equals_the_generalised_linear_model(loss, precision, tolerance):
    block = data(binary)
    module = TorchProblem(linear_module, loss, 4, precision=precision)
    model, factor = (Logistic, 1) if loss == "bce_with_logits" else (Squared, 2)
    options = {} if model is Logistic else {"low": 0.0, "high": 1.0}
    glm = model(4, 100.0, 10.0, intercept=True, **options)
    x = np.random.default_rng(1).normal(size=5)
    for method in ("user_gradients", "sample_gradients", "sample_losses"):
        expected = factor * getattr(glm, method)(x, block)
        np.testing.assert_allclose(getattr(module, method)(x, block), expected, rtol=tolerance, atol=tolerance)
    clipped = module.sample_clipped_sums(x, block, 0.5 * factor)
    np.testing.assert_allclose(clipped, factor * glm.sample_clipped_sums(x, block, 0.5), rtol=tolerance, atol=tolerance)
    if loss == "bce_with_logits":
        for name in ("test_loss", "accuracy"):
            np.testing.assert_allclose(module.metrics(x, block)[name], glm.metrics(x, block)[name], rtol=tolerance)


def test_initial_parameters_follow_the_seed_and_leave_the_global_stream_alone():
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    first = TorchProblem(linear_module, "mse", 4, seed=1).initial()
    assert torch.equal(torch.rand(3), expected)
    again, other = (TorchProblem(linear_module, "mse", 4, seed=seed).initial() for seed in (1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert first.shape == (5,)


def test_only_trainable_parameters_are_in_the_model():
    def factory():
        module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        module[0].requires_grad_(False)
        return module

    problem = TorchProblem(factory, "mse", 4)
    assert problem.dimension == 4
    assert problem.user_gradients(problem.initial(), data(real)).shape == (6, 4)


def test_a_padded_user_does_not_suffer_from_losses_undefined_at_zero():
    def log_loss(outputs, targets):
        return (outputs.squeeze(-1) - targets.log()) ** 2

    problem = TorchProblem(linear_module, log_loss, 4)
    block = data(lambda rng, samples: rng.uniform(1, 2, samples).astype(np.float32))
    assert np.isfinite(problem.user_gradients(problem.initial(), block)).all()


def test_reconstruction_needs_no_targets():
    problem = TorchProblem(lambda: nn.Linear(4, 4), "mse", 4, has_targets=False, precision="double")
    block = data(real)
    bare = Block(block.features, OFFSETS)
    identity = np.concatenate([np.eye(4).ravel(), np.zeros(4)])
    np.testing.assert_allclose(problem.metrics(identity, bare)["test_loss"], 0.0, atol=1e-14)
    np.testing.assert_allclose(problem.user_gradients(identity, bare), 0.0, atol=1e-14)
    expected = (block.features.astype(float) ** 2).mean(axis=1)
    np.testing.assert_allclose(problem.sample_losses(np.zeros(20), bare), expected)


def test_there_is_no_certificate_and_it_says_why():
    problem = TorchProblem(linear_module, "mse", 4)
    assert len(problem.certificate.missing()) == 4
    assert problem.domain.radius == np.inf
    with pytest.raises(MissingAssumption, match="a torch module has no certificate"):
        problem.certificate.require_contractive("localized_robust_sgd")


def test_targets_are_bounded_by_what_the_loss_takes():
    block = data(real)
    bounded, changed = TorchProblem(linear_module, "bce_with_logits", 4).bound(block)
    assert changed == int(((block.targets < 0) | (block.targets > 1)).sum()) > 0
    np.testing.assert_array_equal(bounded.targets, np.clip(block.targets, 0, 1))
    assert TorchProblem(linear_module, "mse", 4).bound(block) == (block, 0)
    problem = TorchProblem(lambda: nn.Linear(4, 3), "cross_entropy", 4)
    good = data(classes)
    assert problem.bound(good) == (good, 0)
    targets = good.targets.copy()
    targets[:3] = [3.0, -1.0, 0.5]
    bounded, changed = problem.bound(Block(good.features, OFFSETS, targets))
    assert changed == 0
    np.testing.assert_array_equal(bounded.usable, np.arange(good.samples) >= 3)
    np.testing.assert_array_equal(bounded.targets[:3], 0)


def summed(outputs, targets):
    return (outputs.squeeze(-1) - targets).sum()


BAD_PROBLEMS = {
    r"problem\.precision = 'half'": lambda: TorchProblem(linear_module, "mse", 4, precision="half"),
    r"problem\.kernels = 'mine': must be 'own' or 'torch'": lambda: TorchProblem(
        linear_module, "mse", 4, kernels="mine"
    ),
    r"problem\.loss = 'hinge' is unknown; there are bce_with_logits": lambda: TorchProblem(linear_module, "hinge", 4),
    r"problem\.loss = 'cross_entropy' needs targets": lambda: TorchProblem(
        linear_module, "cross_entropy", 4, has_targets=False
    ),
    r"problem\.module has no trainable parameter": lambda: TorchProblem(nn.Flatten, "mse", 4),
    r"problem\.module does not fit 5 columns and mse": lambda: TorchProblem(linear_module, "mse", 5),
    r"problem\.module does not fit 4 columns and bce_with_logits": lambda: TorchProblem(
        lambda: nn.Linear(4, 2), "bce_with_logits", 4
    ),
    r"problem\.loss gives shape \(\) for 2 samples": lambda: TorchProblem(linear_module, summed, 4),
}


@pytest.mark.parametrize(("message", "make"), BAD_PROBLEMS.items(), ids=BAD_PROBLEMS.keys())
def test_a_module_that_cannot_work_is_refused_at_once(message, make):
    with pytest.raises(BadInput, match=message):
        make()
