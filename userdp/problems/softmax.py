"""Classes: multinomial logistic regression on dense features, with ridge, one score a class."""

import math
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import NEXT_TO_NOTHING, Certificate, Problem
from userdp.problems.bounds import counted, set_aside, targets_of
from userdp.problems.landscape import ASSUMED_SIZE, Landscape
from userdp.problems.linear_scores import QUIET, LinearScores, Pieces, finite_or_none
from userdp.problems.segments import Number, float64_parts, user_averages, user_shares, weighted_sums
from userdp.problems.settings import RADIUS, GeneralisedLinearSettings

LEAST_SHARE = 1e-3
"""What a class's share is taken to be at least where its logarithm is."""


class Softmax(LinearScores):
    """``f(x; a, y) = log sum_c exp(<x_c, a>) - <x_y, a> + (ridge / 2) ||x||^2``, y one of the classes 0..K - 1.

    Every class has parameters of its own, so that none is the one that others are compared with: adding one vector to
    all of them changes no prediction. The model is that of class 0, then that of class 1 and so on. A target that is
    none of the classes has no place in the bounds, and its sample is set aside.

    Args:
        classes: K, two or more.
        columns: feature columns of a sample.
        feature_norm: A; this and what follows are as in `LinearScores`.
        radius: the domain is ``|x_j| <= radius``; may be infinite.
        ridge: >= 0.
        intercept: append a feature of value 1 to each sample.
        feature_bound: b, bound on every ``|a_j|`` but the intercept's 1.

    Formal guarantees:
        A, c and ``peak`` bound a sample as in `LinearScores`. Write s for the classes' probabilities. Scores are at
        most ``t = A radius`` in size, so ``s_c`` lies between ``1 / (1 + (K - 1) e^(2 t))`` and
        ``m = 1 / (1 + (K - 1) e^(-2 t))``, and with ``L = 1 - 1 / (1 + (K - 1) e^(2 t))`` every ``|s_c - 1[y = c]|``
        is at most L: 1 - s_y is, and every other s_c is at most that. All are attained.
        The gradient by x_c is ``(s_c - 1[y = c]) a + ridge x_c``, so
        A2: ``G = L peak + ridge radius``, and where x is zero ``(1 - 1 / K) peak``.
        ``||grad||_2 <= sqrt(2) L ||a||_2 + ridge sqrt(p) radius``: the squares of s_c, c other than y, add up to at
        most ``(1 - s_y)^2``, the square of their sum.
        The Hessian is ``S (x) a a^T + ridge I`` with ``S = diag(s) - s s^T``: block (c, e) is S_ce a a^T.
        A1: ``v^T S v`` is the variance of v_c where c is drawn by s, so S, and its Kronecker product with a a^T, is
        positive semidefinite, and strong convexity is ``ridge``. S has no eigenvalue above 1/2, by A3's row sums.
        A3: row c of S has the entries ``s_c (1 - s_c)`` and, elsewhere, ``-s_c s_e``, which add up to the same again:
        its absolute sum is ``2 s_c (1 - s_c) <= k``, where ``k = 1/2``, or ``2 m (1 - m)`` where m is less than 1/2. So
        row (c, j) sums to at most ``k |a_j| ||a||_1 + ridge <= k peak A + ridge``.
        A4: what stands beside the diagonal of row (c, j) sums to
        ``s_c (1 - s_c) (2 |a_j| ||a||_1 - a_j^2)``, against ``s_c (1 - s_c) a_j^2 + ridge`` on it: the row is dominated
        iff ``ridge >= 2 s_c (1 - s_c) |a_j| (||a||_1 - |a_j|)``. The right side grows with ``||a||_1``, and
        ``t (A - t)`` grows up to ``t = A / 2``. Rows of features have ``t <= c`` and those of intercepts t = 1, so
        with ``q = min(A / 2, c)`` a ridge of ``k q (A - q)``, or with an intercept of ``k (A - 1)`` if that is more, is
        enough: at most ``A^2 / 8``, and necessary where k and such an a can occur. With one parameter a class
        ``||a||_1`` is ``|a_j|``, and no ridge is needed.
        On the way from x to x + v the loss changes by the mean of ``sum_c (s_c - 1[y = c]) <v_c, a>``, at most
        ``L (max_c <v_c, a> - <v_y, a>)``. Of independent normal v that is, on average, at most
        ``sqrt(2 log K) L ||a||_2`` times their deviation: the steepness of the landscape.

    Raises:
        BadInput: an argument out of range.
    """

    name = "softmax"
    summary = "multinomial logistic regression with ridge, for targets of several declared classes"

    def __init__(
        self,
        classes: int,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        ridge: float = 0.0,
        intercept: bool = False,
        feature_bound: float = math.inf,
    ) -> None:
        if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or classes < 2:
            raise BadInput(f"problem.classes = {classes}: must be a whole number, two or more")
        super().__init__(
            int(classes), columns, feature_norm, radius, ridge=ridge, intercept=intercept, feature_bound=feature_bound
        )
        self.certificate = self._certify()
        self.landscape = self._landscape()

    @property
    def first_slope(self) -> float:
        """``sqrt(1 - 1 / K)``."""
        return math.sqrt(1 - 1 / self.outputs)

    @property
    def first_hessian(self) -> Array:
        """Where all classes are equally likely."""
        return self.hessian_at(np.full(self.outputs, 1 / self.outputs))

    def hessian_at(self, shares: Vector) -> Array:
        """(K, K): ``diag(s) - s s^T``, the loss's second derivatives by the scores where classes have shares s (K,).

        Averaged over samples whose probabilities have the mean s they are no more than that in any direction:
        ``E s s^T`` exceeds the square of the mean.
        """
        return np.diag(shares) - np.outer(shares, shares)

    def constant_model(self, mean: Vector) -> Vector:
        """(p,) the best model that is the same for all samples, at classes' shares (K,), which may be noisy.

        Intercepts are the logarithms of the shares, none below `LEAST_SHARE`, and add up to zero; all else is zero.
        Zero in all without intercepts.
        """
        model = np.zeros((self.outputs, self.width))
        if self.intercept:
            logarithms = np.log(np.maximum(mean, LEAST_SHARE))
            model[:, -1] = logarithms - logarithms.mean()
        return self.domain.project(model.ravel())

    def _slope_bound(self) -> float:
        """Called L in the guarantees."""
        return 1 - self._share(self.feature_norm * self.domain.radius)

    def _curvature_bound(self) -> float:
        """Called k in the guarantees."""
        most = min(0.5, self._share(-self.feature_norm * self.domain.radius))
        return 2 * most * (1 - most)

    def _share(self, reach: float) -> float:
        """``1 / (1 + (K - 1) e^(2 reach))``."""
        return 1 / (1 + (self.outputs - 1) * math.exp(min(2 * reach, 700.0)))

    def _certify(self) -> Certificate:
        norm, radius, peak = self.feature_norm, self.domain.radius, self.peak
        slope, curvature = self._slope_bound(), self._curvature_bound()
        pull = self.ridge * radius if self.ridge else 0.0
        needed = self._ridge_for_dominance(curvature)
        bounded = math.isfinite(slope * peak + pull) and math.isfinite(curvature * peak * norm)
        dominant = self.ridge >= needed
        reason = ""
        if not bounded:
            reason = f"there is no bound at problem.feature_norm = {norm:g}, problem.radius = {radius:g}; lower them"
        elif not dominant:
            reason = (
                f"problem.ridge = {self.ridge:g} is too small at problem.feature_norm = {norm:g}; "
                f"it takes at least {needed * (1 + 1e-5):.6g}"
            )
        return Certificate(
            convex=True,
            lipschitz=finite_or_none(slope * peak + pull),
            gradient_norm=finite_or_none(math.sqrt(2) * slope * self.length + pull * math.sqrt(self.dimension)),
            smoothness=finite_or_none(curvature * peak * norm + self.ridge),
            diagonally_dominant=dominant,
            strong_convexity=self.ridge,
            first_gradient=finite_or_none((1 - 1 / self.outputs) * peak),
            reason=reason,
        )

    def _ridge_for_dominance(self, curvature: float) -> float:
        if self.width == 1:
            return 0.0
        norm = self.feature_norm
        if math.isinf(norm):
            return math.inf
        cell = min(norm / 2, self.cell)
        return curvature * max(cell * (norm - cell), norm - 1 if self.intercept else 0.0)

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
        """Features as in `LinearScores`; a target that is none of 0..K - 1 sets its sample aside."""
        block, changed = self.bound_features(block)
        targets = targets_of(block)
        unknown = (targets < 0) | (targets >= self.outputs) | (targets != np.floor(targets))
        return set_aside(block, unknown), counted(block, changed & ~unknown)

    def _pieces(self, x: Vector, block: Block) -> Pieces:
        """(users, piece, its features in float64 until the next piece, its scores (n, K))."""
        models = x.reshape(self.outputs, self.width)
        weights, offsets = models[:, : self.columns].T, models[:, self.columns] if self.intercept else 0.0
        for users, part, features in float64_parts(block):
            yield users, part, features, features @ weights + offsets

    def _add(self, sums: Array, part: Block, features: Array, slopes: Array) -> None:
        """Add what each user's samples give by their scores' slopes (n, K) to its row of ``sums`` (U, p)."""
        by_class = sums.reshape(len(sums), self.outputs, self.width)
        by_class[:, :, : self.columns] += _outer_sums(features, part.offsets, slopes)
        if self.intercept:
            by_class[:, :, self.columns] += np.add.reduceat(slopes, part.offsets[:-1], axis=0)

    def _slopes(self, scores: Array, part: Block) -> Array:
        """(N, K): probabilities, less 1 for the sample's class."""
        slopes = _probabilities(scores)
        slopes[np.arange(len(slopes)), _classes(part)] -= 1.0
        return slopes

    def _directed(self, slopes: Array, scores: Array) -> tuple[Array, Array]:
        """With r the slopes, ``||r||`` and ``<r, scores> / ||r||``.

        A sample's gradient is ``r (x) a + ridge x``, of squared norm
        ``||r||^2 ||a||^2 + 2 ridge <r, scores> + ridge^2 ||x||^2``: that of one score with these two.
        """
        lengths = np.linalg.norm(slopes, axis=1)
        return lengths, np.vecdot(slopes, scores) / np.where(lengths > 0, lengths, 1.0)

    def _losses(self, scores: Array, part: Block) -> Array:
        """(N,): minus the logarithm of the probability of each sample's class."""
        return np.asarray(_log_sums(scores) - scores[np.arange(len(scores)), _classes(part)])

    @QUIET
    def user_gradients_at(self, models: Array, block: Block) -> Array:
        """(U, p): one pass over the features, a class at a time."""
        sums = np.zeros((block.users, self.dimension))
        by_class = models.reshape(block.users, self.outputs, self.width)
        for users, part, features in float64_parts(block):
            scores, sizes = np.empty((part.samples, self.outputs)), part.sizes
            for one in range(self.outputs):
                own = np.repeat(by_class[users, one], sizes, axis=0)
                scores[:, one] = np.einsum("ij,ij->i", features, own[:, : self.columns])
                if self.intercept:
                    scores[:, one] += own[:, self.columns]
            self._add(sums[users], part, features, self._slopes(scores, part))
        return self._averaged(sums, models, block)

    @QUIET
    def sample_gradients(self, x: Vector, block: Block) -> Array:
        """(N, p)."""
        rows = np.ones((block.samples, self.width))
        rows[:, : self.columns] = block.dense_features
        slopes = np.concatenate([self._slopes(scores, part) for _, part, _, scores in self._pieces(x, block)])
        gradients = (slopes[:, :, None] * rows[:, None, :]).reshape(block.samples, self.dimension)
        if self.ridge:
            gradients += self.ridge * x
        return gradients

    @QUIET
    def metrics(self, x: Vector, block: Block) -> dict[str, Array]:
        """Per user: "test_loss" (ridge term included), accuracy, and the log loss without that term."""
        return self._measured(self._scores(x, block), block, self._penalty(x))

    def _measured(self, scores: Array, block: Block, penalty: float) -> dict[str, Array]:
        losses = self._losses(scores, block)
        right = (scores.argmax(axis=1) == _classes(block)).astype(np.float64)
        return {
            "test_loss": user_averages(losses + penalty, block),
            "accuracy": user_averages(right, block),
            "log_loss": user_averages(losses, block),
        }

    def target_means(self, block: Block) -> Array:
        """(U, K): of each user's samples the share of each class."""
        return user_shares(_classes(block), block, self.outputs)

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """Per user, of what gives every sample these probabilities (K,)."""
        scores = np.log(np.maximum(mean, NEXT_TO_NOTHING))
        return self._measured(np.broadcast_to(scores, (block.samples, self.outputs)), block, 0.0)

    @QUIET
    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """The likeliest class, and the probability of each."""
        scores = self._scores(x, block)
        shares = {f"probability.{one}": share for one, share in enumerate(_probabilities(scores).T)}
        return {"prediction": scores.argmax(axis=1).astype(np.float64), **shares}


