"""Runs that a privacy filter ends: their rounds and what these cost, their estimates, and the choice among them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies import Gathered, Noise, Request, Scheme, Step
from strategies.baselines.sparse_gradients.bias_reduction import Draw, MeanOracle, bias_reduced_gradient
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.stopping import StepBudget
from userdp.arrays import Rows, Vector, clip_rows
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.nodes import Computation
from userdp.noise import NoiseSource, Scores
from userdp.problems import Box
from userdp.randomness import stream
from userdp.state import Stateful

_LEVELS, _BATCHES = 0, 1
"""Labels of the streams that draw the levels of a run, and its batches."""


@dataclass(frozen=True)
class StoppedRounds:
    """The rounds of one run: their levels, who is drawn in each, and what they cost. A `userdp.accounting.Scheme`.

    *Formal guarantees.* Those of `StepBudget` with users as records. Levels come from the seed alone, so the number of
    rounds is known before any data are read.

    Of several runs the rounds come one after the other, and one more follows, in which everybody says which run ended
    best. It costs ``choice_epsilon``, purely, which is added to what the filter says of all steps.
    """

    budget: StepBudget  # what all steps of all runs may cost
    seed: int  # of levels and cohorts
    choice_epsilon: float = 0.0  # of the choice among several runs

    @cached_property
    def _runs(self) -> list[NDArray[np.int64]]:
        rng = stream(self.seed, "sampling", _LEVELS)
        return [self.budget.draw_levels(rng) for _ in range(self.budget.runs)]

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """(T,): what the filters of all runs let pass."""
        return np.concatenate(self._runs)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Rounds with which a run ends."""
        return frozenset((np.cumsum(self.lengths) - 1).tolist())

    @property
    def lengths(self) -> tuple[int, ...]:
        """Steps of each run that has any."""
        return tuple(len(run) for run in self._runs if len(run))

    @property
    def steps(self) -> int:
        """T."""
        return len(self.levels)

    @property
    def rounds(self) -> int:
        """T, and the choice, if there is one."""
        return self.steps + (len(self.ends) > 1)

    def draw(self, index: int) -> Draw:
        """Return the cohort of round ``index`` and its halves; `BadInput` if there is no such round."""
        if not 0 <= index < self.steps:
            raise BadInput(f"round {index} was asked for, there are {self.steps}")
        rng = stream(self.seed, "sampling", _BATCHES, index)
        return Draw.of(self.budget.records, int(self.levels[index]), rng)

    def cohort(self, index: int) -> NDArray[np.int64]:
        """Rising indices of the users of round ``index``."""
        if index == self.steps < self.rounds:
            return np.arange(self.budget.records)
        return self.draw(index).records

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """The noise of four calls of the oracle, each with the budget's noise."""
        return noise_multiplier / 2

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Epsilon after ``rounds`` rounds (all if not given); `BadInput` for less noise or delta than the budget's."""
        if noise_multiplier < self.budget.noise_multiplier or delta < self.budget.delta:
            raise BadInput(
                f"noise multiplier = {noise_multiplier:g}, delta = {delta:g}: the rounds are accounted for at least "
                f"{self.budget.noise_multiplier:g} and {self.budget.delta:g}"
            )
        chosen = self.steps < (self.rounds if rounds is None else rounds)
        return self.budget.spent(self.levels[:rounds]) + (self.choice_epsilon if chosen else 0.0)


@dataclass
class Iterates(Stateful, ABC):
    """The memory of runs, one after the other, that all start where the first does."""

    remembered: ClassVar[tuple[str, ...]] = ("start", "finished")
    start: Vector | None = None  # where each run starts; None before the first step
    finished: list[Vector] = field(default_factory=list)  # what the runs before this one gave

    @abstractmethod
    def output(self, x: Vector, following: Vector) -> Vector:
        """The model after a step from ``x``."""

    def restart(self, model: Vector) -> Vector:
        """Keep what a run gave, and say where the next one starts."""
        assert self.start is not None  # a run of no steps is none
        self.finished.append(model)
        return self.start


@dataclass
class IterateAverage(Iterates):
    """Runs that give the average of their iterates, the start included."""

    remembered: ClassVar[tuple[str, ...]] = (*Iterates.remembered, "_total", "_count")
    _total: Vector | None = None
    _count: int = 0

    def output(self, x: Vector, following: Vector) -> Vector:
        """The average so far."""
        if self._total is None:
            self.start, self._total, self._count = x, x.copy(), 1
        self._total += following
        self._count += 1
        return self._total / self._count

    def restart(self, model: Vector) -> Vector:
        self._total = None
        return super().restart(model)


