"""The effect of hostile users on each strategy: attack x strategy x share of such users, error and guarantee.

Two made-up tasks: where heavy-tailed vectors lie (20,000 users who agree, 20 samples each), and logistic regression
(2,000 users, 10 samples each). Hostile users have honest data, know each other's honest answers, and answer something
else; their node clips what they say, as nodes do, so an attack has to fit into the clip. A round of everything a
strategy asks is attacked, its measuring rounds and its votes, too. The table holds, for each cell, the share of the way
from the initial model to the optimum of the honest users that the model goes, in their loss: 1 is as if there were
neither noise nor attack, 0 the initial model, below 0 is worse than not training.

    python research/byzantine.py                    all that results/byzantine.csv does not have yet (minutes)
    python research/byzantine.py --again dp_fed_sgd measure these strategies anew
    python research/byzantine.py --quick            one seed, the largest share only, printed and not kept

Attacks: `sign_flip` answers the negative; `large_norm` a million times the answer of somebody who is not there;
`alie` (Baruch, Baruch, Goldberg 2019) stays within the spread of the honest and all on one side; `inner_product` (Xie,
Koyejo, Gupta 2019) cancels the honest mean and as much again; `collude` all send the same vector, as long as the clip
allows, against the honest mean.
"""

import argparse
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.progress import track
from scipy.stats import norm

from simulations.config.run_config import parse_config
from simulations.engines.grids import LocalGrid
from simulations.runs.build import build_problem, load_datasets, make_strategy, public_facts
from strategies import UserLevelStrategy, model_vector
from userdp.arrays.sparse_rows import clip_rows, dense
from userdp.data import Federation
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer, Node
from userdp.problems import Problem
from userdp.randomness import stream

RESULTS = Path(__file__).resolve().parent / "results" / "byzantine.csv"
SEEDS, EPSILON = 3, 4.0
SHARES = (0.0, 0.1, 0.2, 1 / 3)
STRATEGY_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dp_fed_sgd": {"clip_norm": 1.0, "rounds": 20},
    "adaptive_clipping": {"clip_norm": 1.0, "rounds": 20},
    "recentred_clipping": {"clip_norm": 1.0, "rounds": 20},
    "vote_descent": {},
    "auto": {},
    "robust_rounds": {"deviation": 1.0, "rounds": 3},
    "outlier_removal": {"deviation": 1.0, "rounds": 3},
    "winsorized_rotation": {"rounds": 3},
}
"""Written down once and for both tasks; in these tasks samples' gradients deviate by about 1 from their mean."""
TASKS: Mapping[str, Mapping[str, Any]] = {
    "location": {
        "problem": {"kind": "huber", "bound": 20.0, "radius": 3.0, "threshold": 1.0},
        "data": {"population": "student_t", "shape": 3.0, "users": 20_000, "dimension": 20, "samples_per_user": 20},
    },
    "logistic": {
        "problem": {"kind": "logistic", "radius": 5.0},
        "data": {"population": "logistic_regression", "users": 2_000, "dimension": 10, "samples_per_user": 10},
    },
}
Rows = NDArray[np.float64]
COLUMNS = ("task", "strategy", "attack", "hostile", "seed", "way", "guarantee", "failed")


def sign_flip(rows: Rows, clip: float, hostile: float, rng: np.random.Generator) -> Rows:
    """The negative of the honest answer."""
    return -rows


def large_norm(rows: Rows, clip: float, hostile: float, rng: np.random.Generator) -> Rows:
    """Anybody's answer, a million times."""
    return 1e6 * rng.normal(size=rows.shape)


def alie(rows: Rows, clip: float, hostile: float, rng: np.random.Generator) -> Rows:
    """Off the mean by as many deviations as leave a majority beyond: each coordinate looks like an honest one."""
    needed = max(0.0, 0.5 - hostile)  # honest users whom they need on their side
    deviations = norm.ppf(1 - needed / (1 - hostile))
    return np.tile(rows.mean(axis=0) - deviations * rows.std(axis=0), (len(rows), 1))


