"""Runs of a small instance as what an observer sees: numbers of many runs; answers, and what their outcome costs."""

import logging
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType
from numpy.typing import NDArray
from scipy.special import ndtr

from simulations.audit.canaries import Attack, Coins, attacks
from simulations.audit.instance import Instance
from simulations.config.run_config import RunConfig, parse_config
from simulations.engines.grids import LocalGrid
from strategies.core.base import UserLevelStrategy
from strategies.core.recipe import notes_of
from strategies.core.results import PrivateResult
from strategies.core.scheme import law_of
from strategies.wire.protocol import read_answer
from strategies.wire.questions import Reader, model_vector
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array
from userdp.audit.discrete import exact_epsilon
from userdp.errors import RunFailed
from userdp.nodes.node import Answer, Node

Progress = Callable[[int], None]  # called with the number of runs made since the last call
Case = tuple[int, int]  # the number of an instance, and of an attack on it

_PAIRS, _PAIRS_OF_MANY = 10, 4  # paired runs that estimate the reach of one canary, and of many
_RIDGE = 1e-10  # relative addition to variances, so that a round without movement has one
_STILL = 1e-12  # spread that counts as rounding, as a share of a feature's size
_CHUNK = 20  # runs that a process makes at once


@dataclass(frozen=True)
class Runs:
    """The observations of R runs: (R, m, F) features of each canary in each run, and (R, m) coins, 1 or -1."""

    features: Array
    coins: Coins

    def __getitem__(self, runs: slice) -> "Runs":
        return Runs(self.features[runs], self.coins[runs])


class Listener(LocalGrid):
    """A grid that records the answers of all rounds, in order."""

    def __init__(self, nodes: Sequence[Node], dimension: int) -> None:
        super().__init__(nodes)
        self._dimension = dimension
        self.answers: list[Answer] = []

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        asked = {message.metadata.message_id: message for message in messages}
        reader = Reader()
        for reply in super()._deliver(messages, timeout):
            message = asked[reply.metadata.reply_to_message_id]
            if message.metadata.message_type.startswith(MessageType.TRAIN) and not reply.has_error():
                self.answers.append(read_answer(reply, *reader.request(message), self._dimension))
            yield reply


