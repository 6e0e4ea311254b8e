"""Gradients of many users: the same one after the other, several at once and in pieces, whatever the module."""

import pickle
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neural_cases import EVERY, LEVELS, READERS, SIZES, STEPS, case, perceptron, rows, windows
from torch import nn

from userdp.data.block import Block
from userdp.neural.devices import computing
from userdp.neural.engine import MEBIBYTE, Choice, Engine
from userdp.neural.losses import LOSSES
from userdp.neural.samples import Windows
from userdp.problems import TorchProblem

GROUPS = Choice(grouped=True, samples=512, own_layers=True)


def engine(name="gru", **options):
    module = READERS[name]()
    return Engine(module, LOSSES["cross_entropy"], Windows(STEPS, (4,), "cross_entropy"), torch.float64, **options)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "rnn"])
def test_several_users_at_once_have_the_gradients_of_each_alone(name):
    loop, block = case(name, execution="loop")
    grouped, _ = case(name, execution="grouped")
    models = loop.initial() + 0.1 * np.random.default_rng(0).normal(size=(block.users, loop.dimension))
    expected = loop.user_gradients_at(models, block)
    np.testing.assert_allclose(grouped.user_gradients_at(models, block), expected, rtol=1e-8, atol=1e-12)
    assert np.linalg.norm(expected, axis=1).min() > 0
    assert next(iter(grouped._engine.groups(SIZES))).size > 1
    same = grouped.user_gradients(models[0], block)
    np.testing.assert_allclose(same, loop.user_gradients(models[0], block), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_those_of_the_plain_module(name):
    problem, block = case(name, execution="loop")
    reference = pickle.loads(pickle.dumps(problem._engine._module)).requires_grad_(True)
    for user, row in enumerate(problem.user_gradients(problem.initial(), block)):
        part = block.part(user, user + 1)
        inputs, targets = problem._samples.tensors(part, np.arange(part.samples))
        losses = problem._samples.losses(LOSSES["cross_entropy"], reference(inputs), targets)
        expected = torch.autograd.grad(losses.mean(), list(reference.parameters()))
        flat = torch.cat([each.reshape(-1) for each in expected])
        np.testing.assert_allclose(row, flat.numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["gru", "convolution"])
@pytest.mark.parametrize("held", [1, 2, 5])
def test_pieces_of_a_user_add_up(name, held, monkeypatch):
    problem, block = case(name, execution="grouped")
    x = problem.initial()
    whole = problem.user_gradients(x, block)
    asked = []
    tensors = type(problem._samples).tensors
    monkeypatch.setattr(Engine, "most_samples", held)
    monkeypatch.setattr(
        type(problem._samples), "tensors", lambda self, *given: asked.append(given[1].size) or tensors(self, *given)
    )
    np.testing.assert_allclose(problem.user_gradients(x, block), whole, rtol=1e-9, atol=1e-13)
    assert max(asked) <= held


def test_a_piece_holds_as_many_samples_as_memory_does():
    made = engine(memory=1)
    assert made.most_samples == MEBIBYTE // made._bytes
    wide = TorchProblem(lambda: nn.Sequential(nn.Linear(16, 500), nn.Tanh(), nn.Linear(500, 3)), "cross_entropy", 16)
    assert wide._engine._bytes >= 500 * 4  # what tanh keeps of a sample
    assert TorchProblem(perceptron, "cross_entropy", 16)._engine._bytes < wide._engine._bytes / 10


@settings(max_examples=60)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 700))
def test_groups_hold_everybody_once_alike_and_within_bounds(sizes, samples):
    made, sizes = engine(), np.array(sizes)
    made.choice = Choice(grouped=True, samples=samples, own_layers=True)
    groups = list(made.groups(sizes))
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    for group in groups:
        own = sizes[group]
        assert own.max() <= 2 * own.min()
        assert len(group) == 1 or own.max() * len(group) <= samples


def test_a_module_without_a_rule_for_many_users_is_computed_one_by_one():
    problem, block = case("rnn", execution="auto")
    expected = case("rnn", execution="loop")[0].user_gradients(problem.initial(), block)
    np.testing.assert_allclose(problem.user_gradients(problem.initial(), block), expected, rtol=1e-9, atol=1e-13)
    assert not problem.choice.grouped
    grouped, _ = case("rnn", execution="grouped")
    with pytest.raises(RuntimeError):
        grouped.user_gradients(problem.initial(), block)


