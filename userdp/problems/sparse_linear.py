"""Generalised linear models on sparse samples: ``f = phi(<a, x>, y) + (ridge / 2) ||x||^2``, few ``a_j`` not zero."""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays import sparse_rows
from userdp.arrays.sparse_rows import AnyRows, Sparse
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.problems import bounds
from userdp.problems.base import Box, Certificate
from userdp.problems.bounds import INWARDS
from userdp.problems.families import CloglogFamily, Family, LogisticFamily, SquaredFamily
from userdp.problems.linear_scores import QUIET, finite_or_none, ghost_factors
from userdp.problems.settings import RADIUS, RIDGE, BinaryTarget, LossSettings, TargetRange
from userdp.problems.summed_samples import SummedSamples


class SparseLinear(SummedSamples):
    """``phi(<a, x>, y) + (ridge / 2) ||x||^2``, at most s = ``sparsity`` entries of a not zero, ``||a||_2`` bounded.

    Samples are a `scipy.sparse.csr_array` of d columns. Without ridge gradients are sparse too, and time and memory
    grow with the number of non-zero entries; with ridge gradients are arrays. Longer samples than A = ``feature_norm``
    are scaled down; of more than s entries the largest in magnitude are kept, of equal ones the first (s above d means
    d). The family gives phi and the range of targets, into which targets are clipped. The domain is
    ``|x_j| <= radius``, which may be infinite; ``ridge >= 0`` is part of the loss, and of "test_loss". Raises
    `BadInput` for an argument out of range.

    Formal guarantees:
        For every sample within the bounds and every x in the domain, as ``||x_S||_2 <= sqrt(s) radius`` over the
        support S of a, the score is at most ``A sqrt(s) radius`` in magnitude, plus the ``farthest`` known term.
        Write ``|phi'| <= L`` and ``phi'' <= K`` over such scores. The gradient is ``phi' a + ridge x``, the Hessian
        ``phi'' a a^T + ridge I``, so
        A1 holds, with strong convexity ``ridge``;
        A2: ``|phi' a_j + ridge x_j| <= L A + ridge radius``, and ``||grad||_2 <= L A + ridge sqrt(d) radius``;
        sparsity: without ridge, at most s entries of a sample's gradient are not zero: those of a;
        A3: row j sums to ``phi'' |a_j| ||a||_1 + ridge <= K A^2 (1 + sqrt(s)) / 2 + ridge``;
        A4: row j is dominated iff ``ridge >= phi'' |a_j| (||a||_1 - 2 |a_j|)``; ``ridge >= K A^2 (sqrt(s) - 1) / 2`` is
        enough, and none is needed for s = 1.
        Proof of the last two: with ``|a_j| = A cos t``, the others sum to at most ``sqrt(s - 1) A sin t`` by
        Cauchy-Schwarz, and ``cos^2 t + sqrt(s - 1) sin t cos t = (1 + cos 2t + sqrt(s - 1) sin 2t) / 2`` is at most
        ``(1 + sqrt(s)) / 2``; with -cos^2 t in place of cos^2 t at most ``(sqrt(s) - 1) / 2``. Both are attained.
        A user's average gradient is a mean of such gradients, so it too has l2 norm at most that bound, and l1 norm at
        most sqrt(s) times ``L A`` (without ridge), for any support.
    """

    def __init__(
        self, family: Family, columns: int, feature_norm: float, sparsity: int, radius: float, *, ridge: float
    ) -> None:
        self.family = family
        self.columns = self.dimension = bounds.count("problem.columns", columns)
        self.feature_norm = bounds.positive("problem.feature_norm", feature_norm)
        self.sparsity = min(bounds.count("problem.sparsity", sparsity), self.columns)
        self.ridge = bounds.not_negative("problem.ridge", ridge)
        self.sparse = self.ridge == 0
        self.domain = Box(np.zeros(self.dimension), bounds.positive("problem.radius", radius, infinite=True))
        self._certify()

    def _certify(self) -> None:
        norm, radius, root = self.feature_norm, self.domain.radius, math.sqrt(self.sparsity)
        self.landscape = self._seen(norm, norm * root * radius)
        reach = norm * root * radius + self.farthest
        slope, curvature = self.family.slope_bound(reach), self.family.curvature_bound(reach)
        pull = self.ridge * radius if self.ridge else 0.0
        needed = curvature * norm**2 * (root - 1) / 2
        dominant = self.ridge >= needed
        reason = "" if dominant else f"problem.ridge = {self.ridge:g} is too small; it takes at least {needed:.6g}"
        if not math.isfinite(slope + pull):
            reason = f"there is no bound at problem.radius = {radius:g} and these targets; lower them"
        self.certificate = Certificate(
            convex=True,
            lipschitz=finite_or_none(slope * norm + pull),
            gradient_norm=finite_or_none(slope * norm + pull * math.sqrt(self.dimension)),
            smoothness=finite_or_none(curvature * norm**2 * (1 + root) / 2 + self.ridge),
            diagonally_dominant=dominant,
            strong_convexity=self.ridge,
            sparsity=self.sparsity if self.sparse else None,
            reason=reason,
        )

    def bound(self, block: Block) -> tuple[Block, int]:
        """See `Problem.bound`: keep the largest entries, scale into the l2 ball, clip targets into their range."""
        bounds.check_width(block.sparse_features, self.columns)
        block = bounds.set_aside_not_finite(block)
        kept, cut = _largest_entries(block.sparse_features, self.sparsity)
        norms = np.sqrt(sparse_rows.squared_lengths(kept))
        long = np.asarray(norms > self.feature_norm)
        if long.any():
            factors = np.where(long, self.feature_norm * INWARDS / np.where(long, norms, 1.0), 1.0)
            data = sparse_rows.scaled_rows(kept, factors).data.astype(np.float32)
            kept = sparse_rows.sparse_rows(data, kept.indices, kept.indptr, self.columns)
        return self._bounded(block, kept, cut | long)

    def _scores(self, x: Vector, block: Block) -> Array:
        return np.asarray(block.sparse_features @ x, dtype=np.float64)

    def _own_scores(self, models: Array, block: Block) -> Array:
        features = block.sparse_features
        owner = np.repeat(np.arange(block.users), block.sizes)
        weights = models[owner[sparse_rows.row_of_entry(features)], features.indices]
        return sparse_rows.over_rows(np.add, features.data * weights, features)

    def _averages(self, models: Array, slopes: Array, block: Block) -> AnyRows:
        rows = sparse_rows.scaled_rows(self._sums(slopes, block), 1.0 / block.sizes)
        return rows if self.sparse else sparse_rows.dense(rows) + self.ridge * models

    def _sums(self, weights: Array, block: Block) -> Sparse:
        return sparse_rows.summed_rows(sparse_rows.scaled_rows(block.sparse_features, weights), block.offsets)

    @QUIET
    def sample_gradients(self, x: Vector, block: Block) -> AnyRows:
        """See `Problem.sample_gradients`; sparse without ridge."""
        rows = sparse_rows.scaled_rows(block.sparse_features, self._slopes(self._scores(x, block), block))
        return rows if self.sparse else sparse_rows.dense(rows) + self.ridge * x

    def _clip_factors(self, scores: Array, slopes: Array, pull: Vector, block: Block, clip_norm: float) -> Array:
        squares = sparse_rows.squared_lengths(block.sparse_features)
        return ghost_factors(slopes, scores, squares, self.ridge, pull, clip_norm)


