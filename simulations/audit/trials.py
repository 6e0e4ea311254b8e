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
from scipy.special import ndtr

from simulations.audit.canaries import Attack, Coins, attacks
from simulations.audit.instance import Instance
from simulations.audit.listening import Listener
from simulations.config.run_config import RunConfig, parse_config
from simulations.engines.grids import LocalGrid
from strategies.core.base import UserLevelStrategy
from strategies.core.recipe import notes_of
from strategies.core.results import PrivateResult
from strategies.wire.questions import model_vector
from userdp.arrays.sparse_rows import dense
from userdp.errors import RunFailed
from userdp.nodes.node import Node

Floats = NDArray[np.float64]
Progress = Callable[[int], None]
"""Called with the number of runs that have been made since it was called last."""
Case = tuple[int, int]
"""The number of an instance, and of an attack on it."""

_PAIRS, _PAIRS_OF_MANY = 10, 4
"""Runs, made twice, that say how far one canary can reach, and many."""

_RIDGE = 1e-10
"""Added to variances, relatively, so that a round which brought nothing has some."""

_STILL = 1e-12
"""Of a feature's size: a spread as small as rounding."""

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
        notes = notes_of(type(instance.template.recipe)) if len(chosen.canaries) == 1 and not instance.heard else {}
        return cls(instance, chosen, tuple(name for name, fact in notes.items() if fact.kind == "noised"))

    @property
    def alike(self) -> NDArray[np.bool_]:
        """(F,) the features that say how far a round moved the released model in the canary's direction."""
        rounds = self.instance.plan.rounds
        return np.arange(rounds * (1 if self.instance.heard else 2 + len(self.notes))) < rounds

    def some(self, attack: int, runs: range) -> Runs:
        """The runs of these numbers."""
        rows, coins = [], []
        for run in runs:
            thrown, seed = self._chance(attack, run)
            coins.append(thrown)
            rows.append(self.row(self.attack.nodes(self.instance, thrown), seed))
        return Runs(np.array(rows), np.array(coins))

    def _chance(self, attack: int, run: int) -> tuple[Coins, int]:
        """(m,) the coins of a run, and the seed of everything else."""
        noise, thrown = np.random.SeedSequence(self.instance.config.seed, spawn_key=(attack, run)).spawn(2)
        coins = 2 * np.random.default_rng(thrown).integers(0, 2, len(self.attack.canaries)) - 1
        return coins, int(noise.generate_state(1, np.uint64)[0] >> 1)

    def reach(self, attack: int, pairs: int) -> float:
        """About the share of right guesses that a score of Gaussian noise would have, from very few runs.

        Each run is made twice with one seed and all coins turned round: noise is the same, so the difference is what
        canaries move, and its size beside the spread of single runs says how far apart the two laws are.
        """
        heads, tails = [], []
        for run in range(1 << 31, (1 << 31) + pairs):
            coins, seed = self._chance(attack, run)
            one, other = (self.row(self.attack.nodes(self.instance, thrown), seed) for thrown in (coins, -coins))
            up = coins[:, None] == 1
            heads.append(np.where(up, one, other))
            tails.append(np.where(up, other, one))
        first, second = np.concatenate(heads), np.concatenate(tails)
        moved, spread = first - second, (first.var(axis=0) + second.var(axis=0)) / 2
        # Less what the mean of so many differences has of chance; those of one run depend on each other.
        means = moved.reshape(pairs, -1, moved.shape[1]).mean(axis=1)
        signal = np.maximum(0.0, means.mean(axis=0) ** 2 - means.var(axis=0, ddof=1) / pairs)
        size = np.maximum(np.abs(first).max(axis=0), np.abs(second).max(axis=0))
        heard = signal > 0
        return float(ndtr(np.sqrt(np.sum(signal[heard] / (spread + (_STILL * size) ** 2)[heard])) / 2))

    def row(self, nodes: Sequence[Node], seed: int) -> Floats:
        """(m, F) one run on the data of the nodes, through the server's loop and the nodes' own code.

        For each round its innovation in the canary's direction, whether the model moved, and the notes. A
        run that fails is seen up to where it failed.
        """
        strategy, rounds = self.instance.strategy(seed), self.instance.plan.rounds
        if self.instance.heard:
            return self._heard(strategy, nodes)
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

    def _heard(self, strategy: UserLevelStrategy, nodes: Sequence[Node]) -> Floats:
        """(m, T) of a server that hears each user by itself: what each canary answered, in its direction."""
        with Listener(nodes, self.instance.problem.dimension) as grid, suppress(RunFailed):
            strategy.start(grid)
        found = np.zeros((len(self.attack.canaries), self.instance.plan.rounds))
        told = [0] * len(found)
        places = {int(user): place for place, user in enumerate(self.attack.canaries)}
        for answer in grid.answers:
            place = places.get(int(answer.users[0]))
            if place is not None:
                found[place, told[place]] = dense(answer.values)[0] @ self.attack.directions[place]
                told[place] += 1
        return found

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
    if len(np.unique(moves, axis=0)) <= 2 * rounds:
        return moves
    covariance = moves.T @ moves / canaries
    covariance[np.diag_indices(rounds)] *= 1 + _RIDGE
    covariance[np.diag_indices(rounds)] += _RIDGE * max(float(np.trace(covariance)), np.finfo(float).tiny) / rounds
    return np.asarray(np.linalg.solve(np.linalg.cholesky(covariance), moves.T).T)


