"""Losses that are a sum over coordinates, ``f(x; z) = sum_j phi_j(x_j; z_j)``: locations, means, rates.

The Hessian is diagonal, so A4 holds for all data: the simplest family with proven robust aggregation.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.special import expit, logit

from userdp.arrays.fixed_order import EINSUM, inner, product
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.federation import Federation
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems import bounds
from userdp.problems.base import AVERAGE_SIZE, Box, Certificate, Landscape, Problem
from userdp.problems.segments import float64_parts, user_means, weighted_sums
from userdp.problems.settings import RADIUS, LossSettings


class Separable(Problem):
    """A sum of losses over d coordinates; samples are points z, clipped into ``[low, high]^d``, without a target.

    The domain is ``|x_j| <= radius``. ``slope`` bounds ``|phi_j'|`` over domain and data, infinite if unbounded;
    ``smoothness`` and ``flattest`` bound ``phi_j''`` from above and below; ``start`` bounds the mean of
    ``phi_j`` at ``x_j = 0`` minus its least value, if that is in the domain.

    Formal guarantees:
        The Hessian is diagonal: ``H_jj = phi_j'' >= 0`` and all else zero. Hence A1 (convex), A3 with
        ``beta = max phi''``, and A4 with nothing to dominate. A2 with ``G = max |phi'|``, and
        ``||grad||_2 <= sqrt(d) G``.
    """

    has_targets = False
    bends_boundedly = True
    smoothness: ClassVar[float]

    def __init__(
        self, dimension: int, low: float, high: float, radius: float, *, slope: float, flattest: float, start: float
    ) -> None:
        self.dimension = self.columns = bounds.count("problem.dimension", dimension)
        self.low, self.high = low, high
        self.domain = Box(np.zeros(self.dimension), radius)
        bounded = math.isfinite(slope)
        self.certificate = Certificate(
            convex=True,
            lipschitz=slope if bounded else None,
            gradient_norm=slope * math.sqrt(self.dimension) if bounded else None,
            smoothness=self.smoothness,
            diagonally_dominant=True,
            strong_convexity=flattest,
            reason=""
            if bounded
            else "an infinite problem.radius or problem.bound leaves the gradient unbounded; set finite ones",
        )

        # Noise on a linear loss costs what the domain's walls keep of it, which its slope bounds.
        trace = self.smoothness * dimension or math.inf
        self.landscape = Landscape(start * dimension, trace, AVERAGE_SIZE * slope * dimension)

    def bound(self, block: Block) -> tuple[Block, int]:
        """See `Problem.bound`: clip every coordinate into ``[low, high]``."""
        bounds.check_columns(block, self.columns)
        block = bounds.set_aside_not_finite(block, targets=False)
        features, changed = bounds.clip_features(block, self.low, self.high)
        return bounds.rebuilt(block, features, block.targets), bounds.counted(block, changed)

    def user_curvatures(self, block: Block, turn: Array | None = None) -> Array:
        """See `Problem.user_curvatures`: ``smoothness``, which holds everywhere."""
        largest = self.smoothness * (1.0 if turn is None else float(np.linalg.norm(turn, 2)) ** 2)
        return np.full(block.users, largest)

    @abstractmethod
    def slopes(self, x: Array, z: Array) -> Array:
        """Return ``phi_j'(x_j; z_ij)`` (N, d) for samples z (N, d) at one x (d,), or at one for each sample (N, d)."""

    @abstractmethod
    def values(self, x: Vector, z: Array) -> Array:
        """Return ``f(x; z_i)`` (N,) for samples z (N, d)."""

    def user_gradients(self, x: Vector, block: Block) -> Array:
        return self.user_gradients_at(x[None], block)

    def user_gradients_at(self, models: Array, block: Block) -> Array:
        sums = np.zeros((block.users, self.dimension))
        for users, part, features in float64_parts(block):
            # One model for all needs no copies.
            at = models if len(models) == 1 else np.repeat(models[users], part.sizes, axis=0)
            sums[users] += weighted_sums(self.slopes(at, features), part.offsets, np.ones(part.samples))
        sums /= block.sizes[:, None]
        return sums

    def sample_gradients(self, x: Vector, block: Block) -> Array:
        return self.slopes(x, block.dense_features.astype(np.float64))

    def sample_losses(self, x: Vector, block: Block) -> Array:
        return np.concatenate([self.values(x, features) for _, _, features in float64_parts(block)])


