"""Votes against clipped means where some users' data are far off: for which users and columns is which nearer?

Users hold one point each, heavy-tailed (Student t with 3 degrees) about a place at distance 1 a column from the start.
A share of them is hostile: their data pull every column, or every vector, away from the honest users' mean with all the
weight that a user has. All methods take 20 rounds with everybody at epsilon 2. Rounds are on plain arrays, with the
steps of `vote_descent`, the clip and the calibration of the packages, and no messages. The table holds the distance to
the place, by the root of the columns.

    python research/votes.py       measure all anew (some ten seconds), into results/votes.csv

Methods: ``vote_descent`` as it comes; ``dp_fed_sgd`` with a clip of the distance to the place, and a whole step;
``adaptive_clipping`` from there; ``tuned``, the best of nine clips and steps of ``dp_fed_sgd`` for each cell, chosen by
looking at the answer, so NOT private.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.progress import track

from strategies.robust.vote_descent import VoteDescent, VoteSteps
from userdp.arrays.sparse_rows import clip_rows
from userdp.sampling import DisjointBatches

RESULTS = Path(__file__).resolve().parent / "results" / "votes.csv"
USERS, COLUMNS, SPREADS, SHARES = (500, 2_000), (5, 50), (0.1, 1.0), (0.0, 0.1, 0.3)
SEEDS, ROUNDS, EPSILON, DELTA = 2, 20, 2.0, 1e-5
MULTIPLIER = DisjointBatches(1, 1, ROUNDS, 0).calibrate(EPSILON, DELTA)  # the same for any number of users
CLIPS, STEPS = (0.1, 0.3, 1.0), (0.3, 1.0, 3.0)
QUANTILE, CLIP_RATE, COUNTED = 0.5, 0.2, 1.15  # of adaptive clipping; its sum gets that much more noise, at most
Rows = NDArray[np.float64]


class Crowd:
    """Users' points about a place, the first of them hostile, and the noise of a method's rounds."""

    def __init__(self, users: int, columns: int, spread: float, hostile: float, seed: int) -> None:
        rng, self.seed = np.random.default_rng(seed), seed
        direction = rng.normal(size=columns)
        self.place = direction * math.sqrt(columns) / np.linalg.norm(direction)
        self.points = self.place + spread * rng.standard_t(3, size=(users, columns))
        self.hostile, self.columns = round(hostile * users), columns

    def afresh(self) -> Self:
        """Return the same users, and noise from its beginning."""
        self.rng = np.random.default_rng(self.seed + 9)
        return self

    def mean(self, rows: Rows, against: Callable[[Rows], Rows], longest: float) -> Rows:
        """The noisy mean of rows no longer than that, where hostile users answer against the honest mean."""
        honest = rows[self.hostile :]
        total = honest.sum(axis=0) + self.hostile * against(honest.mean(axis=0))
        deviation = 2 * longest * MULTIPLIER / len(rows)
        return np.asarray(total / len(rows) + self.rng.normal(scale=deviation, size=self.columns))

    def error(self, x: Rows) -> float:
        """The distance to the place, by the root of the columns."""
        return float(np.linalg.norm(x - self.place) / math.sqrt(self.columns))


def voted(crowd: Crowd) -> float:
    """The error of vote descent."""
    x, memory = np.zeros(crowd.columns), VoteSteps(VoteDescent().learning_rate, crowd.columns)
    for _ in range(ROUNDS):
        votes = np.sign(x - crowd.points) / 2
        x = memory.step(x, crowd.mean(votes, lambda mean: -np.sign(mean) / 2, math.sqrt(crowd.columns) / 2), 0.0)
    return crowd.error(x)


def opposite(length: float, mean: Rows) -> Rows:
    """The vector of that length against a mean."""
    return np.asarray(-length * mean / np.linalg.norm(mean))


def clipped(crowd: Crowd, clip: float, step: float, adaptive: bool = False) -> float:
    """The error of clipped means; the clip is by the root of the columns."""
    x, clip = np.zeros(crowd.columns), clip * math.sqrt(crowd.columns)
    for _ in range(ROUNDS):
        gradients = x - crowd.points
        noisy = crowd.mean(clip_rows(gradients, clip), partial(opposite, clip), clip * (COUNTED if adaptive else 1))
        x = x - step * noisy
        if adaptive:
            unclipped = np.mean(np.linalg.norm(gradients[crowd.hostile :], axis=1) <= clip)
            clip *= math.exp(-CLIP_RATE * (unclipped - QUANTILE))
    return crowd.error(x)


def errors(*cell: float, seed: int) -> Iterator[tuple[str, float]]:
    """Each method's error in a cell; that of ``tuned`` comes once for each of its settings."""
    users, columns, spread, hostile = cell
    crowd = Crowd(int(users), int(columns), spread, hostile, seed)
    yield "vote_descent", voted(crowd.afresh())
    yield "dp_fed_sgd", clipped(crowd.afresh(), 1.0, 1.0)
    yield "adaptive_clipping", clipped(crowd.afresh(), 1.0, 1.0, adaptive=True)
    for clip, step in itertools.product(CLIPS, STEPS):
        yield f"tuned {clip:g} {step:g}", clipped(crowd.afresh(), clip, step)


def main() -> None:
    rows = []
    cells = list(itertools.product(USERS, COLUMNS, SPREADS, SHARES))
    for cell in track(cells, "cells"):
        found: dict[str, list[float]] = {}
        for seed in range(SEEDS):
            for method, error in errors(*cell, seed=seed):
                found.setdefault(method, []).append(error)
        means = {method: float(np.mean(each)) for method, each in found.items()}
        tuned = min(error for method, error in means.items() if method.startswith("tuned"))
        means = {method: error for method, error in means.items() if not method.startswith("tuned")} | {"tuned": tuned}
        rows.append(dict(zip(("users", "columns", "spread", "hostile"), cell, strict=True)) | means)
    table = pd.DataFrame(rows)
    table.to_csv(RESULTS, index=False, float_format="%.3g")
    print(table.to_string(index=False, float_format="%.3f"))


if __name__ == "__main__":
    main()