@dataclass(frozen=True)
class Laboratory:
    """Makes runs, in this process or in several.

    Attributes:
        instances: of the runs.
        pool: other processes; None for this one.
    """

    instances: Sequence[Instance]
    pool: ProcessPoolExecutor | None

    def cases(self) -> list[Case]:
        """All attacks on all instances."""
        return [(place, each) for place, one in enumerate(self.instances) for each in range(len(attacks(one)))]

    def observer(self, case: Case) -> Observer:
        """Of the runs of a case."""
        return Observer.of(self.instances[case[0]], case[1])

    def reach(self, cases: Sequence[Case]) -> list[float]:
        """`Observer.reach` of each case; the same however many processes there are."""
        if self.pool is None:
            return [_reach(self.instances, case) for case in cases]
        return list(self.pool.map(_reach_in_worker, cases))

    def runs(self, case: Case, numbers: range, progress: Progress) -> Runs:
        """The runs of these numbers; the same however many processes there are."""
        parts = [numbers[first : first + _CHUNK] for first in range(0, len(numbers), _CHUNK)]
        made: dict[int, Runs] = {}
        if self.pool is None:
            for part in parts:
                made[part.start] = self.observer(case).some(case[1], part)
                progress(len(part))
        else:
            waiting = {self.pool.submit(_in_worker, case, part): part for part in parts}
            for done in as_completed(waiting):
                part = waiting[done]
                made[part.start] = done.result()
                progress(len(part))
        together = [made[part.start] for part in parts]
        return Runs(
            np.concatenate([each.features for each in together]), np.concatenate([each.coins for each in together])
        )


@contextmanager
def laboratory(config: RunConfig, workers: int | None) -> Iterator[Laboratory]:
    """Where runs are made.

    Args:
        config: of the runs.
        workers: processes; one a CPU if not given, and 0 or 1 for this one alone.

    Raises:
        BadInput: see `Instance.all_of`.
    """
    count = available_cpus() if workers is None else workers
    with _quiet():
        instances = Instance.all_of(config)
        if count <= 1:
            yield Laboratory(instances, None)
            return
        begin = partial(_begin, config.toml())
        with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=begin) as pool:
            yield Laboratory(instances, pool)


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
"""Of a worker process: those that it attacks."""


def _begin(toml: str) -> None:
    logging.getLogger("userdp").disabled = True
    _INSTANCES[:] = Instance.all_of(parse_config(tomllib.loads(toml)))


def _in_worker(case: Case, runs: range) -> Runs:
    return Observer.of(_INSTANCES[case[0]], case[1]).some(case[1], runs)


def _reach_in_worker(case: Case) -> float:
    return _reach(_INSTANCES, case)


def _reach(instances: Sequence[Instance], case: Case) -> float:
    observer = Observer.of(instances[case[0]], case[1])
    return observer.reach(case[1], _PAIRS if len(observer.attack.canaries) == 1 else _PAIRS_OF_MANY)
