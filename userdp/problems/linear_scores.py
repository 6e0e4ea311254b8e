"""Losses of linear scores: the bounds of dense features, and what all losses of one score for each sample share."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.fixed_order import EINSUM, inner, product
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems import bounds
from userdp.problems.base import Box, Certificate, Problem
from userdp.problems.segments import clip_factors, float64_parts, user_averages, weighted_sums

Pieces = Iterator[tuple[slice, Block, Array, Array]]

QUIET = np.errstate(over="ignore", invalid="ignore")
"""Wraps gradients and losses: a diverged model gives values that are not finite, which the caller counts."""


_NARROW = 64  # Columns up to which curvatures are eigenvalues; beyond, traces, which cost no matrix a user
_PRODUCTS = 1 << 22  # Entries of users' matrices in work at once (32 MiB)
_UPWARDS = 1 + 1e-9  # More than rounding can take off an eigenvalue


class Options(TypedDict, total=False):
    """The options of every loss of linear scores, as `LinearScores` describes them."""

    ridge: float
    intercept: bool
    feature_bound: float


class Scored(Problem):
    """A loss of linear scores of each sample, plus the ridge term ``(ridge / 2) ||x||^2``."""

    has_targets = True
    ridge: float

    @abstractmethod
    def _scores(self, x: Vector, block: Block) -> Array:
        """Return the samples' scores, (N,) or (N, K)."""

    @abstractmethod
    def _slopes(self, scores: Array, block: Block) -> Array:
        """Return the (N,) or (N, K) derivatives of the loss by the scores."""

    @abstractmethod
    def _losses(self, scores: Array, block: Block) -> Array:
        """Return the (N,) losses without the ridge term."""

    @abstractmethod
    def _quality(self, scores: Array, block: Block) -> dict[str, Array]:
        """Return measures of prediction without the ridge term, name -> (N,)."""

    def _penalty(self, x: Vector) -> float:
        return 0.5 * self.ridge * float(x @ x)

    @QUIET
    def sample_losses(self, x: Vector, block: Block) -> Array:
        """See `Problem.sample_losses`; the ridge term is included."""
        return self._losses(self._scores(x, block), block) + self._penalty(x)

    @QUIET
    def metrics(self, x: Vector, block: Block) -> dict[str, Array]:
        """Compute per user "test_loss" (with the ridge term) and measures of prediction (without it)."""
        return self._metrics_of(self._scores(x, block), block, self._penalty(x))

    def _metrics_of(self, scores: Array, block: Block, penalty: float) -> dict[str, Array]:
        values = {"test_loss": self._losses(scores, block) + penalty, **self._quality(scores, block)}
        return {name: user_averages(each, block) for name, each in values.items()}


