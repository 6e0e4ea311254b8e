"""What tuning would be worth: clipping strategies whose settings are chosen by looking at the answers.

For every point of a comparison's grid and each of these strategies, all settings are run on one more seed, and the one
with the best main metric is used for the comparison's seeds: what nobody may do who holds private data, for the search
reads them many times and no budget pays for it. It shows how good clipping could be, and so what a strategy without
settings is to be measured by.

Grids are relative, so that they fit any data: clips are multiples of the median length of users' gradients at the
start, steps multiples of one over the largest curvature there (or of what crosses the domain, where that is less). Both
are measured without privacy, on the seed of the search: an oracle may look.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulations.comparison.sections import ComparisonConfig, StrategyEntry
from simulations.config.run_config import RunConfig
from simulations.records.run_directory import plain
from simulations.runs.build import load_datasets, starting_problem
from userdp.accounting import Guarantee
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node

ORACLE = "oracle: tuned by looking at the answers, NOT private, not something you may do"
"""Said wherever one of these stands beside private strategies."""
STRATEGIES = ("dp_fed_sgd", "adaptive_clipping", "recentred_clipping")
CLIPS = (0.1, 0.3, 1.0, 3.0)
"""Over the median length of users' gradients at the initial model."""
STEPS = (1.0, 4.0)
"""Over 1 / curvature."""
ROUNDS = (5, 20, 80)
TRIED = len(CLIPS) * len(STEPS) * len(ROUNDS)
"""Settings of each strategy."""
_MOST_USERS = 2000
"""Whose gradients are looked at; the first ones."""
_PASSES, _MOVE = 30, 1e-3
"""Of the power iteration, and how far it moves the model, in l2 norm."""


_FIRST_SEED = 1000
"""Of those that the search may take."""


def name_of(kind: str) -> str:
    """What an oracle's strategy is called in tables and plots: the label says it wherever it is read."""
    return f"oracle-{kind}-NOT-private"


def oracle_entries(config: ComparisonConfig) -> list[StrategyEntry]:
    """The strategies that stand beside those of a comparison, if it asks for them."""
    if not config.against_oracle:
        return []
    return [StrategyEntry(kind=kind, label=name_of(kind), preparation="none") for kind in STRATEGIES]


def oracle_seed(taken: Collection[int]) -> int:
    """The seed of the search: none of ``taken``."""
    return next(seed for seed in count(_FIRST_SEED) if seed not in taken)


@dataclass(frozen=True)
class Scales:
    """What settings are multiples of; exact functions of private data.

    Attributes:
        length: median l2 norm of users' gradients at the initial model.
        step: one over the curvature there.
    """

    length: float
    step: float

    def settings(self) -> list[dict[str, Any]]:
        """Every setting that is tried, rounded to what a file shows."""
        return [
            {"clip_norm": _rounded(clip * self.length), "learning_rate": _rounded(step * self.step), "rounds": rounds}
            for rounds, clip, step in product(ROUNDS, CLIPS, STEPS)
        ]


def scales_of(config: RunConfig, folder: Path) -> Scales:
    """`measured_scales`, kept in a file: what was tried before is found again, whatever machine measures."""
    looked_at = json.dumps([config.problem.model_dump(), config.data.model_dump(), config.seed], default=str)
    file = folder / f"scales_private-{hashlib.sha256(looked_at.encode()).hexdigest()[:10]}.json"
    if file.is_file():
        return Scales(**json.loads(file.read_text(encoding="utf-8")))
    scales = measured_scales(config)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"length": scales.length, "step": scales.step}) + "\n", encoding="utf-8")
    return scales


def measured_scales(config: RunConfig) -> Scales:
    """Look at a configuration's users: how long their gradients are at the start, and how curved their mean loss is."""
    problem, federation = starting_problem(config), load_datasets(config).users
    users = np.arange(min(federation.users, _MOST_USERS))
    node, start = Node(problem, federation, users), problem.initial()
    lengths = np.concatenate([_lengths(node, start, part) for part in np.array_split(users, max(1, len(users) // 100))])
    middle = float(np.median(lengths)) or float(lengths.mean()) or 1.0

    def slope(x: Vector) -> Vector:
        answer = node.compute(x, users, Computation("user_gradient", reduce="sum"))
        return np.asarray(dense(answer.values)[0] / len(users))

    first = slope(start)
    across = 2 * problem.domain.radius * math.sqrt(problem.dimension)
    longest = across / (float(np.linalg.norm(first)) or middle)
    curvature = _curvature(slope, start, first)
    step = min(1 / curvature if curvature > 0 else math.inf, longest)
    return Scales(_rounded(middle), _rounded(step if math.isfinite(step) else 1.0))


def _lengths(node: Node, x: Vector, users: NDArray[np.int64]) -> Vector:
    """(U,) l2 norms of users' gradients."""
    rows = node.compute(x, users, Computation("user_gradient")).values
    squares = rows.multiply(rows).sum(axis=1) if hasattr(rows, "multiply") else np.einsum("ij,ij->i", rows, rows)
    return np.sqrt(np.asarray(squares, dtype=np.float64)).ravel()


def _curvature(slope: Callable[[Vector], Vector], start: Vector, first: Vector) -> float:
    """Largest eigenvalue of the second derivative at the start, by power iteration on differences of gradients."""
    # Not along a coordinate or the gradient, to which the steepest direction may be at right angles.
    direction = np.random.default_rng(0).normal(size=start.size)
    found = 0.0
    for _ in range(_PASSES):
        direction /= np.linalg.norm(direction)
        change = (slope(start + _MOVE * direction) - first) / _MOVE
        length = float(np.linalg.norm(change))
        if not length > 0 or not math.isfinite(length):
            break
        found, direction = length, change
    return found


def take_promise_back(directory: Path) -> None:
    """Leave a run's files without the guarantee that its noise would give had nobody looked before."""
    none = Guarantee.none("settings were chosen by looking at the answers").as_dict()
    for name in ("plan.json", "result.json", "guarantee.json"):
        path = directory / name
        if not path.is_file():
            continue
        values = json.loads(path.read_text(encoding="utf-8"))
        if name == "guarantee.json":
            values |= none | {"sentence": ORACLE, "spent_epsilon": None}
        else:
            values["guarantee"] = none
        path.write_text(json.dumps(plain(values), indent=2) + "\n", encoding="utf-8")
    rounds = directory / "rounds.parquet"
    if rounds.is_file():
        pd.read_parquet(rounds).assign(spent_epsilon=math.nan).to_parquet(rounds, index=False)


def _rounded(value: float) -> float:
    """Three digits: what a file shows, and the same wherever it is measured but for a hair."""
    return float(f"{value:.3g}")
