"""Generalised linear models with one non-zero feature a sample: a rate, a mean or an odds for every level.

``f = phi(x_level, y) + (ridge / 2) ||x||^2``. Never builds the one-hot matrix: cost O(N + U p).
"""

import math
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems import bounds
from userdp.problems.base import Box, Certificate, Problem
from userdp.problems.families import CloglogFamily, Family, LogisticFamily, PoissonFamily, SquaredFamily
from userdp.problems.linear_scores import QUIET, averaged, finite_or_none
from userdp.problems.segments import clip_factors
from userdp.problems.settings import RADIUS, RIDGE, BinaryTarget, CountBound, LossSettings, TargetRange
from userdp.problems.summed_samples import SummedSamples


class OneHot(SummedSamples):
    """``f(x; level, y) = phi(x_level, y) + (ridge / 2) ||x||^2``; features are (N, 1) int32 codes 0..levels - 1.

    The family gives phi and the range of targets; targets outside are clipped into it. Each of p levels has one
    parameter; the domain is ``|x_j| <= radius``, which may be infinite; ``ridge >= 0`` is part of the loss, and of
    "test_loss". Raises `BadInput` for an argument out of range.

    Formal guarantees:
        The Hessian ``phi'' e_j e_j^T + ridge I`` (j the level) is diagonal, so A1 and A4 hold for any ridge; with
        ``phi'' <= K``, ``|phi'| <= L`` over ``|s| <= radius``, and as far as known terms move s: A3 with
        ``beta = K + ridge``, A2 with ``G = L + ridge radius``, and ``||grad||_2 <= L + ridge sqrt(p) radius``. A
        computed phi' errs by at most ``2^-49 L`` (scipy's functions and numpy's exponential have relative errors below
        2^-50), the average of m of them by ``2^-53 (m + 20) L``, the ridge by ``2^-51 G``: together within ``2^-26 G``
        for m up to 2^26.
    """

    columns = 1

    def __init__(self, family: Family, levels: int, radius: float, ridge: float) -> None:
        self.family, self.mean_range = family, family.mean_range
        self.dimension = bounds.count("problem.levels", levels)
        self.ridge = bounds.not_negative("problem.ridge", ridge)
        self.domain = Box(np.zeros(self.dimension), bounds.positive("problem.radius", radius, infinite=True))
        self.level = True
        self._certify()

    def _certify(self) -> None:
        family, radius, moved = self.family, self.domain.radius, self.farthest
        slope, curvature = family.slope_bound(radius + moved), family.curvature_bound(radius + moved)
        pull = self.ridge * radius if self.ridge else 0.0
        bounded = math.isfinite(slope + pull + curvature)
        self.certificate = Certificate(
            convex=True,
            lipschitz=finite_or_none(slope + pull),
            gradient_norm=finite_or_none(slope + pull * math.sqrt(self.dimension)),
            smoothness=finite_or_none(curvature + self.ridge),
            diagonally_dominant=True,
            strong_convexity=self.ridge,
            first_gradient=family.slope_bound(moved),
            sparsity=None if self.ridge else 1,
            reason="" if bounded else f"there is no bound at problem.radius = {radius:g}; lower it",
        )
        self.gradient_rounding = 2.0**-26 * (slope + pull) if bounded else None
        self.landscape = self._seen(1.0, radius)

    def bound(self, block: Block) -> tuple[Block, int]:
        """See `Problem.bound`: clip targets into their range, set aside samples with codes outside 0..levels - 1."""
        block = bounds.set_aside_not_finite(bounds.coded(block, self.columns, self.dimension))
        return self._bounded(block, block.features, np.zeros(block.samples, dtype=bool))

    def _scores(self, x: Vector, block: Block) -> Array:
        return x[_codes(block)]

    def _own_scores(self, models: Array, block: Block) -> Array:
        return models[np.repeat(np.arange(block.users), block.sizes), _codes(block)]

    def _sums(self, weights: Array, block: Block) -> Array:
        cells = np.repeat(np.arange(block.users) * self.dimension, block.sizes) + _codes(block)
        sums = np.asarray(np.bincount(cells, weights, minlength=block.users * self.dimension), dtype=np.float64)
        return sums.reshape(block.users, self.dimension)

    def _averages(self, models: Array, slopes: Array, block: Block) -> Array:
        return averaged(self._sums(slopes, block), self.ridge, models, block)

    @QUIET
    def sample_gradients(self, x: Vector, block: Block) -> Array:
        gradients = np.zeros((block.samples, self.dimension))
        if self.ridge:
            gradients += self.ridge * x
        gradients[np.arange(block.samples), _codes(block)] += self._slopes(self._scores(x, block), block)
        return gradients

    def _clip_factors(self, scores: Array, slopes: Array, pull: Vector, block: Block, clip_norm: float) -> Array:
        """Return the factors by the squared norm of ``phi' e_j + ridge x``.

        It is ``(phi' + ridge x_j)^2 + ridge^2 (||x||^2 - x_j^2)``. A bound on the rounding of the last difference is
        added, so no clipped gradient exceeds ``clip_norm``.
        """
        own, whole = pull[_codes(block)], float(pull @ pull)
        safety = (self.dimension + 8) * np.finfo(float).eps * whole
        return clip_factors((slopes + own) ** 2 + (whole - own**2) + safety, clip_norm)

    def constant_model(self, mean: Vector) -> Vector:
        """Return the model with the score of that mean at every level."""
        return self.domain.project(np.full(self.dimension, self.family.score_of(float(mean[0]))))


