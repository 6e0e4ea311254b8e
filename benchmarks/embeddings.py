"""A round of `dp_fed_sgd` on a module with a large embedding, beside plain torch's loop with sparse gradients.

1,000 users with 20 items each, codes by Zipf's law, of 50,000 embeddings of 32 numbers, and a small network of their
mean. Plain torch: nn.Embedding(sparse=True), a backward pass for each user, clip, index_add, noise of numpy on
everything, a step. Both in this process, in turns; elapsed seconds, the least of the repetitions.

    python benchmarks/embeddings.py --check
"""

import argparse
import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from simulations.engines.grids import LocalGrid
from strategies import DPFedSGD, PublicFacts
from userdp.accounting import Privacy
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.nodes.node import Node
from userdp.problems import TorchProblem

ITEMS, WIDTH, USERS, HELD, TURNS, ROUNDS = 50_000, 32, 1_000, 20, 3, 4
LIMIT, LIMIT_MIB = 1.5, 1024


class Network(nn.Module):
    """A score of the mean of items' embeddings."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=sparse)
        self.tower = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, codes: Tensor) -> Tensor:
        return self.tower(self.items(codes).mean(1)).squeeze(-1)


def population(one_each: bool) -> Block:
    """Users of ``HELD`` items each, in one sample or one sample an item."""
    rng, chances = np.random.default_rng(0), 1 / np.arange(1, ITEMS + 1)
    held = rng.choice(ITEMS, (USERS, HELD), p=chances / chances.sum()).astype(np.int32)
    codes, each = (held.reshape(-1, 1), HELD) if one_each else (held, 1)
    targets = rng.integers(0, 2, len(codes)).astype(np.float32)
    return Block(codes, np.arange(0, len(codes) + 1, each), targets)


def ours(block: Block) -> float:
    """Least seconds of a round."""
    columns = block.dense_features.shape[1]
    each = int(block.sizes[0])
    problem = TorchProblem(Network, "bce_with_logits", columns, levels=(ITEMS,) * columns, typical_samples=each)
    facts, privacy = PublicFacts(USERS, min_samples=each, max_samples=each), Privacy(4.0, 1e-6)
    strategy = DPFedSGD(rounds=ROUNDS, cohort=USERS, clip_norm=0.1, learning_rate=1.0).strategy(problem, facts, privacy)
    ends: list[float] = []
    with LocalGrid([Node(problem, ColumnarFederation(block), np.arange(USERS))]) as grid:
        strategy.start(grid, on_round=lambda _: ends.append(time.perf_counter()))
    return min(later - earlier for earlier, later in itertools.pairwise(ends))


def plain(block: Block) -> float:
    """Least seconds of a round of plain torch."""
    module, rng = Network(sparse=True), np.random.default_rng(1)
    codes, targets = torch.as_tensor(block.dense_features).long(), torch.as_tensor(block.targets)
    parameters, least = list(module.parameters()), np.inf
    for _ in range(ROUNDS - 1):
        begun = time.perf_counter()
        sums = [torch.zeros_like(one) for one in parameters]
        for first, last in itertools.pairwise(block.offsets.tolist()):
            loss = binary_cross_entropy_with_logits(module(codes[first:last]), targets[first:last])
            table, *others = torch.autograd.grad(loss, parameters)
            table = table.coalesce()
            length = float(sum(one.square().sum() for one in (table.values(), *others))) ** 0.5
            factor = min(1.0, 0.1 / max(length, 1e-12))
            sums[0].index_add_(0, table.indices()[0], table.values(), alpha=factor)
            for one, other in zip(sums[1:], others, strict=True):
                one.add_(other, alpha=factor)
        with torch.no_grad():
            for one, other in zip(parameters, sums, strict=True):
                one.sub_((other + torch.as_tensor(rng.normal(0, 0.1, one.shape), dtype=one.dtype)) / USERS)
        least = min(least, time.perf_counter() - begun)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 above {LIMIT}x or {LIMIT_MIB} MiB")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, one_each in (("a sample of 20 items", False), ("20 samples of an item", True)):
        block = population(one_each)
        turns = [(ours(block), plain(block)) for _ in range(TURNS)]
        mine, theirs = (min(each) for each in zip(*turns, strict=True))
        found[name] = {"round_ms": 1e3 * mine, "plain_ms": 1e3 * theirs, "ratio": mine / theirs}
        print(f"{name}: {1e3 * mine:.0f} ms, plain torch {1e3 * theirs:.0f} ms, {mine / theirs:.2f}x")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    print(f"peak memory {peak:.0f} MiB")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": found, "peak_memory_mib": round(peak)}, indent=2) + "\n")
    worst = max(one["ratio"] for one in found.values())
    if arguments.check and (worst > LIMIT or peak > LIMIT_MIB):
        sys.exit(f"{worst:.2f} times plain torch and {peak:.0f} MiB: the limits are {LIMIT} and {LIMIT_MIB}")


if __name__ == "__main__":
    main()
