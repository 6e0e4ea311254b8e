"""Embeddings that look up late: torch's outputs and gradients, whatever reads the rows."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from userdp.neural.lookups import Looked, with_late_lookups


class Reads(nn.Module):
    """An embedding, and somebody's function of its rows, a matrix and places."""

    def __init__(self, read, codes=4, width=3, outputs=5, steps=6):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.linear = nn.Embedding(codes, width), nn.Linear(width, outputs)
        self.places, self.read = nn.Parameter(torch.randn(steps, width)), read

    def forward(self, codes):
        return self.read(self, self.embedding(codes))


READS = {
    "a matrix": lambda own, rows: own.linear(rows),
    "a matrix without bias": lambda own, rows: functional.linear(rows, own.linear.weight),
    "a matrix by name": lambda own, rows: functional.linear(rows, weight=own.linear.weight),
    "a matrix twice": lambda own, rows: own.linear(rows) * functional.linear(rows, own.linear.weight),
    "step by step": lambda own, rows: torch.stack([own.linear(rows[:, k]) for k in range(rows.shape[1])]),
    "some steps": lambda own, rows: own.linear(rows[1:, -3:]),
    "one number of each": lambda own, rows: rows[:, :, 1] + rows[..., 2],
    "by a mask": lambda own, rows: own.linear(rows[rows[..., 0] > 0]),
    "turned": lambda own, rows: own.linear(rows.transpose(0, 1)),
    "turned from the end": lambda own, rows: own.linear(rows.transpose(-2, -3)),
    "mixed up": lambda own, rows: own.linear(rows.transpose(1, 2).transpose(1, 2)),
    "places": lambda own, rows: own.linear(rows + own.places),
    "places, and beside": lambda own, rows: own.linear(rows + own.places).sum() + (rows + own.places).sin().sum(),
    "places twice": lambda own, rows: own.linear(rows + own.places + own.places),
    "places of some steps": lambda own, rows: own.linear((rows + own.places)[:, 1:]),
    "places, turned": lambda own, rows: own.linear((rows + own.places).transpose(0, 1)),
    "rows added": lambda own, rows: own.linear(rows + rows),
    "a number added": lambda own, rows: own.linear(rows + 2.0),
    "places weighed": lambda own, rows: own.linear(torch.add(rows, own.places, alpha=2.0)),
    "one place for all": lambda own, rows: own.linear(rows + own.places[0]),
    "other ways": lambda own, rows: rows.flatten(1).tanh() @ rows.new_ones(rows[0].numel(), 2),
    "in a list": lambda own, rows: own.linear(torch.cat([rows, rows], -2)),
}


def gradients(module, codes):
    outputs = module(codes)
    weighed = (outputs * torch.arange(outputs.numel(), dtype=outputs.dtype).cos().reshape(outputs.shape)).sum()
    return torch.autograd.grad(weighed, list(module.parameters()), allow_unused=True)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("codes", [4, 500], ids=["fewer rows than codes", "more rows than codes"])
def test_outputs_and_gradients_are_those_of_torch(read, codes):
    torchs = Reads(read, codes).double()
    ours = with_late_lookups(copy.deepcopy(torchs))
    asked = torch.randint(4, (7, 6), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(asked), torchs(asked), rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(torchs, asked), gradients(ours, asked), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))
def test_any_shape_and_many_users_at_once(sequences, steps, width, codes, users):
    def read(own, rows):
        placed = own.linear(rows + own.places)
        return placed + torch.stack([own.linear(rows[:, step]) for step in range(steps)], 1)

    torchs = Reads(read, codes, width, steps=steps).double()
    ours = with_late_lookups(copy.deepcopy(torchs))
    asked = torch.randint(codes, (users, sequences, steps), generator=torch.Generator().manual_seed(1))
    stacked = {name: torch.randn(users, *each.shape).double() for name, each in ours.named_parameters()}
    leaves = {name: each.requires_grad_() for name, each in stacked.items()}
    found = vmap(lambda own, codes: functional_call(ours, own, (codes,)).sin().sum())(leaves, asked)
    expected = torch.stack(
        [
            functional_call(torchs, {name: each[user] for name, each in leaves.items()}, (asked[user],)).sin().sum()
            for user in range(users)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    pairs = (torch.autograd.grad(each.sum(), list(leaves.values())) for each in (expected, found))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)


def test_the_table_is_multiplied_once_however_many_steps_read_it():
    module = with_late_lookups(Reads(READS["step by step"]))
    rows, codes = Looked.of(torch.zeros((7, 6), dtype=torch.long), module.embedding.weight), []
    for step in range(6):
        module.linear(rows[:, step])
        codes.append(len(rows.products))
    assert codes == [1] * 6
    assert next(iter(rows.products.values()))[0].shape == (4, 5)


def test_what_passes_by_python_is_refused_rather_than_wrong():
    rows = Looked.of(torch.zeros((7, 6), dtype=torch.long), torch.randn(4, 3))
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(TypeError, match="not looked up yet"):
        torch.sin(rows)


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_other_embeddings_stay_torchs(options):
    assert "forward" not in vars(with_late_lookups(nn.Embedding(4, 3, **options)))


def test_an_embedding_that_is_watched_stays_torchs():
    layer = nn.Embedding(4, 3)
    layer.register_forward_hook(lambda *_: None)
    assert "forward" not in vars(with_late_lookups(layer))
