"""Classes: multinomial logistic regression on dense features, with ridge, one score a class."""

import math
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays.fixed_order import inner, order_is_fixed, product
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import ASSUMED_SIZE, NEXT_TO_NOTHING, Landscape
from userdp.problems.bounds import counted, set_aside, targets_of, without_class
from userdp.problems.linear_scores import QUIET, LinearScores, Options, Pieces
from userdp.problems.segments import Number, float64_parts, user_shares, weighted_sums
from userdp.problems.settings import RADIUS, GeneralisedLinearSettings

LEAST_SHARE = 1e-3
"""The least share of a class when its logarithm is taken."""


class Softmax(LinearScores):
    """``f(x; a, y) = log sum_c exp(<x_c, a>) - <x_y, a> + (ridge / 2) ||x||^2``, y one of two or more classes 0..K - 1.

    Every class has parameters of its own; adding one vector to all of them changes no prediction. The model is that of
    class 0, then that of class 1 and so on. A sample whose target is none of the classes is set aside. See
    `LinearScores` for the other arguments. Raises `BadInput` for an argument out of range.

    Formal guarantees:
        A, c and ``peak`` bound a sample as in `LinearScores`. Write s for the classes' probabilities. Scores are at
        most ``t = A radius`` in size, so ``s_c`` lies between ``1 / (1 + (K - 1) e^(2 t))`` and
        ``m = 1 / (1 + (K - 1) e^(-2 t))``. With ``L = 1 - 1 / (1 + (K - 1) e^(2 t))`` every ``|s_c - 1[y = c]| <= L``:
        1 - s_y is, and every other s_c is at most that. All are attained.
        The gradient by x_c is ``(s_c - 1[y = c]) a + ridge x_c``, so
        A2: ``G = L peak + ridge radius``, and at x = 0 ``(1 - 1 / K) peak``.
        ``||grad||_2 <= sqrt(2) L ||a||_2 + ridge sqrt(p) radius``: the squares of s_c, c other than y, add up to at
        most ``(1 - s_y)^2``, the square of their sum.
        The Hessian is ``S (x) a a^T + ridge I`` with ``S = diag(s) - s s^T``: block (c, e) is S_ce a a^T.
        A1: ``v^T S v`` is the variance of v_c if c is drawn by s, so S, and its Kronecker product with a a^T, is
        positive semidefinite, and strong convexity is ``ridge``. S has no eigenvalue above 1/2, by A3's row sums.
        A3: row c of S has ``s_c (1 - s_c)`` on the diagonal and ``-s_c s_e`` elsewhere, which add up to the same size:
        its absolute sum is ``2 s_c (1 - s_c) <= k``, where ``k = 1/2``, or ``2 m (1 - m)`` if m is less than 1/2. So
        row (c, j) sums to at most ``k |a_j| ||a||_1 + ridge <= k peak A + ridge``.
        A4: beside the diagonal row (c, j) sums to ``s_c (1 - s_c) (2 |a_j| ||a||_1 - a_j^2)``, against
        ``s_c (1 - s_c) a_j^2 + ridge`` on it: it is dominated iff ``ridge >= 2 s_c (1 - s_c) |a_j| (||a||_1 - |a_j|)``.
        The right side grows with ``||a||_1``, and ``t (A - t)`` grows up to ``t = A / 2``. Rows of features have
        ``t <= c`` and those of intercepts t = 1, so with ``q = min(A / 2, c)`` a ridge of ``k q (A - q)``, or with an
        intercept of ``k (A - 1)`` if that is more, is enough: at most ``A^2 / 8``, and necessary if k and such an a can
        occur. With one parameter a class ``||a||_1`` is ``|a_j|``, and no ridge is needed.
        From x to x + v the loss changes by the mean of ``sum_c (s_c - 1[y = c]) <v_c, a>`` along the way, at most
        ``L (max_c <v_c, a> - <v_y, a>)``. For independent normal v its expectation is at most
        ``sqrt(2 log K) L ||a||_2`` times their standard deviation: the steepness of the landscape.
    """

    name = "softmax"
    fixed_order = True
    summary = "multinomial logistic regression with ridge, for targets of several declared classes"

    def __init__(
        self, classes: int, columns: int, feature_norm: float, radius: float, **options: Unpack[Options]
    ) -> None:
        if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or classes < 2:
            raise BadInput(f"problem.classes = {classes}: must be a whole number, two or more")
        super().__init__(int(classes), columns, feature_norm, radius, **options)
        slope, most = self._slope_bound(), min(0.5, self._share(-self.feature_norm * self.domain.radius))
        curvature, self.score_curvature = 2 * most * (1 - most), 0.5
        self.certificate = self._certified(slope, math.sqrt(2) * slope, curvature, 1 - 1 / self.outputs)
        self.landscape = self._landscape()
        self.first_slope = math.sqrt(1 - 1 / self.outputs)
        self.first_hessian = self.hessian_at(np.full(self.outputs, 1 / self.outputs))

    def hessian_at(self, shares: Vector) -> Array:
        """Return ``diag(s) - s s^T`` (K, K), the second derivatives by the scores at classes' shares s (K,).

        Averaged over samples whose probabilities have the mean s, the second derivatives are at most that in any
        direction: ``E s s^T`` exceeds the square of the mean.
        """
        return np.diag(shares) - np.outer(shares, shares)

    def constant_model(self, mean: Vector) -> Vector:
        """Return the (p,) best constant model at classes' shares (K,), which may be noisy.

        Intercepts, if any, are the logarithms of the shares, none below `LEAST_SHARE`, less their mean; all else is 0.
        """
        model = np.zeros((self.outputs, self.width))
        if self.intercept:
            logarithms = np.log(np.maximum(mean, LEAST_SHARE))
            model[:, -1] = logarithms - logarithms.mean()
        return self.domain.project(model.ravel())

    def _slope_bound(self) -> float:
        """Return L of the guarantees."""
        return 1 - self._share(self.feature_norm * self.domain.radius)

    def _share(self, reach: float) -> float:
        return 1 / (1 + (self.outputs - 1) * math.exp(min(2 * reach, 700.0)))

    def _dominance(self, norm: float) -> float:
        cell = min(norm / 2, self.cell)
        return max(cell * (norm - cell), norm - 1 if self.intercept else 0.0)

    def _landscape(self) -> Landscape:
        length, classes = self.length, self.outputs
        assumed = math.isinf(length)
        if assumed:
            length = ASSUMED_SIZE * math.sqrt(self.width)
        return Landscape(
            math.log(classes),
            (1 - 1 / classes) * length**2,
            math.sqrt(2 * math.log(classes)) * self._slope_bound() * length,
            pull=self.ridge * self.dimension,
            assumed=assumed,
        )

    def bound(self, block: Block) -> tuple[Block, int]:
        """See `LinearScores.bound_features`; a target that is none of 0..K - 1 sets its sample aside."""
        block, changed = self.bound_features(block)
        unknown = without_class(block, self.outputs)
        return set_aside(block, unknown), counted(block, changed & ~unknown)

    def _pieces(self, x: Vector, block: Block) -> Pieces:
        models = x.reshape(self.outputs, self.width)
        weights, offsets = models[:, : self.columns].T, models[:, self.columns] if self.intercept else 0.0
        for users, part, features in float64_parts(block):
            yield users, part, features, product(features, weights) + offsets

    def _add(self, sums: Array, part: Block, features: Array, slopes: Array) -> None:
        by_class = sums.reshape(len(sums), self.outputs, self.width)
        by_class[:, :, : self.columns] += _outer_sums(features, part.offsets, slopes)
        if self.intercept:
            by_class[:, :, self.columns] += np.add.reduceat(slopes, part.offsets[:-1], axis=0)

    def _slopes(self, scores: Array, part: Block) -> Array:
        """Return the (N, K) probabilities, less 1 for the sample's class."""
        slopes = _probabilities(scores)
        slopes[np.arange(len(slopes)), _classes(part)] -= 1.0
        return slopes

    def _directed(self, slopes: Array, scores: Array) -> tuple[Array, Array]:
        """Return ``||r||`` and ``<r, scores> / ||r||``, r the slopes.

        A sample's gradient is ``r (x) a + ridge x``, of squared norm
        ``||r||^2 ||a||^2 + 2 ridge <r, scores> + ridge^2 ||x||^2``: the same as for one score with these two.
        """
        lengths = np.linalg.norm(slopes, axis=1)
        return lengths, inner(slopes, scores) / np.where(lengths > 0, lengths, 1.0)

    def _losses(self, scores: Array, part: Block) -> Array:
        largest = scores.max(axis=1)
        log_sums = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
        return np.asarray(log_sums - scores[np.arange(len(scores)), _classes(part)])

    def _quality(self, scores: Array, block: Block) -> dict[str, Array]:
        right = (scores.argmax(axis=1) == _classes(block)).astype(np.float64)
        return {"accuracy": right, "log_loss": self._losses(scores, block)}

    def target_means(self, block: Block) -> Array:
        """Compute the (U, K) share of each class among each user's samples."""
        return user_shares(_classes(block), block, self.outputs)

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """Compute per-user metrics of constant probabilities (K,)."""
        scores = np.log(np.maximum(mean, NEXT_TO_NOTHING))
        return self._metrics_of(np.broadcast_to(scores, (block.samples, self.outputs)), block, 0.0)

    @QUIET
    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """Predict the likeliest class, and the probability of each."""
        scores = self._scores(x, block)
        shares = {f"probability.{one}": share for one, share in enumerate(_probabilities(scores).T)}
        return {"prediction": scores.argmax(axis=1).astype(np.float64), **shares}


