"""userdp in research/peers.py: whole rounds of `dp_fed_sgd`, ledger, checks and records included."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from peers_work import CLIP, RIDGE, Work, asked
from worker import Spent, serve, spent, spent_by_all

from simulations.engines.grids import InMachineGrid, LocalGrid, shards, worthwhile_nodes
from simulations.engines.ray_grid import RayGrid
from strategies import DPFedSGD, PublicFacts, UserLevelStrategy, model_record
from userdp.accounting import Privacy
from userdp.data import Block, ColumnarFederation
from userdp.nodes.node import Node
from userdp.problems import Logistic

MOST_ROUNDS = 10_000
WORKERS = 2


def strategy_of(work: Work, engine: str, workers: int) -> tuple[UserLevelStrategy, InMachineGrid]:
    """The strategy, and the grid that carries its messages, as `userdp run` would lay it out."""
    users, samples, columns = work.features.shape
    offsets = np.arange(users + 1) * samples
    people = ColumnarFederation(Block(work.features.reshape(-1, columns), offsets, work.targets.reshape(-1)))
    norm = float(np.abs(work.features).sum(axis=2).max()) * (1 + 1e-6)
    problem = Logistic(columns, feature_norm=norm, radius=10.0, ridge=RIDGE)
    facts = PublicFacts(users, min_samples=samples, max_samples=samples)
    # Enough budget for many rounds of everybody: what a round costs does not depend on it.
    privacy = Privacy(epsilon=1e5, delta=1e-4)
    strategy = DPFedSGD(rounds=MOST_ROUNDS, clip_norm=CLIP, learning_rate=1.0).strategy(problem, facts, privacy)
    blocks = shards(users, nodes=worthwhile_nodes(problem, people))
    if engine == "ray":
        return strategy, RayGrid(problem, people, blocks, workers=workers)
    return strategy, LocalGrid([Node(problem, people, block) for block in blocks])


def round_of(work: Work, engine: str, workers: int = WORKERS) -> Callable[[], NDArray[Any]]:
    """One round after another of a run that has begun; each returns the sum of its replies."""
    strategy, grid = strategy_of(work, engine, workers)
    strategy._roster.gather(grid, timeout=60)  # what `start` does once, before the first round
    start, rounds = model_record(work.model), iter(range(1, MOST_ROUNDS))

    def run_round() -> NDArray[Any]:
        index = next(rounds)
        messages = strategy.configure_train(index, start, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages, timeout=600))
        strategy.aggregate_train(index, replies)
        return np.sum([reply.content["answer"]["values"].numpy()[0] for reply in replies], axis=0)

    return run_round


def main() -> None:
    engine = sys.argv.pop(1)
    work, total = asked()
    run_round = round_of(work, engine)

    def measure() -> Spent:
        return spent_by_all() if engine == "ray" else spent()

    serve(("numpy", "flwr", "ray", "userdp"), run_round, total, measure)


if __name__ == "__main__":
    main()
