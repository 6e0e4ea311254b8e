"""A tool of benchmarks/neural.py in a process of its own: does a round whenever it is told to, and says what it cost.

Needs torch and numpy alone, for it runs in the environment of each tool.
"""

import argparse
import itertools
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
import torch
from numpy.typing import NDArray
from torch import Tensor

ANSWER = "answer "
"""Begins the lines that are read: tools and their engines print lines of their own."""


@dataclass(frozen=True)
class Spent:
    """What a process has used since it began.

    Attributes:
        seconds: of processors, children included.
        peak_mib: its largest resident memory.
    """

    seconds: float
    peak_mib: float


@dataclass(frozen=True)
class Work:
    """What to do.

    Attributes:
        model: a name of `neural_models.MODELS`.
        data: a file of `neural_data`.
    """

    model: str
    data: Path

    def users(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets of each user, as tensors, made once."""
        inputs, targets, offsets = self.arrays()
        borders = itertools.pairwise(offsets)
        return [(torch.from_numpy(inputs[a:b]), torch.from_numpy(targets[a:b])) for a, b in borders]

    def arrays(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Inputs (N, k), targets (N, T) and offsets (U + 1,)."""
        with np.load(self.data) as file:
            return file["inputs"], file["targets"], file["offsets"]


def spent() -> Spent:
    """Of this process and the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + children.ru_utime + children.ru_stime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Spent(seconds, peak / (1024**2 if sys.platform == "darwin" else 1024))


def asked() -> tuple[Work, Path]:
    """The work, and the file for the round's sum, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("total", type=Path)
    arguments = parser.parse_args()
    return Work(arguments.model, arguments.data), arguments.total


def serve(tool: str, run_round: Callable[[], NDArray[Any]], total: Path, measure: Callable[[], Spent] = spent) -> None:
    """Do a round for each line that is read: its sum of clipped updates (p,) goes to ``total``, its cost is printed."""
    _say({"versions": {name: version(name) for name in dict.fromkeys(("torch", "numpy", tool))}})
    for _ in sys.stdin:
        before = measure()
        try:
            result = run_round()
        except Exception as problem:  # a tool that cannot do a model is a line of the table
            _say({"error": f"{type(problem).__name__}: {str(problem).splitlines()[0]}"})
            continue
        after = measure()
        np.save(total, result)
        _say({"seconds": after.seconds - before.seconds, "peak_mib": after.peak_mib})


def _say(answer: dict[str, Any]) -> None:
    print(f"{ANSWER}{json.dumps(answer)}", flush=True)