def inner_product(rows: Rows, clip: float, hostile: float, rng: np.random.Generator) -> Rows:
    """The mean of all becomes the negative of the honest users' mean."""
    return np.tile(-2 * (1 - hostile) / hostile * rows.mean(axis=0), (len(rows), 1))


def collude(rows: Rows, clip: float, hostile: float, rng: np.random.Generator) -> Rows:
    """All in one direction, against the honest mean, with the whole clip; where there is none, as long as anybody."""
    mean = rows.mean(axis=0)
    length = clip if np.isfinite(clip) else np.linalg.norm(rows, axis=1).max()
    return np.tile(-length * mean / max(float(np.linalg.norm(mean)), 1e-12), (len(rows), 1))


ATTACKS: Mapping[str, Callable[[Rows, float, float, np.random.Generator], Rows]] = {
    attack.__name__: attack for attack in (sign_flip, large_norm, alie, inner_product, collude)
}


class HostileNode:
    """A node all of whose users answer in bad faith; it clips what they say, as any node does.

    Args:
        node: computes what they would honestly answer.
        attack: a name of `ATTACKS`.
        hostile: share of all users who are in this node.
        seed: of what they draw.
    """

    labels = door = None

    def __init__(self, node: Node, attack: str, hostile: float, seed: int) -> None:
        self._node, self._attack, self._hostile = node, ATTACKS[attack], hostile
        self._rng = stream(seed, "data", 77)
        self.users, self.clipped_samples = node.users, node.clipped_samples

    def compute(self, x: Rows, users: NDArray[np.int64], computation: Computation) -> Answer:
        """The hostile answers in place of the node's rows; a statistic beside a row stays honest."""
        honest = self._node.compute(x, users, replace(computation, reduce="rows", lengths=False))
        rows = dense(honest.values).copy()
        width = computation.length(len(x))
        clip = np.inf if computation.clip_norm is None else computation.clip_norm
        hostile = self._attack(rows[:, :width], clip, self._hostile, self._rng)
        if computation.name == "gradient_votes":  # a node counts votes, whatever the length of what it is told
            hostile = np.sign(hostile) / 2
        rows[:, :width] = hostile if np.isinf(clip) else clip_rows(hostile, clip)
        values = rows.sum(axis=0, keepdims=True) if computation.reduce == "sum" else rows
        return Answer(users, values, honest.non_finite)


@dataclass(frozen=True)
class Honest:
    """A task with one seed, and what its honest users lose at the start and at their optimum.

    Attributes:
        problem: the loss.
        people: all users.
        users: who is honest.
        start, best: their average loss.
    """

    problem: Problem
    people: Federation
    users: NDArray[np.int64]
    start: float
    best: float

    def way(self, x: Rows) -> float:
        """Share of the way from the start to the optimum."""
        return (self.start - loss(self.problem, self.people, self.users, x)) / (self.start - self.best)


def loss(problem: Problem, people: Federation, users: NDArray[np.int64], x: Rows) -> float:
    """The average user's loss."""
    bounded, _ = problem.bound(people.block(users))
    return float(problem.metrics(x, bounded)["test_loss"].mean())


def configuration(task: str, strategy: str, seed: int, **settings: Any) -> Any:
    """The configuration of a run of that strategy."""
    sections = TASKS[task]
    return parse_config(
        {
            "name": "byzantine",
            "seed": seed,
            "problem": dict(sections["problem"]),
            "data": {"kind": "synthetic", **sections["data"]},
            "privacy": {"epsilon": EPSILON, "delta": 1e-5},
            "preparation": "none",
            "strategy": {"kind": strategy, **settings},
        }
    )


def planned(config: Any) -> tuple[UserLevelStrategy, Federation]:
    """The strategy of a configuration, and everybody."""
    people = load_datasets(config).train
    return make_strategy(config, build_problem(config), public_facts(config, people)), people


