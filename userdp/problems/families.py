"""Families of generalised linear models: the loss ``phi(s, y)`` of a score ``s = <a, x>`` and a target y.

Each is convex in s unless it says that it is not, with bounds on ``phi'`` and ``phi''`` over all scores that the domain
allows. Targets may be declared without bounds (infinite ``low`` or ``high``): then a bound that needs them is infinite
too.
"""

import copy
import math
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
from scipy.special import expit, logit, xlogy

from userdp.arrays.types import Array
from userdp.data.federation import RegressionModel
from userdp.errors import BadInput
from userdp.problems.bounds import Floats, interval, positive

LOGISTIC, SQUARED, HUBER, LP, POISSON = range(5)
"""`Family.kind`."""


class Family(ABC):
    """``phi(s, y)`` for y in ``[low, high]``.

    Attributes:
        name: of the family.
        kind: which of the losses that `userdp.problems.one_pass` has compiled; None if it has it not.
        parameter: what the slope depends on besides score and target, for those losses.
        low: least target; smaller ones are clipped to it.
        high: largest target.
        open_ends: whether no score predicts a mean target at an end of the range.
        convex: whether ``phi'' >= 0`` everywhere; elsewhere ``|phi''|`` has the bound that is given for ``phi''``.
        hoelder: (nu, H) with ``|phi'(s) - phi'(t)| <= H |s - t|^nu`` for all s and t, where ``phi''`` is unbounded and
            this is what there is instead; None elsewhere.
    """

    name: ClassVar[str]
    kind: ClassVar[int | None] = None
    low: float
    high: float
    parameter: float = 0.0
    open_ends: ClassVar[bool] = False
    convex: bool = True
    hoelder: tuple[float, float] | None = None

    @abstractmethod
    def losses(self, scores: Array, targets: Floats) -> Array:
        """(N,): ``phi(s, y)``."""

    @abstractmethod
    def slopes(self, scores: Array, targets: Floats) -> Array:
        """(N,): ``phi'(s, y)``, the derivative by s, in the precision of the scores."""

    @abstractmethod
    def slope_bound(self, reach: float) -> float:
        """Largest ``|phi'|`` over ``|s| <= reach`` and all targets; infinite when there is none."""

    @abstractmethod
    def curvature_bound(self, reach: float) -> float:
        """Largest ``phi''`` over ``|s| <= reach``; infinite when there is none."""

    @property
    @abstractmethod
    def start_loss(self) -> float:
        """Largest ``phi(0, y)`` above the least ``phi(s, y)`` of the same target y; infinite when there is none."""

    def bounded(self, size: float) -> Self:
        """The same, with targets of at most that size where none is declared; itself where bounds are."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return self
        bounded = copy.copy(self)
        bounded.low, bounded.high = max(self.low, -size), min(self.high, size)
        return bounded

    @property
    def mean_range(self) -> tuple[float, float] | None:
        """The range of targets, where it is bounded."""
        return (self.low, self.high) if math.isfinite(self.low) and math.isfinite(self.high) else None

    @abstractmethod
    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Measures of prediction, name -> (N,)."""

    def predictions(self, scores: Array) -> dict[str, Array]:
        """What is predicted of samples with these scores (N,), name -> (N,): here the score itself."""
        return {"prediction": scores}

    def score_of(self, mean: float) -> float:
        """The score that predicts this mean target of every sample: here the mean itself."""
        return mean

    def curvature_at(self, mean: float) -> float:
        """What ``phi''`` is where that mean is predicted of every sample: here its bound at zero."""
        return self.curvature_bound(0.0)

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """(d,): weights that minimise ``E phi(<a, x> + b, y) + (ridge / 2) ||x||^2`` together with an intercept b = 0.

        None where they are not known in closed form, or targets of this model would be clipped.
        """
        return None

    def _linear(self, model: RegressionModel) -> bool:
        """Whether targets are linear with noise, and none is clipped."""
        return model.link == "linear" and self.low == -math.inf and self.high == math.inf

    def _at_parameter(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """Where the loss is convex in the residual: the true parameter, if nothing pulls away from it.

        Features have mean zero and are independent of the noise e, so the gradient by the weights at the parameter,
        ``-E phi'(e) a``, is zero; that by an intercept, ``-E phi'(e)``, is zero if e is symmetric and phi' is odd.
        """
        known = self._linear(model) and model.homogeneous and ridge == 0 and (model.symmetric or not intercept)
        return model.parameter if known else None


class LogisticFamily(Family):
    """``log(1 + e^s) - y s``, y in {0, 1} or a probability between."""

    name = "logistic"
    kind = LOGISTIC
    open_ends = True
    low, high = 0.0, 1.0

    def losses(self, scores: Array, targets: Floats) -> Array:
        """The log loss."""
        return np.asarray(np.logaddexp(0.0, scores) - targets * scores)

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """``sigmoid(s) - y``."""
        return np.asarray(expit(scores) - targets)

    def slope_bound(self, reach: float) -> float:
        """``sigmoid(reach)``, attained by a target on the wrong side."""
        return float(expit(reach))

    def curvature_bound(self, reach: float) -> float:
        """1/4, attained at s = 0."""
        return 0.25

    @property
    def start_loss(self) -> float:
        """``log 2``, of a target that is 0 or 1."""
        return math.log(2.0)

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Accuracy and log loss (without the ridge term)."""
        right = (scores > 0) == (targets > 0.5)
        return {"accuracy": right.astype(np.float64), "log_loss": self.losses(scores, targets)}

    def predictions(self, scores: Array) -> dict[str, Array]:
        """The likelier class, as accuracy counts it, and the probability of class 1."""
        return {"prediction": (scores > 0).astype(np.float64), "probability": np.asarray(expit(scores))}

    def score_of(self, mean: float) -> float:
        """Its log-odds."""
        return float(logit(mean))

    def curvature_at(self, mean: float) -> float:
        """The variance of a target with that mean."""
        return mean * (1.0 - mean)

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """A multiple of the parameter that the model knows; 1 for logistic noise."""
        known = model.link == "logistic" and model.homogeneous and ridge == 0 and (model.symmetric or not intercept)
        return model.scale * model.parameter if known and model.scale is not None else None


class SquaredFamily(Family):
    """``(s - y)^2 / 2``, y in ``[low, high]``.

    Raises:
        BadInput: not a finite, rising pair.
    """

    name = "squared"
    kind = SQUARED

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = interval("problem.target_range", low, high)

    def losses(self, scores: Array, targets: Floats) -> Array:
        """Half the squared error."""
        return np.asarray(0.5 * (scores - targets) ** 2)

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """``s - y``."""
        return np.asarray(scores - targets)

    def slope_bound(self, reach: float) -> float:
        """``reach + max(-low, high)``: the score at one end, the target at the other."""
        return reach + max(-self.low, self.high)

    def curvature_bound(self, reach: float) -> float:
        """1 everywhere."""
        return 1.0

    @property
    def start_loss(self) -> float:
        """Half the square of the largest target."""
        return max(-self.low, self.high, 0.0) ** 2 / 2

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """The squared error (its root over all users is the RMSE)."""
        return {"squared_error": np.asarray((scores - targets) ** 2)}

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """With ``E a a^T = v I`` the risk is ``(v ||x - theta||^2 + ridge ||x||^2) / 2`` and a constant."""
        if not self._linear(model) or model.variance is None:
            return None
        return model.parameter * (model.variance / (model.variance + ridge))


class HuberFamily(Family):
    """Huber's loss of the residual r = s - y: ``r^2 / 2`` up to ``threshold``, then a line of that slope (Huber, 1964).

    Raises:
        BadInput: a target range that does not rise, or a threshold that is not positive and finite.
    """

    name = "huber_regression"
    kind = HUBER

    def __init__(self, low: float, high: float, threshold: float) -> None:
        self.low, self.high = interval("problem.target_range", low, high)
        self.threshold = self.parameter = positive("problem.threshold", threshold)

    def losses(self, scores: Array, targets: Floats) -> Array:
        """With c the residual cut at the threshold, ``c (r - c / 2)``."""
        residuals = scores - targets
        cut = np.clip(residuals, -self.threshold, self.threshold)
        return np.asarray(cut * (residuals - 0.5 * cut))

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """The residual, cut at the threshold."""
        return np.clip(scores - targets, -self.threshold, self.threshold)

    def slope_bound(self, reach: float) -> float:
        """The threshold, or the largest residual where that is smaller."""
        return min(self.threshold, reach + max(-self.low, self.high))

    def curvature_bound(self, reach: float) -> float:
        """1: ``phi'`` is 1-Lipschitz, at its two kinks too."""
        return 1.0

    @property
    def start_loss(self) -> float:
        """That of the largest target."""
        largest = max(-self.low, self.high, 0.0)
        cut = min(largest, self.threshold)
        return math.inf if math.isinf(largest) else cut * (largest - cut / 2)

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """The absolute error, and the squared one."""
        return residual_errors(scores, targets)

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """The true parameter."""
        return self._at_parameter(model, ridge, intercept)


class LpFamily(Family):
    """``|s - y|^order / order`` with order in (1, 2]: between absolute errors and least squares.

    ``phi'(r) = sign(r) |r|^(order - 1)``. For ``order < 2`` its slope is infinite at r = 0, a perfect prediction, so
    ``phi''`` has no bound; but with ``nu = order - 1`` in (0, 1), ``|phi'(r) - phi'(t)| <= 2^(1 - nu) |r - t|^nu``.
    Proof: for r, t of one sign by subadditivity of ``u^nu`` (constant 1); for ``r >= 0 >= t`` the left side is
    ``r^nu + |t|^nu <= 2 ((r + |t|) / 2)^nu`` by concavity, with equality at t = -r, so the constant is the best.

    Raises:
        BadInput: a target range that does not rise, or an order outside (1, 2].
    """

    name = "lp_regression"
    kind = LP

    def __init__(self, low: float, high: float, order: float) -> None:
        self.low, self.high = interval("problem.target_range", low, high)
        if not 1 < order <= 2:
            raise BadInput(f"problem.order = {order}: must be above 1 and at most 2")
        self.order = self.parameter = float(order)
        self.hoelder = (order - 1.0, 2.0 ** (2.0 - order)) if order < 2 else None

    def losses(self, scores: Array, targets: Floats) -> Array:
        """The power of the absolute error, over the order."""
        return np.asarray(np.abs(scores - targets) ** self.order / self.order)

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """``sign(r) |r|^(order - 1)``, zero at a perfect prediction."""
        residuals = scores - targets
        return np.asarray(np.copysign(np.abs(residuals) ** (self.order - 1.0), residuals))

    def slope_bound(self, reach: float) -> float:
        """That of the largest residual, ``reach + max(-low, high)``."""
        return float((reach + max(-self.low, self.high)) ** (self.order - 1.0))

    def curvature_bound(self, reach: float) -> float:
        """1 for least squares, no bound below: ``phi''`` grows like ``|r|^(order - 2)`` near a perfect prediction."""
        return 1.0 if self.order == 2 else math.inf

    @property
    def start_loss(self) -> float:
        """That of the largest target."""
        return float(max(-self.low, self.high, 0.0) ** self.order / self.order)

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """The absolute error, and the squared one."""
        return residual_errors(scores, targets)

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """The true parameter."""
        return self._at_parameter(model, ridge, intercept)


def residual_errors(scores: Array, targets: Floats) -> dict[str, Array]:
    """The absolute and the squared error of each prediction, name -> (N,)."""
    residuals = scores - targets
    return {"absolute_error": np.abs(residuals), "squared_error": np.asarray(residuals**2)}


class PoissonFamily(Family):
    """``e^s - y s``, counts y in ``[0, count_bound]``.

    Raises:
        BadInput: ``count_bound`` is not positive and finite.
    """

    name = "poisson"
    kind = POISSON
    open_ends = True

    def __init__(self, count_bound: float) -> None:
        self.low, self.high = 0.0, positive("problem.count_bound", count_bound)

    def losses(self, scores: Array, targets: Floats) -> Array:
        """The negative log-likelihood, up to ``log y!``."""
        return np.asarray(np.exp(scores) - targets * scores)

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """``e^s - y``."""
        return np.asarray(np.exp(scores) - targets)

    def slope_bound(self, reach: float) -> float:
        """The larger of ``e^reach`` (no event, large score) and ``count_bound - e^-reach`` (the reverse)."""
        return max(self.curvature_bound(reach), self.high - math.exp(-reach))

    def curvature_bound(self, reach: float) -> float:
        """``e^reach``, over the domain only: without a domain there is no bound."""
        with np.errstate(over="ignore"):
            return float(np.exp(reach))

    @property
    def start_loss(self) -> float:
        """``1 - y + y log y``, whose largest value is at one end: no event, or the largest count."""
        return max(1.0, 1.0 - self.high + float(xlogy(self.high, self.high)))

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """The deviance, zero for a perfect prediction."""
        perfect = xlogy(targets, targets, dtype=np.float64) - targets
        return {"deviance": np.asarray(2.0 * (perfect + self.losses(scores, targets)))}

    def predictions(self, scores: Array) -> dict[str, Array]:
        """The expected count."""
        return {"prediction": np.exp(scores)}

    def score_of(self, mean: float) -> float:
        """Its logarithm."""
        return math.log(mean)

    def curvature_at(self, mean: float) -> float:
        """The mean."""
        return mean
