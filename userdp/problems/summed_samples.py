"""Losses of one score on one-hot or sparse samples, which are never made dense."""

from abc import abstractmethod

import numpy as np

from userdp.arrays.sparse_rows import AnyRows, dense
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.problems.bounds import positive
from userdp.problems.linear_scores import QUIET
from userdp.problems.one_score import OneScore


class SummedSamples(OneScore):
    """A loss of one score on one-hot or sparse samples: gradients are weighted sums of them, and the ridge's part."""

    @abstractmethod
    def _own_scores(self, models: Array, block: Block) -> Array:
        """Return the (N,) scores, each at its user's own model (U, p)."""

    @abstractmethod
    def _sums(self, weights: Array, block: Block) -> AnyRows:
        """Return the (U, p) sums of each user's samples, weighted by (N,) ``weights``."""

    @abstractmethod
    def _averages(self, models: Array, slopes: Array, block: Block) -> AnyRows:
        """Return the (U, p) average gradients; ``models`` is (p,) or (U, p)."""

    @abstractmethod
    def _clip_factors(self, scores: Array, slopes: Array, pull: Vector, block: Block, clip_norm: float) -> Array:
        """Return the (N,) factors that clip the samples' gradients; the ridge's part ``pull`` (p,) is finite."""

    @QUIET
    def user_gradients(self, x: Vector, block: Block) -> AnyRows:
        """See `Problem.user_gradients`; sparse if the problem is."""
        return self._averages(x, self._slopes(self._scores(x, block), block), block)

    @QUIET
    def user_gradients_at(self, models: Array, block: Block) -> AnyRows:
        """See `Problem.user_gradients_at`; sparse if the problem is."""
        return self._averages(models, self._slopes(self._own_scores(models, block), block), block)

    @QUIET
    def sample_clipped_sums(self, x: Vector, block: Block, clip_norm: float) -> AnyRows:
        """See `Problem.sample_clipped_sums`; ghost clipping computes norms without an (N, p) array."""
        positive("clip_norm", clip_norm)
        pull = self.ridge * x if self.ridge else np.zeros(self.dimension)
        scores, factors = self._scores(x, block), np.zeros(block.samples)
        slopes = self._slopes(scores, block)
        if np.isfinite(pull).all():
            factors = self._clip_factors(scores, slopes, pull, block, clip_norm)
        sums = self._sums(factors * np.where(factors > 0, slopes, 0.0), block)
        if not self.ridge:
            return sums
        pulls = np.add.reduceat(factors, block.offsets[:-1])[:, None]
        return np.asarray(dense(sums) + pulls * np.where(np.isfinite(pull), pull, 0.0))