class LinearScores(Scored):
    """A loss of K scores ``<x_c, a>``; the model is the K vectors x_c of d parameters, one after the other.

    Raises `BadInput` for an argument out of range.

    Args:
        outputs: K.
        columns: feature columns of a sample.
        feature_norm: A, bound on ``||a||_1``, the intercept's 1 included; larger samples are scaled down. May be
            infinite, for strategies that clip gradients: then no sample is clipped, and nothing is certified.
        radius: the domain is ``|x_j| <= radius``; may be infinite.
        options: the three options below.
        ridge: >= 0; the ridge term is part of the loss, of "test_loss" too, and includes the intercepts.
        intercept: append a feature of value 1 to each sample; its parameter is the last of each score's.
        feature_bound: b, bound on every feature's ``|a_j|`` but the intercept's 1; features are clipped into it one
            by one, before samples are scaled down. Infinite for no bound.

    Attributes:
        width: d, the columns and the intercept.
        cell: c, bound on every feature's size.
        peak: bound on the largest entry of a.
        length: bound on ``||a||_2``, the intercept's 1 included.
        first_slope: largest l2 norm of the loss's derivative by the scores at zero scores; infinite if unbounded.
        first_hessian: (K, K) bound on the second derivatives of the loss by the scores at zero scores.
        score_curvature: bound on the largest eigenvalue of these derivatives at any scores; may be infinite.

    Formal guarantees:
        With k columns ``||a||_1 <= k b`` (and 1 for an intercept), so A is the least of that and ``feature_norm``.
        Features together have ``||.||_1 <= R`` (A; with an intercept ``A - 1``), each of them
        ``|a_j| <= c = min(b, R)``, and the largest entry of a is at most ``peak`` (c; with an intercept ``max(1, c)``).
        `bound_features` enforces it for every sample: clipping leaves ``|a_j| <= b``, scaling by one factor below 1
        keeps that and makes ``||a||_1 <= A``. ``||a||_2^2`` is at most ``max_j |a_j| ||.||_1 <= c R`` of features, and
        1 of an intercept.
    """

    first_slope: float
    first_hessian: Array
    score_curvature: float

    def __init__(
        self, outputs: int, columns: int, feature_norm: float, radius: float, **options: Unpack[Options]
    ) -> None:
        ridge, intercept = options.get("ridge", 0.0), options.get("intercept", False)
        self.outputs = outputs
        self.columns = bounds.count("problem.columns", columns)
        self.feature_bound = bounds.positive(
            "problem.feature_bound", options.get("feature_bound", math.inf), infinite=True
        )
        declared = bounds.positive("problem.feature_norm", feature_norm, infinite=True)
        self.feature_norm = min(declared, self.columns * self.feature_bound + intercept)
        if intercept and declared <= 1:
            raise BadInput(
                f"problem.feature_norm = {feature_norm}: must exceed 1, which the intercept takes; "
                "raise it or leave out the intercept"
            )
        self.ridge = bounds.not_negative("problem.ridge", ridge)
        self.intercept = intercept
        self.width = self.columns + intercept
        self.dimension = outputs * self.width
        self.domain = Box(np.zeros(self.dimension), bounds.positive("problem.radius", radius, infinite=True))
        self.cell = min(self.feature_bound, self.feature_norm - self.intercept)
        self.peak = max(1.0, self.cell) if self.intercept else self.cell
        scale = math.sqrt(self.cell * (self.feature_norm - self.intercept))
        self.length = math.hypot(1.0 if self.intercept else 0.0, scale)

    @abstractmethod
    def _dominance(self, norm: float) -> float:
        """Return the least ridge that makes every Hessian of curvature 1 diagonally dominant; ``norm`` is A, finite."""

    def bound_features(self, block: Block) -> tuple[Block, NDArray[np.bool_]]:
        """Clip features one by one and scale samples into the l1 ball; also return which samples changed (N,)."""
        bounds.check_columns(block, self.columns)
        block = bounds.set_aside_not_finite(block)
        features, changed = bounds.clip_features(block, -self.feature_bound, self.feature_bound)
        features, scaled = bounds.scale_features(
            bounds.rebuilt(block, features, block.targets), self.feature_norm - self.intercept
        )
        return bounds.rebuilt(block, features, block.targets), changed | scaled

    @property
    def bends_boundedly(self) -> bool:  # type: ignore[override]
        """See `Problem`: as far as second derivatives by the scores have a bound."""
        return math.isfinite(self.score_curvature)

    @QUIET
    def user_curvatures(self, block: Block, turn: Array | None = None) -> Vector:
        """See `Problem.user_curvatures`.

        *Formal guarantees.* A user's Hessian by z is ``mean_j S_j (x) (T^T a_j) (T^T a_j)^T + ridge T^T T``, where the
        second derivatives S_j by the scores are at most ``score_curvature`` times the identity. So its largest
        eigenvalue is at most that of ``mean_j (T^T a_j) (T^T a_j)^T`` (or the trace, beyond `_NARROW` columns) times
        ``score_curvature``, plus ``ridge ||T||^2``; rounded upwards. LAPACK sees each user's matrix by itself. Of T
        (p, p) it is that of ``sum_k mean_j (T_k^T a_j) (T_k^T a_j)^T``, over the d rows T_k of each output.
        """
        step, users = max(1, _PRODUCTS // (self.width if turn is None else len(turn)) ** 2), block.users
        pieces = (block.part(first, min(first + step, users)) for first in range(0, users, step))
        largest = np.concatenate([self._largest_moments(piece, turn) for piece in pieces])
        pull = self.ridge * (1.0 if turn is None else float(np.linalg.norm(turn, 2)) ** 2)
        return _UPWARDS * (self.score_curvature * largest + pull)

    def _largest_moments(self, block: Block, turn: Array | None) -> Vector:
        """Return (U,): the largest eigenvalue of users' second moments, or their trace; infinite if they overflow."""
        d = self.width if turn is None else len(turn)
        narrow = d <= _NARROW
        turns = (None,) if turn is None else turn.reshape(-1, self.width, d)
        sums = np.zeros((block.users, d, d if narrow else 1))
        for users, part, own in float64_parts(block):
            plain, ones = np.column_stack([own, np.ones(len(own))]) if self.intercept else own, np.ones(part.samples)
            for rows in turns:
                features = plain if rows is None else product(plain, rows)
                if narrow:
                    for column in range(d):
                        sums[users, column] += weighted_sums(features, part.offsets, features[:, column])
                else:
                    sums[users, :, 0] += weighted_sums(features * features, part.offsets, ones)
        sums /= block.sizes[:, None, None]
        finite = np.asarray(np.isfinite(sums).all(axis=(1, 2)))
        if not narrow:
            return np.where(finite, sums.sum(axis=(1, 2)), np.inf)
        return np.where(finite, np.linalg.eigvalsh(np.where(finite[:, None, None], sums, 0.0))[:, -1], np.inf)

    def _ridge_for_dominance(self, curvature: float) -> float:
        if self.width == 1:
            return 0.0
        return math.inf if math.isinf(self.feature_norm) else curvature * self._dominance(self.feature_norm)

    def _certified(self, slope: float, length: float, curvature: float, first: float, targets: str = "") -> Certificate:
        """Certify the loss from bounds on its derivatives by the scores.

        Each first derivative is at most ``slope``, at zero scores ``first``; their l2 norm is at most ``length``, and
        the absolute row sums of second derivatives ``curvature``.
        """
        norm, radius, peak = self.feature_norm, self.domain.radius, self.peak
        pull = self.ridge * radius if self.ridge else 0.0
        needed = self._ridge_for_dominance(curvature)
        dominant, reason = self.ridge >= needed, ""
        if not (math.isfinite(slope * peak + pull) and math.isfinite(curvature * norm)):
            place = f"problem.feature_norm = {norm:g}, problem.radius = {radius:g}{targets}"
            reason = f"there is no bound at {place}; lower them"
        elif not dominant:
            reason = (
                f"problem.ridge = {self.ridge:g} is too small at problem.feature_norm = {norm:g}; "
                f"it takes at least {needed * (1 + 1e-5):.6g}"
            )
        return Certificate(
            convex=True,
            lipschitz=finite_or_none(slope * peak + pull),
            gradient_norm=finite_or_none(length * self.length + pull * math.sqrt(self.dimension)),
            smoothness=finite_or_none(curvature * peak * norm + self.ridge),
            diagonally_dominant=dominant,
            strong_convexity=self.ridge,
            first_gradient=finite_or_none(first * peak),
            reason=reason,
        )

    @abstractmethod
    def _pieces(self, x: Vector, block: Block) -> Pieces:
        """Yield (users, piece, its features in float64, valid until the next piece, its scores (n,) or (n, K))."""

    @abstractmethod
    def _directed(self, slopes: Array, scores: Array) -> tuple[Array, Array]:
        """Return two (N,) arrays: the slope in the direction of the slopes, up to its sign, and the score in it."""

    @abstractmethod
    def _add(self, sums: Array, part: Block, features: Array, slopes: Array) -> None:
        """Add the gradients of each user's samples, from their scores' slopes, to its row of ``sums`` (U, p)."""

    def _scores(self, x: Vector, block: Block) -> Array:
        return np.concatenate([scores for *_, scores in self._pieces(x, block)])

    @QUIET
    def user_gradients(self, x: Vector, block: Block) -> Array:
        """See `Problem.user_gradients`; one pass over the features."""
        sums = np.zeros((block.users, self.dimension))
        for users, part, features, scores in self._pieces(x, block):
            self._add(sums[users], part, features, self._slopes(scores, part))
        return averaged(sums, self.ridge, x, block)

    @QUIET
    def user_gradients_at(self, models: Array, block: Block) -> Array:
        """See `Problem.user_gradients_at`; one pass over the features, a score at a time."""
        sums = np.zeros((block.users, self.dimension))
        by_output = models.reshape(block.users, self.outputs, self.width)
        for users, part, features in float64_parts(block):
            scores = np.empty((part.samples, self.outputs))
            for one in range(self.outputs):
                own = np.repeat(by_output[users, one], part.sizes, axis=0)
                scores[:, one] = inner(features, own[:, : self.columns], EINSUM)
                if self.intercept:
                    scores[:, one] += own[:, self.columns]
            scores = scores[:, 0] if self.outputs == 1 else scores
            self._add(sums[users], part, features, self._slopes(scores, part))
        return averaged(sums, self.ridge, models, block)

    @QUIET
    def sample_gradients(self, x: Vector, block: Block) -> Array:
        """See `Problem.sample_gradients`."""
        rows = np.ones((block.samples, self.width))
        rows[:, : self.columns] = block.dense_features
        slopes = np.concatenate([self._slopes(scores, part) for _, part, _, scores in self._pieces(x, block)])
        gradients = (slopes.reshape(block.samples, self.outputs, 1) * rows[:, None]).reshape(block.samples, -1)
        if self.ridge:
            gradients += self.ridge * x
        return gradients

    @QUIET
    def sample_clipped_sums(self, x: Vector, block: Block, clip_norm: float) -> Array:
        """See `Problem.sample_clipped_sums`; ghost clipping (Goodfellow, 2015) by `ghost_factors`, no (N, p) array."""
        bounds.positive("clip_norm", clip_norm)
        sums = np.zeros((block.users, self.dimension))
        pull = self.ridge * x if self.ridge else np.zeros(self.dimension)
        if not np.isfinite(pull).all():
            return sums
        for users, part, features, scores in self._pieces(x, block):
            slopes = self._slopes(scores, part)
            squares = inner(features, features) + self.intercept
            factors = ghost_factors(*self._directed(slopes, scores), squares, self.ridge, pull, clip_norm)
            scale = factors if slopes.ndim == 1 else factors[:, None]
            self._add(sums[users], part, features, scale * np.where(scale > 0, slopes, 0.0))
            if self.ridge:
                sums[users] += np.add.reduceat(factors, part.offsets[:-1])[:, None] * pull
        return sums


def averaged(sums: Array, ridge: float, models: Array, block: Block) -> Array:
    """Turn sums (U, p) over each user's samples into average gradients, in place; ``models`` is (p,) or (U, p)."""
    sums /= block.sizes[:, None]
    if ridge:
        sums += ridge * models
    return sums


def ghost_factors(slopes: Array, scores: Array, squares: Array, ridge: float, pull: Vector, clip_norm: float) -> Array:
    """Compute the (N,) factors that scale each sample's gradient to length at most ``clip_norm``, from norms alone.

    A sample's gradient is ``r a + ridge x`` with ``r = phi'``, so its squared norm is
    ``r^2 ||a||^2 + 2 r ridge <a, x> + ridge^2 ||x||^2``. If these terms cancel, rounding could make a norm too
    small, hence a clip too mild; a bound on that rounding is added, so no clipped gradient exceeds ``clip_norm``.
    The arguments are r, ``<a, x>`` and ``||a||^2`` (N,), the ridge, and ``ridge x`` (p,), which must be finite.
    """
    lengths = np.abs(slopes) * np.sqrt(squares)
    pull_norm, safety = float(np.linalg.norm(pull)), (len(pull) + 8) * np.finfo(float).eps
    cross = 2.0 * ridge * slopes * scores if ridge else 0.0
    return clip_factors(lengths**2 + cross + pull_norm**2 + safety * (lengths + pull_norm) ** 2, clip_norm)


def finite_or_none(value: float) -> float | None:
    """Return the value; None if it is infinite."""
    return value if math.isfinite(value) else None
