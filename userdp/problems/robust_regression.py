"""Regressions that large residuals pull less: Huber's loss, and powers of the absolute error."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from userdp.data.shape import Shape
from userdp.problems.base import Problem
from userdp.problems.families import HuberFamily, LpFamily
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.settings import GeneralisedLinearSettings, TargetRange


class HuberRegression(GeneralisedLinear):
    """Huber regression, y in ``[low, high]``: K = 1, L = ``threshold`` even where targets have no bound.

    See `GeneralisedLinear` for arguments and guarantees; ``phi'`` is 1-Lipschitz at the kinks, where there is no
    ``phi''``, which is all that A3 and A4 are used for.
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
        ridge: float = 0.0,
        intercept: bool = False,
        feature_bound: float = math.inf,
    ) -> None:
        family = HuberFamily(low, high, threshold)
        super().__init__(
            family,
            columns,
            feature_norm,
            radius,
            ridge=ridge,
            intercept=intercept,
            feature_bound=feature_bound,
        )


class LpRegression(GeneralisedLinear):
    """``|<a, x> - y|^order / order`` with order in (1, 2], y in ``[low, high]``.

    See `GeneralisedLinear` for arguments and guarantees: ``L = (A radius + max(-low, high))^(order - 1)``. For
    ``order < 2`` the loss is NOT smooth (its second derivative is infinite where a prediction is perfect): there is no
    A3, no A4, and the certificate says Hoelder with ``nu = order - 1`` instead.
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
        ridge: float = 0.0,
        intercept: bool = False,
        feature_bound: float = math.inf,
    ) -> None:
        family = LpFamily(low, high, order)
        super().__init__(
            family,
            columns,
            feature_norm,
            radius,
            ridge=ridge,
            intercept=intercept,
            feature_bound=feature_bound,
        )


class HuberRegressionSettings(TargetRange, GeneralisedLinearSettings):
    """Settings of `userdp.problems.HuberRegression`."""

    kind: Literal["huber_regression"]
    summary: ClassVar[str] = HuberRegression.summary
    threshold: float = Field(1.0, gt=0, description="Residual at which the square becomes a line.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return HuberRegression(**self._arguments(shape), low=low, high=high, threshold=self.threshold)


class LpRegressionSettings(TargetRange, GeneralisedLinearSettings):
    """Settings of `userdp.problems.LpRegression`."""

    kind: Literal["lp_regression"]
    certificate: ClassVar[str] = (
        "convex, bounded gradient; below order 2 the gradient is Hoelder continuous, in place of a bounded and "
        "diagonally dominant Hessian"
    )
    summary: ClassVar[str] = LpRegression.summary
    order: float = Field(1.5, gt=1, le=2, description="Power of the absolute error, which the loss is.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return LpRegression(**self._arguments(shape), low=low, high=high, order=self.order)
