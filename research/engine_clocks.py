"""A round on eight workers by the clocks of its parts, for machines with fewer cores: over that of one process.

`RayGrid` runs as it is, on a Ray of this process: tasks and answers are pickled as between processes, and each worker
computes at once, on a clock of its own. Eight cores would take as long as the slowest worker and the coordinator, whose
part is all the rest: messages, pickling, checks, noise. Ray's own queues (`peers.py` has them, with two actors) and the
memory that cores share are not in it. ``python research/engine_clocks.py --json research/results/engine_clocks.json``.
"""

import argparse
import json
import os
import pickle
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from peers import SIZES, make_data
from peers_ours import round_of
from peers_work import Work

from simulations.engines import ray_grid

WORKERS, WARM_UP = 8, 2
AT_MOST = 0.3
"""The parts' time over that of one process, at the largest size."""


class Reference:
    """A pickled answer."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer


class Actor:
    """A worker of this process, and the processor seconds of its last call."""

    def __init__(self, worker: Any) -> None:
        self._worker, self.seconds = worker, 0.0
        self.compute = SimpleNamespace(remote=self._compute)

    def _compute(self, *given: Any) -> Reference:
        sent = pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
        began = time.process_time()
        answer = pickle.dumps(self._worker.compute(*pickle.loads(sent)), pickle.HIGHEST_PROTOCOL)
        self.seconds = time.process_time() - began
        return Reference(answer)


class Clocks:
    """The part of Ray that `RayGrid` needs in a run without failures."""

    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))

    def __init__(self) -> None:
        self.actors = list[Actor]()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": WORKERS}

    available_resources = cluster_resources

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **_: Any) -> Any:
        return lambda kind: SimpleNamespace(remote=lambda *given: self._actor(kind(*given)))

    def wait(self, pending: list[Reference], **_: Any) -> tuple[list[Reference], list[Reference]]:
        return pending, []

    def get(self, reference: Reference) -> Any:
        return pickle.loads(reference.answer)

    def _actor(self, worker: Any) -> Actor:
        self.actors.append(Actor(worker))
        return self.actors[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="counted rounds (default 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if the largest size exceeds {AT_MOST}")
    arguments = parser.parse_args()
    rows = []
    for samples, columns in SIZES:
        rows.append({"samples": samples, "columns": columns, **measured(samples, columns, arguments.rounds)})
        print(" | ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if arguments.json:
        machine = {"cores": os.cpu_count(), "workers": WORKERS}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    sys.exit(1 if arguments.check and rows[-1]["ratio"] > AT_MOST else 0)


def measured(samples: int, columns: int, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of a round in one process and of its parts, in turns: medians."""
    with tempfile.TemporaryDirectory() as scratch, np.load(make_data(Path(scratch), samples, columns)) as file:
        work = Work(file["features"], file["targets"], file["model"])
    clocks = Clocks()
    ray_grid.begin_ray = lambda *_, **__: (clocks, False)
    one_process, on_workers = round_of(work, "local"), round_of(work, "ray", WORKERS)
    taken: dict[str, list[float]] = {"one_process": [], "slowest_worker": [], "coordinator": []}
    for counted in range(-WARM_UP, rounds):
        began = time.process_time()
        one_process()
        between = time.process_time()
        on_workers()
        parts = [actor.seconds for actor in clocks.actors]
        found = between - began, max(parts), time.process_time() - between - sum(parts)
        for name, seconds in zip(taken, found, strict=True):
            taken[name] += [1e3 * seconds] if counted >= 0 else []
    figures = {name: round(median(each), 2) for name, each in taken.items()}
    ratio = (figures["slowest_worker"] + figures["coordinator"]) / figures["one_process"]
    return {"workers": len(clocks.actors), **figures, "ratio": round(ratio, 3)}


if __name__ == "__main__":
    main()
