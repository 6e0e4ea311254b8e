"""The oracle: clipping strategies tuned on the private data itself, to show how much tuning would be worth.

At every budget of a comparison, all settings of each strategy are run on one more seed, and the best by the main metric
is used for the comparison's seeds. Nobody who holds private data may do this: no budget pays for the search, so its
runs promise nothing, whatever their files say. It is a yardstick for strategies without settings. Grids fit any data:
clips are multiples of the median l2 norm of users' gradients at the initial model, step sizes multiples of one over the
largest curvature there, or of the step that crosses the domain if that is shorter; both are measured without privacy,
on the seed of the search.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations import compare
from simulations.config.run_config import RunConfig, parse_config
from simulations.runs.build import load_datasets, starting_problem
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node

STRATEGIES = ("dp_fed_sgd", "adaptive_clipping", "recentred_clipping")
CLIPS = (0.1, 0.3, 1.0, 3.0)  # clips, as multiples of the median l2 norm of users' gradients at the initial model
STEPS = (1.0, 4.0)  # step sizes, as multiples of 1 / curvature
ROUNDS = (5, 20, 80)
SEED = 1000  # of the search; comparisons use smaller ones
_MOST_USERS = 2000  # number of users, the first ones, whose gradients are measured
_PASSES, _MOVE = 30, 1e-3  # steps of the power iteration, and the l2 norm by which each moves the model


def name_of(kind: str) -> str:
    """Return the label of an oracle strategy, which says what it is wherever it is read."""
    return f"oracle-{kind}-NOT-private"


def oracle_rows(comparison: Mapping[str, Any], epsilons: Sequence[float], directory: Path) -> Iterator[dict[str, Any]]:
    """Run the oracle strategies on the seeds of a comparison, whose sections are given without strategies.

    Yields rows of its table, with the chosen settings as "settings".
    """
    for epsilon in epsilons:
        base = {**comparison, "privacy": {**comparison["privacy"], "epsilon": epsilon}}
        run = {key: section for key, section in base.items() if key != "seeds"}
        first = {**run, "seed": SEED, "strategy": {"kind": STRATEGIES[0]}, "preparation": "none"}
        tried = measured_scales(parse_config(first)).settings()
        search = [_entry(kind, f"{kind}-{place}", one) for kind in STRATEGIES for place, one in enumerate(tried)]
        table = compare({**base, "seeds": [SEED], "strategy": search}, directory=directory, workers=0).table
        values = table.set_index("strategy")["value"].astype(float).fillna(math.inf)
        best = {kind: tried[int(np.argmin([values[f"{kind}-{i}"] for i in range(len(tried))]))] for kind in STRATEGIES}
        chosen = [_entry(kind, name_of(kind), settings) for kind, settings in best.items()]
        table = compare({**base, "strategy": chosen}, directory=directory, workers=0).table
        for one in table.to_dict("records"):
            yield one | {"settings": json.dumps(best[one["kind"]])}


def _entry(kind: str, label: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "label": label, "preparation": "none", **settings}


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


def _rounded(value: float) -> float:
    """Round to three digits, as in a file; rounding also hides differences between machines."""
    return float(f"{value:.3g}")