class MeanSufficient(Separable):
    """``phi_j = psi(x_j) - x_j z_j + constant(z_j)``: the gradient is ``psi'(x) - z``, and needs only a user's mean.

    The population risk is ``psi(x) - <x, mu>`` up to a constant, which gives the excess risk in closed form.
    """

    @abstractmethod
    def potential(self, x: Vector) -> Vector:
        """Return ``psi(x_j)`` (d,)."""

    @abstractmethod
    def mean_at(self, x: Array) -> Array:
        """Return ``psi'(x_j)``, the mean for which x is the best model; x is one model (d,) or several (U, d)."""

    @abstractmethod
    def minimiser(self, mean: Vector) -> Vector:
        """Return the (d,) minimiser of ``psi(x) - <x, mean>`` over the domain."""

    def slopes(self, x: Vector, z: Array) -> Array:
        """Return ``psi'(x_j) - z_ij``."""
        return np.asarray(self.mean_at(x) - z)

    def values(self, x: Vector, z: Array) -> Array:
        """Return ``sum_j psi(x_j) - x_j z_ij``."""
        return np.asarray(self.potential(x).sum() - product(z, x))

    def user_gradients(self, x: Vector, block: Block) -> Array:
        """Return ``psi'(x)`` minus each user's mean; x is one model (d,), or one a user (U, d)."""
        return np.asarray(self.mean_at(x) - user_means(block))

    def user_gradients_at(self, models: Array, block: Block) -> Array:
        return self.user_gradients(models, block)

    def excess_risk(self, x: Vector, federation: Federation) -> float | None:
        """Compute it exactly for x in the domain; raise `BadInput` if the population's mean has another dimension."""
        mean = federation.population_mean
        if mean is None:
            return None
        if mean.shape != (self.dimension,):
            raise BadInput(f"the population's mean has shape {mean.shape}, the problem needs ({self.dimension},)")
        best = self.minimiser(mean)
        gaps = self.potential(x) - self.potential(best) - (x - best) * mean
        return max(0.0, float(gaps.sum()))  # never negative over the domain but for rounding


class Quadratic(MeanSufficient):
    """Mean estimation: ``f(x; z) = ||x - z||^2 / 2``, z in ``[-bound, bound]^d``, on ``|x_j| <= radius``.

    An infinite bound or radius leaves the gradient unbounded. Raises `BadInput` for a bound or radius that is not
    positive.

    Formal guarantees:
        A1 to A4 with ``phi' = x_j - z_j``, so ``G = radius + bound``, and ``phi'' = 1``, so ``beta = 1``; strong
        convexity 1. See `Separable`. The computed gradient is that of half the squared distance to the user's computed
        mean, which lies within twice the bound, but for the rounding of one difference: within ``2^-52 G``.
    """

    name = "quadratic"
    fixed_order = True
    mean_sufficient = True
    smoothness = 1.0
    summary = "mean estimation: half the squared distance to each sample"

    def __init__(self, dimension: int, bound: float, radius: float) -> None:
        bound = bounds.positive("problem.bound", bound, infinite=True)
        radius = bounds.positive("problem.radius", radius, infinite=True)
        slope, start = radius + bound, min(bound, radius) ** 2 / 2
        super().__init__(dimension, -bound, bound, radius, slope=slope, flattest=1.0, start=start)
        self.gradient_rounding = 2.0**-52 * slope if math.isfinite(slope) else None

    def potential(self, x: Vector) -> Vector:
        """Return ``x_j^2 / 2``."""
        return np.asarray(0.5 * x**2)

    def mean_at(self, x: Vector) -> Vector:
        """Return ``x_j``."""
        return x

    def minimiser(self, mean: Vector) -> Vector:
        """Return the mean, projected on the domain."""
        return self.domain.project(mean)

    def values(self, x: Vector, z: Array) -> Array:
        """Return ``||x - z_i||^2 / 2``."""
        distances = x - z
        return np.asarray(0.5 * inner(distances, distances, EINSUM))


