"""Rounds on a million columns: time by the entries that are not zero, and peak memory, which must stay under 4 GiB.

Users with 20 samples of 20 entries each (columns by Zipf's law), logistic regression, whole rounds of `dp_fed_sgd` on
the local grid; dense rows of these users would take 8 MB each. Three sizes, each in a process of its own. Times are of
the processor, the least of several rounds. Part of a round takes time by the number of columns whatever the users:
iterates, noise, messages. That part is measured in the same process by rounds of a federation with one sample a node,
and taken off; what is left must grow in proportion to the entries. ``python benchmarks/sparse.py --check``.
"""

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from simulations.engines.grids import LocalGrid, shards
from strategies import DPFedSGD, PublicFacts
from strategies.baselines.sparse_gradients.populations import SparseRegression
from userdp.accounting import Privacy
from userdp.data import SyntheticFederation
from userdp.nodes.node import Node
from userdp.problems import SparseLogistic

COLUMNS, ENTRIES, SAMPLES, ROUNDS = 1_000_000, 20, 20, 7
SIZES = (2_000, 4_000, 8_000)
LIMIT_MIB = 4096
SLOPE = (0.7, 1.3)
"""The allowed slope of the logarithm of time in the logarithm of entries, between the smallest and the largest size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, help="measure this many users in this process, and print JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 above {LIMIT_MIB} MiB or if not linear")
    arguments = parser.parse_args()
    if arguments.users:
        print(json.dumps(measure(arguments.users)))
        return
    rows = [in_a_process(users) for users in SIZES]
    slope = slope_of(rows)
    print(table(rows))
    print(f"time grows as the entries to the power {slope:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rows, "slope": slope}, indent=2) + "\n")
    if arguments.check and (complaints := problems_of(rows, slope)):
        sys.exit("\n".join(complaints))


def in_a_process(users: int) -> dict[str, Any]:
    """`measure` in a fresh process, whose peak memory is its own."""
    command = [sys.executable, __file__, "--users", str(users)]
    # One thread: threads that wait for work spin, and processor time would count them.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | threads)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(users: int) -> dict[str, Any]:
    """Processor time of a round, of its dense part, and the peak memory of this process."""
    whole, entries = seconds_of(users, SAMPLES)
    dense, _ = seconds_of(len(shards(users)), 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    return {
        "users": users,
        "entries": entries,
        "round_ms": round(1e3 * whole, 1),
        "dense_ms": round(1e3 * dense, 1),
        "sparse_ns_per_entry": round(1e9 * (whole - dense) / entries, 1),
        "peak_memory_mib": round(peak),
    }


def seconds_of(users: int, samples: int) -> tuple[float, int]:
    """Least processor seconds of a round with all users, and the entries of all samples."""
    population = SparseRegression(dimension=COLUMNS, nonzeros=ENTRIES, skew=1.0)
    federation = SyntheticFederation(population, users, seed=1, samples_per_user=samples)
    problem = SparseLogistic(COLUMNS, population.feature_norm, ENTRIES)
    facts = PublicFacts(users, min_samples=samples, max_samples=samples)
    privacy = Privacy(epsilon=1.0, delta=1e-6)
    strategy = DPFedSGD(rounds=ROUNDS, cohort=users, clip_norm=0.1).strategy(problem, facts, privacy)
    with LocalGrid([Node(problem, federation, block) for block in shards(users)]) as grid:
        ends: list[float] = []
        strategy.start(grid, on_round=lambda _: ends.append(time.process_time()))
    entries = sum(block.sparse_features.nnz for _, block in federation.blocks(shards(users, nodes=1)[0]))
    # Between the ends of rounds, so that the first, which finds libraries and touches memory, does not count.
    return min(later - earlier for earlier, later in itertools.pairwise(ends)), entries


def slope_of(rows: list[dict[str, Any]]) -> float:
    """The slope of the part above the dense one in the entries, on logarithmic scales."""
    sparse = [max(1e-9, row["round_ms"] - row["dense_ms"]) for row in (rows[0], rows[-1])]
    return math.log(sparse[1] / sparse[0]) / math.log(rows[-1]["entries"] / rows[0]["entries"])


def problems_of(rows: list[dict[str, Any]], slope: float) -> list[str]:
    """The limits that are exceeded."""
    complaints = [
        f"peak memory of {row['peak_memory_mib']} MiB at {row['users']} users exceeds {LIMIT_MIB}"
        for row in rows
        if row["peak_memory_mib"] > LIMIT_MIB
    ]
    if not SLOPE[0] <= slope <= SLOPE[1]:
        complaints.append(f"time grows as the entries to the power {slope:.2f}, outside {SLOPE}")
    return complaints


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    names = list(rows[0])
    cells = [" | ".join(str(row[name]).rjust(len(name)) for name in names) for row in rows]
    return "\n".join([" | ".join(names), *cells])


if __name__ == "__main__":
    main()
