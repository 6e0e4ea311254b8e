"""Regression by Tukey's biweight (Beaton, Tukey 1974): residuals beyond a threshold have no weight. Not convex."""

import math
from typing import Any, ClassVar, Literal, Unpack

import numpy as np
from pydantic import Field

from userdp.arrays.types import Array
from userdp.data.federation import RegressionModel
from userdp.data.shape import Shape
from userdp.problems.bounds import Floats, positive
from userdp.problems.families import ResidualFamily
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.linear_scores import LinearOptions
from userdp.problems.settings import GeneralisedLinearSettings, TargetRange


class BiweightFamily(ResidualFamily):
    """``threshold^2 / 6 (1 - (1 - u^2)^3)``, u the residual over ``threshold`` (positive, finite), clipped to [-1, 1].

    ``phi' = r (1 - u^2)^2``, at most ``16 threshold / (25 sqrt(5))`` at ``u = 1 / sqrt(5)``, and zero beyond the
    threshold. ``phi'' = (1 - u^2) (1 - 5 u^2)`` lies in [-4/5, 1]: negative beyond the same u.
    """

    name = "biweight_regression"
    convex = False

    def __init__(self, low: float, high: float, threshold: float) -> None:
        super().__init__(low, high)
        self.threshold = positive("problem.threshold", threshold)

    def _clipped(self, scores: Array, targets: Floats) -> Array:
        return np.clip((scores - targets) / self.threshold, -1.0, 1.0)

    def losses(self, scores: Array, targets: Floats) -> Array:
        """See `Family.losses`."""
        return np.asarray(self.threshold**2 / 6 * (1 - (1 - self._clipped(scores, targets) ** 2) ** 3))

    def slopes(self, scores: Array, targets: Floats) -> Array:
        """See `Family.slopes`."""
        clipped = self._clipped(scores, targets)
        return np.asarray(self.threshold * clipped * (1 - clipped**2) ** 2)

    def slope_bound(self, reach: float) -> float:
        """Return the peak slope, or the slope at the largest residual if that lies before the peak."""
        clipped = min(1 / math.sqrt(5), (reach + max(-self.low, self.high)) / self.threshold)
        return self.threshold * clipped * (1 - clipped**2) ** 2

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Array | None:
        """Return the true parameter, if the noise is symmetric; every symmetric noise law here has one peak.

        Under such a law the likeliest interval of a given length is centred (Anderson 1955). ``E phi(t - e)`` is the
        integral of ``P(|t - e| > r)`` over rising values of phi, so it is least at t = 0, for each sample's features.
        """
        return super().minimiser(model, ridge, intercept) if model.symmetric else None


class BiweightRegression(GeneralisedLinear):
    """Biweight regression, y in ``[low, high]``: K = 1, and L is bounded even if targets have no bound.

    See `GeneralisedLinear` for arguments and guarantees: A2 and A3 hold, as ``|phi''| <= 1``; A1 and A4 are not
    claimed, so a strategy whose guarantee needs them refuses this loss.
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
        **options: Unpack[LinearOptions],
    ) -> None:
        super().__init__(BiweightFamily(low, high, threshold), columns, feature_norm, radius, **options)


class BiweightRegressionSettings(TargetRange, GeneralisedLinearSettings):
    """Settings of `userdp.problems.BiweightRegression`."""

    kind: Literal["biweight_regression"]
    loss: ClassVar[type[Any]] = BiweightRegression
    certificate: ClassVar[str] = "bounded gradient, bounded Hessian; not convex"
    threshold: float = Field(
        4.685, gt=0, description="Residual beyond which a sample has no weight; 4.685 deviations of normal noise."
    )

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        return {**super()._arguments(shape), "threshold": self.threshold}
