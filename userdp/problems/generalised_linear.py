"""Generalised linear models on dense features, with ridge: ``f = phi(<a, x>, y) + (ridge / 2) ||x||^2``."""

import math
from typing import ClassVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.compiling import can_compile
from userdp.arrays.fixed_order import inner, order_is_fixed, product
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.federation import Federation
from userdp.problems.base import ASSUMED_SIZE
from userdp.problems.bounds import targets_of
from userdp.problems.by_period import ByPeriod
from userdp.problems.families import CloglogFamily, Family, LogisticFamily, PoissonFamily, SquaredFamily
from userdp.problems.linear_scores import QUIET, Options, Pieces
from userdp.problems.segments import Number, float64_parts, weighted_as_read, weighted_sums
from userdp.problems.settings import BinaryTarget, CountBound, GeneralisedLinearSettings, TargetRange

COMPILED_BYTES = 1 << 21
"""The least bytes of a block's features for the compiled loop; below, loading it takes longer than thousands of rounds.
"""


class GeneralisedLinear(ByPeriod):
    """``f(x; a, y) = phi(<a, x>, y) + (ridge / 2) ||x||^2``, ``||a||_1 <= feature_norm``, ``|a_j| <= feature_bound``.

    The family gives phi and the range of targets; targets outside are clipped into it. See `LinearScores` for the other
    arguments. Raises `BadInput` for an argument out of range.

    Formal guarantees:
        A, c, R and ``peak`` bound a sample as in `LinearScores`. Write ``phi'' <= K`` and ``|phi'| <= L`` over scores
        ``|s| <= A radius``. The Hessian is ``phi'' a a^T + ridge I``, so
        A1 holds, with strong convexity ``ridge``;
        A2: ``|phi' a_j + ridge x_j| <= L peak + ridge radius``;
        A3: row j sums to ``phi'' |a_j| ||a||_1 + ridge <= K peak A + ridge``, as the largest entry of a times
        ``||a||_1`` is at most peak times A: K A if no cell exceeds 1. It is attained if ``phi'' = K``,
        ``||a||_1 = A`` and one entry is as large as peak;
        A4: row j is dominated iff ``ridge >= phi'' |a_j| (||a||_1 - 2 |a_j|)``. The right side grows with
        ``||a||_1``, and ``t (A - 2 t)`` grows up to ``t = A / 4``, where it is ``A^2 / 8``. Rows of features have
        ``t <= c``, and that of an intercept t = 1, so with ``q = min(A / 4, c)`` a ridge of ``K q (A - 2 q)``, or with
        an intercept of ``K (A - 2)`` if that is more, is enough: at most ``K A^2 / 8``, and necessary if K and
        such an a can occur. Exception, in the code: one parameter alone has nothing to dominate.
        Known terms move scores by up to ``farthest``, which ``A radius`` then includes in the bounds K and L.
        ``||grad||_2 <= L ||a||_2 + ridge sqrt(p) radius``, where features have
        ``||.||_2^2 <= max_j |a_j| ||.||_1 <= c R``.
    """

    def __init__(
        self, family: Family, columns: int, feature_norm: float, radius: float, **options: Unpack[Options]
    ) -> None:
        super().__init__(1, columns, feature_norm, radius, **options)
        self.family, self.mean_range = family, family.mean_range if self.intercept else None
        self.level, self.score_curvature = self.intercept, family.curvature_bound(math.inf)
        self._certify()

    def _certify(self) -> None:
        family, moved = self.family, self.farthest
        self.first_slope, self.first_hessian = family.slope_bound(moved), np.array([[family.curvature_bound(moved)]])
        reach = self.feature_norm * self.domain.radius + moved
        slope, targets = family.slope_bound(reach), f" and targets in [{family.low:g}, {family.high:g}]"
        self.certificate = self._certified(slope, slope, family.curvature_bound(reach), self.first_slope, targets)
        length, norm, assumed = self.length, self.feature_norm, math.isinf(self.length)
        if assumed:
            length = norm = ASSUMED_SIZE * math.sqrt(self.dimension)
        self.landscape = self._seen(length, norm * self.domain.radius, assumed=assumed)

    def _dominance(self, norm: float) -> float:
        cell = min(norm / 4, self.cell)
        return max(cell * (norm - 2 * cell), norm - 2 if self.intercept else 0.0)

    def bound(self, block: Block) -> tuple[Block, int]:
        """See `Problem.bound`: clip features, scale samples into the l1 ball, clip targets into their range."""
        block, changed = self.bound_features(block)
        return self._bounded(block, block.features, changed)

    def _pieces(self, x: Vector, block: Block) -> Pieces:
        weights, offset = x[: self.columns], x[self.columns] if self.intercept else 0.0
        for users, part, features in float64_parts(block):
            yield users, part, features, product(features, weights) + offset

    def _add(self, sums: NDArray[Number], part: Block, features: NDArray[Number], weights: NDArray[Number]) -> None:
        sums[:, : self.columns] += weighted_sums(features, part.offsets, weights)
        if self.intercept:
            sums[:, self.columns] += np.add.reduceat(weights, part.offsets[:-1])

    def _directed(self, slopes: Array, scores: Array) -> tuple[Array, Array]:
        return slopes, scores

    @QUIET
    def rough_user_gradients(self, x: Vector, block: Block) -> Array:
        """See `Problem.rough_user_gradients`: in float32, in half the time; users that overflow in float64."""
        if block.dense_features.dtype != np.float32 or self.terms is not None:
            return self.user_gradients(x, block)
        rows, finite = rough_gradients(self.family, x, self.ridge * x, block)
        if not finite.all():
            users, kept = block.thinned(np.repeat(~finite, block.sizes))
            rows[users] = self.user_gradients(x, cast(Block, kept))
        return rows

    def constant_model(self, mean: Vector) -> Vector:
        """Return the model with the score of that mean as the intercept, and zero weights."""
        if not self.intercept and self.periods is None:
            return super().constant_model(mean)
        weights = np.zeros(self.dimension - 1)
        return self.domain.project(np.append(weights, self.family.score_of(float(self._predicted(mean)))))

    def optimum(self, federation: Federation) -> Vector | None:
        """See `Problem.optimum`: known for a synthetic regression of this kind whose data no declared bound clips.

        Inside the domain it is the family's minimiser, with an intercept of 0. Outside it is known only for least
        squares, whose risk is a sum over coordinates: there it is the nearest point of the domain.
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


class Logistic(GeneralisedLinear):
    """Logistic regression, y in {0, 1}: K = 1/4. See `GeneralisedLinear` for arguments and guarantees."""

    name = "logistic"
    fixed_order = True
    summary = "logistic regression with ridge, for targets 0 and 1"

    def __init__(self, columns: int, feature_norm: float, radius: float, **options: Unpack[Options]) -> None:
        super().__init__(LogisticFamily(), columns, feature_norm, radius, **options)


class Cloglog(GeneralisedLinear):
    """Complementary log-log regression, y in {0, 1}: K = ``e^(A radius)``. See `GeneralisedLinear`."""

    name = "cloglog"
    fixed_order = True
    summary = "complementary log-log regression with ridge, for targets 0 and 1: ratios of hazards by period"

    def __init__(self, columns: int, feature_norm: float, radius: float, **options: Unpack[Options]) -> None:
        super().__init__(CloglogFamily(), columns, feature_norm, radius, **options)


class Squared(GeneralisedLinear):
    """Least squares, y in ``[low, high]``: K = 1. See `GeneralisedLinear` for arguments and guarantees."""

    name = "squared"
    fixed_order = True
    summary = "least squares with ridge, for targets in a declared range"

    def __init__(
        self, columns: int, feature_norm: float, radius: float, *, low: float, high: float, **options: Unpack[Options]
    ) -> None:
        super().__init__(SquaredFamily(low, high), columns, feature_norm, radius, **options)

    def excess_risk(self, x: Vector, federation: Federation) -> float | None:
        """Compute it exactly if the `optimum` is known, even for noise of infinite variance.

        With ``E a = 0``, ``E a a^T = v I`` and noise of mean zero the risk is, up to a constant,
        ``(v ||w - theta||^2 + b^2 + ridge (||w||^2 + b^2)) / 2`` in weights w and intercept b.
        """
        best, model = self.optimum(federation), federation.regression
        if best is None or model is None or model.variance is None:
            return None
        steep = np.full(self.dimension, 1.0 + self.ridge)
        steep[: self.columns] = model.variance + self.ridge
        linear = np.zeros(self.dimension)
        linear[: self.columns] = model.variance * model.parameter
        gaps = (x - best) * (0.5 * steep * (x + best) - linear)
        return max(0.0, float(gaps.sum()))  # negative only by rounding


class Poisson(GeneralisedLinear):
    """Poisson regression, counts y in ``[0, count_bound]``: K = ``e^(A radius)``. See `GeneralisedLinear`."""

    name = "poisson"
    fixed_order = True
    summary = "Poisson regression with ridge, for counts up to a declared bound"

    def __init__(
        self, columns: int, feature_norm: float, radius: float, *, count_bound: float, **options: Unpack[Options]
    ) -> None:
        super().__init__(PoissonFamily(count_bound), columns, feature_norm, radius, **options)


class LogisticSettings(BinaryTarget, GeneralisedLinearSettings, loss=Logistic):
    """Settings of `userdp.problems.Logistic`."""

    for_codes: ClassVar[str] = "one_hot_logistic"


class CloglogSettings(BinaryTarget, GeneralisedLinearSettings, loss=Cloglog):
    """Settings of `userdp.problems.Cloglog`."""

    for_codes: ClassVar[str] = "one_hot_cloglog"


class SquaredSettings(TargetRange, GeneralisedLinearSettings, loss=Squared):
    """Settings of `userdp.problems.Squared`."""


class PoissonSettings(CountBound, GeneralisedLinearSettings, loss=Poisson):
    """Settings of `userdp.problems.Poisson`."""

    for_codes: ClassVar[str] = "one_hot_poisson"


def rough_gradients(family: Family, x: Vector, pull: Vector, block: Block) -> tuple[Array, NDArray[np.bool_]]:
    """Compute (U, p) average gradients plus ``pull`` (p,) from float32 features; also (U,) whether they are finite.

    About seven digits of a sum's largest terms. With one number more than features, the model x ends in an intercept.
    The block, the family and the installed packages determine the method.
    """
    features = cast("NDArray[np.float32]", block.dense_features)
    if family.kind is None or features.nbytes < COMPILED_BYTES or order_is_fixed() or not can_compile():
        return _in_two_products(family, x, pull, block, features)
    from userdp.problems.one_pass import KINDS, average_gradients  # noqa: PLC0415 -- compiled, slow to load

    rows, finite = np.empty((block.users, len(x))), np.empty(block.users, dtype=np.bool_)
    targets, model = targets_of(block).astype(np.float32, copy=False), x.astype(np.float32)
    loss = (KINDS.index(family.kind), np.float32(family.parameter))
    average_gradients(np.ascontiguousarray(features), targets, block.offsets, model, pull, *loss, rows, finite)
    return rows, finite


def _in_two_products(
    family: Family, x: Vector, pull: Vector, block: Block, features: NDArray[np.float32]
) -> tuple[Array, NDArray[np.bool_]]:
    """Compute the same by matrix products, of pieces of samples that fit a processor's cache."""
    model, targets, slopes = x.astype(np.float32), targets_of(block), np.empty(block.samples, dtype=np.float32)
    columns = features.shape[1]

    def weigh(piece: NDArray[np.float32], samples: slice) -> NDArray[np.float32]:
        scores = product(piece, model[:columns])
        if len(model) > columns:
            scores += model[columns]
        slopes[samples] = family.slopes(cast(Array, scores), targets[samples])
        return slopes[samples]

    sums = weighted_as_read(features, block.offsets, weigh)
    if len(model) > columns:
        of_intercept = np.add.reduceat(slopes, block.offsets[:-1], dtype=np.float64)
        sums = np.column_stack([sums, of_intercept.astype(np.float32)])
    finite = np.isfinite(inner(sums, sums))
    shares = (1 / block.sizes).astype(np.float32)
    sums *= shares[0] if (shares == shares[0]).all() else shares[:, None]  # a row at a time takes five times as long
    rows = sums.astype(np.float64)
    rows += pull
    return rows, finite
