"""Whole runs with secure noise beside the same runs with seeded noise: processor time, minimum of turns.

Both kinds of run take turns in one process, from the settings to the run's files, after one run that is not counted.
``python benchmarks/secure.py --check``; ``--only modules`` for one kind of losses.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from simulations import query, train

LIMITS = {"scores": 1.5, "classes": 2.0, "queries": 2.0, "modules": 3.0, "wide models": 3.5}
"""Secure over seeded, by what is computed."""
SIZES = ((1_200, 3), (6_000, 30), (1_200, 100), (100_000, 3))
"""Users, and samples of each."""
SMALL: tuple[dict[str, Any], ...] = ({"kind": "dp_fed_sgd", "rounds": 20}, {"kind": "auto"})
QUIET = {"reference": False, "checkpoint": False, "anyway": True}
PRIVACY: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "progress": False, "output": QUIET}
Run = Callable[..., Any]
"""A run with the noise that it is given by name."""


class Steps(nn.Module):
    """Five classes from 20 steps of one number, which a layer reads in order, or by attention."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.into, self.layer, self.out = nn.Linear(1, 16), layer, nn.Linear(16, 5)

    def forward(self, rows: Tensor) -> Tensor:
        found = self.layer(self.into(rows.unsqueeze(-1)))
        return self.out((found[0] if isinstance(found, tuple) else found)[:, -1])  # type: ignore[no-any-return]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))


def curved() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))


def convolution() -> nn.Module:
    layers = nn.Conv1d(1, 8, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 16, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (1, 20)), *layers, nn.Linear(112, 5))


def memory() -> nn.Module:
    return Steps(nn.LSTM(16, 16, batch_first=True))


def gates() -> nn.Module:
    return Steps(nn.GRU(16, 16, batch_first=True))


def attention() -> nn.Module:
    return Steps(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True))


MODULES = (perceptron, curved, convolution, memory, gates, attention)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--only", choices=LIMITS, help="runs of these alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the times to FILE, beside its others")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a ratio exceeds its limit")
    arguments = parser.parse_args()
    exceeded = False
    for kind in LIMITS if arguments.only is None else [arguments.only]:
        for name, computed in RUNS[kind]():
            seconds = measured(computed, arguments.turns)
            ratio = seconds["secure"] / seconds["seeded"]
            exceeded |= ratio > LIMITS[kind]
            told = ", ".join(f"{noise} {value:.2f} s" for noise, value in seconds.items())
            print(f"{kind}, {name}: {told}, {ratio:.2f}x (limit {LIMITS[kind]})", flush=True)
            if arguments.json:
                write(arguments.json, {"kind": kind, "name": name, "turns": arguments.turns, **seconds})
    sys.exit(1 if arguments.check and exceeded else 0)


def write(path: Path, row: dict[str, Any]) -> None:
    """Put a measurement into the file, in place of the last one of its name."""
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {(each["kind"], each["name"]): each for each in [*before, row]}
    path.write_text(json.dumps({"rows": list(rows.values())}, indent=2) + "\n")


def measured(computed: Run, turns: int) -> dict[str, float]:
    """Noise -> processor seconds of a run."""
    seconds = dict.fromkeys(("seeded", "secure"), float("inf"))
    for turn in range(turns + 1):
        for noise in seconds:
            began = time.process_time()
            computed(noise=noise)
            if turn:
                seconds[noise] = min(seconds[noise], time.process_time() - began)
    return seconds


def scores() -> Iterator[tuple[str, Run]]:
    problems = {
        "logistic": ("logistic_regression", {}),
        "squared": ("linear_regression", {"target_range": [-3.0, 3.0]}),
    }
    for loss, (population, more) in problems.items():
        for strategy in SMALL:
            for users, samples in SIZES:
                data = {"kind": "synthetic", "population": population, "users": users, "samples_per_user": samples}
                data |= {"dimension": 10, "test_users": 100}
                settings = {"problem": {"kind": loss, "radius": 3.0, **more}, "data": data, "strategy": strategy}
                yield f"{loss}, {strategy['kind']}, {users} users with {samples}", partial(synthetic, settings)


def wide() -> Iterator[tuple[str, Run]]:
    """A model of 10,000 numbers: exact noise on each of them takes longer than all else in a round."""
    data = {"kind": "synthetic", "population": "logistic_regression", "users": 1_200, "samples_per_user": 3}
    data |= {"dimension": 10_000, "test_users": 100}
    problem, strategy = {"kind": "logistic", "radius": 3.0}, {"kind": "dp_fed_sgd", "rounds": 10}
    settings: dict[str, Any] = {"problem": problem, "data": data, "strategy": strategy}
    yield "logistic, dp_fed_sgd, 1200 users with 3 and 10,000 columns", partial(synthetic, settings)


def synthetic(settings: dict[str, Any], noise: str) -> None:
    privacy = {"epsilon": 2.0, "delta": 1e-6, "noise": noise}
    train({"name": "secure", **settings, "privacy": privacy, "output": QUIET}, progress=False)


def table(users: int, sizes: np.ndarray[Any, Any], columns: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a table of numbers and one of five classes, and what is declared of it."""
    random, names = np.random.default_rng(0), [f"x{place}" for place in range(columns)]
    numbers = random.uniform(-1, 1, (sizes.sum(), columns)).astype(np.float32)
    frame = pd.DataFrame(numbers, columns=names)
    frame["class"] = np.argmax(numbers[:, :5] + random.normal(scale=0.2, size=(len(numbers), 5)), axis=1)
    frame["user"] = np.repeat(np.arange(users), sizes)
    return frame, {"user": "user", "features": names, "ranges": {name: [-1, 1] for name in names}, "all_users": users}


def classes() -> Iterator[tuple[str, Run]]:
    for strategy in SMALL:
        for users, samples in SIZES[:3]:
            frame, declared = table(users, np.full(users, samples), 10)
            declared |= {"target": "class", "target_levels": [0, 1, 2, 3, 4]}
            run = partial(train, frame, problem="softmax", strategy=strategy, **declared, **PRIVACY)
            yield f"softmax, {strategy['kind']}, {users} users with {samples}", run


def queries() -> Iterator[tuple[str, Run]]:
    for users, samples in SIZES[:3]:
        frame, declared = table(users, np.full(users, samples), 10)
        yield f"{users} users with {samples}", partial(query, frame, **declared, **PRIVACY)


def modules() -> Iterator[tuple[str, Run]]:
    strategies: tuple[dict[str, Any], ...] = (
        {"kind": "dp_fed_sgd", "rounds": 10, "clip_norm": 0.5},
        {"kind": "dp_fed_avg", "rounds": 5, "clip_norm": 0.5, "local_steps": 3, "local_batch": 8},
    )
    for users in (300, 3_000):
        frame, declared = table(users, np.random.default_rng(1).integers(3, 51, users), 20)
        declared |= {"target": "class", "target_levels": [0, 1, 2, 3, 4]}
        for module in MODULES:
            problem = {"kind": "torch", "module": f"{__file__}:{module.__name__}", "loss": "cross_entropy"}
            for strategy in strategies:
                run = partial(train, frame, problem=problem, strategy=strategy, **declared, **PRIVACY)
                yield f"{module.__name__}, {strategy['kind']}, {users} users with 3 to 50", run


RUNS = {"scores": scores, "classes": classes, "queries": queries, "modules": modules, "wide models": wide}

if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
