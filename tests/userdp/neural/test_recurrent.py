"""Recurrent layers with written-out gradients: torch's own outputs and gradients, alone and for many users at once."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from userdp.neural import recurrent
from userdp.neural.devices import own_forward
from userdp.neural.lookups import with_late_lookups
from userdp.neural.recurrent import with_own_recurrence

KINDS = [
    pytest.param(nn.GRU, {}, id="gru"),
    pytest.param(nn.LSTM, {}, id="lstm"),
    pytest.param(nn.GRU, {"num_layers": 2, "batch_first": True}, id="gru of two layers, batches first"),
    pytest.param(nn.LSTM, {"num_layers": 2, "batch_first": True}, id="lstm of two layers, batches first"),
    pytest.param(nn.GRU, {"bias": False}, id="gru without biases"),
    pytest.param(nn.LSTM, {"bias": False}, id="lstm without biases"),
]


@pytest.fixture(autouse=True, params=[1, 4000, 1 << 20], ids=["a step", "a few steps", "all steps"])
def at_hand(request, monkeypatch):
    """Bytes that the way back of an LSTM works on at a time."""
    monkeypatch.setattr(recurrent, "_AT_HAND", request.param)


def both(kind, options):
    torch.manual_seed(0)
    own = kind(3, 5, **options).double()
    return own, with_own_recurrence(copy.deepcopy(own))


def weighed(layer, x):
    """One number in which every output counts, the last states too."""
    outputs, last = layer(x)
    rest = last if isinstance(last, tuple) else (last,)
    total = 0.0
    for each in (outputs, *rest):
        total = total + (each * torch.arange(each.numel(), dtype=torch.float64).cos().reshape(each.shape)).sum()
    return total


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_outputs_and_gradients_are_those_of_torch(kind, options):
    torchs, ours = both(kind, options)
    x = torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True)
    for one, other in zip(
        (torchs(x)[0], *torch.utils._pytree.tree_leaves(torchs(x)[1])),
        (ours(x)[0], *torch.utils._pytree.tree_leaves(ours(x)[1])),
        strict=True,
    ):
        torch.testing.assert_close(other, one)
    expected = torch.autograd.grad(weighed(torchs, x), [x, *torchs.parameters()])
    found = torch.autograd.grad(weighed(ours, x), [x, *ours.parameters()])
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_many_users_at_once_each_have_weights_of_their_own(kind, options):
    torchs, ours = both(kind, options)
    x = torch.randn(2, 4, 7, 3, dtype=torch.float64)
    stacked = {name: torch.randn(2, *each.shape, dtype=torch.float64) for name, each in ours.named_parameters()}
    leaves = {name: each.clone().requires_grad_() for name, each in stacked.items()}
    total = vmap(lambda weights, x: weighed(Called(ours, weights), x))(leaves, x).sum()
    found = torch.autograd.grad(total, list(leaves.values()))
    for user in range(2):
        own = {name: each[user].clone().requires_grad_() for name, each in stacked.items()}
        expected = torch.autograd.grad(weighed(Called(torchs, own), x[user]), list(own.values()))
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other[user], one)


class OfCodes(nn.Module):
    """A layer that reads rows of a table; where last states and outputs are all read."""

    def __init__(self, kind, codes, options):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(codes, 3), kind(3, 5, **options)

    def forward(self, codes):
        outputs, last = self.layer(self.embedding(codes))
        return outputs, last


@pytest.mark.parametrize("codes", [4, 50], ids=["fewer rows than codes", "more rows than codes"])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_rows_of_a_table_are_read_as_by_torch(kind, options, codes):
    torch.manual_seed(0)
    torchs = OfCodes(kind, codes, options).double()
    ours = with_own_recurrence(with_late_lookups(copy.deepcopy(torchs)))
    asked = torch.randint(4, (3, 7, 6))  # users, and sequences and steps in the order that the layer has them
    stacked = {name: torch.randn(3, *each.shape).double() for name, each in torchs.named_parameters()}
    leaves = {name: each.clone().requires_grad_() for name, each in stacked.items()}
    total = vmap(lambda weights, read: weighed(Called(ours, weights), read))(leaves, asked).sum()
    together = torch.autograd.grad(total, list(leaves.values()))
    for user in range(3):
        own = {name: each[user].clone().requires_grad_() for name, each in stacked.items()}
        expected, alone = (
            torch.autograd.grad(weighed(Called(module, own), asked[user]), list(own.values()))
            for module in (torchs, ours)
        )
        for one, other, third in zip(expected, alone, together, strict=True):
            torch.testing.assert_close(other, one)
            torch.testing.assert_close(third[user], one)


def test_users_who_read_the_same_rows_have_gradients_of_their_own():
    torch.manual_seed(0)
    ours = with_own_recurrence(with_late_lookups(OfCodes(nn.LSTM, 4, {"batch_first": True}).double()))
    asked = torch.randint(4, (7, 6))
    stacked = {name: torch.randn(2, *each.shape).double().requires_grad_() for name, each in ours.named_parameters()}
    total = vmap(lambda weights: weighed(Called(ours, weights), asked))(stacked).sum()
    found = torch.autograd.grad(total, list(stacked.values()))
    for user in range(2):
        own = {name: each[user].detach().requires_grad_() for name, each in stacked.items()}
        expected = torch.autograd.grad(weighed(Called(ours, own), asked), list(own.values()))
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other[user], one)


class Called:
    """A layer at weights of one's choice."""

    def __init__(self, layer, weights):
        self.layer, self.weights = layer, weights

    def __call__(self, x):
        return functional_call(self.layer, self.weights, (x,))


def test_gradients_agree_with_finite_differences():
    for kind in (nn.GRU, nn.LSTM):
        _, ours = both(kind, {})
        x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
        weights = tuple(each.detach().requires_grad_() for each in ours.parameters())
        names = [name for name, _ in ours.named_parameters()]

        def outputs(x, *weights, ours=ours, names=names):
            return functional_call(ours, dict(zip(names, weights, strict=True)), (x,))[0]

        assert torch.autograd.gradcheck(outputs, (x, *weights))


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 2}])
def test_what_is_not_known_stays_torchs(options):
    torchs, ours = both(nn.LSTM, options)
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    assert vars(ours)["forward"].func is own_forward
    torch.testing.assert_close(ours(x)[0], torchs(x)[0])


def test_a_state_to_begin_with_is_torchs_business():
    torchs, ours = both(nn.GRU, {})
    x, state = torch.randn(4, 7, 3, dtype=torch.float64), torch.randn(1, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x, state)[0], torchs(x, state)[0])


def test_a_module_with_such_layers_survives_pickling():
    torchs, ours = both(nn.GRU, {})
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    again = pickle.loads(pickle.dumps(ours))
    torch.testing.assert_close(again(x)[0], torchs(x)[0])