@dataclass(frozen=True)
class Observer:
    """Turns a run into the values that its guarantee covers: every released model, and the rounds' released facts.

    ``notes`` are the names of those facts.
    """

    instance: Instance
    number: int
    attack: Attack
    notes: tuple[str, ...]

    @classmethod
    def of(cls, instance: Instance, attack: int) -> "Observer":
        """Return the observer of an attack, given by its number."""
        chosen = attacks(instance)[attack]
        # One user's number moves a fact; many canaries would hide each other.
        notes = notes_of(type(instance.template.recipe)) if len(chosen.canaries) == 1 and not instance.heard else {}
        return cls(instance, attack, chosen, tuple(name for name, fact in notes.items() if fact.kind == "noised"))

    @property
    def alike(self) -> NDArray[np.bool_]:
        """(F,) whether a feature is a round's movement of the released model in the canary's direction."""
        rounds = self.instance.plan.rounds
        return np.arange(rounds * (1 if self.instance.heard else 2 + len(self.notes))) < rounds

    def some(self, runs: range) -> Runs:
        """Make the runs with these numbers."""
        chances = [self._chance(run) for run in runs]
        rows = [self.row(self.attack.nodes(self.instance, coins), seed) for coins, seed in chances]
        return Runs(np.array(rows), np.array([coins for coins, _ in chances]))

    def _chance(self, run: int) -> tuple[Coins, int]:
        noise, thrown = np.random.SeedSequence(self.instance.config.seed, spawn_key=(self.number, run)).spawn(2)
        coins = 2 * np.random.default_rng(thrown).integers(0, 2, len(self.attack.canaries)) - 1
        return coins, int(noise.generate_state(1, np.uint64)[0] >> 1)

    def reach(self, pairs: int | None = None) -> float:
        """Estimate from very few runs the share of right guesses of a score with Gaussian noise.

        Each run is made twice with one seed and flipped coins. The noise is the same, so the difference is the
        canaries' effect, and its size relative to the spread of single runs says how far apart the two laws are.
        """
        pairs = pairs or (_PAIRS if len(self.attack.canaries) == 1 else _PAIRS_OF_MANY)
        heads, tails = [], []
        for run in range(1 << 31, (1 << 31) + pairs):
            coins, seed = self._chance(run)
            one, other = (self.row(self.attack.nodes(self.instance, thrown), seed) for thrown in (coins, -coins))
            up = coins[:, None] == 1
            heads.append(np.where(up, one, other))
            tails.append(np.where(up, other, one))
        first, second = np.concatenate(heads), np.concatenate(tails)
        moved, spread = first - second, (first.var(axis=0) + second.var(axis=0)) / 2
        # Without the chance part of a mean over so many differences; those of one run depend on each other.
        means = moved.reshape(pairs, -1, moved.shape[1]).mean(axis=1)
        signal = np.maximum(0.0, means.mean(axis=0) ** 2 - means.var(axis=0, ddof=1) / pairs)
        size = np.maximum(np.abs(first).max(axis=0), np.abs(second).max(axis=0))
        heard = signal > 0
        return float(ndtr(np.sqrt(np.sum(signal[heard] / (spread + (_STILL * size) ** 2)[heard])) / 2))

    def row(self, nodes: Sequence[Node], seed: int) -> Array:
        """Make one run on the nodes' data, through the server's loop and the nodes' own code.

        Returns:
            (m, F): for each round its innovation in the canary's direction, whether the model moved, and the facts. A
            failed run has values up to its failure.
        """
        strategy, rounds = self.instance.strategy(seed), self.instance.plan.rounds
        if self.instance.heard:
            return self._heard(strategy, nodes)
        models = np.full((rounds + 1, self.instance.problem.dimension), np.nan)

        def seen(server_round: int, arrays: ArrayRecord) -> None:
            # With cohorts drawn anew, a run may have more rounds than the template.
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

    def _heard(self, strategy: UserLevelStrategy, nodes: Sequence[Node]) -> Array:
        """Return (m, T): each canary's answers, in its direction, to a server that hears single users."""
        with Listener(nodes, self.instance.problem.dimension) as grid, suppress(RunFailed):
            strategy.start(grid)
        found = np.zeros((len(self.attack.canaries), self.instance.plan.rounds))
        for place, user in enumerate(self.attack.canaries):
            answers = [dense(answer.values)[0] for answer in grid.answers if int(answer.users[0]) == user]
            found[place, : len(answers)] = [answer @ self.attack.directions[place] for answer in answers]
        return found

    def _noted(self, result: PrivateResult) -> Array:
        found = np.zeros((self.instance.plan.rounds, len(self.notes)))
        for record in (one for one in result.rounds if one.round <= len(found)):
            found[record.round - 1] = [record.facts.get(name, 0.0) for name in self.notes]
        return np.nan_to_num(found, posinf=0.0, neginf=0.0).ravel()


def innovations(moves: Array) -> Array:
    """Turn (m, T) moves in many directions into the news of each round given all before, in units of its noise.

    A server may scale and mix the rounds' releases, differently in each run, by clips, gains and momentum that all
    directions share. The covariance of the rounds over directions shows how, and its triangular root removes it. With
    no more directions than rounds there are too few data, and moves stay as they are.
    """
    canaries, rounds = moves.shape
    if len(np.unique(moves, axis=0)) <= 2 * rounds:
        return moves
    covariance = moves.T @ moves / canaries
    covariance[np.diag_indices(rounds)] *= 1 + _RIDGE
    covariance[np.diag_indices(rounds)] += _RIDGE * max(float(np.trace(covariance)), np.finfo(float).tiny) / rounds
    return np.asarray(np.linalg.solve(np.linalg.cholesky(covariance), moves.T).T)


