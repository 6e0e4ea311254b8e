"""The rounds of a run that a privacy filter ends: how many there are, who is drawn in each, and what they cost."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput
from userdp.papers.sparse_gradients.bias_reduction import Draw
from userdp.papers.sparse_gradients.stopped_sgd import StepBudget
from userdp.randomness import stream

_LEVELS, _BATCHES = 0, 1
"""Labels of the streams that draw the levels of a run, and its batches."""


@dataclass(frozen=True)
class StoppedRounds:
    """The rounds of one run: their levels, who is drawn in each, and what they cost. A `userdp.accounting.Scheme`.

    *Formal guarantees.* Those of `StepBudget` with users as records. Levels come from the seed alone, so the number of
    rounds is known before any data are read.

    Of several runs the rounds come one after the other, and one more follows, in which everybody says which run ended
    best. It costs ``choice_epsilon``, purely, which is added to what the filter says of all steps.

    Attributes:
        budget: what all steps of all runs may cost.
        seed: of levels and cohorts.
        choice_epsilon: of the choice among several runs.
    """

    budget: StepBudget
    seed: int
    choice_epsilon: float = 0.0

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
        return frozenset((np.cumsum([len(run) for run in self._runs if len(run)]) - 1).tolist())

    @property
    def steps(self) -> int:
        """T."""
        return len(self.levels)

    @property
    def rounds(self) -> int:
        """T, and the choice, if there is one."""
        return self.steps + (len(self.ends) > 1)

    @property
    def largest_cohort(self) -> int:
        """Most users that a round asks; everybody where there is a choice."""
        if self.rounds > self.steps:
            return self.budget.records
        return int(max(self.budget.levels.batches[self.levels], default=0)) + 1

    def draw(self, index: int) -> Draw:
        """Who takes part in round ``index``, and how.

        Raises:
            BadInput: there is no such round.
        """
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
        """That of four calls of the oracle, each with the budget's noise."""
        return noise_multiplier / 2

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Epsilon after ``rounds`` rounds (all of them if not given).

        Raises:
            BadInput: less noise, or a smaller delta, than the budget's.
        """
        if noise_multiplier < self.budget.noise_multiplier or delta < self.budget.delta:
            raise BadInput(
                f"noise multiplier = {noise_multiplier:g}, delta = {delta:g}: the rounds are accounted for at least "
                f"{self.budget.noise_multiplier:g} and {self.budget.delta:g}"
            )
        chosen = self.steps < (self.rounds if rounds is None else rounds)
        return self.budget.spent(self.levels[:rounds]) + (self.choice_epsilon if chosen else 0.0)
