"""The six neural models of research/neural.py, and their loss; needs torch alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WINDOW, RECENT = 100, 32, 8
"""Characters told apart, characters of a window, and how many of them the perceptron sees."""
STEPS, STEP_SIZE, SEED = 5, 0.1, 0


@dataclass(frozen=True)
class Model:
    """A model and what it learns from.

    Attributes:
        make: the module, from (N, k) inputs to (N, C) or (N, T, C) outputs; parameters from torch's global generator.
        data: what its users hold.
        each_step: whether it predicts every character of a window.
        clip_norm: l2 norm that a user's update is clipped to, such that some are and some are not.
        what: for people.
    """

    make: Callable[[], nn.Module]
    data: Literal["digits", "characters"]
    each_step: bool
    clip_norm: float
    what: str


class RecentCharacters(nn.Module):
    """The last character of a window, from the embeddings of those before it."""

    def __init__(self, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, embedding)
        self.layers = nn.Sequential(nn.Linear(RECENT * embedding, hidden), nn.ReLU(), nn.Linear(hidden, VOCABULARY))

    def forward(self, codes: Tensor) -> Tensor:
        """(N, L) codes -> (N, 1, V)."""
        outputs: Tensor = self.layers(self.embedding(codes[:, -RECENT:]).flatten(1))
        return outputs[:, None]


class Recurrent(nn.Module):
    """Every next character, from torch's own recurrent layer."""

    def __init__(self, layer: type[nn.GRU] | type[nn.LSTM], embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, embedding)
        self.layer = layer(embedding, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, VOCABULARY)

    def forward(self, codes: Tensor) -> Tensor:
        """(N, L) codes -> (N, L, V)."""
        outputs: Tensor = self.readout(self.layer(self.embedding(codes))[0])
        return outputs


class WrittenRecurrent(nn.Module):
    """Every next character, from a gated unit written out, one character after the other."""

    def __init__(self, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, embedding)
        self.from_input = nn.Linear(embedding, 3 * hidden)
        self.from_state = nn.Linear(hidden, 3 * hidden)
        self.readout = nn.Linear(hidden, VOCABULARY)

    def forward(self, codes: Tensor) -> Tensor:
        """(N, L) codes -> (N, L, V)."""
        inputs = self.embedding(codes)
        state, states = inputs.new_zeros(len(codes), self.from_state.in_features), []
        for step in range(codes.shape[1]):
            reset, update, new = self.from_input(inputs[:, step]).chunk(3, dim=1)
            old_reset, old_update, old_new = self.from_state(state).chunk(3, dim=1)
            kept = torch.sigmoid(update + old_update)
            state = kept * state + (1 - kept) * torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
            states.append(state)
        outputs: Tensor = self.readout(torch.stack(states, dim=1))
        return outputs


class Attention(nn.Module):
    """Every next character, from one transformer layer that sees the characters before it."""

    mask: Tensor

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, width)
        self.places = nn.Parameter(0.1 * torch.randn(WINDOW, width))
        self.layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, batch_first=True)
        self.readout = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, codes: Tensor) -> Tensor:
        """(N, L) codes -> (N, L, V)."""
        outputs: Tensor = self.readout(self.layer(self.embedding(codes) + self.places, src_mask=self.mask))
        return outputs


def perceptron() -> nn.Module:
    """64 pixels, 32 hidden units, 10 digits."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


MODELS = {
    "perceptron": Model(perceptron, "digits", False, 0.3, "64-32-10 on digits"),
    "embedding": Model(lambda: RecentCharacters(32, 64), "characters", False, 0.2, "8 characters, 32 each, 64"),
    "gru": Model(lambda: Recurrent(nn.GRU, 64, 128), "characters", True, 0.2, "nn.GRU, 64-128"),
    "lstm": Model(lambda: Recurrent(nn.LSTM, 64, 64), "characters", True, 0.2, "nn.LSTM, 64-64"),
    "written_gru": Model(lambda: WrittenRecurrent(64, 128), "characters", True, 0.2, "the same GRU as a loop, 64-128"),
    "transformer": Model(lambda: Attention(64, 128, heads=4), "characters", True, 0.5, "one layer, 4 heads, 64-128"),
}


def initial_module(name: str) -> nn.Module:
    """The module that every tool starts from."""
    torch.manual_seed(SEED)
    return MODELS[name].make()


def average_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy, averaged over the steps T that the outputs (N, C) or (N, T, C) speak of: the last."""
    classes = outputs.shape[-1]
    steps = outputs.numel() // (len(targets) * classes)
    return functional.cross_entropy(outputs.reshape(-1, classes), targets[:, -steps:].reshape(-1))
