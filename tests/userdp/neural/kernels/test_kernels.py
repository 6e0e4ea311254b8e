"""Every kernel: torch's outputs and gradients, for one user and for many at once, each with weights of its own."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves

from userdp.neural.kernels.layers import LAYERS, own_forward

USERS, WIDTH = 3, 4


class Attends(nn.Module):
    """Attention of a sequence to itself under a mask."""

    def __init__(self, mask, **options):
        super().__init__()
        self.layer, self.mask = nn.MultiheadAttention(WIDTH, 2, **{"batch_first": True} | options), mask

    def forward(self, x):
        mask = self.mask(x.shape[1 if self.layer.batch_first else 0])
        return self.layer(x, x, x, attn_mask=mask, need_weights=False)[0]


def causal(steps):
    return torch.full((steps, steps), -torch.inf).triu(1)


MASKS = {
    "no mask": lambda steps: None,
    "causal": causal,
    "a mask of truth": lambda steps: causal(steps) < 0,
    "a mask of numbers": lambda steps: torch.arange(steps * steps).reshape(steps, steps).cos(),
    "a step that sees nothing": lambda steps: causal(steps).index_fill(0, torch.tensor([steps - 1]), -torch.inf),
}
RECURRENT = {
    "gru": lambda: nn.GRU(WIDTH, 5),
    "lstm": lambda: nn.LSTM(WIDTH, 5),
    "gru of two layers": lambda: nn.GRU(WIDTH, 5, num_layers=2, batch_first=True),
    "lstm of two layers": lambda: nn.LSTM(WIDTH, 5, num_layers=2, batch_first=True),
    "gru without biases": lambda: nn.GRU(WIDTH, 5, bias=False),
    "lstm without biases": lambda: nn.LSTM(WIDTH, 5, bias=False),
}
KERNELS = {
    **{f"attention, {name}": lambda mask=mask: Attends(mask) for name, mask in MASKS.items()},
    "attention without biases": lambda: Attends(causal, bias=False),
    "attention, steps first": lambda: Attends(causal, batch_first=False),
    **RECURRENT,
}


def both(make):
    """A module of torch's layers, and its copy of kernels."""
    torch.manual_seed(0)
    torchs = make().double()
    return torchs, LAYERS["own"](copy.deepcopy(torchs))


def weighed(outputs):
    """One number in which every output counts in its own way, the last states too."""
    total = 0.0
    for each in tree_leaves(outputs):
        total = total + (each * torch.arange(each.numel(), dtype=torch.float64).cos().reshape(each.shape)).sum()
    return total


def of_users(module, leaves, x, *, together):
    """Outputs of each user, and the gradients of its own weights and numbers."""
    wanted = [*leaves.values(), x]

    def called(weights, x):
        return functional_call(module, weights, (x,))

    if together:
        outputs = vmap(called)(leaves, x)
        total = vmap(lambda *of_one: weighed(called(*of_one)))(leaves, x).sum()
    else:
        alone = [called({name: each[user] for name, each in leaves.items()}, x[user]) for user in range(len(x))]
        outputs = [torch.stack(each) for each in zip(*map(tree_leaves, alone), strict=True)]
        total = sum(map(weighed, alone))
    return tree_leaves(outputs), torch.autograd.grad(total, wanted)


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=3, deadline=None)
@given(st.integers(1, 5), st.integers(1, 7))
def test_outputs_and_gradients_are_those_of_torch_for_one_user_and_for_many(name, sequences, steps):
    torchs, ours = both(KERNELS[name])
    x = torch.randn(USERS, sequences, steps, WIDTH, dtype=torch.float64).requires_grad_()
    stacked = {name: torch.randn(USERS, *each.shape).double() for name, each in torchs.named_parameters()}
    leaves = {name: each.requires_grad_() for name, each in stacked.items()}
    expected = of_users(torchs, leaves, x, together=False)
    for together in (False, True):
        torch.testing.assert_close(of_users(ours, leaves, x, together=together), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["attention, causal", "lstm"])
