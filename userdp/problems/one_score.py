"""Losses of one linear score of each sample, to which a known term may be added: an offset, or a log exposure."""

import copy
from abc import abstractmethod
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block, Features
from userdp.errors import BadInput
from userdp.problems import bounds
from userdp.problems.base import ASSUMED_SIZE, AVERAGE_SIZE, NEXT_TO_NOTHING, Landscape
from userdp.problems.families import Family
from userdp.problems.linear_scores import QUIET, Scored


class OneScore(Scored):
    """A loss phi of one linear score, from a ``family`` into whose range targets are clipped, plus a ridge term.

    Samples may have a known term t in declared ``terms``, clipped into them; phi is then that of the score plus t, for
    a loss whose parameters include a ``level`` plus t less the middle of its range. Each bound covers the farthest. But
    of rates, whose level is balanced in the end, a mean target then tells no level: there is no ``mean_range``.
    """

    family: Family
    terms: tuple[float, float] | None = None
    level: bool = False

    def with_terms(self, low: float, high: float, *, exposed: bool = False) -> Self:
        """See `Problem.with_terms`; refuses a class that certifies more or less than its bounds on derivatives say."""
        other = copy.copy(self)
        other._certify()
        if other.certificate != self.certificate:
            return super().with_terms(low, high)
        if exposed and not self.family.of_rates:
            raise BadInput(
                f"data.exposure multiplies a rate, and problem.kind = {self.name!r} has none: use poisson, or declare "
                "data.offset"
            )
        other.terms = bounds.interval("the range of data.exposure or data.offset", low, high)
        if not self.family.of_rates:
            other.mean_range = None
        other._certify()
        return other

    @abstractmethod
    def _certify(self) -> None:
        """Set the certificate and what else follows from bounds on the family's derivatives."""

    def _seen(self, length: float, reach: float, *, assumed: bool = False) -> Landscape:
        """Return the landscape for samples no longer than ``length``, whose scores without known terms go so far."""
        family, moved = self.family.bounded(ASSUMED_SIZE), self.farthest
        return Landscape(
            family.start_loss + (moved * family.slope_bound(moved) if moved else 0.0),
            family.curvature_bound(moved) * length**2,
            AVERAGE_SIZE * family.slope_bound(reach + moved) * length,
            pull=self.ridge * self.dimension,
            assumed=assumed or family is not self.family,
        )

    @property
    def _middle(self) -> float:
        return 0.0 if self.terms is None or not self.level else sum(self.terms) / 2

    @property
    def farthest(self) -> float:
        """The most that a known term moves a score."""
        return max((abs(end - self._middle) for end in self.terms or ()), default=0.0)

    def whole_scores(self, scores: Array, block: Block) -> Array:
        """Return the scores (N,) with the samples' known terms."""
        return scores if self.terms is None else scores + (bounds.terms_of(block).astype(np.float64) - self._middle)

    def _bounded(self, block: Block, features: Features, changed: NDArray[np.bool_]) -> tuple[Block, int]:
        """Clip targets and known terms beside bounded features; return the block and how many samples changed."""
        targets, clipped = bounds.clip_targets(block, self.family.low, self.family.high)
        block, changed = bounds.rebuilt(block, features, targets), changed | clipped
        if self.terms is not None:
            terms, moved = bounds.clip_numbers(bounds.terms_of(block), *self.terms)
            block, changed = replace(block, terms=terms), changed | moved
        return block, bounds.counted(block, changed)

    def _slopes(self, scores: Array, block: Block) -> Array:
        return self.family.slopes(self.whole_scores(scores, block), bounds.targets_of(block))

    def _losses(self, scores: Array, block: Block) -> Array:
        return self.family.losses(self.whole_scores(scores, block), bounds.targets_of(block))

    def _quality(self, scores: Array, block: Block) -> dict[str, Array]:
        return self.family.quality(self.whole_scores(scores, block), bounds.targets_of(block))

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """See `Problem.constant_metrics`: the `metrics` of the score that predicts this mean for every sample."""
        value, family = float(mean[0]), self.family
        if family.open_ends:
            least = NEXT_TO_NOTHING * (family.high - family.low)
            value = min(max(value, family.low + least), family.high - least)
        scores = np.full(block.samples, family.score_of(value))
        return self._metrics_of(2 * scores - self.whole_scores(scores, block), block, 0.0)

    @QUIET
    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        return self.family.predictions(self.whole_scores(self._scores(x, block), block))
