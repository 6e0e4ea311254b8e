"""Within a fixed order a module's rows and losses have the same bits alone and in any company."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from neural_cases import EVERY, case
from torch import nn

from userdp.arrays.fixed_order import fixed_order
from userdp.data.block import Block
from userdp.neural.losses import predictions
from userdp.neural.tuner import Choice
from userdp.nodes.local_training import LocalTraining

COMPANIES = int(os.environ.get("USERDP_COMPANIES", "300"))
WAYS = {"one by one": Choice(False, 1, True, 0.0), "together": Choice(True, 512, True, 0.0)}
TRAINING = LocalTraining(0.1, epochs=2, batch_size=3, optimiser=2, proximal=0.1, weight_decay=0.01, schedule=2, key=5)


class Sines(nn.Module):
    """An operation that computes several numbers by a branch that the largest one chooses."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(16, 3)

    def forward(self, x):
        return self.scores(torch.sin(x))


class Summed(nn.Module):
    """A product whose sums take other samples times zero: rounding would depend on the largest of them."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(16, 3)

    def forward(self, x):
        return torch.eye(len(x)) @ self.scores(x)


def company(block, seed):
    """Return some users of a block, each with some of its samples, a few of them large or small."""
    rng = np.random.default_rng(seed)
    kept = rng.permutation(block.samples)[: rng.integers(2, block.samples + 1)]
    rows = np.concatenate([np.sort(kept), np.sort(kept)])
    features = block.features[rows]
    if features.dtype == np.float32:
        features = features * rng.choice([1, 1, 1e-3, 1e4], (len(rows), 1)).astype(np.float32)
    ends = np.sort(rng.choice(np.arange(1, len(rows)), min(int(rng.integers(1, 9)), len(rows) - 1), replace=False))
    return Block(features, np.array([0, *ends, len(rows)]), None if block.targets is None else block.targets[rows])


def computed(problem, block):
    x = problem.initial() * 1.1 + 0.01
    losses = problem.sample_losses(x, block)
    by_user = [losses[first:last] for first, last in zip(block.offsets, block.offsets[1:], strict=False)]
    updates = (problem.local_updates(x, block, each) for each in (TRAINING, replace(TRAINING, steps=3)))
    return problem.user_gradients(x, block), *updates, by_user


def compared(name, way, seeds):
    """Compare every user alone and among half of the others with everybody together; return the comparisons."""
    problem, block = case(name, precision="single")
    count = 0
    with fixed_order(wanted=True):
        problem.engine.tuner.choice = WAYS[way]
        for seed in seeds:
            users = company(block, seed)
            found, half = computed(problem, users), (users.users + 1) // 2
            some = computed(problem, users.part(users.users - half, users.users))
            for user in range(users.users):
                alone = computed(problem, users.part(user, user + 1))
                for one, other in zip(alone, found, strict=True):
                    np.testing.assert_array_equal(one[0], other[user])
                for one, other in zip(some, found, strict=True) if user >= users.users - half else ():
                    np.testing.assert_array_equal(one[user - users.users + half], other[user])
                count += 1
            with fixed_order(wanted=False):
                plain = problem.user_gradients(problem.initial() * 1.1 + 0.01, users)
            np.testing.assert_allclose(found[0], plain, rtol=1e-3, atol=1e-4 * (np.abs(plain).max() + 1))
    return count


TRIED = [(name, way) for name in EVERY for way in WAYS if (name, way) != ("rnn", "together")]


@pytest.mark.parametrize(("name", "way"), TRIED)
def test_a_users_rows_have_the_same_bits_alone_and_in_any_company(name, way):
    assert compared(name, way, range(2)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), TRIED)
def test_they_have_in_many_companies(name, way):
    assert compared(name, way, range(100, 100 + COMPANIES)) > 3 * COMPANIES


def test_modules_share_calls_if_a_trial_shows_that_they_may():
    for name in EVERY:
        problem, _ = case(name, precision="single")
        with fixed_order(wanted=True):
            assert problem.engine.tuner.together == (name != "rnn"), name
        assert problem.engine.model.original.predicts_exactly == (name != "lstm"), name
    for problem, _ in (case("perceptron", precision="double"), case("perceptron", Sines, precision="single")):
        assert problem.engine.tuner.together
        with fixed_order(wanted=True):
            assert not problem.engine.tuner.together
        assert not problem.engine.model.original.predicts_exactly
    problem, _ = case("perceptron", Summed, precision="single")
    assert not problem.engine.model.original.in_evaluation.apart
    assert not problem.engine.model.original.predicts_exactly


def test_on_a_gpu_users_share_no_call_in_a_fixed_order():
    problem, _ = case("perceptron", precision="single")
    problem.use_device("cuda")
    with fixed_order(wanted=True):
        assert not problem.engine.tuner.together


def test_a_users_probabilities_have_the_same_bits_alone():
    scores = 3 * torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    with fixed_order(wanted=True):
        together = predictions("bce_with_logits", scores)["probability"]
        alone = [predictions("bce_with_logits", part)["probability"] for part in scores.split(5)]
    assert torch.cat(alone).equal(together)


def test_a_user_is_padded_as_its_samples_alone_say(monkeypatch):
    problem, block = case("perceptron", precision="single")
    seen, model = [], problem.engine.model
    gradients = model.gradients
    monkeypatch.setattr(model, "gradients", lambda *given: seen.append(given[2].shape) or gradients(*given))
    with fixed_order(wanted=True):
        problem.engine.tuner.choice = WAYS["together"]
        problem.user_gradients(problem.initial(), block)
    assert sorted(seen) == [(1, 1), (1, 8), (1, 16), (2, 2), (2, 4)]
