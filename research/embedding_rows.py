"""Embeddings of many items: all rows trained with noise, rows that are found, or rows that each round chooses.

Two models that people have. A *bag*: users hold items of a Zipf law and say whether they like them together, by the sum
of hidden scores. A *tower* on real tables: does a user like the next item (a rating of at least 4, a right answer),
given the last items that it liked? The loss is that of users who train nothing, beside the best constant, the training
users' own share for each item (no model, no privacy), and no privacy. Each choice has the best of its step sizes, NOT
private; no privacy has all rows and more rounds. All steps are those of Adam.

An oracle bounds what any choice of rows can give: it is told the items that most training users hold, pays nothing for
it, and trains the best number of them with the whole budget; the others share one row that stays. The same rows without
noise tell what of the rest is noise on the rows that train.

    python research/embedding_rows.py                    # all anew, 25 minutes of one core
    python research/embedding_rows.py insteval           # one population, into the same file
"""

import argparse
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from simulations.engines.grids import LocalGrid
from strategies import DPFedSGD, PublicFacts, model_vector
from userdp.accounting import Privacy
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.data.tables.public import public_file
from userdp.nodes.node import Node
from userdp.problems import TorchProblem

RESULTS = Path(__file__).resolve().parent / "results" / "embedding_rows.csv"
CHOICES = {"all": {}, "found": {"finding_rounds": 2}, "each_round": {}, "projected": {}}
ROUNDS, FREE_ROUNDS, SEEDS, DELTA = 12, 30, 3, 1e-6
KEPT = 300, 1000, 3000  # rows of the oracle
ITEMS, HELD, TRAINING, TESTED = 10_000, 20, 10_000, 20_000  # of the Zipf population
LIKED, MOST, WIDTH = 4, 100, 4  # of the tower: items that it sees, samples a user, numbers an item


class Bag(nn.Module):
    """The sum of items' scores, and one for all."""

    def __init__(self, items: int, still: int | None = None) -> None:
        super().__init__()
        self.bias, self.items = nn.Parameter(torch.zeros(1)), nn.Embedding(items, 1, still)
        nn.init.zeros_(self.items.weight)

    def forward(self, codes: Tensor) -> Tensor:
        return self.items(codes).sum(1) + self.bias


class Tower(nn.Module):
    """An item's own score, and how near it is to the items that the user liked; the last item is none."""

    def __init__(self, items: int, still: int | None = None) -> None:
        super().__init__()
        self.bias, self.scores = nn.Parameter(torch.zeros(1)), nn.Embedding(items, 1, still)
        self.items = nn.Embedding(items, WIDTH, still)
        nn.init.zeros_(self.scores.weight)
        nn.init.normal_(self.items.weight, std=WIDTH**-0.5)

    def forward(self, codes: Tensor) -> Tensor:
        user, item = self.items(codes[:, :-1]).mean(1), self.items(codes[:, -1])
        return (user * item).sum(1, keepdim=True) + self.scores(codes[:, -1]) + self.bias


STEPS = {Bag: (0.02, 0.03, 0.05, 0.07, 0.1, 0.3), Tower: (0.01, 0.03, 0.1)}