def _codes(block: Block) -> NDArray[np.int32]:
    return cast(NDArray[np.int32], block.dense_features)[:, 0]


class OneHotLogistic(OneHot):
    """A log-odds for each level, y in {0, 1}. See `OneHot` for arguments and guarantees (K = 1/4, L < 1)."""

    name = "one_hot_logistic"
    fixed_order = True
    summary = "log-odds of a binary target for each level of one categorical feature"

    def __init__(self, levels: int, radius: float, *, ridge: float = 0.0) -> None:
        super().__init__(LogisticFamily(), levels, radius, ridge)


class OneHotSquared(OneHot):
    """A mean for each level, y in ``[low, high]``. See `OneHot` (K = 1, ``L = radius + max(-low, high)``)."""

    name = "one_hot_squared"
    fixed_order = True
    summary = "mean of a target for each level of one categorical feature"

    def __init__(self, levels: int, radius: float, *, low: float, high: float, ridge: float = 0.0) -> None:
        for bound in (low, high):
            if not math.isfinite(bound):
                raise BadInput(f"problem.target_range = [{low}, {high}]: must be two finite numbers for {self.name}")
        super().__init__(SquaredFamily(low, high), levels, radius, ridge)


class OneHotPoisson(OneHot):
    """A log-rate for each level, counts y in ``[0, count_bound]``. See `OneHot` (K = ``e^radius``)."""

    name = "one_hot_poisson"
    fixed_order = True
    summary = "log-rate of a count for each level of one categorical feature"

    def __init__(self, levels: int, radius: float, *, count_bound: float, ridge: float = 0.0) -> None:
        super().__init__(PoissonFamily(count_bound), levels, radius, ridge)


class OneHotCloglog(OneHot):
    """A log-hazard for each level, y in {0, 1}. See `OneHot` (K = L = ``e^radius``)."""

    name = "one_hot_cloglog"
    fixed_order = True
    summary = "log-hazard of a binary target for each level of one categorical feature"

    def __init__(self, levels: int, radius: float, *, ridge: float = 0.0) -> None:
        super().__init__(CloglogFamily(), levels, radius, ridge)


class OneHotSettings(LossSettings):
    """Settings of every loss on one column of categories."""

    family: ClassVar[str] = "one-hot"
    certificate: ClassVar[str] = "convex, bounded gradient, bounded and diagonally dominant Hessian; always"
    radius: float = Field(3.0, gt=0, description=RADIUS)
    ridge: float = Field(0.0, ge=0, description=RIDGE)

    def build(self, shape: Shape, seed: int) -> Problem:
        if shape.levels is None:
            raise BadInput(f"problem.kind = {self.kind!r} needs one column of categories: set data.codes, data.levels")
        return super().build(shape, seed)

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        return {**super()._arguments(shape), "levels": shape.levels or 1}


class OneHotLogisticSettings(BinaryTarget, OneHotSettings, loss=OneHotLogistic):
    """Settings of `userdp.problems.OneHotLogistic`."""


class OneHotSquaredSettings(TargetRange, OneHotSettings, loss=OneHotSquared):
    """Settings of `userdp.problems.OneHotSquared`."""


class OneHotPoissonSettings(CountBound, OneHotSettings, loss=OneHotPoisson):
    """Settings of `userdp.problems.OneHotPoisson`."""


class OneHotCloglogSettings(BinaryTarget, OneHotSettings, loss=OneHotCloglog):
    """Settings of `userdp.problems.OneHotCloglog`."""
