"""Losses of scores that are linear in dense features: what they declare of features, and how these are bounded."""

import math
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Box, Problem
from userdp.problems.bounds import (
    check_columns,
    clip_features,
    count,
    not_negative,
    positive,
    rebuilt,
    scale_features,
    set_aside_not_finite,
)
from userdp.problems.segments import clip_factors

Pieces = Iterator[tuple[slice, Block, Array, Array]]

QUIET = np.errstate(over="ignore", invalid="ignore")
"""Around gradients and losses: a model that diverged gives values that are not finite, which the caller counts."""


class LinearScores(Problem):
    """A loss of K scores ``<x_c, a>``, each with d parameters of its own; one after the other they are the model.

    Args:
        outputs: K.
        columns: feature columns of a sample.
        feature_norm: A, bound on ``||a||_1``, the intercept's 1 included; larger samples are scaled down. May be
            infinite, for strategies that clip gradients: then nothing is clipped here, and nothing certified.
        radius: the domain is ``|x_j| <= radius``; may be infinite.
        ridge: >= 0; the ridge term is part of the loss, of "test_loss" too, and includes the intercepts.
        intercept: append a feature of value 1 to each sample; its parameter comes last of each score's.
        feature_bound: b, bound on every feature's ``|a_j|``, the intercept's 1 aside; features are clipped into it one
            by one, before samples are scaled down. Infinite for none.

    Attributes:
        width: d, the columns and the intercept.

    Formal guarantees:
        With k columns ``||a||_1 <= k b`` (and 1 for an intercept), so A is the least of that and ``feature_norm``.
        Features together have ``||.||_1 <= R`` (A; with an intercept ``A - 1``), each of them
        ``|a_j| <= c = min(b, R)``, and the largest entry of a is at most ``peak`` (c; with an intercept ``max(1, c)``).
        `bound_features` sees to it for every sample: clipping leaves ``|a_j| <= b``, scaling down by one factor below 1
        leaves it so, and makes ``||a||_1 <= A``. ``||a||_2^2`` is at most ``max_j |a_j| ||.||_1 <= c R`` of features,
        and 1 of an intercept.

    Raises:
        BadInput: an argument out of range.
    """

    has_targets = True

    def __init__(
        self,
        outputs: int,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        ridge: float,
        intercept: bool,
        feature_bound: float = math.inf,
    ) -> None:
        self.outputs = outputs
        self.columns = count("problem.columns", columns)
        self.feature_bound = positive("problem.feature_bound", feature_bound, infinite=True)
        declared = positive("problem.feature_norm", feature_norm, infinite=True)
        self.feature_norm = min(declared, self.columns * self.feature_bound + intercept)
        if intercept and declared <= 1:
            raise BadInput(
                f"problem.feature_norm = {feature_norm}: must exceed 1, which the intercept takes; "
                "raise it or leave out the intercept"
            )
        self.ridge = not_negative("problem.ridge", ridge)
        self.intercept = intercept
        self.width = self.columns + intercept
        self.dimension = outputs * self.width
        self.domain = Box(np.zeros(self.dimension), positive("problem.radius", radius, infinite=True))

    @property
    @abstractmethod
    def first_slope(self) -> float:
        """Largest l2 norm of the loss's derivative by the scores where all of them are zero; infinite for no bound."""

    @property
    @abstractmethod
    def first_hessian(self) -> Array:
        """(K, K) bound on the second derivatives of the loss by the scores where all of them are zero."""

    @property
    def cell(self) -> float:
        """c, bound on every feature's size."""
        return min(self.feature_bound, self.feature_norm - self.intercept)

    @property
    def peak(self) -> float:
        """Bound on the largest entry of a."""
        return max(1.0, self.cell) if self.intercept else self.cell

    @property
    def length(self) -> float:
        """Bound on ``||a||_2``, the intercept's 1 included."""
        return math.hypot(1.0 if self.intercept else 0.0, math.sqrt(self.cell * (self.feature_norm - self.intercept)))

    def bound_features(self, block: Block) -> tuple[Block, NDArray[np.bool_]]:
        """Features clipped one by one, samples scaled down into the l1 ball; (N,) which samples changed."""
        check_columns(block, self.columns)
        block = set_aside_not_finite(block)
        features, changed = clip_features(block, -self.feature_bound, self.feature_bound)
        features, scaled = scale_features(rebuilt(block, features, block.targets), self.feature_norm - self.intercept)
        return rebuilt(block, features, block.targets), changed | scaled

    @abstractmethod
    def _pieces(self, x: Vector, block: Block) -> Pieces:
        """(users, piece, its features in float64 until the next piece, its scores (n,) or (n, K))."""

    @abstractmethod
    def _slopes(self, scores: Array, part: Block) -> Array:
        """(N,) or (N, K): the loss's derivatives by the scores."""

    @abstractmethod
    def _directed(self, slopes: Array, scores: Array) -> tuple[Array, Array]:
        """(N,) each: the slope in the direction of the slopes, up to its sign, and the score in it."""

    @abstractmethod
    def _losses(self, scores: Array, part: Block) -> Array:
        """(N,): without the ridge term."""

    @abstractmethod
    def _add(self, sums: Array, part: Block, features: Array, slopes: Array) -> None:
        """Add what each user's samples give by their scores' slopes to its row of ``sums`` (U, p)."""

    def _scores(self, x: Vector, block: Block) -> Array:
        """(N,) or (N, K)."""
        return np.concatenate([scores for *_, scores in self._pieces(x, block)])

    def _penalty(self, x: Vector) -> float:
        """The ridge term."""
        return 0.5 * self.ridge * float(x @ x)

    def _averaged(self, sums: Array, models: Array, block: Block) -> Array:
        """Sums (U, p) over each user's samples made its average gradient, in place; ``models`` is (p,) or (U, p)."""
        sums /= block.sizes[:, None]
        if self.ridge:
            sums += self.ridge * models
        return sums

    @QUIET
    def user_gradients(self, x: Vector, block: Block) -> Array:
        """(U, p): one pass over the features."""
        sums = np.zeros((block.users, self.dimension))
        for users, part, features, scores in self._pieces(x, block):
            self._add(sums[users], part, features, self._slopes(scores, part))
        return self._averaged(sums, x, block)

    @QUIET
    def sample_clipped_sums(self, x: Vector, block: Block, clip_norm: float) -> Array:
        """(U, p), by ghost clipping (Goodfellow, 2015): norms first, no (N, p) array.

        See `ghost_factors`.
        """
        positive("clip_norm", clip_norm)
        sums = np.zeros((block.users, self.dimension))
        pull = self.ridge * x if self.ridge else np.zeros(self.dimension)
        if not np.isfinite(pull).all():
            return sums
        for users, part, features, scores in self._pieces(x, block):
            slopes = self._slopes(scores, part)
            squares = np.vecdot(features, features) + self.intercept
            factors = ghost_factors(*self._directed(slopes, scores), squares, self.ridge, pull, clip_norm)
            scale = factors if slopes.ndim == 1 else factors[:, None]
            self._add(sums[users], part, features, scale * np.where(scale > 0, slopes, 0.0))
            if self.ridge:
                sums[users] += np.add.reduceat(factors, part.offsets[:-1])[:, None] * pull
        return sums

    @QUIET
    def sample_losses(self, x: Vector, block: Block) -> Array:
        """(N,), the ridge term included."""
        losses = [self._losses(scores, part) for _, part, _, scores in self._pieces(x, block)]
        return np.concatenate(losses) + self._penalty(x)


