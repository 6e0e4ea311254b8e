"""Generalised linear models with one non-zero feature a sample: a rate, a mean or an odds for every level.

``f = phi(x_level, y) + (ridge / 2) ||x||^2``. Never builds the one-hot matrix: cost O(N + U p).
"""

import math
from typing import ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import Box, Certificate, Problem
from userdp.problems.bounds import (
    check_columns,
    clip_targets,
    count,
    counted,
    not_negative,
    positive,
    rebuilt,
    set_aside,
    set_aside_not_finite,
    targets_of,
)
from userdp.problems.families import Family, LogisticFamily, PoissonFamily, SquaredFamily
from userdp.problems.generalised_linear import constant_metrics, score_metrics
from userdp.problems.landscape import AVERAGE_SIZE, Landscape
from userdp.problems.linear_scores import QUIET
from userdp.problems.segments import clip_factors
from userdp.problems.settings import RADIUS, RIDGE, CountBound, ProblemSettings, TargetRange


class OneHot(Problem):
    """``f(x; level, y) = phi(x_level, y) + (ridge / 2) ||x||^2``; features are (N, 1) int32 codes 0..levels - 1.

    Args:
        family: phi and the range of targets; targets outside are clipped into it.
        levels: p, one parameter a level.
        radius: the domain is ``|x_j| <= radius``; may be infinite.
        ridge: >= 0; part of the loss, and of "test_loss".

    Formal guarantees:
        The Hessian ``phi'' e_j e_j^T + ridge I`` (j the level) is diagonal, so A1 and A4 hold for any ridge; with
        ``phi'' <= K``, ``|phi'| <= L`` over ``|s| <= radius``: A3 with ``beta = K + ridge``, A2 with
        ``G = L + ridge radius``, and ``||grad||_2 <= L + ridge sqrt(p) radius``. A computed phi' errs by at most
        ``2^-49 L`` (scipy's sigmoid and numpy's exponential are right to 2^-51 of themselves), the average of m of
        them by ``2^-53 (m + 20) L``, the ridge by ``2^-51 G``: together within ``2^-26 G`` for m up to 2^26.

    Raises:
        BadInput: an argument out of range.
    """

    has_targets = True
    columns = 1

    def __init__(self, family: Family, levels: int, radius: float, ridge: float) -> None:
        self.family, self.mean_range = family, family.mean_range
        self.dimension = count("problem.levels", levels)
        self.ridge = not_negative("problem.ridge", ridge)
        self.domain = Box(np.zeros(self.dimension), positive("problem.radius", radius, infinite=True))
        slope, curvature = family.slope_bound(radius), family.curvature_bound(radius)
        pull = self.ridge * radius if self.ridge else 0.0
        bounded = math.isfinite(slope + pull + curvature)
        self.certificate = Certificate(
            convex=True,
            lipschitz=slope + pull if math.isfinite(slope + pull) else None,
            gradient_norm=slope + pull * math.sqrt(self.dimension) if math.isfinite(slope + pull) else None,
            smoothness=curvature + self.ridge if math.isfinite(curvature) else None,
            diagonally_dominant=True,
            strong_convexity=self.ridge,
            first_gradient=self.family.slope_bound(0.0),
            sparsity=None if self.ridge else 1,
            reason="" if bounded else f"there is no bound at problem.radius = {radius:g}; lower it",
        )
        self.gradient_rounding = 2.0**-26 * (slope + pull) if bounded else None
        self.landscape = Landscape(
            family.start_loss, family.curvature_bound(0.0), AVERAGE_SIZE * slope, pull=self.ridge * self.dimension
        )

    def bound(self, block: Block) -> tuple[Block, int]:
        """Targets clipped into the family's range; a code outside 0..levels - 1 has no place there and is set aside.

        Raises:
            BadInput: codes that are not integers, another number of columns, or no targets.
        """
        check_columns(block, self.columns, np.integer)
        codes = cast(NDArray[np.int32], block.dense_features)
        outside = np.any((codes < 0) | (codes >= self.dimension), axis=1)
        block = set_aside_not_finite(set_aside(block, np.asarray(outside)))
        targets, clipped = clip_targets(block, self.family.low, self.family.high)
        return rebuilt(block, block.features, targets), counted(block, clipped)

    def _sums(self, block: Block, weights: Array) -> Array:
        """(U, p): for each user and level the sum of its samples' weights."""
        cells = np.repeat(np.arange(block.users) * self.dimension, block.sizes) + _codes(block)
        sums = np.asarray(np.bincount(cells, weights, minlength=block.users * self.dimension), dtype=np.float64)
        return sums.reshape(block.users, self.dimension)

    def _slopes(self, x: Vector, block: Block) -> Array:
        return self.family.slopes(x[_codes(block)], targets_of(block))

    @QUIET
    def user_gradients(self, x: Vector, block: Block) -> Array:
        """(U, p)."""
        return self._averages(x, self._slopes(x, block), block)

    @QUIET
    def user_gradients_at(self, models: Array, block: Block) -> Array:
        """(U, p)."""
        scores = models[np.repeat(np.arange(block.users), block.sizes), _codes(block)]
        return self._averages(models, self.family.slopes(scores, targets_of(block)), block)

    def _averages(self, models: Array, slopes: Array, block: Block) -> Array:
        """(U, p) average gradients from the samples' slopes (N,); ``models`` is (p,) or (U, p)."""
        sums = self._sums(block, slopes)
        sums /= block.sizes[:, None]
        if self.ridge:
            sums += self.ridge * models
        return sums

    @QUIET
    def sample_gradients(self, x: Vector, block: Block) -> Array:
        """(N, p)."""
        gradients = np.zeros((block.samples, self.dimension))
        if self.ridge:
            gradients += self.ridge * x
        gradients[np.arange(block.samples), _codes(block)] += self._slopes(x, block)
        return gradients

    @QUIET
    def sample_clipped_sums(self, x: Vector, block: Block, clip_norm: float) -> Array:
        """(U, p), by ghost clipping: the norm of ``phi' e_j + ridge x`` needs no (N, p) array.

        Its square is ``(phi' + ridge x_j)^2 + ridge^2 (||x||^2 - x_j^2)``; the rounding of the last difference is
        bounded and added, so no clipped gradient exceeds ``clip_norm``.
        """
        positive("clip_norm", clip_norm)
        pull = self.ridge * x if self.ridge else np.zeros(self.dimension)
        if not np.isfinite(pull).all():
            return np.zeros((block.users, self.dimension))
        slopes, own, whole = self._slopes(x, block), pull[_codes(block)], float(pull @ pull)
        safety = (self.dimension + 8) * np.finfo(float).eps * whole
        factors = clip_factors((slopes + own) ** 2 + (whole - own**2) + safety, clip_norm)
        sums = self._sums(block, factors * np.where(factors > 0, slopes, 0.0))
        if self.ridge:
            sums += np.add.reduceat(factors, block.offsets[:-1])[:, None] * pull
        return sums

    @QUIET
    def sample_losses(self, x: Vector, block: Block) -> Array:
        """(N,), the ridge term included."""
        return self.family.losses(x[_codes(block)], targets_of(block)) + 0.5 * self.ridge * float(x @ x)

    @QUIET
    def metrics(self, x: Vector, block: Block) -> dict[str, Array]:
        """Per user: "test_loss" (ridge term included) and the family's measures of prediction (without it)."""
        return score_metrics(self.family, x[_codes(block)], block, 0.5 * self.ridge * float(x @ x))

    def constant_model(self, mean: Vector) -> Vector:
        """The score of that mean at every level."""
        return self.domain.project(np.full(self.dimension, self.family.score_of(float(mean[0]))))

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """Per user, of the family's loss and measures."""
        return constant_metrics(self.family, float(mean[0]), block)

    @QUIET
    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """The family's predictions, name -> (N,)."""
        return self.family.predictions(x[_codes(block)])


