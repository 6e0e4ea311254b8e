"""A user's row is what plain torch makes of that user's samples alone, whatever the module, the way and the others."""

import pickle
from functools import cache

import numpy as np
import pytest
import torch
from neural_cases import EVERY, case
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from userdp.data.block import Block
from userdp.neural.losses import LOSSES
from userdp.neural.tuner import Choice, Tuner
from userdp.nodes.local_training import LocalTraining

ALONE = {"rnn": {"own", "torch"}, "gru": {"torch"}, "lstm": {"torch"}}
"""Modules that torch computes for one user at a time, by the kernels that do not help."""
WAYS = {
    "loop": (Choice(grouped=False, samples=1, own_layers=False), 100),
    "loop by kernels, in pieces": (Choice(grouped=False, samples=1, own_layers=True), 1),
    "all together": (Choice(grouped=True, samples=512, own_layers=True), 100),
    "small groups, in pieces": (Choice(grouped=True, samples=512, own_layers=True), 5),
}
"""The ways to compute gradients, and the samples that a piece may hold."""
EVERY_WAY = [
    (name, kernels, way)
    for name in EVERY
    for kernels in ("own", "torch")
    for way, (choice, _) in WAYS.items()
    if (kernels == "own" or way.endswith("in pieces")) and not (choice.grouped and kernels in ALONE.get(name, ()))
]
TRAININGS = {
    "local training": LocalTraining.of("sgd", "linear", step_size=0.3, steps=3),
    "local training on minibatches": LocalTraining(step_size=0.1, epochs=2, batch_size=2, key=5),
}
POISONED = 4
"""A user who shares a call with others, behind one who is padded."""


def gradient(module, samples, x, block):
    vector_to_parameters(torch.as_tensor(x), module.parameters())
    inputs, targets = samples.tensors(block, np.arange(block.samples))
    losses = samples.losses(LOSSES["cross_entropy"], module(inputs), targets)
    found = parameters_to_vector(torch.autograd.grad(losses.mean(), list(module.parameters())))
    return found.numpy(), losses.detach().numpy()


def update(module, samples, x, block, training):
    """Gradient steps, one after the other."""
    model, sizes = x, np.array([block.samples])
    steps = training.steps_of(sizes)
    for step in range(steps[0]):
        own, weights = training.batch(step, sizes)
        drawn = block.gathered(own[weights > 0], np.array([0, (weights > 0).sum()]))
        model = model - training.rates(step, steps)[0] * gradient(module, samples, model, drawn)[0]
    return model - x


@cache
def plain_rows(name):
    """Models of users, their block, and their rows by the module as its factory made it, one user at a time."""
    problem, block = case(name, execution="loop")
    module = pickle.loads(pickle.dumps(problem.engine.model.original.module)).requires_grad_(True)
    x = problem.initial()
    models = x + 0.1 * np.random.default_rng(0).normal(size=(block.users, len(x)))
    given = module, problem.engine.model.samples
    users = [block.part(user, user + 1) for user in range(block.users)]
    samples = [block.gathered(np.array([row]), np.array([0, 1])) for row in range(block.samples)]
    rows = {
        "gradients": [gradient(*given, *of_user)[0] for of_user in zip(models, users, strict=True)],
        "gradients of samples": [gradient(*given, x, sample)[0] for sample in samples],
        "losses": np.concatenate([gradient(*given, x, user)[1] for user in users]),
    }
    rows |= {name: [update(*given, x, user, training) for user in users] for name, training in TRAININGS.items()}
    return models, block, {name: np.array(each) for name, each in rows.items()}


def rows_of(problem, models, block):
    """The rows that users may be asked for, by name."""
    x = problem.initial()
    updates = {name: problem.local_updates(x, block, training) for name, training in TRAININGS.items()}
    return updates | {
        "gradients": problem.user_gradients_at(models, block),
        "gradients of samples": problem.sample_gradients(x, block),
        "losses": problem.sample_losses(x, block),
    }


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize(("name", "kernels", "way"), EVERY_WAY)
def test_rows_are_those_of_plain_torch_and_a_user_without_numbers_spoils_its_own_alone(name, kernels, way, monkeypatch):
    models, block, expected = plain_rows(name)
    choice, most = WAYS[way]
    problem, _ = case(name, kernels=kernels)
    problem.engine.tuner.choice = Choice(choice.grouped, choice.samples, choice.own_layers, seconds=0.0)
    monkeypatch.setattr(Tuner, "most_samples", most)
    for asked, rows in rows_of(problem, models, block).items():
        np.testing.assert_allclose(rows, expected[asked], rtol=1e-7, atol=1e-11, err_msg=asked)
    others = np.arange(block.users) != POISONED
    spoilt = np.where(others[:, None], models, np.nan)
    rows = {"gradients": problem.user_gradients_at(spoilt, block)}
    if np.issubdtype(block.features.dtype, np.floating):
        features = np.where(np.repeat(others, block.sizes)[:, None], block.features, np.float32(np.nan))
        rows |= rows_of(problem, models, Block(features, block.offsets, block.targets))
    for asked, found in rows.items():
        own = np.repeat(others, block.sizes) if len(found) == block.samples else others
        np.testing.assert_allclose(found[own], expected[asked][own], rtol=1e-7, atol=1e-11, err_msg=asked)
        assert not np.isfinite(found[~own]).all(axis=tuple(range(1, found.ndim))).any(), asked