def _classes(block: Block) -> NDArray[np.int64]:
    return targets_of(block).astype(np.int64)


def _probabilities(scores: Array) -> Array:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _outer_sums(values: NDArray[Number], offsets: NDArray[np.int64], weights: NDArray[Number]) -> NDArray[Number]:
    """Compute (U, K, k): each user's sum of outer products of weights (N, K) and values (N, k)."""
    users, size = len(offsets) - 1, int(offsets[1])
    if not order_is_fixed() and (np.diff(offsets) == size).all():
        together = weights.reshape(users, size, -1).transpose(0, 2, 1)
        return np.asarray(np.matmul(together, values.reshape(users, size, -1)))
    return np.stack([weighted_sums(values, offsets, np.ascontiguousarray(one)) for one in weights.T], axis=1)


class SoftmaxSettings(GeneralisedLinearSettings, loss=Softmax):
    """Settings of `userdp.problems.Softmax`."""

    certificate: ClassVar[str] = (
        "convex, bounded gradient, bounded Hessian; diagonally dominant Hessian if ridge is at least feature_norm^2 / 8"
    )
    # Scores of well separated classes are large, and no bound but the ridge's grows with the radius.
    radius: float = Field(20.0, gt=0, description=RADIUS)
    unscaled: ClassVar[str | None] = "classes, which data.target_levels lists"
    most_classes: ClassVar[int | None] = None

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        if shape.classes is None:
            raise BadInput(
                "problem.kind = 'softmax' needs to know the classes of the target: set data.target_levels to the list "
                "of them, such as ['low', 'high'] or [0, 1, 2]"
            )
        return {**super()._arguments(shape), "classes": shape.classes}
