"""The oracle: clipping strategies tuned on the private data itself, to show how much tuning would be worth.

For every point of a comparison's grid and each oracle strategy, all settings are run on one more seed, and the best
by the main metric is used for the comparison's seeds. Nobody who holds private data may do this: no budget pays for the
search. It is a yardstick for strategies without settings. Grids fit any data: clips are multiples of the median l2 norm
of users' gradients at the initial model, step sizes multiples of one over the largest curvature there, or of the step
that crosses the domain if that is shorter; both are measured without privacy, on the seed of the search.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulations.comparison.sections import ComparisonConfig, StrategyEntry
from simulations.config.run_config import RunConfig
from simulations.records.run_directory import as_json, private_folder, read_json, write_text, write_whole
from simulations.runs.build import load_datasets, starting_problem
from userdp.accounting import Guarantee
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node

ORACLE = "oracle: tuned on the private data itself, NOT private, not something you may do"  # their label
STRATEGIES = ("dp_fed_sgd", "adaptive_clipping", "recentred_clipping")
CLIPS = (0.1, 0.3, 1.0, 3.0)  # clips, as multiples of the median l2 norm of users' gradients at the initial model
STEPS = (1.0, 4.0)  # step sizes, as multiples of 1 / curvature
ROUNDS = (5, 20, 80)
TRIED = len(CLIPS) * len(STEPS) * len(ROUNDS)  # number of settings for each strategy
_MOST_USERS = 2000  # number of users, the first ones, whose gradients are measured
_PASSES, _MOVE = 30, 1e-3  # steps of the power iteration, and the l2 norm by which each moves the model
FIRST_SEED = 1000  # first candidate for the seed of the search


def name_of(kind: str) -> str:
    """Return the label of an oracle strategy, which says what it is wherever it is read."""
    return f"oracle-{kind}-NOT-private"


def oracle_entries(config: ComparisonConfig) -> list[StrategyEntry]:
    """Return the oracle strategies, if the comparison asks for them."""
    if not config.against_oracle:
        return []
    return [StrategyEntry(kind=kind, label=name_of(kind), preparation="none") for kind in STRATEGIES]


@dataclass(frozen=True)
class Scales:
    """The units of the settings, exact functions of private data: a median l2 norm of gradients, and 1 / curvature."""

    length: float
    step: float

    def settings(self) -> list[dict[str, Any]]:
        """Return every setting to try, rounded as in a file."""
        return [
            {"clip_norm": _rounded(clip * self.length), "learning_rate": _rounded(step * self.step), "rounds": rounds}
            for rounds, clip, step in product(ROUNDS, CLIPS, STEPS)
        ]


def scales_of(config: RunConfig, folder: Path) -> Scales:
    """Return `measured_scales`, from a file if there is one: settings stay the same on another machine."""
    data = json.dumps([config.problem.model_dump(), config.data.model_dump(), config.seed], default=str)
    file = folder / f"scales_private-{hashlib.sha256(data.encode()).hexdigest()[:10]}.json"
    if file.is_file():
        return Scales(**read_json(file))
    scales = measured_scales(config)
    private_folder(file.parent)
    write_text(file, json.dumps(asdict(scales)) + "\n")
    return scales


def measured_scales(config: RunConfig) -> Scales:
    """Measure the users' gradients and the curvature of their mean loss at the initial model."""
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
    rows = node.compute(x, users, Computation("user_gradient")).values
    squares = rows.multiply(rows).sum(axis=1) if hasattr(rows, "multiply") else np.einsum("ij,ij->i", rows, rows)
    return np.sqrt(np.asarray(squares, dtype=np.float64)).ravel()


def _curvature(slope: Callable[[Vector], Vector], start: Vector, first: Vector) -> float:
    """Estimate the largest eigenvalue of the Hessian at the start, by power iteration on differences of gradients."""
    # A random start: a coordinate or the gradient may be orthogonal to the steepest direction.
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
    """Remove the guarantee from a run's files: its settings depend on the private data."""
    none = Guarantee.none("settings were tuned on the private data itself").as_dict()
    for name in ("plan.json", "result.json", "guarantee.json"):
        path = directory / name
        if not path.is_file():
            continue
        values = read_json(path)
        if name == "guarantee.json":
            values |= none | {"sentence": ORACLE, "spent_epsilon": None}
        else:
            values["guarantee"] = none
        write_text(path, as_json(values))
    rounds = directory / "rounds.parquet"
    if rounds.is_file():
        write_whole(rounds, partial(pd.read_parquet(rounds).assign(spent_epsilon=math.nan).to_parquet, index=False))


def _rounded(value: float) -> float:
    """Round to three digits, as in a file; rounding also hides differences between machines."""
    return float(f"{value:.3g}")
