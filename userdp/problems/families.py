"""Families of generalised linear models: the loss ``phi(s, y)`` of a score ``s = <a, x>`` and a target y.

The bounds on ``phi'`` and ``phi''`` cover all scores that the domain allows. A target without declared bounds has an
infinite ``low`` or ``high``; a bound that depends on it is infinite too.
"""

import copy
import math
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
from scipy.special import expit, exprel, logit, xlogy

from userdp.arrays.types import Array
from userdp.data.federation import RegressionModel
from userdp.problems.bounds import Floats, interval, positive

_CERTAIN, _LARGEST_SCORE = 30.0, 6.0  # e beyond which an event is certain to 1e-13; log of e where curvature is zero
_EVEN = math.log(math.log(2.0))  # The score of an even chance by the complementary log-log


class Family(ABC):
    """``phi(s, y)`` for y in ``[low, high]``."""

    kind: ClassVar[str | None] = None
    """The name of the loss in `userdp.problems.one_pass`; None if that module has no compiled version."""
    low: float
    """Smallest target; smaller ones are clipped to it."""
    high: float
    """Largest target."""
    parameter: float = 0.0
    """The number on which the slope of a compiled loss depends, besides score and target."""
    open_ends: ClassVar[bool] = False
    """True if no finite score predicts a mean target at an end of the range."""
    of_rates: ClassVar[bool] = False
    """True if the exponential of a score is a rate, which an exposure multiplies."""
    curvature: float = 1.0
    """The largest ``phi''`` over all scores, for families whose bound is the same on every domain."""

    @abstractmethod
    def losses(self, scores: Array, targets: Floats) -> Array:
        """Return the (N,) losses ``phi(s, y)``."""

    @abstractmethod
    def slopes(self, scores: Array, targets: Floats) -> Array:
        """Return the (N,) derivatives ``phi'(s, y)`` by s, in the precision of the scores."""

    @abstractmethod
    def slope_bound(self, reach: float) -> float:
        """Return the largest ``|phi'|`` over ``|s| <= reach`` and all targets; infinite if unbounded."""

    def curvature_bound(self, reach: float) -> float:
        """Return the largest ``phi''`` over ``|s| <= reach``; infinite if unbounded."""
        return self.curvature

    def curvatures(self, scores: Array) -> Array | None:
        """Return the (N,) second derivatives ``phi''(s)``; where targets change them, their means for this score.

        None, the default, for a loss that gives neither.
        """
        return None

    @property
    @abstractmethod
    def start_loss(self) -> float:
        """The largest ``phi(0, y) - min_s phi(s, y)`` over all targets y; infinite if unbounded."""

    def bounded(self, size: float) -> Self:
        """Return a family whose undeclared target bounds are ``-size`` and ``size``; itself if both are declared."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return self
        bounded = copy.copy(self)
        bounded.low, bounded.high = max(self.low, -size), min(self.high, size)
        return bounded

    @property
    def mean_range(self) -> tuple[float, float] | None:
        """The range of targets; None if it is unbounded."""
        return (self.low, self.high) if math.isfinite(self.low) and math.isfinite(self.high) else None

    @abstractmethod
    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Return measures of prediction, name -> (N,)."""

    def predictions(self, scores: Array) -> dict[str, Array]:
        """Return the predictions for (N,) scores, name -> (N,); by default the score itself."""
        return {"prediction": scores}

    def score_of(self, mean: float) -> float:
        """Return the score that predicts this mean target; by default the mean itself."""
        return mean

    def curvature_at(self, mean: float) -> float:
        """Return ``phi''`` at the score that predicts this mean; by default its bound at score zero."""
        return self.curvature_bound(0.0)

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """Return the (d,) weights that minimise ``E phi(<a, x> + b, y) + (ridge / 2) ||x||^2`` with intercept b = 0.

        None if no closed form is known, or if targets of this model would be clipped.
        """
        return None

    def _is_linear(self, model: RegressionModel) -> bool:
        return model.link == "linear" and self.low == -math.inf and self.high == math.inf