def _largest_entries(features: Sparse, sparsity: int) -> tuple[Sparse, NDArray[np.bool_]]:
    """Return rows with their ``sparsity`` largest entries (the same matrix if all fit), and which (N,) lost some."""
    sizes = np.diff(features.indptr)
    cut = np.asarray(sizes > sparsity)
    if not cut.any():
        return features, cut
    owner = sparse_rows.row_of_entry(features)
    # Stable: of equal magnitudes the first columns come first.
    order = np.lexsort((-np.abs(features.data), owner))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(features.indptr[:-1], sizes)
    kept = rank < sparsity
    ends = np.concatenate([[0], np.cumsum(np.minimum(sizes, sparsity))])
    return sparse_rows.sparse_rows(features.data[kept], features.indices[kept], ends, features.shape[1]), cut


class SparseLogistic(SparseLinear):
    """Logistic regression, y in {0, 1}: K = 1/4, L < 1 (1 if the domain is all of space). See `SparseLinear`."""

    name = "sparse_logistic"
    fixed_order = True
    summary = "logistic regression on sparse samples, for targets 0 and 1"

    def __init__(
        self, columns: int, feature_norm: float, sparsity: int, radius: float = math.inf, *, ridge: float = 0.0
    ) -> None:
        super().__init__(LogisticFamily(), columns, feature_norm, sparsity, radius, ridge=ridge)


