"""Regression by Tukey's biweight (Beaton, Tukey 1974): residuals beyond a threshold do not pull. Not convex."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from userdp.arrays.types import Array
from userdp.data.federation import RegressionModel
from userdp.data.shape import Shape
from userdp.problems.base import Problem
from userdp.problems.bounds import Floats, interval, positive
from userdp.problems.families import Family, residual_errors
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.settings import GeneralisedLinearSettings, TargetRange


class BiweightFamily(Family):
    """With u the residual over ``threshold``, cut to [-1, 1]: ``threshold^2 / 6 (1 - (1 - u^2)^3)``.

    ``phi' = r (1 - u^2)^2``, at most ``16 threshold / (25 sqrt(5))`` at ``u = 1 / sqrt(5)``, and zero beyond the
    threshold. ``phi'' = (1 - u^2) (1 - 5 u^2)`` lies in [-4/5, 1]: negative beyond the same u.

    Raises:
        BadInput: a target range that does not rise, or a threshold that is not positive and finite.
    """

    name = "biweight_regression"
    convex = False

    def __init__(self, low: float, high: float, threshold: float) -> None:
        self.low, self.high = interval("problem.target_range", low, high)
        self.threshold = positive("problem.threshold", threshold)

    def _cut(self, scores: Array, targets: Floats) -> Array:
        """U."""
        return np.clip((scores - targets) / self.threshold, -1.0, 1.0)

    def losses(self, scores: Array, targets: Floats) -> Array:
        """See the class."""
        return np.asarray(self.threshold**2 / 6 * (1 - (1 - self._cut(scores, targets) ** 2) ** 3))

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """``phi'``."""
        cut = self._cut(scores, targets)
        return np.asarray(self.threshold * cut * (1 - cut**2) ** 2)

    def slope_bound(self, reach: float) -> float:
        """The peak, or what it is before that where all residuals are smaller."""
        cut = min(1 / math.sqrt(5), (reach + max(-self.low, self.high)) / self.threshold)
        return self.threshold * cut * (1 - cut**2) ** 2

    def curvature_bound(self, reach: float) -> float:
        """1, at a perfect prediction; and no less than -4/5 anywhere."""
        return 1.0

    @property
    def start_loss(self) -> float:
        """That of the largest target."""
        return float(self.losses(np.zeros(1), np.array([max(-self.low, self.high, 0.0)]))[0])

    def quality(self, scores: Array, targets: Floats) -> dict[str, Array]:
        """The absolute error, and the squared one."""
        return residual_errors(scores, targets)

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """The true parameter, if the noise is symmetric: its laws here have one peak.

        Of such a law an interval of given length is likeliest about the centre (Anderson 1955), so ``E phi(t - e)``,
        as the integral of ``P(|t - e| > r)`` over rising values of phi, is least at t = 0, for each sample's features.
        """
        return self._at_parameter(model, ridge, intercept) if model.symmetric else None


class BiweightRegression(GeneralisedLinear):
    """Biweight regression, y in ``[low, high]``: L is bounded even where targets have no bound, and so is K = 1.

    See `GeneralisedLinear` for arguments and guarantees: A2 and A3 hold, as ``|phi''| <= 1``; A1 and A4 are not
    claimed, so strategies whose promise rests on them refuse it.
    """

    name = "biweight_regression"
    summary = "linear regression with Tukey's biweight and ridge: far residuals do not count; not convex"

    def __init__(
        self,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        low: float,
        high: float,
        threshold: float = 4.685,
        ridge: float = 0.0,
        intercept: bool = False,
        feature_bound: float = math.inf,
    ) -> None:
        super().__init__(
            BiweightFamily(low, high, threshold),
            columns,
            feature_norm,
            radius,
            ridge=ridge,
            intercept=intercept,
            feature_bound=feature_bound,
        )


class BiweightRegressionSettings(TargetRange, GeneralisedLinearSettings):
    """Settings of `userdp.problems.BiweightRegression`."""

    kind: Literal["biweight_regression"]
    certificate: ClassVar[str] = "bounded gradient, bounded Hessian; not convex"
    summary: ClassVar[str] = BiweightRegression.summary
    threshold: float = Field(
        4.685, gt=0, description="Residual from which on a sample does not count; 4.685 deviations of normal noise."
    )

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return BiweightRegression(**self._arguments(shape), low=low, high=high, threshold=self.threshold)
