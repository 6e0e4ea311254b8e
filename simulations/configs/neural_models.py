"""Small models of the public sets for neural training; configurations beside this file name them.

Models trained with privacy should be small: noise grows with the root of the number of parameters.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

CHARACTERS = 105  # codes of a character of `gerdracor`: its alphabet, and one for all others. 0 precedes a text

SKILLS = 101  # codes of a skill of `assistments2015`, and one for all others


class NextAnswer(nn.Module):
    """A predictor of a pupil's next answer: a gated memory of the practised skills and the given answers."""

    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.skill = nn.Embedding(SKILLS + 2, width)
        self.answer = nn.Embedding(4, width)  # nothing yet, wrong, right, anything else
        self.memory = nn.GRU(2 * width, hidden, batch_first=True)
        self.right = nn.Linear(hidden, 1)

    def forward(self, steps: Tensor) -> Tensor:
        """(N, L, 1) scores of (N, L, 2): the skill of a step, and the answer of the step before."""
        seen = torch.cat([self.skill(steps[..., 0]), self.answer(steps[..., 1])], dim=-1)
        scores: Tensor = self.right(self.memory(seen)[0])
        return scores


class NextCharacter(nn.Module):
    """A predictor of the next character of a text: a gated memory of the earlier ones."""

    def __init__(self, width: int = 16, hidden: int = 48) -> None:
        super().__init__()
        self.character = nn.Embedding(CHARACTERS + 1, width)
        self.memory = nn.GRU(width, hidden, batch_first=True)
        self.next = nn.Linear(hidden, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        """(N, L, characters) scores of (N, L) characters, each one step late."""
        scores: Tensor = self.next(self.memory(self.character(text))[0])
        return scores


class Digit(nn.Module):
    """A classifier of digits in pictures of 28 x 28: two convolutions and a linear layer."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.edges = nn.Conv2d(1, channels, 5, stride=2)
        self.strokes = nn.Conv2d(channels, 2 * channels, 5, stride=2)
        self.digit = nn.Linear(2 * channels * 16, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """(N, 10) scores of (N, 1, 28, 28)."""
        seen = functional.relu(self.strokes(functional.relu(self.edges(pictures))))
        scores: Tensor = self.digit(seen.flatten(1))
        return scores
