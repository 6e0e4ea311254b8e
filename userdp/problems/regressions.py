"""The regressions on dense features: logistic, least squares, Poisson."""

from typing import ClassVar, Unpack

import numpy as np
from pydantic import Field

from userdp.arrays.types import Vector
from userdp.data.federation import Federation
from userdp.problems.families import LogisticFamily, PoissonFamily, SquaredFamily
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.linear_scores import Options
from userdp.problems.settings import RADIUS, BinaryTarget, CountBound, GeneralisedLinearSettings, TargetRange


class Logistic(GeneralisedLinear):
    """Logistic regression, y in {0, 1}: K = 1/4. See `GeneralisedLinear` for arguments and guarantees."""

    name = "logistic"
    summary = "logistic regression with ridge, for targets 0 and 1"

    def __init__(self, columns: int, feature_norm: float, radius: float, **options: Unpack[Options]) -> None:
        super().__init__(LogisticFamily(), columns, feature_norm, radius, **options)


class Squared(GeneralisedLinear):
    """Least squares, y in ``[low, high]``: K = 1. See `GeneralisedLinear` for arguments and guarantees."""

    name = "squared"
    summary = "least squares with ridge, for targets in a declared range"

    def __init__(
        self, columns: int, feature_norm: float, radius: float, *, low: float, high: float, **options: Unpack[Options]
    ) -> None:
        super().__init__(SquaredFamily(low, high), columns, feature_norm, radius, **options)

    def excess_risk(self, x: Vector, federation: Federation) -> float | None:
        """Compute it exactly if the `optimum` is known, even for noise of infinite variance.

        With ``E a = 0``, ``E a a^T = v I`` and noise of mean zero the risk is, up to a constant,
        ``(v ||w - theta||^2 + b^2 + ridge (||w||^2 + b^2)) / 2`` in weights w and intercept b.
        """
        best, model = self.optimum(federation), federation.regression
        if best is None or model is None or model.variance is None:
            return None
        steep = np.full(self.dimension, 1.0 + self.ridge)
        steep[: self.columns] = model.variance + self.ridge
        linear = np.zeros(self.dimension)
        linear[: self.columns] = model.variance * model.parameter
        gaps = (x - best) * (0.5 * steep * (x + best) - linear)
        return max(0.0, float(gaps.sum()))  # negative only by rounding


class Poisson(GeneralisedLinear):
    """Poisson regression, counts y in ``[0, count_bound]``: K = ``e^(A radius)``. See `GeneralisedLinear`."""

    name = "poisson"
    summary = "Poisson regression with ridge, for counts up to a declared bound"

    def __init__(
        self, columns: int, feature_norm: float, radius: float, *, count_bound: float, **options: Unpack[Options]
    ) -> None:
        super().__init__(PoissonFamily(count_bound), columns, feature_norm, radius, **options)


class LogisticSettings(BinaryTarget, GeneralisedLinearSettings, loss=Logistic):
    """Settings of `userdp.problems.Logistic`."""

    for_codes: ClassVar[str] = "one_hot_logistic"


class SquaredSettings(TargetRange, GeneralisedLinearSettings, loss=Squared):
    """Settings of `userdp.problems.Squared`."""


class PoissonSettings(CountBound, GeneralisedLinearSettings, loss=Poisson):
    """Settings of `userdp.problems.Poisson`."""

    for_codes: ClassVar[str] = "one_hot_poisson"
    radius: float = Field(1.0, gt=0, description=RADIUS)
