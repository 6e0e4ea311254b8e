"""Gradients of many users: the same one after the other, several at once and in pieces, whatever the module."""

import pickle

import numpy as np
import pytest
import torch
from neural_cases import Reader, case, rows, windows
from torch import nn

from userdp.errors import BadInput
from userdp.neural.devices import computing
from userdp.neural.kernels.layers import own_forward
from userdp.neural.model import Model
from userdp.neural.tuner import MEBIBYTE, Choice, Tuner
from userdp.nodes.local_training import LocalTraining


@pytest.mark.parametrize("execution", ["loop", "grouped"])
@pytest.mark.parametrize("name", ["gru", "convolution"])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_samples_than_a_piece_may_hold_are_computed_or_held_at_once(name, execution, most, monkeypatch):
    problem, block = case(name, execution=execution)
    asked, kind = [], type(problem.engine.model.samples)
    tensors = kind.tensors
    problem.user_gradients(problem.initial(), block)  # a new copy computes made-up samples first
    monkeypatch.setattr(Tuner, "most_samples", most)
    monkeypatch.setattr(kind, "tensors", lambda self, *given: asked.append(given[1].size) or tensors(self, *given))
    problem.user_gradients(problem.initial(), block)
    problem.local_updates(problem.initial(), block, LocalTraining(step_size=0.1, batch_size=2))
    assert 0 < max(asked) <= most


@pytest.mark.parametrize("kernels", ["own", "torch"])
@pytest.mark.parametrize("own_layers", [False, True])
def test_kernels_compute_where_they_are_asked_for_and_nowhere_else(kernels, own_layers):
    model = case("gru", kernels=kernels)[0].engine.model
    model.begin(None, own_layers=own_layers)
    computes = vars(model.copy_in_use.module.layer)["forward"].func
    assert (computes is not own_forward) == (own_layers and kernels == "own")


def test_a_piece_holds_as_many_samples_as_memory_does():
    wide, _ = case("perceptron", module=lambda: nn.Sequential(nn.Linear(16, 500), nn.Tanh(), nn.Linear(500, 3)))
    kept = wide.engine.model.original.bytes_of_a_sample()
    assert kept >= 500 * 8  # what tanh keeps of a sample
    assert case("perceptron")[0].engine.model.original.bytes_of_a_sample() < kept / 10
    assert wide.engine.tuner.most_samples == 256 * MEBIBYTE // kept


@pytest.mark.parametrize(("name", "kernels"), [("rnn", "own"), ("rnn", "torch"), ("gru", "torch"), ("lstm", "torch")])
def test_a_module_without_a_rule_for_many_users_is_computed_one_by_one(name, kernels):
    problem, block = case(name, execution="auto", kernels=kernels)
    expected = case(name, execution="loop")[0].user_gradients(problem.initial(), block)
    np.testing.assert_allclose(problem.user_gradients(problem.initial(), block), expected, rtol=1e-9, atol=1e-13)
    assert not problem.choice.grouped
    told = "" if kernels == "own" else r", or problem\.kernels = 'own', which can do so for nn\.GRU and nn\.LSTM"
    with pytest.raises(BadInput, match=rf"execution = 'grouped': .* several users .*; use 'auto' or 'loop'{told}$"):
        case(name, execution="grouped", kernels=kernels)


def test_the_measurement_sees_made_up_users_alone_and_is_made_once(monkeypatch):
    seen, problem, measuring = [], case("gru", execution="auto")[0], [False]
    settle, gradients = Tuner.settle, Model.gradients

    def watched(self, *given):
        measuring[0] = True
        settle(self, *given)
        measuring[0] = False

    def noted(self, models, held, own, *others):
        if measuring[0]:
            seen.append(np.unique(held.at(own)[1]))
        return gradients(self, models, held, own, *others)

    monkeypatch.setattr(Tuner, "settle", watched)
    monkeypatch.setattr(Model, "gradients", noted)
    assert problem.computed() == {}
    problem.user_gradients(problem.initial(), windows())
    assert seen
    assert {tuple(each) for each in seen} == {(3,)}  # the last code, whatever users hold
    calls, choice = len(seen), problem.choice
    problem.user_gradients(problem.initial(), windows(seed=2))
    assert (len(seen), problem.choice) == (calls, choice)
    assert problem.computed()["seconds_a_sample"] == choice.seconds > 0


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
    monkeypatch.setattr(Tuner, "_measured", None)
    for execution, grouped in (("loop", False), ("grouped", True)):
        problem, block = case("gru", execution=execution)
        problem.user_gradients(problem.initial(), block)
        assert problem.computed() == {"grouped": grouped, "samples": 512, "own_layers": grouped}


def test_torch_has_as_many_threads_afterwards_and_one_within(monkeypatch):
    before, within = torch.get_num_threads(), set()
    gradients = Model.gradients

    def noted(self, *given):
        within.add(torch.get_num_threads())
        return gradients(self, *given)

    monkeypatch.setattr(Model, "gradients", noted)
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


def test_single_precision_is_close_to_double():
    for name in ("gru", "perceptron"):
        double, block = case(name, execution="loop")
        single, _ = case(name, execution="loop", precision="single")
        x = double.initial()
        np.testing.assert_allclose(single.user_gradients(x, block), double.user_gradients(x, block), atol=1e-5)
    assert rows().features.dtype == np.float32


class Strange(Reader):
    """A module that takes a second derivative of its layer, which kernels do not give."""

    def __init__(self):
        super().__init__(nn.GRU(3, 6, batch_first=True))

    def forward(self, codes):
        with torch.enable_grad():
            rows = self.embedding(codes).detach().requires_grad_()
            found = self.layer(rows)[0]
            slopes = torch.autograd.grad(found[:, 0].square().sum(), rows, create_graph=True)[0]
        return self.scores(found) * slopes[:, :1].sum(-1, keepdim=True).exp()


def test_own_layers_that_give_other_gradients_are_left_aside():
    loop, block = case("gru", module=Strange, execution="loop")
    own, _ = case("gru", module=Strange)
    own.engine.tuner.choice = Choice(grouped=False, samples=1, own_layers=True, seconds=0.0)
    x = loop.initial()
    np.testing.assert_array_equal(own.user_gradients(x, block), loop.user_gradients(x, block))