def trained(strategy: UserLevelStrategy, nodes: list[Any]) -> Rows:
    """The model that these nodes lead to; who is in none of them is missing."""
    with LocalGrid(nodes) as grid:
        return model_vector(strategy.start(grid, roster_timeout=0).arrays)


@cache
def honest(task: str, seed: int, hostile: int) -> Honest:
    """The task whose first ``hostile`` users are not: the optimum is that of the others."""
    strategy, people = planned(configuration(task, "non_private", seed, max_missing=0.9))
    problem, users = strategy.problem, np.arange(hostile, people.users)
    best = trained(strategy, [Node(problem, people, users)])
    start = loss(problem, people, users, problem.initial())
    return Honest(problem, people, users, start, loss(problem, people, users, best))


def cell(task: str, strategy: str, attack: str, share: float, seed: int) -> dict[str, Any]:
    """One run, as a row of the table."""
    hostile = round(share * TASKS[task]["data"]["users"])
    truth = honest(task, seed, hostile)
    planned_strategy, people = planned(configuration(task, strategy, seed, **STRATEGY_SETTINGS[strategy]))
    nodes: list[Any] = [Node(truth.problem, people, truth.users)]
    if hostile:
        nodes.append(HostileNode(Node(truth.problem, people, np.arange(hostile)), attack, share, seed))
    guarantee, way, failed = planned_strategy.plan.guarantee, float("nan"), ""
    try:
        way = truth.way(trained(planned_strategy, nodes))
    except RunFailed as error:
        failed = str(error)
    return {
        "task": task,
        "strategy": strategy,
        "attack": attack,
        "hostile": round(share, 4),
        "seed": seed,
        "way": way,
        "guarantee": guarantee.sentence(),
        "failed": failed,
    }


def cells(strategies: list[str], seeds: int, shares: tuple[float, ...]) -> Iterator[tuple[Any, ...]]:
    """The cells to measure; without hostile users there is one attack, which is none."""
    for task, strategy, share, seed in itertools.product(TASKS, strategies, shares, range(seeds)):
        yield from ((task, strategy, attack, share, seed) for attack in (ATTACKS if share else ("none",)))


def measured() -> pd.DataFrame:
    """The rows that there are."""
    return pd.read_csv(RESULTS) if RESULTS.is_file() else pd.DataFrame(columns=list(COLUMNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="+", choices=list(STRATEGY_SETTINGS), default=[], help="forget these first")
    parser.add_argument("--quick", action="store_true", help="one seed, a third hostile; printed and not kept")
    arguments = parser.parse_args()
    logging.getLogger("userdp").setLevel(logging.ERROR)  # who is hostile has no node where the honest optimum is found
    table = pd.DataFrame(columns=list(COLUMNS)) if arguments.quick else measured()
    table = table[~table["strategy"].isin(arguments.again)]
    keys = ["task", "strategy", "attack", "hostile", "seed"]
    there = set(table[keys].itertuples(index=False, name=None))
    seeds, shares = (1, SHARES[-1:]) if arguments.quick else (SEEDS, SHARES)
    wanted = cells(list(STRATEGY_SETTINGS), seeds, shares)
    left = [one for one in wanted if (*one[:3], round(one[3], 4), one[4]) not in there]
    rows = [cell(*one) for one in track(left, "cells")]
    table = pd.concat([table, pd.DataFrame(rows, columns=list(COLUMNS))]) if len(table) else pd.DataFrame(rows)
    if not arguments.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        table.sort_values(keys).to_csv(RESULTS, index=False, float_format="%.4g")
    shown = table.pivot_table(index=["task", "strategy"], columns=["hostile", "attack"], values="way", aggfunc="median")
    with pd.option_context("display.width", 200, "display.max_columns", None, "display.float_format", "{:.2f}".format):
        print(shown.T.to_string())


if __name__ == "__main__":
    main()
