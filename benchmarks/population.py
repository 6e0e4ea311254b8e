"""Whole runs on up to a million synthetic users: seconds and peak memory, both within limits.

Every user has 10 samples of 100 features. The federation stores nothing but each user's number of samples; a node keeps
its users' means and the samples of its first users, in 192 MiB, and makes those of the others where it needs them.
Every run is a process of its own, from an empty one to the released model: plan, data, rounds.
``python benchmarks/population.py --check``. By hand also ``--users 10000000 --strategies dp_fed_sgd --rounds 2``,
whose rounds make most samples anew: kept samples and means do not grow.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from simulations.engines import grids
from simulations.engines.grids import LocalGrid, shards, worthwhile_nodes
from strategies import Auto, DPFedSGD, LocalizedRobustSGD, PublicFacts, Recipe, UserLevelStrategy
from userdp.accounting import Privacy
from userdp.data import Gaussian, SyntheticFederation
from userdp.nodes.node import Node, NodeSamples
from userdp.nodes.pipeline import RowPipeline
from userdp.nodes.row_maker import RowMaker
from userdp.noise import SeededNoise
from userdp.problems import Quadratic

DIMENSION, SAMPLES = 100, 10
LIMIT_MIB, LIMIT_SECONDS, LIMIT_GROWTH = {"localized_robust_sgd": 4096, "auto": 2560}, 90.0, 1.3
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "data": ((NodeSamples, "__init__"), (NodeSamples, "blocks")),
    "gradients": ((RowMaker, "rows"),),
    "clips and sums": ((RowPipeline, "add"),),
    "noise": ((SeededNoise, "gaussian"), (SeededNoise, "laplace"), (SeededNoise, "choose")),
    "messages and checks": (
        (UserLevelStrategy, "configure_train"),
        (UserLevelStrategy, "aggregate_train"),
        (grids, "answer_message"),
    ),
}
"""Part of a run -> the functions that do it; the rest is plan, start and report."""
STRATEGIES: dict[str, tuple[type[Recipe], dict[str, Any]]] = {
    "dp_fed_sgd": (DPFedSGD, {}),
    "localized_robust_sgd": (LocalizedRobustSGD, {"deviation": 1.0}),
    "auto": (Auto, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--rounds", type=int, default=5, help="of dp_fed_sgd (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE, beside its others")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"exit with 1 above {LIMIT_SECONDS:.0f} s or {LIMIT_MIB} MiB, or where seconds per user grow by more than "
        f"{LIMIT_GROWTH}, for these strategies",
    )
    parser.add_argument("--one", nargs=2, metavar=("STRATEGY", "USERS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments.one[0], int(arguments.one[1]), arguments.rounds)))
        return
    runs = []
    for name in arguments.strategies:
        for users in arguments.users:
            script = [sys.executable, __file__, "--one", name, str(users), "--rounds", str(arguments.rounds)]
            done = subprocess.run(script, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(" | ".join(f"{key} {value}" for key, value in runs[-1].items()), flush=True)
            if arguments.json:
                write(arguments.json, runs[-1])
    complaints = failures(runs) if arguments.check else []
    print("".join(f"{line}\n" for line in complaints), end="")
    sys.exit(1 if complaints else 0)


def write(path: Path, run: dict[str, Any]) -> None:
    """Put a run into the file, in place of the last one of its strategy and users."""
    before = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = {(each["strategy"], each["users"]): each for each in [*before, run]}
    machine = {"cores": os.cpu_count(), "samples": SAMPLES, "dimension": DIMENSION}
    ordered = sorted(runs.values(), key=lambda each: (list(STRATEGIES).index(each["strategy"]), each["users"]))
    path.write_text(json.dumps({"machine": machine, "runs": ordered}, indent=2) + "\n")


def measured(name: str, users: int, rounds: int) -> dict[str, Any]:
    """One run in this process."""
    shares, started = Shares(), time.perf_counter()
    federation = SyntheticFederation(Gaussian(dimension=DIMENSION), users, seed=1, samples_per_user=SAMPLES)
    problem = Quadratic(DIMENSION, bound=4.0, radius=1.0)
    facts = PublicFacts(users, min_samples=SAMPLES, max_samples=SAMPLES)
    kind, options = STRATEGIES[name]
    options = {"rounds": rounds} if kind is DPFedSGD else options
    strategy = kind(**options).strategy(problem, facts, Privacy(epsilon=1.0, delta=1e-8))
    blocks = shards(users, nodes=worthwhile_nodes(problem, federation))
    with LocalGrid([Node(problem, federation, block) for block in blocks]) as grid:
        result = strategy.start(grid)
    if not result.guarantee.holds:
        raise SystemExit(f"{name} ended without a guarantee")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    return {
        "strategy": name,
        "users": users,
        "rounds": len(result.rounds),
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(time.process_time(), 1),
        "peak_mib": round(peak),
        "shares": shares.taken(),
    }


class Shares:
    """The time of this thread by the parts of a run; of a part that calls another, its own work alone."""

    def __init__(self) -> None:
        self._seconds, self._doing, self._since = dict.fromkeys([*PARTS, "rest"], 0.0), ["rest"], time.perf_counter()
        for part, places in PARTS.items():
            for owner, name in places:
                inner = getattr(owner, name)
                setattr(owner, name, self._pass(part, inner) if name == "blocks" else self._call(part, inner))

    def taken(self) -> dict[str, float]:
        """Part -> its share."""
        self._note()
        return {part: round(seconds / sum(self._seconds.values()), 3) for part, seconds in self._seconds.items()}

    def _call(self, part: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            with self._within(part):
                return inner(*given, **named)

        return called

    def _pass(self, part: str, inner: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def passed(*given: Any, **named: Any) -> Iterator[Any]:
            items = inner(*given, **named)
            following = self._call(part, lambda: next(items, None))
            yield from iter(following, None)

        return passed

    @contextmanager
    def _within(self, part: str) -> Iterator[None]:
        self._note()
        self._doing.append(part)
        try:
            yield
        finally:
            self._note()
            self._doing.pop()

    def _note(self) -> None:
        now = time.perf_counter()
        self._seconds[self._doing[-1]] += now - self._since
        self._since = now


def failures(runs: list[dict[str, Any]]) -> list[str]:
    """The promises that are not kept."""
    told = []
    for name, most in LIMIT_MIB.items():
        own = sorted((run for run in runs if run["strategy"] == name), key=lambda run: int(run["users"]))
        large = [run for run in own if run["peak_mib"] > most or run["seconds"] > LIMIT_SECONDS]
        told += [
            f"TOO LARGE: {name} on {run['users']} users: {run['seconds']} s, {run['peak_mib']} MiB" for run in large
        ]
        if own and own[-1]["seconds"] / own[-1]["users"] > LIMIT_GROWTH * own[0]["seconds"] / own[0]["users"]:
            told.append(f"GROWS: {name} takes {own[-1]['seconds']} s for {own[-1]['users']} users")
    return told


if __name__ == "__main__":
    main()