@dataclass
class RandomIterate(Iterates):
    """Runs that give an iterate each, the one with ``kept_at`` steps behind it, drawn before they start."""

    remembered: ClassVar[tuple[str, ...]] = (*Iterates.remembered, "_steps", "_kept")
    given: ClassVar[tuple[str, ...]] = ("kept_at",)
    kept_at: tuple[int, ...] = (0,)
    _steps: int = 0
    _kept: Vector | None = None

    def output(self, x: Vector, following: Vector) -> Vector:
        """The latest iterate until the drawn one is reached."""
        if self._kept is None:
            self.start = self._kept = x
        self._steps += 1
        if self._steps <= self.kept_at[len(self.finished)]:
            self._kept = following
        return self._kept

    def restart(self, model: Vector) -> Vector:
        self._steps, self._kept = 0, None
        return super().restart(model)


@dataclass(frozen=True, kw_only=True)
class StoppedScheme(Scheme):
    """A `Scheme` of bias-reduced gradients; ``new_memory`` makes `Iterates`."""

    domain: Box  # of models
    # who takes part in each round, how many rounds there are, and whether runs are chosen among at the end
    rounds: StoppedRounds
    oracle: MeanOracle  # of one noisy mean of clipped gradients
    members: SparseVectors  # s and L, which gradients are clipped to
    l1_norm: float | None  # l1 norm that they are clipped to as well, where the oracle needs it
    rate: float  # step size
    by_gradient: bool  # whether runs are compared by how long the gradient is at their ends, not by their loss

    def ask(self, index: int, memory: Iterates) -> Request:
        """The gradients of the round's cohort; in the end everybody's gradient, or change of loss, at runs' models."""
        computation = Computation("user_gradient", clip_norm=self.members.norm, l1_norm=self.l1_norm)
        if index == self.rounds.steps:
            computation = self._comparison(memory)
        return Request(self.rounds.cohort(index), computation)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Iterates, noise: Noise) -> Step:
        """A step along the estimate of the round's draw; in the end the choice among the runs."""
        if index == self.rounds.steps:
            models, reach = self.ends(memory)
            if self.by_gradient:
                chosen = self.choose_by_gradient(gathered.values.reshape(models.shape), noise(0))
            else:
                chosen = self.choose(gathered.values, reach, noise(0))
            return Step(models[chosen], models[chosen], {"chosen_run": float(chosen + 1)})
        draw = self.rounds.draw(index)
        following = self.domain.project(x - self.rate * self.estimate(draw, gathered.values, noise(0)))
        # Not how many took part: that would tell whether the single user is in the batch, which the accounting hides.
        facts = {"level": float(draw.level)}
        released = memory.output(x, following)
        if index in self.rounds.ends and self.rounds.choice_epsilon:
            following = memory.restart(released)
        return Step(following, released, facts)

    def estimate(self, draw: Draw, rows: Rows, noise: NoiseSource) -> Vector:
        """The private gradient estimate of a draw, from the rows of its users."""
        # Clipped again: the sensitivity must not rest on what other nodes say that they have clipped.
        rows = clip_rows(rows, self.members.norm)
        if self.l1_norm is not None:
            rows = clip_rows(rows, self.l1_norm, order=1)
        users = draw.records
        batch, single = rows[np.searchsorted(users, draw.batch)], rows[np.searchsorted(users, draw.single)]
        chance = float(self.rounds.budget.levels.chances[draw.level])
        return bias_reduced_gradient(batch, single, chance, self.oracle, noise)

    def ends(self, memory: Iterates) -> tuple[NDArray[np.float64], Vector]:
        """((k, p) what several runs gave, (k,) how far from its loss at the start a user's may lie there)."""
        assert memory.start is not None
        models = np.array(memory.finished)
        return models, np.asarray(self.members.norm * np.linalg.norm(models - memory.start, axis=1))

    def _comparison(self, memory: Iterates) -> Computation:
        """Everybody's clipped gradient at the model of each run, added up; or everybody's change of loss."""
        models, reach = self.ends(memory)
        if not self.by_gradient:
            return Computation("loss_changes", arrays={"models": models, "reach": reach})
        norm = self.members.norm
        # What a user's row can be at most, and a little more: a clip of the whole row would mix models.
        longest = norm * float(np.sqrt(len(models))) * (1 + 1e-9)
        return Computation("model_gradients", "sum", longest, parameters={"norm": norm}, arrays={"models": models})

    def choose_by_gradient(self, totals: NDArray[np.float64], noise: NoiseSource) -> int:
        """Choose one of k models from (k, p) sums of users' gradients, each clipped to L: of the shortest sum.

        Replacing a user moves a sum by 2 L at most, and so its length, by the triangle inequality.
        """
        moved = 2 * self.members.norm
        scores = Scores(-np.linalg.norm(totals, axis=1), moved)
        return ExponentialMechanism(moved, self.rounds.choice_epsilon).choose(scores, noise)

    def choose(self, changes: NDArray[np.float64], reach: Vector, noise: NoiseSource) -> int:
        """Choose one of k models from (n, k) changes of users' losses, clipped to their bound again."""
        longest = float(reach.max())
        if longest == 0:
            return 0  # all are the start
        scores = Scores(-np.clip(changes, -reach, reach).sum(axis=0), 2 * longest)
        return ExponentialMechanism(2 * longest, self.rounds.choice_epsilon).choose(scores, noise)
