"""Models that a neural one has to beat: what anybody would say who had counted. Made without privacy.

Each is a function of (problem, training users, held-out users), whose samples are usable, to the metric of its set.
"""

import math
from collections.abc import Callable

import numpy as np

from simulations.records.quality import auc
from userdp.data import Block

FREE = 1.0
"""Added to every count, so that nothing is impossible."""


def skill_rates(train: Block, test: Block) -> float:
    """Area under the curve of the rate at which training users answer each skill right."""
    skills, answers, _ = _steps(train, channels=2)
    asked = np.bincount(skills, minlength=skills.max() + 1) + 2 * FREE
    right = np.bincount(skills, weights=answers, minlength=len(asked)) + FREE
    others, given, _ = _steps(test, channels=2)
    rates = np.append(right / asked, right.sum() / asked.sum())  # skills nobody trained on have the average
    area = auc(rates[np.minimum(others, len(asked))], given == 1)
    return math.nan if area is None else area


def character_rates(train: Block, test: Block, characters: int = 105) -> float:
    """Bits a character of the frequencies of characters: the mean over users of their averages."""
    seen = _steps(train, channels=1)[1]
    counts = np.bincount(seen, minlength=characters) + FREE
    codes, owners = _steps(test, channels=1)[1:]
    return _user_average(-np.log2(counts / counts.sum())[codes], owners)


def most_frequent(train: Block, test: Block) -> float:
    """Accuracy of the class that is most frequent, the mean over users of their averages."""
    assert train.targets is not None
    assert test.targets is not None
    best = np.bincount(train.targets.astype(np.int64)).argmax()
    owners = np.repeat(np.arange(test.users), test.sizes)
    return _user_average(test.targets == best, owners)


TRIVIAL: dict[str, tuple[str, Callable[[Block, Block], float], str]] = {
    "pupils": ("auc", skill_rates, "rate of right answers of each skill"),
    "roles": ("bits", character_rates, "frequencies of characters"),
    "writers": ("accuracy", most_frequent, "most frequent digit"),
}
"""Problem -> its metric, what its trivial model reaches, and what that is."""


def _steps(block: Block, channels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(S,) first and last channel of all steps at which there is something, and whose they are."""
    codes = block.dense_features.reshape(block.samples, -1, channels)
    there = codes[..., -1] >= 0
    samples = np.broadcast_to(np.arange(block.samples)[:, None], there.shape)[there]
    owners = np.repeat(np.arange(block.users), block.sizes)
    return codes[..., 0][there].astype(np.int64), codes[..., -1][there].astype(np.int64), owners[samples]


def _user_average(values: np.ndarray, owners: np.ndarray) -> float:
    """Mean over users of the mean of each one's values."""
    counts = np.bincount(owners)
    sums = np.bincount(owners, weights=values)
    return float((sums[counts > 0] / counts[counts > 0]).mean())
