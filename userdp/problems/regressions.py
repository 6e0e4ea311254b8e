"""The common regressions: logistic, least squares and Poisson."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from userdp.arrays.types import Vector
from userdp.data.federation import Federation
from userdp.data.shape import Shape
from userdp.problems.base import Problem
from userdp.problems.families import LogisticFamily, PoissonFamily, SquaredFamily
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.settings import RADIUS, CountBound, GeneralisedLinearSettings, TargetRange


class Logistic(GeneralisedLinear):
    """Logistic regression, y in {0, 1}: K = 1/4. See `GeneralisedLinear` for arguments and guarantees."""

    name = "logistic"
    summary = "logistic regression with ridge, for targets 0 and 1"

    def __init__(
        self,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        ridge: float = 0.0,
        intercept: bool = False,
        feature_bound: float = math.inf,
    ) -> None:
        super().__init__(
            LogisticFamily(),
            columns,
            feature_norm,
            radius,
            ridge=ridge,
            intercept=intercept,
            feature_bound=feature_bound,
        )


class Squared(GeneralisedLinear):
    """Least squares, y in ``[low, high]``: K = 1. See `GeneralisedLinear` for arguments and guarantees."""

    name = "squared"
    summary = "least squares with ridge, for targets in a declared range"

    def __init__(
        self,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        low: float,
        high: float,
        ridge: float = 0.0,
        intercept: bool = False,
        feature_bound: float = math.inf,
    ) -> None:
        super().__init__(
            SquaredFamily(low, high),
            columns,
            feature_norm,
            radius,
            ridge=ridge,
            intercept=intercept,
            feature_bound=feature_bound,
        )

    def excess_risk(self, x: Vector, federation: Federation) -> float | None:
        """Exact where the `optimum` is known, for noise of infinite variance too: differences of losses have a mean.

        With ``E a = 0``, ``E a a^T = v I`` and noise of mean zero the risk is, but for a constant,
        ``(v ||w - theta||^2 + b^2 + ridge (||w||^2 + b^2)) / 2`` in weights w and intercept b.
        """
        best, model = self.optimum(federation), federation.regression
        if best is None or model is None or model.variance is None:
            return None
        steep = np.full(self.dimension, 1.0 + self.ridge)
        steep[: self.columns] = model.variance + self.ridge
        pulled = np.zeros(self.dimension)
        pulled[: self.columns] = model.variance * model.parameter
        gaps = (x - best) * (0.5 * steep * (x + best) - pulled)
        return max(0.0, float(gaps.sum()))  # never negative over the domain but for rounding


class Poisson(GeneralisedLinear):
    """Poisson regression, counts y in ``[0, count_bound]``: K = ``e^(A radius)``. See `GeneralisedLinear`."""

    name = "poisson"
    summary = "Poisson regression with ridge, for counts up to a declared bound"

    def __init__(
        self,
        columns: int,
        feature_norm: float,
        radius: float,
        *,
        count_bound: float,
        ridge: float = 0.0,
        intercept: bool = False,
        feature_bound: float = math.inf,
    ) -> None:
        super().__init__(
            PoissonFamily(count_bound),
            columns,
            feature_norm,
            radius,
            ridge=ridge,
            intercept=intercept,
            feature_bound=feature_bound,
        )


class LogisticSettings(GeneralisedLinearSettings):
    """Settings of `userdp.problems.Logistic`."""

    kind: Literal["logistic"]
    summary: ClassVar[str] = Logistic.summary
    for_codes: ClassVar[str] = "one_hot_logistic"
    unscaled: ClassVar[str | None] = "0 and 1, which data.positive makes of words"
    most_classes: ClassVar[int | None] = 2

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Logistic(**self._arguments(shape))


class SquaredSettings(TargetRange, GeneralisedLinearSettings):
    """Settings of `userdp.problems.Squared`."""

    kind: Literal["squared"]
    summary: ClassVar[str] = Squared.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return Squared(**self._arguments(shape), low=low, high=high)


class PoissonSettings(CountBound, GeneralisedLinearSettings):
    """Settings of `userdp.problems.Poisson`."""

    kind: Literal["poisson"]
    summary: ClassVar[str] = Poisson.summary
    for_codes: ClassVar[str] = "one_hot_poisson"
    radius: float = Field(1.0, gt=0, description=RADIUS)

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Poisson(**self._arguments(shape), count_bound=self.count_bound)
