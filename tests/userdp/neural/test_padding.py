"""Embeddings with padding: a user's gradient is the same in any place of a call, and padding has none."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from userdp.arrays.fixed_order import fixed_order
from userdp.data.block import Block
from userdp.problems import TorchProblem

CODES, WIDTH, PADDING = 6, 3, 2


class Looked(nn.Module):
    def __init__(self, padding, own):
        super().__init__()
        self.table, self.out, self.own = nn.Embedding(CODES, WIDTH, padding_idx=padding), nn.Linear(WIDTH, 1), own
        nn.init.normal_(self.table.weight)

    def forward(self, codes):
        if self.own:
            rows = functional.embedding(codes, self.table.weight, padding_idx=self.table.padding_idx)
        else:
            rows = self.table(codes)
        return self.out(torch.tanh(rows).sum(1))


MODULES = {
    "layer": lambda: Looked(PADDING, own=False),
    "from the end": lambda: Looked(PADDING - CODES, own=False),
    "function": lambda: Looked(PADDING, own=True),
}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("execution", ["loop", "grouped", "auto"])
@pytest.mark.parametrize("name", MODULES)
def test_padding_has_no_gradient_for_any_user_of_a_call(name, execution, fixed):
    problem = TorchProblem(MODULES[name], "bce_with_logits", 4, levels=(CODES,) * 4, execution=execution)
    random, users = np.random.default_rng(3), 7
    codes = random.integers(0, CODES, (users * 3, 4)).astype(np.int32)
    codes[::2, 0] = PADDING
    targets = random.integers(0, 2, len(codes)).astype(np.float32)
    x = problem.initial()
    with fixed_order(fixed):
        rows = problem.user_gradients(x, Block(codes, np.arange(0, len(codes) + 1, 3), targets))
        for user in range(users):
            own = slice(3 * user, 3 * user + 3)
            alone = problem.user_gradients(x, Block(codes[own], np.array([0, 3]), targets[own]))[0]
            np.testing.assert_allclose(rows[user], alone, rtol=0 if fixed else 1e-5, atol=0 if fixed else 1e-6)
    table = rows[:, : CODES * WIDTH].reshape(users, CODES, WIDTH)
    assert not table[:, PADDING].any()
    assert table.any()