@dataclass(frozen=True)
class People:
    """Users who train, users who do not, and what their samples hold."""

    train: Block
    told: Block
    items: int
    model: type[Bag | Tower]
    still: int | None = None
    """The item whose row does not train."""

    @cached_property
    def held(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Training users, one after the other, and the items of each."""
        users = np.repeat(np.arange(self.train.users), self.train.sizes)
        return np.divmod(np.unique(users[:, None] * self.items + self.train.dense_features.astype(int)), self.items)

    @property
    def most_rows(self) -> int:
        """The most rows of tables that a training user touches."""
        return int(np.bincount(self.held[0]).max()) * (2 if self.model is Tower else 1)

    def of_most(self, kept: int) -> "People":
        """Return the same people, where the items but those ``kept`` that most training users hold are one."""
        places = np.full(self.items, kept, dtype=np.int32)
        places[np.argsort(-np.bincount(self.held[1], minlength=self.items), kind="stable")[:kept]] = np.arange(kept)
        both = (
            Block(places[one.dense_features.astype(int)], one.offsets, one.targets) for one in (self.train, self.told)
        )
        return People(*both, kept + 1, self.model, kept)


@cache
def zipf(seed: int) -> People:
    """Return users of ``HELD`` items each; the items' scores are the same for all seeds."""
    rng, chances = np.random.default_rng(seed), 1 / np.arange(1, ITEMS + 1) ** 1.1
    scores = np.random.default_rng(100).normal(0, 0.7, ITEMS)
    held = rng.choice(ITEMS, (TRAINING + TESTED, HELD), p=chances / chances.sum()).astype(np.int32)
    likes = (rng.random(len(held)) < 1 / (1 + np.exp(-scores[held].sum(axis=1)))).astype(np.float32)
    halves = (slice(TRAINING), slice(TRAINING, None))
    train, told = (Block(held[half], np.arange(len(held[half]) + 1), likes[half]) for half in halves)
    return People(train, told, ITEMS, Bag)


@cache
def table(name: str, user: str, item: str, liked: str, least: int) -> list[tuple[NDArray[np.int32], Vector]]:
    """Return every user's samples: codes (n, LIKED + 1) of the last liked items and the next one, and likes (n,)."""
    rows = pd.read_parquet(public_file(name))
    codes = pd.factorize(rows[item], sort=True)[0]
    none = int(codes.max()) + 1
    frame = pd.DataFrame({"user": rows[user], "item": codes, "liked": rows[liked] >= least})
    return [samples_of(own, none) for _, own in frame.groupby("user")]


def samples_of(own: pd.DataFrame, none: int) -> tuple[NDArray[np.int32], Vector]:
    """Return a user's first samples, in their order."""
    last, made = deque([none] * LIKED, LIKED), []
    for item, liked in own[["item", "liked"]].head(MOST).itertuples(index=False):
        made.append([*last, item])
        if liked:
            last.append(item)
    return np.array(made, dtype=np.int32), own["liked"].head(MOST).to_numpy(np.float32)


def tower(seed: int, *declared: object) -> People:
    """Return four fifths of a table's users, who train, and the others."""
    users = table(*declared)
    order = np.random.default_rng(seed).permutation(len(users))
    cut = len(users) * 4 // 5
    items = 1 + max(int(codes.max()) for codes, _ in users)
    return People(_block([users[i] for i in order[:cut]]), _block([users[i] for i in order[cut:]]), items, Tower)


def _block(users: list[tuple[NDArray[np.int32], Vector]]) -> Block:
    offsets = np.cumsum([0, *(len(likes) for _, likes in users)])
    return Block(np.concatenate([each[0] for each in users]), offsets, np.concatenate([each[1] for each in users]))


POPULATIONS = {
    "zipf": zipf,
    "movielens": lambda seed: tower(seed, "movielens", "userId", "movieId", "rating", 4),
    "insteval": lambda seed: tower(seed, "insteval", "s", "d", "y", 4),
    "assistments": lambda seed: tower(seed, "assistments2015", "student", "skill", "correct", 1),
}


def loss(people: People, epsilon: float, seed: int, **settings: object) -> float:
    """Return the log loss of a run; an infinite epsilon stands for noise of no size."""
    codes = people.train.dense_features.shape[1]
    problem = TorchProblem(
        lambda: people.model(people.items, people.still), "bce_with_logits", codes, levels=(people.items,) * codes
    )
    rounds = FREE_ROUNDS if math.isinf(epsilon) else ROUNDS
    recipe = DPFedSGD.model_validate({"rounds": rounds, "server_optimiser": "adam", **settings})
    users = people.train.users
    facts = PublicFacts(users, max_samples=int(people.train.sizes.max()))
    method = recipe.strategy(problem, facts, Privacy(min(epsilon, 1e6), DELTA), seed=seed)
    with LocalGrid([Node(problem, ColumnarFederation(people.train), np.arange(users))]) as grid:
        return float(np.mean(problem.metrics(model_vector(method.start(grid).arrays), people.told)["test_loss"]))


def trivial(people: People) -> Iterator[tuple[str, float]]:
    """Yield the log losses of the best constant, and of each item's own share among training users."""
    train, told = people.train, people.told
    likes, asked = np.asarray(train.targets, dtype=float), np.asarray(told.targets, dtype=float)
    share = np.full(len(asked), likes.mean())
    yield "constant", entropy(share, asked)
    if people.model is Tower:
        last, ten = train.dense_features[:, -1].astype(int), 10 * likes.mean()
        sums, counts = (np.bincount(last, each, people.items) for each in (likes, np.ones(len(likes))))
        yield "own_share", entropy(((sums + ten) / (counts + 10))[told.dense_features[:, -1].astype(int)], asked)


def entropy(chances: Vector, likes: Vector) -> float:
    """Return the mean log loss of predicted chances."""
    return float(-np.mean(likes * np.log(chances) + (1 - likes) * np.log1p(-chances)))


def measured(name: str, asked: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield the rows of a population."""
    for seed in range(asked.seeds):
        people = POPULATIONS[name](seed)
        users = people.train.users
        numbers = {"population": name, "users": users, "items": people.items, "held": len(people.held[0]) / users}
        numbers |= {"seed": seed, "kept": math.nan}
        for which, value in trivial(people):
            yield {**numbers, "rows": which, "step": math.nan, "epsilon": math.inf, "loss": value}
        for epsilon, step in product(asked.epsilons, asked.steps or STEPS[people.model]):
            run = {**numbers, "step": step, "epsilon": epsilon}
            for which, more in CHOICES.items():
                if which in asked.rows and (which == "all" or math.isfinite(epsilon)):
                    settings = {"max_rows": people.most_rows} if which == "projected" else more
                    value = loss(people, epsilon, seed, embedding_rows=which, learning_rate=step, **settings)
                    yield {**run, "rows": which, "loss": value}
            for kept in (kept for kept in KEPT if kept < people.items and "known" in asked.rows):
                value = loss(people.of_most(kept), epsilon, seed, learning_rate=step)
                yield {**run, "rows": "known", "kept": kept, "loss": value}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("populations", nargs="*", default=[*POPULATIONS])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[4.0, math.inf])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rows", nargs="+", default=[*CHOICES, "known"], help="measure these anew, and no others")
    parser.add_argument("--steps", type=float, nargs="+", help="these alone")
    asked = parser.parse_args()
    for name in asked.populations:
        rows = pd.DataFrame(measured(name, asked))
        means = rows.groupby(["epsilon", "rows", "kept", "step"], dropna=False)["loss"].mean()
        print(means.unstack().round(4), flush=True)
        before = pd.read_csv(RESULTS) if RESULTS.is_file() else rows.head(0)
        cells = ["population", "seed", "rows", "kept", "step", "epsilon"]
        both = pd.concat([before, rows], ignore_index=True).drop_duplicates(cells, keep="last")
        both.to_csv(RESULTS, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    main()