def _classes(block: Block) -> NDArray[np.int64]:
    """(N,)."""
    return targets_of(block).astype(np.int64)


def _log_sums(scores: Array) -> Array:
    """(N,): the logarithm of the sum of each sample's exponentials, of scores of any size."""
    largest = scores.max(axis=1)
    return np.asarray(largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1)))


def _probabilities(scores: Array) -> Array:
    """(N, K)."""
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _outer_sums(values: NDArray[Number], offsets: NDArray[np.int64], weights: NDArray[Number]) -> NDArray[Number]:
    """(U, K, k): each user's sum of outer products of weights (N, K) and values (N, k)."""
    users, size = len(offsets) - 1, int(offsets[1])
    if (np.diff(offsets) == size).all():
        together = weights.reshape(users, size, -1).transpose(0, 2, 1)
        return np.asarray(np.matmul(together, values.reshape(users, size, -1)))
    return np.stack([weighted_sums(values, offsets, np.ascontiguousarray(one)) for one in weights.T], axis=1)


class SoftmaxSettings(GeneralisedLinearSettings):
    """Settings of `userdp.problems.Softmax`."""

    kind: Literal["softmax"]
    summary: ClassVar[str] = Softmax.summary
    certificate: ClassVar[str] = (
        "convex, bounded gradient, bounded Hessian; diagonally dominant Hessian if ridge is at least feature_norm^2 / 8"
    )
    # Scores of classes that are easily told are large, and no bound but the ridge's grows with the radius.
    radius: float = Field(20.0, gt=0, description=RADIUS)
    unscaled: ClassVar[str | None] = "classes, which data.target_levels lists"
    most_classes: ClassVar[int | None] = None

    def _make(self, shape: Shape, seed: int) -> Problem:
        if shape.classes is None:
            raise BadInput(
                "problem.kind = 'softmax' needs to know the classes of the target: set data.target_levels to the list "
                "of them, such as ['low', 'high'] or [0, 1, 2]"
            )
        return Softmax(shape.classes, **self._arguments(shape))
