"""Losses of hazards by period: a user's samples are all K periods, of which those at risk alone have any numbers."""

import copy
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.fixed_order import inner, product
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.bounds import targets_of
from userdp.problems.linear_scores import QUIET, LinearScores, averaged
from userdp.problems.one_score import OneScore
from userdp.problems.segments import user_averages

Weigh = Callable[[Array, Block], Array]
"""Returns weights (n,) from a piece's features (n, k), and the piece."""


class ByPeriod(LinearScores, OneScore):
    """A loss of one linear score on dense features, as it is or `by_period`.

    Attributes:
        periods: the columns of periods; None for a loss that is not by period.
    """

    periods: slice | None = None

    def by_period(self, first: int, last: int) -> Self:
        """Return the loss of hazards by period: one of the columns ``first`` to ``last`` - 1 is 1 in a sample at risk.

        The last column is 1 in these samples, and takes the intercept's place. Others are of zeros: their score,
        gradient and loss are zero. A mean target is then (events, time at risk), as shares of the periods. Raises
        `BadInput` for a ridge, which would draw the hazards of all periods towards one.
        """
        if self.ridge:
            raise BadInput(
                f"problem.ridge = {self.ridge:g}: data.survival has a level for each period, which a ridge would move; "
                "leave problem.ridge out"
            )
        other = copy.copy(self)
        other.periods, other.mean_range = slice(first, last), self.family.mean_range
        return other

    @property
    def hazards(self) -> int:
        """The number of periods; 0 for a loss that is not by period."""
        return 0 if self.periods is None else self.periods.stop - self.periods.start

    def at_risk(self, block: Block) -> NDArray[np.bool_]:
        """Return which samples (N,) count: by period those at risk, else all."""
        if self.periods is None:
            return np.ones(block.samples, dtype=bool)
        return np.asarray(block.dense_features[:, -1] > np.float32(0.0))

    def target_means(self, block: Block) -> Array | None:
        """See `Problem.target_means`; by period (U, 2) events and time at risk, over the number of periods."""
        if self.periods is None:
            return super().target_means(block)
        at_risk = self.at_risk(block)
        both = (np.where(at_risk, targets_of(block), 0.0), at_risk.astype(np.float64))
        return np.stack([user_averages(each.astype(np.float64), block) for each in both], axis=1)

    def _losses(self, scores: Array, block: Block) -> Array:
        losses = super()._losses(scores, block)
        return losses if self.periods is None else np.where(self.at_risk(block), losses, 0.0)

    def _quality(self, scores: Array, block: Block) -> dict[str, Array]:
        return super()._quality(scores, block) if self.periods is None else {"log_loss": self._losses(scores, block)}

    def followed_sizes(self, features: Array, turn: Array) -> Array:
        """Return (n,) norms of ``mean_k b_k b_k^T`` over all periods, ``b = turn^T a`` of a sample at risk in each.

        A sample's weight may depend on its features, and not on how long its user is at risk: that depends on the
        outcome. With the average b of all periods and M, the ``mean_k`` about it, the matrix is ``b b^T + M``.
        """
        assert self.periods is not None
        levels = turn[self.periods]
        apart = levels - levels.mean(axis=0)
        spread = apart.T @ apart / len(levels)
        own = slice(0, self.periods.start)
        turned = product(features[:, own], turn[own]) + features[:, -1:] * (levels.mean(axis=0) + turn[-1])
        along = inner(product(turned, spread), turned)
        return np.asarray(np.sqrt(inner(turned, turned) ** 2 + 2 * along + np.square(spread).sum()))

    @QUIET
    def weighted_gradients(self, x: Vector, block: Block, weigh: Weigh) -> Array:
        """Compute users' average gradients (U, p) of samples that weigh as much as ``weigh`` says; without a ridge."""
        sums = np.zeros((block.users, self.dimension))
        for users, part, features, scores in self._pieces(x, block):
            self._add(sums[users], part, features, self._slopes(scores, part) * weigh(features, part))
        return averaged(sums, 0.0, x, block)

    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """See `Problem.predict`; by period of samples at risk, over all periods of those without one, or unusable."""
        found = super().predict(x, block)
        if self.periods is None:
            return found
        scores, at_risk = self._scores(x, block), self.at_risk(block)
        whole = ~block.dense_features[:, self.periods].any(axis=1)
        left = np.ones(int(whole.sum()))
        for level in x[self.periods]:
            left *= 1 - self.family.predictions(scores[whole] + level)["probability"]
        found["probability"][whole], found["prediction"][whole] = 1 - left, left < 0.5
        kept = at_risk if block.usable is None else at_risk | ~block.usable  # which a caller knows by their places
        return {name: each[kept] for name, each in found.items()}

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """See `Problem.constant_metrics`; by period of the constant hazard."""
        return super().constant_metrics(np.array([self._predicted(mean)]), block)

    def observed(self, block: Block) -> Array | None:
        """See `Problem.observed`."""
        found = super().observed(block)
        return None if found is None else found[self.at_risk(block)]

    def observed_sizes(self, block: Block) -> NDArray[np.int64]:
        """See `Problem.observed_sizes`."""
        return np.add.reduceat(self.at_risk(block), block.offsets[:-1], dtype=np.int64)

    def _predicted(self, mean: Vector) -> float:
        """Return the constant prediction for a mean in the form of `target_means`."""
        if self.periods is None:
            return float(mean[0])
        return float(mean[0] / mean[1]) if mean[1] > 0 else 0.0