class Bernoulli(MeanSufficient):
    """Rates on the logit scale: ``f(x; z) = sum_j log(1 + e^{x_j}) - z_j x_j``, z in ``[0, 1]^d``.

    The domain is ``|x_j| <= radius``, finite; 5 covers rates from 0.7 to 99.3 per cent.

    Formal guarantees:
        A1 to A4 with ``phi' = sigmoid(x_j) - z_j``, so ``G = sigmoid(radius)``, and ``phi'' = sigmoid (1 - sigmoid)``,
        so ``beta = 1/4``; strong convexity is phi'' at the radius. See `Separable`. The computed gradient is that of
        the user's computed mean but for the rounding of sigmoid and difference: within 2^-48, for a sigmoid with an
        error below 2^-49 (scipy's is below 2^-51).
    """

    name = "bernoulli"
    fixed_order = True
    mean_sufficient = True
    smoothness = 0.25
    summary = "rates of binary attributes: one logistic loss a coordinate"

    def __init__(self, dimension: int, radius: float) -> None:
        radius = bounds.positive("problem.radius", radius)
        slope, flattest = float(expit(radius)), float(expit(radius) * expit(-radius))
        start = math.log(2.0) - math.log1p(math.exp(-radius))
        super().__init__(dimension, 0.0, 1.0, radius, slope=slope, flattest=flattest, start=start)
        self.gradient_rounding = 2.0**-48

    def potential(self, x: Vector) -> Vector:
        """Return ``log(1 + e^{x_j})``."""
        return np.logaddexp(0.0, x)

    def mean_at(self, x: Vector) -> Vector:
        """Return ``sigmoid(x_j)``."""
        return np.asarray(expit(x))

    def minimiser(self, mean: Vector) -> Vector:
        """Return the logit of the mean, projected on the domain."""
        return self.domain.project(np.asarray(logit(mean)))


class Linear(MeanSufficient):
    """``f(x; z) = -<x, z>``, z in ``[-bound, bound]^d``: find the sign of every mean.

    The loss of the lower bound of Ghazi, Kumar, Liu, Manurangsi, "Linear-Time User-Level DP-SCO via Robust Statistics"
    (2025), Section 4: the gradient ``-z`` depends on no model, so only the accuracy of means matters. The domain
    ``|x_j| <= radius`` is finite, since a linear loss has no minimum on an infinite one.

    Formal guarantees:
        A1 to A4 with ``phi' = -z_j``, so ``G = bound``, and a zero Hessian, so ``beta = 0``: steps of any size are
        1-Lipschitz. See `Separable`. The computed gradient is the negative of the user's computed mean, exactly.
    """

    name = "linear"
    fixed_order = True
    mean_sufficient = True
    smoothness = 0.0
    summary = "the paper's hard instance: signs of means, a loss without curvature"

    def __init__(self, dimension: int, bound: float, radius: float = 1.0) -> None:
        bound = bounds.positive("problem.bound", bound)
        radius = bounds.positive("problem.radius", radius)
        super().__init__(dimension, -bound, bound, radius, slope=bound, flattest=0.0, start=bound * radius)
        self.gradient_rounding = 0.0

    def potential(self, x: Vector) -> Vector:
        """Return zero."""
        return np.zeros_like(x)

    def mean_at(self, x: Vector) -> Vector:
        """Return zero."""
        return np.zeros_like(x)

    def minimiser(self, mean: Vector) -> Vector:
        """Return the corner of the box on the mean's side: excess risk ``radius ||mu||_1 - <x, mu>``."""
        return np.asarray(self.domain.radius * np.sign(mean))


