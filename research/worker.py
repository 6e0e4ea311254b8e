"""A tool of a benchmark in a process of its own: does a round whenever it is told to, and says what it cost.

Needs numpy alone, for it runs in the environment of each tool.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ANSWER = "answer "
"""Begins the lines that are read: tools and their engines print lines of their own."""


@dataclass(frozen=True)
class Spent:
    """The resources that a process has used since it began.

    Attributes:
        seconds: processor time, children included.
        peak_mib: its largest resident memory.
    """

    seconds: float
    peak_mib: float


def spent() -> Spent:
    """The resources of this process and the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + children.ru_utime + children.ru_stime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Spent(seconds, peak / (1024**2 if sys.platform == "darwin" else 1024))


def spent_by_all() -> Spent:
    """The resources of this process and every living process below it: Ray's are never waited for."""
    import psutil  # noqa: PLC0415 -- not in every tool's environment

    root = psutil.Process()
    processes = [root, *root.children(recursive=True)]
    times = [process.cpu_times() for process in processes]
    resident = sum(process.memory_info().rss for process in processes)
    return Spent(sum(time.user + time.system for time in times), resident / 1024**2)


def serve(
    packages: tuple[str, ...], run_round: Callable[[], NDArray[Any]], total: Path, measure: Callable[[], Spent] = spent
) -> None:
    """Do a round for each line that is read: its sum of clipped updates (p,) goes to ``total``, its cost is printed.

    ``packages`` are those whose versions are told first.
    """
    _say({"versions": {name: version(name) for name in dict.fromkeys(packages)}})
    for _ in sys.stdin:
        before, started = measure(), time.perf_counter()
        try:
            result = run_round()
        except Exception as problem:  # a tool that cannot do a model is a line of the table
            _say({"error": f"{type(problem).__name__}: {str(problem).splitlines()[0]}"})
            continue
        wall, after = time.perf_counter() - started, measure()
        np.save(total, result)
        _say({"seconds": after.seconds - before.seconds, "wall": wall, "peak_mib": after.peak_mib})


def _say(answer: dict[str, Any]) -> None:
    print(f"{ANSWER}{json.dumps(answer)}", flush=True)
