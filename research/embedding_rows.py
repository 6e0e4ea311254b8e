"""Embeddings of many items: all rows trained with noise, rows that are found, or rows that each round chooses.

Users hold items of a Zipf law, and say whether they like them together: the sum of the items' hidden scores decides.
A bag of words learns that, `torch.nn.Embedding` of one number an item. The log loss is that of users of the same law
who train nothing, beside the best constant and no privacy. Each choice has the best of its step sizes, NOT private.

    python research/embedding_rows.py                              # 100,000 users of 20 of 50,000 items; hours
    python research/embedding_rows.py --users 2000 --items 3000    # a minute
"""

import argparse
import math
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from simulations.engines.grids import LocalGrid
from strategies import DPFedSGD, PublicFacts, model_vector
from userdp.accounting import Privacy
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.nodes.node import Node
from userdp.problems import TorchProblem

HELD, TESTED = 20, 20_000
CHOICES = {"all": {}, "found": {"finding_rounds": 2}, "each_round": {}}
STEPS = (2.0, 4.0, 8.0)


class Bag(nn.Module):
    """The sum of items' scores, and one for all."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.bias, self.items = nn.Parameter(torch.zeros(1)), nn.Embedding(items, 1)
        nn.init.zeros_(self.items.weight)

    def forward(self, codes: Tensor) -> Tensor:
        return self.items(codes).sum(1) + self.bias


def population(seed: int, users: int, items: int) -> Block:
    """Return users of ``HELD`` items each, and whether they like them; the items' scores are the same for all seeds."""
    rng, chances = np.random.default_rng(seed), 1 / np.arange(1, items + 1) ** 1.1
    scores = np.random.default_rng(100).normal(0, 0.7, items)
    held = rng.choice(items, (users, HELD), p=chances / chances.sum())
    likes = rng.random(users) < 1 / (1 + np.exp(-scores[held].sum(axis=1)))
    return Block(held.astype(np.int32), np.arange(users + 1), likes.astype(np.float32))


def trained(train: Block, items: int, epsilon: float, seed: int, **settings: object) -> tuple[TorchProblem, Vector]:
    """Return the problem and the model of a run; an infinite epsilon stands for noise of no size."""
    problem = TorchProblem(lambda: Bag(items), "bce_with_logits", HELD, levels=(items,) * HELD)
    budget = Privacy(min(epsilon, 1e6), 1e-6)
    recipe = DPFedSGD.model_validate({"rounds": 12, **settings})
    method = recipe.strategy(problem, PublicFacts(train.users, max_samples=1), budget, seed=seed)
    with LocalGrid([Node(problem, ColumnarFederation(train), np.arange(train.users))]) as grid:
        return problem, model_vector(method.start(grid).arrays)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    told = population(999, TESTED, asked.items)
    likes = float(np.mean(told.targets if told.targets is not None else 0))
    constant = -likes * math.log(likes) - (1 - likes) * math.log(1 - likes)
    print(f"{asked.users} users of {HELD} of {asked.items} items; log loss of the best constant {constant:.4f}")
    for epsilon, (which, more) in product([math.inf, *asked.epsilons], CHOICES.items()):
        if math.isinf(epsilon) and which != "all":
            continue
        best = math.inf
        for step in STEPS:
            losses = []
            for seed in range(asked.seeds):
                settings = {"embedding_rows": which, "learning_rate": step, **more}
                problem, x = trained(population(seed, asked.users, asked.items), asked.items, epsilon, seed, **settings)
                losses.append(float(np.mean(problem.metrics(x, told)["test_loss"])))
            best = min(best, float(np.mean(losses)))
        print(f"epsilon {epsilon:g}, {which}: {best:.4f}", flush=True)


if __name__ == "__main__":
    main()
