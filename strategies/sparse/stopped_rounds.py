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

    Attributes:
        budget: what all rounds may cost.
        seed: of levels and cohorts.
    """

    budget: StepBudget
    seed: int

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """(T,): what the filter let pass."""
        return self.budget.draw_levels(stream(self.seed, "sampling", _LEVELS))

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.levels)

    def draw(self, index: int) -> Draw:
        """Who takes part in round ``index``, and how.

        Raises:
            BadInput: there is no such round.
        """
        if not 0 <= index < self.rounds:
            raise BadInput(f"round {index} was asked for, there are {self.rounds}")
        rng = stream(self.seed, "sampling", _BATCHES, index)
        return Draw.of(self.budget.records, int(self.levels[index]), rng)

    def cohort(self, index: int) -> NDArray[np.int64]:
        """Rising indices of the users of round ``index``."""
        return self.draw(index).records

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
        return self.budget.spent(self.levels[:rounds])
