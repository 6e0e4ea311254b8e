"""Runs on a million synthetic users: seconds and peak memory, which must stay under 4 GiB.

Every user has 10 samples of 20 features. The federation stores nothing but each user's number of samples; each node
makes the samples of its users once and keeps them in float32 (a node with more than half a gigabyte would make them
again each round). ``python benchmarks/population.py --check``.
"""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from simulations.engines.grids import LocalGrid, shards
from strategies import DPFedSGD, LocalizedRobustSGD, PublicFacts
from userdp.accounting import Privacy
from userdp.data import Gaussian, SyntheticFederation
from userdp.nodes.node import Node
from userdp.problems import Quadratic

LIMIT_MIB = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 above {LIMIT_MIB} MiB")
    arguments = parser.parse_args()
    numbers = measure(arguments.users)
    print("\n".join(f"{name:>40}: {value}" for name, value in numbers.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")
    if arguments.check and numbers["peak_memory_mib"] > LIMIT_MIB:
        sys.exit(f"peak memory of {numbers['peak_memory_mib']} MiB exceeds {LIMIT_MIB}")


def measure(users: int) -> dict[str, Any]:
    """One run of each strategy on the same nodes."""
    started = time.perf_counter()
    federation = SyntheticFederation(Gaussian(dimension=20), users, seed=1, samples_per_user=10)
    problem = Quadratic(20, bound=4.0, radius=1.0)
    facts, privacy = PublicFacts(users, min_samples=10, max_samples=10), Privacy(epsilon=1.0, delta=1e-8)
    strategies = [
        DPFedSGD(problem, facts, privacy, rounds=20, cohort=users // 10),
        LocalizedRobustSGD(problem, facts, privacy, deviation=1.0),
    ]
    numbers: dict[str, Any] = {"users": users}
    with LocalGrid([Node(problem, federation, block) for block in shards(users)]) as grid:
        numbers["seconds_to_make_the_data"] = round(time.perf_counter() - started, 1)
        for strategy in strategies:
            started = time.perf_counter()
            result = strategy.start(grid)
            numbers[f"{strategy.name}_rounds"] = len(result.rounds)
            numbers[f"{strategy.name}_seconds"] = round(time.perf_counter() - started, 1)
            if not result.guarantee.holds:
                raise SystemExit(f"{strategy.name} ended without a guarantee")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    numbers["peak_memory_mib"] = round(peak)
    return numbers


if __name__ == "__main__":
    main()
