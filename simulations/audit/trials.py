"""Many runs of a small instance, each with noise of its own, as rows of numbers that an observer of the run has."""

import logging
import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from simulations.audit.canaries import Attack, Coins, attacks
from simulations.audit.instance import Instance
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

_RIDGE = 1e-10
"""Added to variances, relatively, so that a round which brought nothing has some."""

_CHUNK = 20
"""Runs that a process is given at once."""


@dataclass(frozen=True)
class Runs:
    """What runs of an attack let an observer see.

    Attributes:
        features: (R, m, F) of each canary in each run.
        coins: (R, m) 1 or -1.
    """

    features: Floats
    coins: Coins

    def __getitem__(self, runs: slice) -> "Runs":
        return Runs(self.features[runs], self.coins[runs])


@dataclass(frozen=True)
class Observer:
    """Turns a run into what its guarantee is about: every released model, and what rounds note of released values.

    Attributes:
        instance: of the runs.
        attack: on it.
        notes: names of those numbers.
    """

    instance: Instance
    attack: Attack
    notes: tuple[str, ...]

    @classmethod
    def of(cls, instance: Instance, attack: int) -> "Observer":
        """Of the runs of an attack, by its number."""
        chosen = attacks(instance)[attack]
        # What rounds note moves by one user's own number, which many canaries would hide from each other.
        notes = notes_of(type(instance.template)) if len(chosen.canaries) == 1 else {}
        return cls(instance, chosen, tuple(name for name, fact in notes.items() if fact.kind == "noised"))

    @property
    def alike(self) -> NDArray[np.bool_]:
        """(F,) the features that say how far a round moved the released model in the canary's direction."""
        rounds = self.instance.plan.rounds
        return np.arange(rounds * (2 + len(self.notes))) < rounds

    def some(self, attack: int, runs: range) -> Runs:
        """The runs of these numbers."""
        rows, coins = [], []
        for run in runs:
            noise, thrown = np.random.SeedSequence(self.instance.config.seed, spawn_key=(attack, run)).spawn(2)
            coins.append(2 * np.random.default_rng(thrown).integers(0, 2, len(self.attack.canaries)) - 1)
            nodes = self.attack.nodes(self.instance, coins[-1])
            rows.append(self.row(nodes, int(noise.generate_state(1, np.uint64)[0] >> 1)))
        return Runs(np.array(rows), np.array(coins))

    def row(self, nodes: Sequence[Node], seed: int) -> Floats:
        """(m, F) one run on the data of the nodes, through the server's loop and the nodes' own code.

        For each round its innovation in the canary's direction, whether the model moved, and the notes. A
        run that fails is seen up to where it failed.
        """
        strategy, rounds = self.instance.strategy(seed), self.instance.plan.rounds
        models = np.full((rounds + 1, self.instance.problem.dimension), np.nan)

        def seen(server_round: int, arrays: ArrayRecord) -> None:
            # Where cohorts are drawn anew, a run may have more rounds than the template.
            if server_round <= rounds:
                models[server_round] = model_vector(arrays)

        with LocalGrid(nodes) as grid, suppress(RunFailed):
            strategy.start(grid, evaluate_fn=seen)
        for index in range(1, rounds + 1):
            if np.isnan(models[index]).any():
                models[index] = models[index - 1]
        steps = np.diff(models, axis=0)
        moved = np.broadcast_to((steps != 0).any(axis=1), (len(self.attack.canaries), rounds))
        noted = np.broadcast_to(self._noted(strategy.result), (len(moved), rounds * len(self.notes)))
        return np.hstack([innovations(self.attack.directions @ steps.T), moved, noted])

    def _noted(self, result: PrivateResult) -> Floats:
        found = np.zeros((self.instance.plan.rounds, len(self.notes)))
        for record in (one for one in result.rounds if one.round <= len(found)):
            found[record.round - 1] = [record.facts.get(name, 0.0) for name in self.notes]
        return np.nan_to_num(found, posinf=0.0, neginf=0.0).ravel()


def innovations(moves: Floats) -> Floats:
    """(m, T) moves in many directions, as what each round tells that none before did, in units of its noise.

    A server may scale and mix what rounds release, differently in each run: by clips, gains and momentum that all
    directions share. The covariance of the rounds over directions shows how, and its triangular root takes it off.
    Where directions are no more than rounds there is too little to tell, and moves are left as they are.
    """
    canaries, rounds = moves.shape
    if canaries <= 2 * rounds:
        return moves
    covariance = moves.T @ moves / canaries
    covariance[np.diag_indices(rounds)] *= 1 + _RIDGE
    covariance[np.diag_indices(rounds)] += _RIDGE * max(float(np.trace(covariance)), np.finfo(float).tiny) / rounds
    return np.asarray(np.linalg.solve(np.linalg.cholesky(covariance), moves.T).T)


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
        """The runs of these numbers; the same however many processes there are."""
        parts = [numbers[first : first + _CHUNK] for first in range(0, len(numbers), _CHUNK)]
        made: dict[int, Runs] = {}
        if self.pool is None:
            observer = Observer.of(self.instance, attack)
            for part in parts:
                made[part.start] = observer.some(attack, part)
                progress(len(part))
        else:
            waiting = {self.pool.submit(_in_worker, attack, part): part for part in parts}
            for done in as_completed(waiting):
                part = waiting[done]
                made[part.start] = done.result()
                progress(len(part))
        together = [made[part.start] for part in parts]
        return Runs(
            np.concatenate([each.features for each in together]), np.concatenate([each.coins for each in together])
        )


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


def _in_worker(attack: int, runs: range) -> Runs:
    return Observer.of(_INSTANCES[0], attack).some(attack, runs)
