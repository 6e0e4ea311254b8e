"""Modules and samples that tests of neural problems share. Importable by other processes, so no test lives here."""

import numpy as np
import torch
from torch import nn

from userdp.data.block import Block
from userdp.data.shape import Sequence
from userdp.problems import TorchProblem

SIZES = np.array([3, 1, 9, 5, 2, 2, 4])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
STEPS, LEVELS = 5, 4
SEQUENCE = Sequence(STEPS, (LEVELS,))


class Reader(nn.Module):
    """Embedding, a layer that reads steps in order, and a score of each code."""

    def __init__(self, layer, levels=LEVELS, width=6):
        super().__init__()
        self.embedding, self.layer, self.scores = nn.Embedding(levels + 1, 3), layer, nn.Linear(width, levels)

    def forward(self, codes):
        found = self.layer(self.embedding(codes))
        return self.scores(found[0] if isinstance(found, tuple) else found)


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.within = nn.Linear(3, 6), nn.Linear(6, 6, bias=False)

    def forward(self, values):
        state, states = torch.zeros_like(self.into(values[:, 0])), []
        for step in range(values.shape[1]):
            state = torch.tanh(self.into(values[:, step]) + self.within(state))
            states.append(state)
        return torch.stack(states, 1)


class Attention(nn.Module):
    """A layer of a transformer that sees the steps before alone."""

    def __init__(self):
        super().__init__()
        self.widen, self.layer = nn.Linear(3, 6), nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, values):
        mask = torch.full((values.shape[1],) * 2, -torch.inf, dtype=values.dtype).triu(1)
        return self.layer(self.widen(values), src_mask=mask)


READERS = {
    "gru": lambda: Reader(nn.GRU(3, 6, batch_first=True)),
    "lstm": lambda: Reader(nn.LSTM(3, 6, batch_first=True)),
    "by hand": lambda: Reader(Recurrence()),
    "attention": lambda: Reader(Attention()),
    "rnn": lambda: Reader(nn.RNN(3, 6, batch_first=True)),
}
"""Models of sequences of one channel."""


def perceptron():
    return nn.Sequential(nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


def convolution():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def embedding():
    return nn.Sequential(nn.Embedding(LEVELS, 2), nn.Flatten(), nn.Linear(32, 3))


ROWS = {
    "perceptron": (perceptron, {}),
    "convolution": (convolution, {"input_shape": [1, 4, 4]}),
    "embedding": (embedding, {"levels": (LEVELS,) * 16}),
}
"""Models of sixteen columns and three classes: the factory, and further options of the problem."""
EVERY = [*ROWS, *READERS]


def windows(seed=0, sizes=SIZES, steps=STEPS, levels=LEVELS):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, levels, (int(np.sum(sizes)), steps)).astype(np.int32)
    codes[np.arange(steps) >= rng.integers(1, steps + 1, len(codes))[:, None]] = -1
    return Block(codes, np.concatenate([[0], np.cumsum(sizes)]))


def rows(seed=0, codes=False):
    rng = np.random.default_rng(seed)
    count = OFFSETS[-1]
    features = rng.integers(0, LEVELS, (count, 16)) if codes else rng.normal(size=(count, 16))
    return Block(
        features.astype(np.int32 if codes else np.float32), OFFSETS, rng.integers(0, 3, count).astype(np.float32)
    )


def case(name, module=None, **options):
    """A problem in double precision, of that module or another one that reads the same, and a block of its samples."""
    options = {"precision": "double"} | options
    if name in READERS:
        return TorchProblem(module or READERS[name], "cross_entropy", STEPS, sequence=SEQUENCE, **options), windows()
    factory, more = ROWS[name]
    return TorchProblem(module or factory, "cross_entropy", 16, **more, **options), rows(codes=name == "embedding")