def test_the_measurement_sees_made_up_users_alone_and_is_made_once(monkeypatch):
    seen, problem = [], case("gru", execution="auto")[0]
    measured, gradients = Engine._measured, Engine.gradients
    measuring = [False]

    def watched(self, way):
        measuring[0] = True
        found = measured(self, way)
        measuring[0] = False
        return found

    def noted(self, models, held, own, weights):
        if measuring[0]:
            seen.append(np.unique(held.at(own)[1]))
        return gradients(self, models, held, own, weights)

    monkeypatch.setattr(Engine, "_measured", watched)
    monkeypatch.setattr(Engine, "gradients", noted)
    assert problem.computed() == {}
    problem.user_gradients(problem.initial(), windows())
    assert seen
    assert {tuple(each) for each in seen} == {(3,)}  # the last code, whatever users hold
    calls, choice = len(seen), problem.choice
    problem.user_gradients(problem.initial(), windows(seed=2))
    assert (len(seen), problem.choice) == (calls, choice)
    assert problem.computed()["seconds_a_sample"] == choice.seconds > 0


def test_the_choice_depends_on_nobody_who_is_asked(monkeypatch):
    """The same measured times give the same choice, whoever's gradients are asked for first."""
    speed = {True: 1.0, False: 2.0}
    monkeypatch.setattr(
        Engine,
        "_measured",
        lambda self, way: Choice(way.grouped, way.samples, way.own_layers, speed[way.grouped] / way.samples),
    )
    found = set()
    for sizes in ([1], [40, 40], [500]):
        problem = case("gru", execution="auto")[0]
        problem.user_gradients(problem.initial(), windows(sizes=sizes))
        found.add(astuple(problem.choice))
    assert found == {(True, 4096, True, 1.0 / 4096)}


def test_copies_in_other_processes_compute_as_the_first():
    problem, block = case("gru", execution="auto")
    text = pickle.dumps(problem)
    copies = [pickle.loads(text) for _ in range(2)]
    assert problem.choice.seconds is not None
    x = problem.initial()
    expected = problem.user_gradients(x, block)
    for copy in copies:
        assert copy.choice == problem.choice
        np.testing.assert_array_equal(copy.user_gradients(x, block), expected)


def test_a_way_that_was_asked_for_is_not_measured(monkeypatch):
    monkeypatch.setattr(Engine, "_measured", None)
    for execution, grouped in (("loop", False), ("grouped", True)):
        problem, block = case("gru", execution=execution)
        problem.user_gradients(problem.initial(), block)
        assert problem.computed() == {"grouped": grouped, "samples": 512, "own_layers": grouped}


def test_torch_has_as_many_threads_afterwards_and_one_within(monkeypatch):
    before, within = torch.get_num_threads(), set()
    gradients = Engine.gradients

    def noted(self, *given):
        within.add(torch.get_num_threads())
        return gradients(self, *given)

    monkeypatch.setattr(Engine, "gradients", noted)
    try:
        torch.set_num_threads(2)
        problem, block = case("perceptron", execution="loop")
        problem.user_gradients(problem.initial(), block)
        problem.metrics(problem.initial(), block)
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="dimensions"):
            problem.user_gradients(np.zeros((2, 2, 2)), block)
        with pytest.raises(RuntimeError), computing(torch.device("cpu")):
            torch.zeros(2) @ torch.zeros(3)
        assert torch.get_num_threads() == 2
        assert torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.set_num_threads(before)
    assert within == {1}


def test_what_others_hold_moves_no_users_gradient():
    problem, block = case("gru", execution="grouped")
    x, features = problem.initial(), block.features.copy()
    features[4:13] = windows(seed=9, sizes=[9]).features
    rows_before = problem.user_gradients(x, block)
    rows_after = problem.user_gradients(x, Block(features, block.offsets))
    others = np.arange(block.users) != 2
    np.testing.assert_array_equal(rows_after[others], rows_before[others])
    assert not np.array_equal(rows_after[2], rows_before[2])


def test_single_precision_is_close_to_double():
    for name in ("gru", "perceptron"):
        double, block = case(name, execution="loop")
        single, _ = case(name, execution="loop", precision="single")
        x = double.initial()
        np.testing.assert_allclose(single.user_gradients(x, block), double.user_gradients(x, block), atol=1e-5)
    assert rows().features.dtype == np.float32


class Beside(torch.autograd.Function):
    """Somebody's own function, by which rows that are not looked up yet lose their way back to the table."""

    @staticmethod
    def forward(ctx, rows):
        return rows + 0.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Strange(nn.Module):
    """An embedding that is read by `Beside`."""

    def __init__(self):
        super().__init__()
        self.embedding, self.scores = nn.Embedding(LEVELS + 1, 3), nn.Linear(3, LEVELS)

    def forward(self, codes):
        return self.scores(Beside.apply(self.embedding(codes)))


def test_own_layers_that_give_other_gradients_are_left_aside():
    made = Engine(Strange(), LOSSES["cross_entropy"], Windows(STEPS, (LEVELS,), "cross_entropy"), torch.float64)
    assert made._place.own is made._place.plain
    usual = engine("gru")
    assert usual._place.own is not usual._place.plain