class LogisticFamily(Family):
    """``log(1 + e^s) - y s``, y in {0, 1} or a probability between."""

    kind = "logistic"
    open_ends = True
    low, high = 0.0, 1.0
    curvature = 0.25

    def losses(self, scores: Array, targets: Floats) -> Array:
        return np.asarray(np.logaddexp(0.0, scores) - targets * scores)

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """Return ``sigmoid(s) - y``."""
        return np.asarray(expit(scores) - targets)

    def slope_bound(self, reach: float) -> float:
        """Return ``sigmoid(reach)``, attained by a target on the wrong side."""
        return float(expit(reach))

    def curvatures(self, scores: Array) -> Array:
        """Return the variances of targets with these log-odds."""
        return np.asarray(expit(scores) * expit(-scores))

    @property
    def start_loss(self) -> float:
        """The loss ``log 2`` of a target 0 or 1."""
        return math.log(2.0)

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Return accuracy and log loss (without the ridge term)."""
        right = (scores > 0) == (targets > 0.5)
        return {"accuracy": right.astype(np.float64), "log_loss": self.losses(scores, targets)}

    def predictions(self, scores: Array) -> dict[str, Array]:
        """Return the likelier class, as accuracy counts it, and the probability of class 1."""
        return {"prediction": (scores > 0).astype(np.float64), "probability": np.asarray(expit(scores))}

    def score_of(self, mean: float) -> float:
        """Return the log-odds of the mean."""
        return float(logit(mean))

    def curvature_at(self, mean: float) -> float:
        """Return the variance of a target with that mean."""
        return mean * (1.0 - mean)

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """Return the model's parameter times its ``scale``, which is 1 for logistic noise."""
        known = model.link == "logistic" and model.homogeneous and ridge == 0 and (model.symmetric or not intercept)
        return model.scale * model.parameter if known and model.scale is not None else None


class CloglogFamily(Family):
    """``-y log(1 - exp(-e)) + (1 - y) e`` with ``e = exp(s)``: y in {0, 1}, or a probability between.

    In a model of hazards by period, ``exp`` of a coefficient is the ratio of hazards in continuous time (Prentice,
    Gloeckler, Biometrics 34, 1978).

    *Formal guarantees.* *Claim.* The loss is convex, and ``phi'' <= exp(reach)``. *Why.* ``phi'' = e`` for y = 0. With
    ``u = e / (exp(e) - 1)``, in (0, 1], it is ``u (u + e - 1)`` for y = 1: not negative, as
    ``u >= exp(-e) >= 1 - e``, and at most ``u e = e^2 / (exp(e) - 1) < 1``, as
    ``exp(e) - 1 > e + e^2 / 2 + e^3 / 6 > 1.3 e^2``. It is linear in y between.
    """

    open_ends = True
    low, high = 0.0, 1.0

    def losses(self, scores: Array, targets: Floats) -> Array:
        happens = np.exp(scores)
        certain = happens > _CERTAIN
        # log(1 - exp(-e)) as s + log((1 - exp(-e)) / e), which small e do not cancel.
        event = np.where(certain, 0.0, scores + np.log(exprel(-np.minimum(happens, _CERTAIN))))
        return _survived(targets, happens) - targets * event

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """Return ``e`` without an event, ``-e / (exp(e) - 1)`` with one."""
        happens = np.exp(scores)
        return _survived(targets, happens) - targets / exprel(happens)

    def slope_bound(self, reach: float) -> float:
        """Return ``e^reach``, of no event at the largest score; an event has slopes of less than 1."""
        return self.curvature_bound(reach)

    def curvatures(self, scores: Array) -> Array:
        """Return ``e^2 / (exp(e) - 1)``, the mean over targets with these hazards."""
        happens = np.exp(np.minimum(scores, _LARGEST_SCORE))
        return np.asarray(happens / exprel(happens))

    def curvature_bound(self, reach: float) -> float:
        """Return ``e^reach``; infinite for an infinite domain."""
        with np.errstate(over="ignore"):
            return float(np.exp(reach))

    @property
    def start_loss(self) -> float:
        """The loss 1 of no event."""
        return 1.0

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Return accuracy and log loss (without the ridge term)."""
        right = (scores > _EVEN) == (targets > 0.5)
        return {"accuracy": right.astype(np.float64), "log_loss": self.losses(scores, targets)}

    def predictions(self, scores: Array) -> dict[str, Array]:
        """Return the likelier class, and the probability of an event."""
        return {"prediction": (scores > _EVEN).astype(np.float64), "probability": -np.expm1(-np.exp(scores))}

    def score_of(self, mean: float) -> float:
        """Return ``log(-log(1 - mean))``, infinite at the ends."""
        with np.errstate(divide="ignore"):
            return float(np.log(-np.log1p(-mean)))

    def curvature_at(self, mean: float) -> float:
        """Return the mean curvature over targets with that mean."""
        return float(self.curvatures(np.array([self.score_of(mean)]))[0])


def _survived(targets: Floats, happens: Array) -> Array:
    left = 1 - targets.astype(happens.dtype)  # may be no float32
    return np.where(left > 0, left * happens, 0.0)


class ResidualFamily(Family):
    """A loss of the residual r = s - y; raises `BadInput` unless low and high are a rising pair."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = interval("problem.target_range", low, high)

    @property
    def start_loss(self) -> float:
        """The loss of the largest target."""
        return float(self.losses(np.zeros(1), np.array([max(-self.low, self.high, 0.0)]))[0])

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Return the absolute and the squared error."""
        residuals = scores - targets
        return {"absolute_error": np.abs(residuals), "squared_error": np.asarray(residuals**2)}

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """Return the true parameter, if the loss is convex and no ridge or intercept moves the minimum away from it.

        Features have mean zero and are independent of the noise e, so the gradient by the weights at the parameter,
        ``-E phi'(e) a``, is zero; the gradient by an intercept, ``-E phi'(e)``, is zero if e is symmetric and phi' odd.
        """
        known = self._is_linear(model) and model.homogeneous and ridge == 0 and (model.symmetric or not intercept)
        return model.parameter if known else None


class SquaredFamily(ResidualFamily):
    """``(s - y)^2 / 2``, y in ``[low, high]``."""

    kind = "squared"

    def losses(self, scores: Array, targets: Floats) -> Array:
        return np.asarray(0.5 * (scores - targets) ** 2)

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """Return ``s - y``."""
        return np.asarray(scores - targets)

    def slope_bound(self, reach: float) -> float:
        """Return ``reach + max(-low, high)``: the score at one end, the target at the other."""
        return reach + max(-self.low, self.high)

    def curvatures(self, scores: Array) -> Array:
        return np.ones_like(scores)

    @property
    def start_loss(self) -> float:
        """Half the square of the largest target."""
        return max(-self.low, self.high, 0.0) ** 2 / 2

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Return the squared error; the root of its mean over users is the RMSE."""
        return {"squared_error": np.asarray((scores - targets) ** 2)}

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """See `Family.minimiser`; if ``E a a^T = v I``, the risk is ``(v ||x - theta||^2 + ridge ||x||^2) / 2 + c``."""
        if not self._is_linear(model) or model.variance is None:
            return None
        return model.parameter * (model.variance / (model.variance + ridge))


