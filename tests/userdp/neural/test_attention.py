"""Attention with a written-out gradient: torch's outputs and gradients, alone and for many users at once."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap

from userdp.neural.attention import _forward, with_own_attention


class Layer(nn.Module):
    """Attention of a sequence to itself under a mask."""

    def __init__(self, heads, width, mask=None, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.mask = nn.MultiheadAttention(heads * width, heads, batch_first=True, **options), mask

    def forward(self, x):
        return self.layer(x, x, x, attn_mask=self.mask, need_weights=False)[0]


def both(*arguments, **options):
    torchs = Layer(*arguments, **options).double()
    return torchs, with_own_attention(copy.deepcopy(torchs))


def gradients(module, x):
    return torch.autograd.grad(module(x).sin().sum(), [x, *module.parameters()])


def causal(steps):
    return torch.full((steps, steps), -torch.inf).triu(1)


MASKS = {
    "none": lambda steps: None,
    "causal": causal,
    "of truth": lambda steps: causal(steps) < 0,
    "of numbers": lambda steps: torch.arange(steps * steps).reshape(steps, steps).cos(),
    "a step that sees nothing": lambda steps: causal(steps).index_fill(0, torch.tensor([steps - 1]), -torch.inf),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("options", [{}, {"bias": False}])
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(2, 6))
def test_outputs_and_gradients_are_those_of_torch(mask, options, heads, width, sequences, steps):
    torchs, ours = both(heads, width, mask(steps), **options)
    x = torch.randn(sequences, steps, heads * width).double().requires_grad_()
    torch.testing.assert_close(ours(x), torchs(x), rtol=1e-9, atol=1e-9)
    for one, other in zip(gradients(torchs, x), gradients(ours, x), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_many_users_at_once_each_have_weights_of_their_own(mask):
    torchs, ours = both(2, 3, MASKS[mask](5))
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    leaves = {name: torch.randn(3, *each.shape).double().requires_grad_() for name, each in ours.named_parameters()}
    found = vmap(lambda own, x: functional_call(ours, own, (x,)))(leaves, x)
    for user in range(3):
        expected = functional_call(torchs, {name: each[user] for name, each in leaves.items()}, (x[user],))
        torch.testing.assert_close(found[user], expected, rtol=1e-9, atol=1e-9)
        wanted = torch.autograd.grad(expected.sin().sum(), list(leaves.values()), retain_graph=True)
        got = torch.autograd.grad(found[user].sin().sum(), list(leaves.values()), retain_graph=True)
        for one, other in zip(wanted, got, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)


def test_masks_of_users_own_stay_with_them():
    _, ours = both(2, 3)
    x, masks = torch.randn(3, 4, 5, 6, dtype=torch.float64), torch.randn(3, 5, 5, dtype=torch.float64)

    def attended(x, mask):
        return _forward(ours.layer, x, x, x, attn_mask=mask, need_weights=False)[0]

    found = vmap(attended)(x, masks)
    for user in range(3):
        torch.testing.assert_close(found[user], attended(x[user], masks[user]), rtol=1e-9, atol=1e-9)


def test_steps_first_and_what_is_not_known_are_as_of_torch():
    torch.manual_seed(0)
    torchs = nn.MultiheadAttention(6, 2).double()
    ours = with_own_attention(copy.deepcopy(torchs))
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


@pytest.mark.parametrize("options", [{"kdim": 3, "vdim": 3}, {"add_bias_kv": True}, {"add_zero_attn": True}])
def test_other_layers_stay_torchs(options):
    assert "forward" not in vars(with_own_attention(nn.MultiheadAttention(6, 2, **options)))