class Huber(Separable):
    """Robust location: ``f(x; z) = sum_j huber(x_j - z_j)``, z in ``[-bound, bound]^d``, on ``|x_j| <= radius``.

    ``huber(u) = u^2 / 2`` for ``|u| <= threshold`` and ``threshold (|u| - threshold / 2)`` beyond (Huber, 1964). The
    radius may be infinite; raises `BadInput` for an argument that is not positive.

    Formal guarantees:
        A1 to A4 with ``G = min(threshold, radius + bound)`` and ``beta = 1``. At the two kinks, where there is no
        second derivative, ``huber'`` is still monotone and 1-Lipschitz, which is enough for contractivity: a step
        ``u - eta huber'(u)`` has slopes in ``[1 - eta, 1]``. Strong convexity 1 if the line is never reached,
        otherwise 0. A computed slope errs by ``2^-53 threshold`` (one difference, clipped), and the average of m of
        them, added in any order, by m + 1 times that: within ``2^-26`` of the largest for m up to 2^26.
    """

    name = "huber"
    fixed_order = True
    smoothness = 1.0
    summary = "robust location: Huber's loss of the distance in each coordinate"

    def __init__(self, dimension: int, bound: float, radius: float, threshold: float) -> None:
        bound = bounds.positive("problem.bound", bound)
        radius = bounds.positive("problem.radius", radius, infinite=True)
        self.threshold = bounds.positive("problem.threshold", threshold)
        slope = min(self.threshold, radius + bound)
        flattest, farthest = float(radius + bound <= self.threshold), min(bound, radius)
        start = min(self.threshold, farthest) * (farthest - min(self.threshold, farthest) / 2)
        super().__init__(dimension, -bound, bound, radius, slope=slope, flattest=flattest, start=start)
        self.gradient_rounding = 2.0**-26 * slope

    def slopes(self, x: Vector, z: Array) -> Array:
        """Return the distance, clipped to the threshold."""
        return np.clip(x - z, -self.threshold, self.threshold)

    def values(self, x: Vector, z: Array) -> Array:
        """Return ``huber(u) = c (u - c / 2)``, with c the clipped distance u."""
        distances = x - z
        clipped = np.clip(distances, -self.threshold, self.threshold)
        return np.asarray(inner(clipped, distances - 0.5 * clipped, EINSUM))


class SeparableSettings(LossSettings):
    """Settings of every separable loss."""

    family: ClassVar[str] = "separable"
    certificate: ClassVar[str] = "convex, bounded gradient, bounded and diagonally dominant Hessian; always"
    most_classes: ClassVar[int | None] = None
    for_targets: ClassVar[str] = "squared"
    """The kind of problem to use if the data have a target."""

    def build(self, shape: Shape, seed: int) -> Problem:
        if shape.codes_from is not None:
            raise BadInput(
                f"problem.kind = {self.kind!r} needs numeric features, and {shape.codes_from} gives categories: "
                "declare data.features"
            )
        if shape.has_target:
            raise BadInput(
                f"problem.kind = {self.kind!r} predicts nothing, and the data have a target: use problem.kind = "
                f"{self.for_targets!r} to predict it, or leave data.target out"
            )
        return super().build(shape, seed)

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        return {**super()._arguments(shape), "dimension": shape.columns}


class BoundedSettings(SeparableSettings):
    """Settings of losses of samples in a declared box."""

    bound: float | None = Field(None, gt=0)
    """Bound on every |z_j|; samples are clipped into it. Known for tables (1); inf for none, if the loss allows it."""
    radius: float = Field(1.0, gt=0, description=RADIUS)

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        bound = self._declared("bound", self.bound, shape.bound, "the bound of a sample's coordinates")
        return {**super()._arguments(shape), "bound": bound}


class LinearSettings(BoundedSettings, loss=Linear):
    """Settings of `userdp.problems.Linear`."""


class QuadraticSettings(BoundedSettings, loss=Quadratic):
    """Settings of `userdp.problems.Quadratic`."""


class HuberSettings(BoundedSettings, loss=Huber):
    """Settings of `userdp.problems.Huber`."""

    threshold: float = Field(1.0, gt=0, description="Distance at which the square becomes a line.")


class BernoulliSettings(SeparableSettings, loss=Bernoulli):
    """Settings of `userdp.problems.Bernoulli`."""

    for_targets: ClassVar[str] = "logistic"
    radius: float = Field(5.0, gt=0, description=RADIUS + " Log-odds: 5 covers rates from 0.7 % to 99.3 %.")