def exact_step(instance: Instance) -> float | None:
    """Compute the largest epsilon, at the claim's delta, of a round's discrete outcome over the attacks; None without.

    *Formal guarantees.* The claim's epsilon is at least this: no statistics, no confidence. *Proof.* Two runs of one
    seed on neighbouring data sets are equal up to the first round with different answers. Given all earlier releases,
    the outcome of the rounds so far has the two laws that the scheme computes from these answers (those of earlier
    rounds are the same), and it is a function of the run's releases. So the epsilon that a run claims at a delta, given
    any such past, is at least the smallest one at which the two laws are indistinguishable (`exact_epsilon`).
    *Assumption.* The strategy's claim holds given all earlier releases (adaptive composition).
    """
    law = law_of(instance.template.scheme)
    if law is None:
        return None
    found = [0.0]
    for attack in attacks(instance):
        runs = [_answers(instance, attack, coin) for coin in (1, -1)]
        for index, (first, second) in enumerate(zip(*runs, strict=False)):
            if first.shape != second.shape or not np.array_equal(first, second):
                if first.shape == second.shape:
                    one, other = (law(gathered[: index + 1]) for gathered in runs)
                    found.append(exact_epsilon(one, other, instance.plan.guarantee.delta))
                break
    return max(found)


def _answers(instance: Instance, attack: Attack, coin: int) -> list[Array]:
    """Return the nodes' answers of each round; the first canary's coin is given, all others are 1."""
    coins = np.ones(len(attack.canaries), dtype=np.int64)
    coins[0] = coin
    nodes = attack.nodes(instance, coins)
    with Listener(nodes, instance.problem.dimension) as grid:
        instance.strategy(instance.config.seed).start(grid)
    values = [dense(answer.values) for answer in grid.answers]
    return [each[0] if len(each) == 1 else each for each in values]


@dataclass(frozen=True)
class Laboratory:
    """Makes runs of a configuration's small instances; ``each`` is `map`, here or in a pool, with the same results."""

    toml: str
    each: Callable[..., Iterable[Any]]

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The instances to attack; BadInput without any."""
        return _instances(self.toml)

    def observer(self, case: Case) -> Observer:
        """Return the observer of a case's runs."""
        return Observer.of(self.instances[case[0]], case[1])

    def reach(self, cases: Sequence[Case]) -> list[float]:
        """Return `Observer.reach` of each case."""
        return list(self.each(partial(_observed, Observer.reach, self.toml), cases))

    def runs(self, case: Case, numbers: range, progress: Progress) -> Runs:
        """Make the runs with these numbers."""
        parts = [numbers[first : first + _CHUNK] for first in range(0, len(numbers), _CHUNK)]
        made = []
        for part in self.each(partial(_observed, Observer.some, self.toml, case), parts):
            made.append(part)
            progress(len(part.coins))
        return Runs(np.concatenate([part.features for part in made]), np.concatenate([part.coins for part in made]))


@contextmanager
def laboratory(config: RunConfig, workers: int | None) -> Iterator[Laboratory]:
    """Provide the place where runs are made, with one process for each CPU if ``workers`` is None; no log lines."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = cpus if workers is None else workers
    log = logging.getLogger("userdp")
    disabled, log.disabled = log.disabled, True
    _instances.cache_clear()  # the code of a strategy may have changed since the last audit
    try:
        if count <= 1:
            yield Laboratory(config.toml(), map)
            return
        quiet = partial(setattr, log, "disabled", True)
        with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=quiet) as pool:
            yield Laboratory(config.toml(), pool.map)
    finally:
        log.disabled = disabled


@lru_cache(maxsize=1)
def _instances(toml: str) -> tuple[Instance, ...]:
    return Instance.all_of(parse_config(tomllib.loads(toml)))


def _observed(task: Callable[..., Any], toml: str, case: Case, *values: Any) -> Any:
    return task(Observer.of(_instances(toml)[case[0]], case[1]), *values)