def ghost_factors(slopes: Array, scores: Array, squares: Array, ridge: float, pull: Vector, clip_norm: float) -> Array:
    """(N,): what scales each sample's gradient to length at most ``clip_norm``, from norms alone.

    A sample's gradient is ``r a + ridge x`` with ``r = phi'``, so its squared norm is
    ``r^2 ||a||^2 + 2 r ridge <a, x> + ridge^2 ||x||^2``. Where these terms cancel, rounding could make a norm too
    small, hence a clip too mild; a bound on that rounding is added, so no clipped gradient exceeds ``clip_norm``.

    Args:
        slopes: (N,) r.
        scores: (N,) ``<a, x>``.
        squares: (N,) ``||a||^2``.
        ridge: as in the loss.
        pull: (p,) ``ridge x``, finite.
        clip_norm: the bound.
    """
    lengths = np.abs(slopes) * np.sqrt(squares)
    pull_norm, safety = float(np.linalg.norm(pull)), (len(pull) + 8) * np.finfo(float).eps
    cross = 2.0 * ridge * slopes * scores if ridge else 0.0
    return clip_factors(lengths**2 + cross + pull_norm**2 + safety * (lengths + pull_norm) ** 2, clip_norm)


def finite_or_none(value: float) -> float | None:
    """The value, unless it is infinite."""
    return value if math.isfinite(value) else None