def _codes(block: Block) -> NDArray[np.int32]:
    return cast(NDArray[np.int32], block.dense_features)[:, 0]


class OneHotLogistic(OneHot):
    """A log-odds for each level, y in {0, 1}. See `OneHot` for arguments and guarantees (K = 1/4, L < 1)."""

    name = "one_hot_logistic"
    summary = "log-odds of a binary target for each level of one categorical feature"

    def __init__(self, levels: int, radius: float, *, ridge: float = 0.0) -> None:
        super().__init__(LogisticFamily(), levels, radius, ridge)


class OneHotSquared(OneHot):
    """A mean for each level, y in ``[low, high]``. See `OneHot` (K = 1, ``L = radius + max(-low, high)``)."""

    name = "one_hot_squared"
    summary = "mean of a target for each level of one categorical feature"

    def __init__(self, levels: int, radius: float, *, low: float, high: float, ridge: float = 0.0) -> None:
        for bound in (low, high):
            if not math.isfinite(bound):
                raise BadInput(f"problem.target_range = [{low}, {high}]: must be two finite numbers for {self.name}")
        super().__init__(SquaredFamily(low, high), levels, radius, ridge)


class OneHotPoisson(OneHot):
    """A log-rate for each level, counts y in ``[0, count_bound]``. See `OneHot` (K = ``e^radius``)."""

    name = "one_hot_poisson"
    summary = "log-rate of a count for each level of one categorical feature"

    def __init__(self, levels: int, radius: float, *, count_bound: float, ridge: float = 0.0) -> None:
        super().__init__(PoissonFamily(count_bound), levels, radius, ridge)


class OneHotSettings(ProblemSettings):
    """Settings of every loss on one column of categories."""

    family: ClassVar[str] = "one-hot"
    certificate: ClassVar[str] = "convex, bounded gradient, bounded and diagonally dominant Hessian; always"
    radius: float = Field(3.0, gt=0, description=RADIUS)
    ridge: float = Field(0.0, ge=0, description=RIDGE)

    def build(self, shape: Shape, seed: int) -> Problem:
        """See `ProblemSettings.build`."""
        if shape.levels is None:
            raise BadInput(f"problem.kind = {self.kind!r} needs one column of categories: set data.codes, data.levels")
        return super().build(shape, seed)


class OneHotLogisticSettings(OneHotSettings):
    """Settings of `userdp.problems.OneHotLogistic`."""

    kind: Literal["one_hot_logistic"]
    summary: ClassVar[str] = OneHotLogistic.summary
    unscaled: ClassVar[str | None] = "0 and 1, which data.positive makes of words"
    most_classes: ClassVar[int | None] = 2

    def _make(self, shape: Shape, seed: int) -> Problem:
        return OneHotLogistic(shape.levels or 1, self.radius, ridge=self.ridge)


class OneHotSquaredSettings(TargetRange, OneHotSettings):
    """Settings of `userdp.problems.OneHotSquared`."""

    kind: Literal["one_hot_squared"]
    summary: ClassVar[str] = OneHotSquared.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return OneHotSquared(shape.levels or 1, self.radius, ridge=self.ridge, low=low, high=high)


class OneHotPoissonSettings(CountBound, OneHotSettings):
    """Settings of `userdp.problems.OneHotPoisson`."""

    kind: Literal["one_hot_poisson"]
    summary: ClassVar[str] = OneHotPoisson.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        return OneHotPoisson(shape.levels or 1, self.radius, ridge=self.ridge, count_bound=self.count_bound)