class PoissonFamily(Family):
    """``e^s - y s``, counts y in ``[0, count_bound]``, positive and finite."""

    kind = "poisson"
    open_ends = of_rates = True

    def __init__(self, count_bound: float) -> None:
        self.low, self.high = 0.0, positive("problem.count_bound", count_bound)

    def losses(self, scores: Array, targets: Floats) -> Array:
        """Return the negative log-likelihood, up to ``log y!``."""
        return np.asarray(np.exp(scores) - targets * scores)

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """Return ``e^s - y``."""
        return np.asarray(np.exp(scores) - targets)

    def slope_bound(self, reach: float) -> float:
        """Return the larger of ``e^reach`` (no event, large score) and ``count_bound - e^-reach`` (the reverse)."""
        return max(self.curvature_bound(reach), self.high - math.exp(-reach))

    def curvatures(self, scores: Array) -> Array:
        return np.asarray(np.exp(scores))

    def curvature_bound(self, reach: float) -> float:
        """Return ``e^reach``; infinite for an infinite domain."""
        with np.errstate(over="ignore"):
            return float(np.exp(reach))

    @property
    def start_loss(self) -> float:
        """The larger value of ``1 - y + y log y`` at the two ends: no event, or the largest count."""
        return max(1.0, 1.0 - self.high + float(xlogy(self.high, self.high)))

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Return the deviance, zero for a perfect prediction."""
        perfect = xlogy(targets, targets, dtype=np.float64) - targets
        return {"deviance": np.asarray(2.0 * (perfect + self.losses(scores, targets)))}

    def predictions(self, scores: Array) -> dict[str, Array]:
        """Return the expected count."""
        return {"prediction": np.exp(scores)}

    def score_of(self, mean: float) -> float:
        """Return the logarithm of the mean, infinite for zero."""
        return math.log(mean) if mean else -math.inf

    def curvature_at(self, mean: float) -> float:
        """Return the mean."""
        return mean
