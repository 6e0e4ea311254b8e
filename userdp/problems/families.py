"""Families of generalised linear models: the loss ``phi(s, y)`` of a score ``s = <a, x>`` and a target y.

Each is convex in s, with bounds on ``phi'`` and ``phi''`` over all scores that the domain allows.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from scipy.special import expit, xlogy

from userdp.problems.bounds import Floats, interval, positive
from userdp.problems.segments import Array


class Family(ABC):
    """``phi(s, y)`` for y in ``[low, high]``.

    Attributes:
        name: of the family.
        low: least target; smaller ones are clipped to it.
        high: largest target.
    """

    name: ClassVar[str]
    low: float
    high: float

    @abstractmethod
    def losses(self, scores: Array, targets: Floats) -> Array:
        """(N,): ``phi(s, y)``."""

    @abstractmethod
    def slopes(self, scores: Array, targets: Floats) -> Array:
        """(N,): ``phi'(s, y)``, the derivative by s."""

    @abstractmethod
    def slope_bound(self, reach: float) -> float:
        """Largest ``|phi'|`` over ``|s| <= reach`` and all targets; infinite when there is none."""

    @abstractmethod
    def curvature_bound(self, reach: float) -> float:
        """Largest ``phi''`` over ``|s| <= reach``; infinite when there is none."""

    @abstractmethod
    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Measures of prediction, name -> (N,)."""


class LogisticFamily(Family):
    """``log(1 + e^s) - y s``, y in {0, 1} or a probability between."""

    name = "logistic"
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

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """Accuracy and log loss (without the ridge term)."""
        right = (scores > 0) == (targets > 0.5)
        return {"accuracy": right.astype(np.float64), "log_loss": self.losses(scores, targets)}


class SquaredFamily(Family):
    """``(s - y)^2 / 2``, y in ``[low, high]``.

    Raises:
        BadInput: not a finite, rising pair.
    """

    name = "squared"

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

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """The squared error (its root over all users is the RMSE)."""
        return {"squared_error": np.asarray((scores - targets) ** 2)}


class PoissonFamily(Family):
    """``e^s - y s``, counts y in ``[0, count_bound]``.

    Raises:
        BadInput: ``count_bound`` is not positive and finite.
    """

    name = "poisson"

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

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """The deviance, zero for a perfect prediction."""
        perfect = xlogy(targets, targets, dtype=np.float64) - targets
        return {"deviance": np.asarray(2.0 * (perfect + self.losses(scores, targets)))}
