"""Losses of one score a sample, ``phi(score, y) + (ridge / 2) ||x||^2``, on dense, one-hot or sparse features."""

from abc import abstractmethod

import numpy as np

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.problems.base import NEXT_TO_NOTHING, Problem
from userdp.problems.bounds import targets_of
from userdp.problems.families import Family
from userdp.problems.linear_scores import QUIET
from userdp.problems.segments import user_averages


class OneScore(Problem):
    """A loss phi, taken from a family, of a score that is linear in the model.

    Attributes:
        family: phi and the range of targets; targets outside are clipped into it.
        ridge: >= 0; part of the loss, and of "test_loss".
    """

    has_targets = True
    family: Family
    ridge: float

    @abstractmethod
    def _scores(self, x: Vector, block: Block) -> Array:
        """Return the (N,) scores."""

    def _slopes_at(self, x: Vector, block: Block) -> Array:
        return self.family.slopes(self._scores(x, block), targets_of(block))

    def _penalty(self, x: Vector) -> float:
        return 0.5 * self.ridge * float(x @ x)

    @QUIET
    def sample_losses(self, x: Vector, block: Block) -> Array:
        """See `Problem.sample_losses`; the ridge term is included."""
        return self.family.losses(self._scores(x, block), targets_of(block)) + self._penalty(x)

    @QUIET
    def metrics(self, x: Vector, block: Block) -> dict[str, Array]:
        """Compute per user "test_loss" (with the ridge term) and the family's measures of prediction (without it)."""
        return self._metrics_of(self._scores(x, block), block, self._penalty(x))

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """See `Problem.constant_metrics`: the `metrics` of the score that predicts this mean for every sample."""
        value, family = float(mean[0]), self.family
        if family.open_ends:
            least = NEXT_TO_NOTHING * (family.high - family.low)
            value = min(max(value, family.low + least), family.high - least)
        return self._metrics_of(np.full(block.samples, family.score_of(value)), block, 0.0)

    def _metrics_of(self, scores: Array, block: Block, penalty: float) -> dict[str, Array]:
        targets = targets_of(block)
        quality = self.family.quality(scores, targets)
        averages = {name: user_averages(values, block) for name, values in quality.items()}
        return {"test_loss": user_averages(self.family.losses(scores, targets) + penalty, block), **averages}

    @QUIET
    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """See `Problem.predict`."""
        return self.family.predictions(self._scores(x, block))
