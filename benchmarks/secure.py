"""Whole runs with secure noise beside the same runs with seeded noise: processor time, minimum of turns.

Both kinds of run take turns in one process, from the configuration to the run directory, after one run that is not
counted. ``python benchmarks/secure.py --check``.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from simulations.config.run_config import parse_config
from simulations.runs.run import run

LIMIT = 1.5
POPULATIONS = {"logistic": "logistic_regression", "squared": "linear_regression"}
TARGETS = {"squared": {"target_range": [-3.0, 3.0]}}
SIZES = ((1_200, 3), (6_000, 30), (1_200, 100), (100_000, 3))
"""Users, and samples of each."""
STRATEGIES: tuple[dict[str, Any], ...] = ({"kind": "dp_fed_sgd", "rounds": 20}, {"kind": "auto"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a ratio exceeds {LIMIT}")
    arguments = parser.parse_args()
    exceeded = False
    for loss in POPULATIONS:
        for strategy in STRATEGIES:
            for users, samples in SIZES:
                seconds = measured(loss, strategy, users, samples, arguments.turns)
                ratio = seconds["secure"] / seconds["seeded"]
                exceeded |= ratio > LIMIT
                told = ", ".join(f"{noise} {value:.2f} s" for noise, value in seconds.items())
                print(f"{loss}, {strategy['kind']}, {users} users with {samples}: {told}, {ratio:.2f}x", flush=True)
    sys.exit(1 if arguments.check and exceeded else 0)


def measured(loss: str, strategy: dict[str, Any], users: int, samples: int, turns: int) -> dict[str, float]:
    """Noise -> processor seconds of a run."""
    seconds = dict.fromkeys(("seeded", "secure"), float("inf"))
    for turn in range(turns + 1):
        for noise in seconds:
            config = parse_config(
                {
                    "name": "secure",
                    "problem": {"kind": loss, "radius": 3.0, **TARGETS.get(loss, {})},
                    "data": {
                        "kind": "synthetic",
                        "population": POPULATIONS[loss],
                        "users": users,
                        "samples_per_user": samples,
                        "dimension": 10,
                        "test_users": 100,
                    },
                    "strategy": strategy,
                    "privacy": {"epsilon": 2.0, "delta": 1e-6, "noise": noise},
                    "output": {"reference": False, "checkpoint": False, "anyway": True},
                }
            )
            with tempfile.TemporaryDirectory() as folder:
                began = time.process_time()
                run(config, directory=Path(folder) / "run")
                if turn:
                    seconds[noise] = min(seconds[noise], time.process_time() - began)
    return seconds


if __name__ == "__main__":
    main()