def test_users_who_read_the_same_numbers_have_gradients_of_their_own(name):
    torchs, ours = both(KERNELS[name])
    x = torch.randn(4, 7, WIDTH).double().requires_grad_()
    leaves = {name: torch.randn(2, *each.shape).double().requires_grad_() for name, each in ours.named_parameters()}
    total = vmap(lambda weights: weighed(functional_call(ours, weights, (x,))))(leaves).sum()
    expected = of_users(torchs, leaves, torch.stack([x, x]), together=False)[1]
    found = torch.autograd.grad(total, list(leaves.values()))
    torch.testing.assert_close(found, expected[: len(found)], rtol=1e-9, atol=1e-9)


def test_masks_of_users_own_stay_with_them():
    _, ours = both(lambda: Attends(causal))
    x, masks = torch.randn(3, 4, 5, WIDTH, dtype=torch.float64), torch.randn(3, 5, 5, dtype=torch.float64)

    def attended(x, mask):
        return ours.layer(x, x, x, attn_mask=mask, need_weights=False)[0]

    alone = torch.stack([attended(x[user], masks[user]) for user in range(3)])
    torch.testing.assert_close(vmap(attended)(x, masks), alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_gradients_agree_with_finite_differences(kind):
    _, ours = both(lambda: kind(3, 5))
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in ours.named_parameters()]
    weights = [each.detach().requires_grad_() for each in ours.parameters()]

    def outputs(x, *weights):
        return functional_call(ours, dict(zip(names, weights, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(outputs, (x, *weights))


# What is not known stays torch's --------------------------------------------------------------------------------------


TORCHS = {
    "keys of another width": lambda: nn.MultiheadAttention(6, 2, kdim=3, vdim=3),
    "biases of keys": lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True),
    "a zero to attend to": lambda: nn.MultiheadAttention(6, 2, add_zero_attn=True),
    "an embedding": lambda: nn.Embedding(4, 3),
}
TORCHS_RECURRENCE = {
    "both ways": lambda: nn.LSTM(3, 5, bidirectional=True),
    "a projection": lambda: nn.LSTM(3, 5, proj_size=2),
    "a plain recurrence": lambda: nn.RNN(3, 5),
}


@pytest.mark.parametrize("make", {**TORCHS, **TORCHS_RECURRENCE}.values(), ids={**TORCHS, **TORCHS_RECURRENCE})
def test_other_layers_stay_torchs(make):
    torchs, ours = both(make)
    if isinstance(ours, nn.RNNBase):  # as they are, with a way back on every device
        assert vars(ours)["forward"].func is own_forward
        x = torch.randn(4, 7, 3, dtype=torch.float64)
        torch.testing.assert_close(ours(x)[0], torchs(x)[0])
    else:
        assert "forward" not in vars(ours)


def test_what_attention_does_not_know_is_as_of_torch():
    torchs, ours = both(lambda: nn.MultiheadAttention(6, 2))
    x, other = torch.randn(2, 5, 4, 6, dtype=torch.float64)
    padding = torch.zeros((4, 5), dtype=torch.bool).index_fill(1, torch.tensor([4]), True)
    asked = [((x, x, x), {"need_weights": False}), ((x, other, other), {}), ((x, x, x), {})]
    asked += [
        ((x, x, x), {"need_weights": False, "key_padding_mask": padding}),
        ((x, x, x), {"attn_mask": causal(5).double()}),
    ]
    for given_, named in asked:
        wanted, found = torchs(*given_, **named), ours(*given_, **named)
        torch.testing.assert_close(found[0], wanted[0], rtol=1e-9, atol=1e-9)
        assert (found[1] is None) == (wanted[1] is None)


def test_a_state_to_begin_with_is_torchs_business_and_layers_survive_pickling():
    torchs, ours = both(RECURRENT["gru"])
    x, state = torch.randn(4, 7, WIDTH).double(), torch.randn(1, 7, 5).double()
    torch.testing.assert_close(ours(x, state)[0], torchs(x, state)[0])
    torch.testing.assert_close(pickle.loads(pickle.dumps(ours))(x)[0], torchs(x)[0])