class SparseCloglog(SparseLinear):
    """Complementary log-log regression, y in {0, 1}: K = L = ``e^(A sqrt(s) radius)``. See `SparseLinear`."""

    name = "sparse_cloglog"
    fixed_order = True
    summary = "complementary log-log regression on sparse samples, for targets 0 and 1"

    def __init__(self, columns: int, feature_norm: float, sparsity: int, radius: float, *, ridge: float = 0.0) -> None:
        super().__init__(CloglogFamily(), columns, feature_norm, sparsity, radius, ridge=ridge)


class SparseSquared(SparseLinear):
    """Least squares, y in ``[low, high]``: K = 1. See `SparseLinear`."""

    name = "sparse_squared"
    fixed_order = True
    summary = "least squares on sparse samples, for targets in a declared range"

    def __init__(
        self,
        columns: int,
        feature_norm: float,
        sparsity: int,
        radius: float,
        *,
        low: float,
        high: float,
        ridge: float = 0.0,
    ) -> None:
        super().__init__(SquaredFamily(low, high), columns, feature_norm, sparsity, radius, ridge=ridge)


class SparseLinearSettings(LossSettings):
    """Settings of every loss on sparse samples."""

    family: ClassVar[str] = "sparse linear"
    certificate: ClassVar[str] = (
        "convex, bounded and sparse gradient, bounded Hessian; diagonally dominant Hessian only with a ridge that "
        "grows with sqrt(sparsity)"
    )
    sparse: ClassVar[bool] = True
    feature_norm: float | None = Field(None, gt=0)
    """Bound on a sample's ||a||_2; longer ones are scaled down. Known from the data."""
    sparsity: int | None = Field(None, ge=1)
    """Most entries of a sample that are not zero; the largest are kept. Known from the data."""
    radius: float = Field(math.inf, gt=0, description=RADIUS + " All of space if not given.")
    ridge: float = Field(0.0, ge=0, description=RIDGE + " With it gradients are not sparse.")

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        length, entries = shape.feature_length, shape.sparsity
        return {
            **super()._arguments(shape),
            "columns": shape.columns,
            "feature_norm": self._declared("feature_norm", self.feature_norm, length, "the bound on ||a||_2"),
            "sparsity": int(self._declared("sparsity", self.sparsity, entries, "the number of entries")),
        }


class SparseLogisticSettings(BinaryTarget, SparseLinearSettings, loss=SparseLogistic):
    """Settings of `userdp.problems.SparseLogistic`."""


class SparseCloglogSettings(BinaryTarget, SparseLinearSettings, loss=SparseCloglog):
    """Settings of `userdp.problems.SparseCloglog`."""

    radius: float = Field(5.0, gt=0, description=RADIUS)


class SparseSquaredSettings(TargetRange, SparseLinearSettings, loss=SparseSquared):
    """Settings of `userdp.problems.SparseSquared`."""

    radius: float = Field(5.0, gt=0, description=RADIUS)
