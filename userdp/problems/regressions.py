"""The regressions on dense features: logistic, least squares, Poisson, Huber's loss, powers of the error, biweight."""

from typing import ClassVar, Unpack

import numpy as np
from pydantic import Field

from userdp.arrays.types import Vector
from userdp.data.federation import Federation
from userdp.problems.families import BiweightFamily, HuberFamily, LogisticFamily, LpFamily, PoissonFamily, SquaredFamily
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


class HuberRegression(GeneralisedLinear):
    """Huber regression, y in ``[low, high]``: K = 1, L = ``threshold`` even if targets have no bound.

    See `GeneralisedLinear` for arguments and guarantees. ``phi'`` has no derivative at its kinks but is 1-Lipschitz
    there, and A3 and A4 use no more than that.
    """

    name = "huber_regression"
    summary = "linear regression with Huber's loss and ridge: squares near, lines far"

    def __init__(
        self,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        low: float,
        high: float,
        threshold: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(HuberFamily(low, high, threshold), columns, feature_norm, radius, **options)


class LpRegression(GeneralisedLinear):
    """``|<a, x> - y|^order / order`` with order in (1, 2], y in ``[low, high]``.

    See `GeneralisedLinear` for arguments and guarantees: ``L = (A radius + max(-low, high))^(order - 1)``. For
    ``order < 2`` the loss is NOT smooth (its second derivative is infinite at a perfect prediction): there is no A3 and
    no A4, and the certificate says Hoelder with ``nu = order - 1`` instead.
    """

    name = "lp_regression"
    summary = "linear regression with a power of the absolute error, order in (1, 2]; not smooth below 2"

    def __init__(
        self,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        order: float,
        low: float,
        high: float,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(LpFamily(low, high, order), columns, feature_norm, radius, **options)


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
        **options: Unpack[Options],
    ) -> None:
        super().__init__(BiweightFamily(low, high, threshold), columns, feature_norm, radius, **options)


class LogisticSettings(BinaryTarget, GeneralisedLinearSettings, loss=Logistic):
    """Settings of `userdp.problems.Logistic`."""

    for_codes: ClassVar[str] = "one_hot_logistic"


class SquaredSettings(TargetRange, GeneralisedLinearSettings, loss=Squared):
    """Settings of `userdp.problems.Squared`."""


class PoissonSettings(CountBound, GeneralisedLinearSettings, loss=Poisson):
    """Settings of `userdp.problems.Poisson`."""

    for_codes: ClassVar[str] = "one_hot_poisson"
    radius: float = Field(1.0, gt=0, description=RADIUS)


class HuberRegressionSettings(TargetRange, GeneralisedLinearSettings, loss=HuberRegression):
    """Settings of `userdp.problems.HuberRegression`."""

    threshold: float = Field(1.0, gt=0, description="Residual at which the square becomes a line.")


class LpRegressionSettings(TargetRange, GeneralisedLinearSettings, loss=LpRegression):
    """Settings of `userdp.problems.LpRegression`."""

    certificate: ClassVar[str] = (
        "convex, bounded gradient; below order 2 the gradient is Hoelder continuous, in place of a bounded and "
        "diagonally dominant Hessian"
    )
    order: float = Field(1.5, gt=1, le=2, description="Power of the absolute error in the loss.")


class BiweightRegressionSettings(TargetRange, GeneralisedLinearSettings, loss=BiweightRegression):
    """Settings of `userdp.problems.BiweightRegression`."""

    certificate: ClassVar[str] = "bounded gradient, bounded Hessian; not convex"
    threshold: float = Field(
        4.685, gt=0, description="Residual beyond which a sample has no weight; 4.685 deviations of normal noise."
    )
