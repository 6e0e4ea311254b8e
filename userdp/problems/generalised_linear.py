"""Generalised linear models on dense features, with ridge: ``f = phi(<a, x>, y) + (ridge / 2) ||x||^2``."""

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.federation import Federation
from userdp.problems.base import NEXT_TO_NOTHING, Certificate
from userdp.problems.bounds import clip_targets, counted, rebuilt, targets_of
from userdp.problems.families import Family, SquaredFamily
from userdp.problems.landscape import ASSUMED_SIZE, AVERAGE_SIZE, Landscape
from userdp.problems.linear_scores import QUIET, LinearScores, Pieces, finite_or_none
from userdp.problems.rough import rough_gradients
from userdp.problems.segments import Number, float64_parts, user_averages, weighted_sums


class GeneralisedLinear(LinearScores):
    """``f(x; a, y) = phi(<a, x>, y) + (ridge / 2) ||x||^2``, ``||a||_1 <= feature_norm``, ``|a_j| <= feature_bound``.

    Args:
        family: phi and the range of targets; targets outside are clipped into it.
        columns: feature columns of a sample.
        feature_norm: A, bound on ``||a||_1``, the intercept's 1 included; larger samples are scaled down. May be
            infinite, for strategies that clip gradients: then nothing is clipped here, and nothing certified.
        radius: the domain is ``|x_j| <= radius``; may be infinite.
        ridge: >= 0; the ridge term is part of the loss, of "test_loss" too, and includes the intercept.
        intercept: append a feature of value 1 to each sample; its parameter comes last.
        feature_bound: b, bound on every feature's ``|a_j|``, the intercept's 1 aside; features are clipped into it one
            by one, before samples are scaled down. Infinite for none.

    Formal guarantees:
        A, c, R and ``peak`` bound a sample as in `LinearScores`.
        Write ``phi'' <= K`` and ``|phi'| <= L`` over scores ``|s| <= A radius``.
        The Hessian is ``phi'' a a^T + ridge I``, so
        A1 holds, with strong convexity ``ridge``;
        A2: ``|phi' a_j + ridge x_j| <= L peak + ridge radius``;
        A3: row j sums to ``phi'' |a_j| ||a||_1 + ridge <= K peak A + ridge``, as the largest entry of a times
        ``||a||_1`` is at most peak times A: K A where no cell exceeds 1. It is attained where ``phi'' = K``,
        ``||a||_1 = A`` and one entry is as large as peak;
        A4: row j is dominated iff ``ridge >= phi'' |a_j| (||a||_1 - 2 |a_j|)``. The right side grows with
        ``||a||_1``, and ``t (A - 2 t)`` grows up to ``t = A / 4``, where it is ``A^2 / 8``. Rows of features have
        ``t <= c``, and that of an intercept t = 1, so with ``q = min(A / 4, c)`` a ridge of ``K q (A - 2 q)``, or with
        an intercept of ``K (A - 2)`` if that is more, is enough: at most ``K A^2 / 8``, and necessary where K and
        such an a can occur. Exception, in the code: one parameter alone has nothing to dominate.
        ``||grad||_2 <= L ||a||_2 + ridge sqrt(p) radius``, where features have
        ``||.||_2^2 <= max_j |a_j| ||.||_1 <= c R``.
        Where phi is not convex, ``|phi''| <= K`` gives A2 and A3 as above, and neither A1 nor A4 is claimed.
        Where there is no K, but ``|phi'(s) - phi'(t)| <= H |s - t|^nu``, there is no A3, and
        ``||grad f(x) - grad f(y)||_2 <= (H ||a||_2^(1 + nu) + ridge (2 sqrt(p) radius)^(1 - nu)) ||x - y||_2^nu``,
        as ``|<a, x - y>| <= ||a||_2 ||x - y||_2`` and ``||x - y||_2 <= 2 sqrt(p) radius``.

    Raises:
        BadInput: an argument out of range.
    """

    def __init__(
        self,
        family: Family,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        ridge: float,
        intercept: bool,
        feature_bound: float = math.inf,
    ) -> None:
        super().__init__(
            1, columns, feature_norm, radius, ridge=ridge, intercept=intercept, feature_bound=feature_bound
        )
        self.family, self.mean_range = family, family.mean_range if intercept else None
        self.certificate = self._certify()
        self.landscape = self._landscape() if family.convex else None

    @property
    def first_slope(self) -> float:
        """``|phi'(0)|``."""
        return self.family.slope_bound(0.0)

    @property
    def first_hessian(self) -> Array:
        """``phi''(0)``."""
        return np.array([[self.family.curvature_bound(0.0)]])

    def _landscape(self) -> Landscape:
        family, length, reach = self.family.bounded(ASSUMED_SIZE), self.length, self.feature_norm
        if math.isinf(length):
            length = reach = ASSUMED_SIZE * math.sqrt(self.dimension)
        return Landscape(
            family.start_loss,
            family.curvature_bound(0.0) * length**2,
            AVERAGE_SIZE * family.slope_bound(reach * self.domain.radius) * length,
            pull=self.ridge * self.dimension,
            assumed=family is not self.family or math.isinf(self.length),
        )

    def _certify(self) -> Certificate:
        norm, radius, peak, length = self.feature_norm, self.domain.radius, self.peak, self.length
        slope = self.family.slope_bound(norm * radius)
        curvature = self.family.curvature_bound(norm * radius)
        pull = self.ridge * radius if self.ridge else 0.0
        needed = self._ridge_for_dominance(curvature)
        dominant = self.family.convex and self.ridge >= needed
        return Certificate(
            convex=self.family.convex,
            lipschitz=finite_or_none(slope * peak + pull),
            gradient_norm=finite_or_none(slope * length + pull * math.sqrt(self.dimension)),
            smoothness=finite_or_none(curvature * peak * norm + self.ridge),
            diagonally_dominant=dominant,
            strong_convexity=self.ridge if self.family.convex else 0.0,
            first_gradient=finite_or_none(self.family.slope_bound(0.0) * peak),
            hoelder=self._hoelder(length),
            reason=self._reason(slope * peak + pull, curvature * norm, needed, dominant),
        )

    def _ridge_for_dominance(self, curvature: float) -> float:
        if self.dimension == 1:
            return 0.0
        if math.isinf(self.feature_norm):
            return math.inf
        norm = self.feature_norm
        cell = min(norm / 4, self.cell)
        return curvature * max(cell * (norm - 2 * cell), norm - 2 if self.intercept else 0.0)

    def _hoelder(self, length: float) -> tuple[float, float] | None:
        """(nu, H) of the gradient, where the family has them and they are finite."""
        if self.family.hoelder is None:
            return None
        nu, constant = self.family.hoelder
        reach = 2 * math.sqrt(self.dimension) * self.domain.radius
        total = constant * length ** (1 + nu) + (self.ridge * reach ** (1 - nu) if self.ridge else 0.0)
        return (nu, total) if math.isfinite(total) else None

    def _reason(self, gradient: float, curvature: float, needed: float, dominant: bool) -> str:
        norm, radius, family = self.feature_norm, self.domain.radius, self.family
        if not family.convex:
            return f"{self.name} is not convex: residuals that are far off pull less"
        if family.hoelder is not None:
            return f"{self.name} with problem.order below 2 is not smooth where a prediction is perfect"
        if not (math.isfinite(gradient) and math.isfinite(curvature)):
            span = f"[{family.low:g}, {family.high:g}]"
            return (
                f"there is no bound at problem.feature_norm = {norm:g}, problem.radius = {radius:g} and targets in "
                f"{span}; lower them"
            )
        if dominant:
            return ""
        return (
            f"problem.ridge = {self.ridge:g} is too small at problem.feature_norm = {norm:g}; "
            f"it takes at least {needed * (1 + 1e-5):.6g}"
        )

    def bound(self, block: Block) -> tuple[Block, int]:
        """Features clipped one by one, samples scaled down into the l1 ball, targets clipped into their range."""
        block, changed = self.bound_features(block)
        targets, clipped = clip_targets(block, self.family.low, self.family.high)
        return rebuilt(block, block.features, targets), counted(block, changed | clipped)

    def _pieces(self, x: Vector, block: Block) -> Pieces:
        """(users, piece, its features in float64 until the next piece, its scores)."""
        weights, offset = x[: self.columns], x[self.columns] if self.intercept else 0.0
        for users, part, features in float64_parts(block):
            yield users, part, features, features @ weights + offset

    def _add(self, sums: NDArray[Number], part: Block, features: NDArray[Number], weights: NDArray[Number]) -> None:
        """Add each user's weighted sum of samples, the intercept's 1 included, to its row of ``sums``."""
        sums[:, : self.columns] += weighted_sums(features, part.offsets, weights)
        if self.intercept:
            sums[:, self.columns] += np.add.reduceat(weights, part.offsets[:-1])

    def _slopes(self, scores: Array, part: Block) -> Array:
        """(N,): ``phi'``."""
        return self.family.slopes(scores, targets_of(part))

    def _directed(self, slopes: Array, scores: Array) -> tuple[Array, Array]:
        """There is one score, and one direction."""
        return slopes, scores

    def _losses(self, scores: Array, part: Block) -> Array:
        """(N,): phi."""
        return self.family.losses(scores, targets_of(part))

    @QUIET
    def rough_user_gradients(self, x: Vector, block: Block) -> Array:
        """(U, p): all in float32, in which samples are stored, so about seven digits of the largest terms.

        Half the time of `user_gradients`, which takes the place of whoever's products overflow.
        """
        if block.dense_features.dtype != np.float32:
            return self.user_gradients(x, block)
        rows, finite = rough_gradients(self.family, x, self.ridge * x, block)
        if not finite.all():
            whose, kept = block.thinned(np.repeat(~finite, block.sizes))
            rows[whose] = self.user_gradients(x, cast(Block, kept))
        return rows

    @QUIET
    def user_gradients_at(self, models: Array, block: Block) -> Array:
        """(U, p): one pass over the features."""
        sums = np.zeros((block.users, self.dimension))
        for users, part, features in float64_parts(block):
            own = np.repeat(models[users], part.sizes, axis=0)
            scores = np.einsum("ij,ij->i", features, own[:, : self.columns])
            if self.intercept:
                scores += own[:, self.columns]
            self._add(sums[users], part, features, self._slopes(scores, part))
        return self._averaged(sums, models, block)

    @QUIET
    def sample_gradients(self, x: Vector, block: Block) -> Array:
        """(N, p)."""
        gradients = np.empty((block.samples, self.dimension))
        gradients[:, : self.columns] = block.dense_features
        gradients[:, self.columns :] = 1.0
        slopes = [self._slopes(scores, part) for _, part, _, scores in self._pieces(x, block)]
        gradients *= np.concatenate(slopes)[:, None]
        if self.ridge:
            gradients += self.ridge * x
        return gradients

    @QUIET
    def metrics(self, x: Vector, block: Block) -> dict[str, Array]:
        """Per user: "test_loss" (ridge term included) and the family's measures of prediction (without it)."""
        return score_metrics(self.family, self._scores(x, block), block, self._penalty(x))

    @QUIET
    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """The family's predictions, name -> (N,)."""
        return self.family.predictions(self._scores(x, block))

    def constant_model(self, mean: Vector) -> Vector:
        """The score of that mean as the intercept, and all weights zero."""
        if not self.intercept:
            return super().constant_model(mean)
        return self.domain.project(np.append(np.zeros(self.columns), self.family.score_of(float(mean[0]))))

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """Per user, of the family's loss and measures."""
        return constant_metrics(self.family, float(mean[0]), block)

    def optimum(self, federation: Federation) -> Vector | None:
        """Known for a synthetic regression of this family's kind, of which the declared bounds clip nothing.

        Inside the domain it is the family's minimiser, with an intercept of 0. Outside it is known for least squares
        alone, whose risk is a sum over coordinates: there it is the nearest point of the domain.
        """
        model = federation.regression
        if model is None or math.isfinite(self.feature_norm):
            return None
        weights = self.family.minimiser(model, self.ridge, self.intercept)
        if weights is None or weights.shape != (self.columns,):
            return None
        best = np.concatenate([weights, np.zeros(int(self.intercept))])
        inside = self.domain.project(best)
        return inside if isinstance(self.family, SquaredFamily) or np.array_equal(inside, best) else None


def score_metrics(family: Family, scores: Array, block: Block, penalty: float) -> dict[str, Array]:
    """Per user: "test_loss", ``penalty`` included, and the family's measures of prediction, without it."""
    quality = family.quality(scores, targets_of(block))
    averages = {name: user_averages(values, block) for name, values in quality.items()}
    return {"test_loss": user_averages(family.losses(scores, targets_of(block)) + penalty, block), **averages}


def constant_metrics(family: Family, mean: float, block: Block) -> dict[str, Array]:
    """`score_metrics` of the score that predicts this mean of every sample, or one as near as its range allows."""
    if family.open_ends:
        least = NEXT_TO_NOTHING * (family.high - family.low)
        mean = min(max(mean, family.low + least), family.high - least)
    return score_metrics(family, np.full(block.samples, family.score_of(mean)), block, 0.0)
