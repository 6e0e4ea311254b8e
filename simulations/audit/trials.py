"""Many runs of a small instance, each with noise of its own, as rows of numbers that an observer of the run has."""

import logging
import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from simulations.audit.instance import Instance, ones
from simulations.audit.neighbours import Neighbours, worst_cases
from simulations.config.run_config import parse_config
from simulations.engines.grids import LocalGrid
from strategies.core.declarations import notes_of
from strategies.core.results import PrivateResult
from strategies.wire.protocol import model_vector
from userdp.errors import RunFailed
from userdp.nodes.node import Node

Floats = NDArray[np.float64]
Progress = Callable[[int], None]
"""Called with the number of runs that have been made since it was called last."""

_CHUNK = 20
"""Runs that a process is given at once."""


@dataclass(frozen=True)
class Runs:
    """What runs on two neighbouring data sets let an observer see.

    Attributes:
        first: (R, F) of runs on the first data set.
        second: (R, F) of runs on the second.
    """

    first: Floats
    second: Floats


@dataclass(frozen=True)
class Observer:
    """Turns a run into what its guarantee is about: every released model, and what rounds note of released values.

    Attributes:
        instance: of the runs.
        notes: names of those numbers.
    """

    instance: Instance
    notes: tuple[str, ...]

    @classmethod
    def of(cls, instance: Instance) -> "Observer":
        """Of an instance's runs."""
        notes = notes_of(type(instance.template))
        return cls(instance, tuple(name for name, fact in notes.items() if fact.kind == "noised"))

    @property
    def alike(self) -> NDArray[np.bool_]:
        """(F,) the features that say how far a round moved the released model in the canary's direction."""
        return np.arange(self.features) < self.instance.plan.rounds

    @property
    def features(self) -> int:
        """F: for each round a move, whether there was one, and the notes."""
        return self.instance.plan.rounds * (2 + len(self.notes))

    def row(self, nodes: Sequence[Node], seed: int) -> Floats:
        """(F,) one run on the data of the nodes, through the server's loop and the nodes' own code.

        A run that fails is seen up to where it failed.
        """
        strategy, rounds = self.instance.strategy(seed), self.instance.plan.rounds
        models = np.full((rounds + 1, self.instance.problem.dimension), np.nan)

        def seen(server_round: int, arrays: ArrayRecord) -> None:
            models[server_round] = model_vector(arrays)

        with LocalGrid(nodes) as grid:
            try:
                strategy.start(grid, evaluate_fn=seen)
            except RunFailed:
                pass  # what was released before is what there is to see
        for index in range(1, rounds + 1):
            if np.isnan(models[index]).any():
                models[index] = models[index - 1]
        moves = np.diff(models, axis=0) @ ones(self.instance.problem)
        return np.concatenate([moves, moves != 0, self._noted(strategy.result)])

    def _noted(self, result: PrivateResult) -> Floats:
        found = np.zeros((self.instance.plan.rounds, len(self.notes)))
        for record in result.rounds:
            found[record.round - 1] = [record.facts.get(name, 0.0) for name in self.notes]
        return np.nan_to_num(found, posinf=0.0, neginf=0.0).ravel()


def run_seed(seed: int, attack: int, second: bool, run: int) -> int:
    """The seed of one run: of no other attack, data set or run."""
    sequence = np.random.SeedSequence(seed, spawn_key=(attack, int(second), run))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def some_rows(instance: Instance, attack: int, second: bool, runs: range) -> Floats:
    """(R, F) the runs of these numbers on one data set of an attack."""
    observer, pair = Observer.of(instance), worst_cases(instance)[attack]
    nodes = pair.second if second else pair.first
    seeds = [run_seed(instance.config.seed, attack, second, run) for run in runs]
    return np.array([observer.row(nodes, seed) for seed in seeds]).reshape(len(seeds), observer.features)


@dataclass(frozen=True)
class Laboratory:
    """Makes runs, in this process or in several.

    Attributes:
        instance: of the runs.
        pool: other processes; None for this one.
    """

    instance: Instance
    pool: ProcessPoolExecutor | None

    def runs(self, attack: int, numbers: range, progress: Progress) -> Runs:
        """The runs of these numbers on both data sets of an attack; the same however many processes there are."""
        parts = [range(first, min(first + _CHUNK, numbers.stop)) for first in range(numbers.start, numbers.stop, _CHUNK)]
        tasks = [(second, part) for second in (False, True) for part in parts]
        rows: dict[tuple[bool, int], Floats] = {}
        if self.pool is None:
            for second, part in tasks:
                rows[second, part.start] = some_rows(self.instance, attack, second, part)
                progress(len(part))
        else:
            waiting = {self.pool.submit(_in_worker, attack, *task): task for task in tasks}
            for done in as_completed(waiting):
                second, part = waiting[done]
                rows[second, part.start] = done.result()
                progress(len(part))
        return Runs(*(np.vstack([rows[second, part.start] for part in parts]) for second in (False, True)))


@contextmanager
def laboratory(instance: Instance, workers: int | None) -> Iterator[Laboratory]:
    """Where runs are made.

    Args:
        instance: of the runs.
        workers: processes; one a CPU if not given, and 0 or 1 for this one alone.
    """
    count = available_cpus() if workers is None else workers
    with _quiet():
        if count <= 1:
            yield Laboratory(instance, None)
            return
        begin = partial(_begin, instance.config.toml())
        with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=begin) as pool:
            yield Laboratory(instance, pool)


def available_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _quiet() -> Iterator[None]:
    """Thousands of runs need not each log what they promise."""
    log = logging.getLogger("userdp")
    disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = disabled


_INSTANCES: list[Instance] = []
"""Of a worker process: the one that it attacks."""


def _begin(toml: str) -> None:
    logging.getLogger("userdp").disabled = True
    _INSTANCES[:] = [Instance.of(parse_config(tomllib.loads(toml)))]


def _in_worker(attack: int, second: bool, runs: range) -> Floats:
    return some_rows(_INSTANCES[0], attack, second, runs)
