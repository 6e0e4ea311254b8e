"""Regressions that only papers compare: Huber's loss, powers of the error, and Tukey's biweight.

Entry points of the group ``userdp.problems`` give each of them its kind.
"""

import math
from dataclasses import replace
from typing import ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays import Rows
from userdp.data import RegressionModel
from userdp.errors import BadInput
from userdp.problems import GeneralisedLinear, GeneralisedLinearSettings, Options, ResidualFamily, TargetRange

Floats = NDArray[np.float32]


class _Thresholded(ResidualFamily):
    """A loss of the residual that changes at a ``threshold``; raises `BadInput` unless that is positive and finite."""

    def __init__(self, low: float, high: float, threshold: float) -> None:
        super().__init__(low, high)
        if not 0 < threshold < math.inf:
            raise BadInput(f"problem.threshold = {threshold}: must be a positive finite number")
        self.threshold = self.parameter = float(threshold)


class HuberFamily(_Thresholded):
    """Huber's loss (1964): ``r^2 / 2`` up to ``threshold``, then a line; ``phi'`` is 1-Lipschitz, also at its kinks."""

    kind = "huber"

    def losses(self, scores: Rows, targets: Floats) -> Rows:
        """Return ``c (r - c / 2)``, with c the residual clipped to the threshold."""
        residuals = scores - targets
        clipped = np.clip(residuals, -self.threshold, self.threshold)
        return np.asarray(clipped * (residuals - 0.5 * clipped))

    def slopes(self, scores: Rows, targets: Floats) -> Rows:
        """Return the residual, clipped to the threshold."""
        return np.clip(scores - targets, -self.threshold, self.threshold)

    def slope_bound(self, reach: float) -> float:
        """Return the threshold, or the largest residual if that is smaller."""
        return min(self.threshold, reach + max(-self.low, self.high))


class BiweightFamily(_Thresholded):
    """Tukey's biweight (Beaton, Tukey 1974): ``threshold^2 / 6 (1 - (1 - u^2)^3)``, ``u = r / threshold`` in [-1, 1].

    The residual over the threshold is clipped to that u. ``phi' = r (1 - u^2)^2``, at most
    ``16 threshold / (25 sqrt(5))`` at ``u = 1 / sqrt(5)``, and zero beyond the threshold.
    ``phi'' = (1 - u^2) (1 - 5 u^2)`` lies in [-4/5, 1]: negative beyond the same u.
    """

    def _clipped(self, scores: Rows, targets: Floats) -> Rows:
        return np.clip((scores - targets) / self.threshold, -1.0, 1.0)

    def losses(self, scores: Rows, targets: Floats) -> Rows:
        return np.asarray(self.threshold**2 / 6 * (1 - (1 - self._clipped(scores, targets) ** 2) ** 3))

    def slopes(self, scores: Rows, targets: Floats) -> Rows:
        clipped = self._clipped(scores, targets)
        return np.asarray(self.threshold * clipped * (1 - clipped**2) ** 2)

    def slope_bound(self, reach: float) -> float:
        """Return the peak slope, or the slope at the largest residual if that lies before the peak."""
        clipped = min(1 / math.sqrt(5), (reach + max(-self.low, self.high)) / self.threshold)
        return self.threshold * clipped * (1 - clipped**2) ** 2

    def minimiser(self, model: RegressionModel, ridge: float, intercept: bool) -> Rows | None:
        """Return the true parameter, if the noise is symmetric; every symmetric noise law here has one peak.

        Under such a law the likeliest interval of a given length is centred (Anderson 1955). ``E phi(t - e)`` is the
        integral of ``P(|t - e| > r)`` over rising values of phi, so it is least at t = 0, for each sample's features.
        """
        return super().minimiser(model, ridge, intercept) if model.symmetric else None


class LpFamily(ResidualFamily):
    """``|s - y|^order / order``, between absolute errors and least squares; `BadInput` unless order is in (1, 2].

    ``phi'(r) = sign(r) |r|^(order - 1)``. For ``order < 2`` its slope is infinite at r = 0, a perfect prediction, so
    ``phi''`` has no bound; but with ``nu = order - 1`` in (0, 1), ``|phi'(r) - phi'(t)| <= 2^(1 - nu) |r - t|^nu``.
    Proof: for r, t of one sign by subadditivity of ``u^nu`` (constant 1); for ``r >= 0 >= t`` the left side is
    ``r^nu + |t|^nu <= 2 ((r + |t|) / 2)^nu`` by concavity, with equality at t = -r, so the constant is the best.
    """

    kind = "lp"

    def __init__(self, low: float, high: float, order: float) -> None:
        super().__init__(low, high)
        if not 1 < order <= 2:
            raise BadInput(f"problem.order = {order}: must be above 1 and at most 2")
        self.order = self.parameter = float(order)
        self.curvature = 1.0 if order == 2 else math.inf

    def losses(self, scores: Rows, targets: Floats) -> Rows:
        return np.asarray(np.abs(scores - targets) ** self.order / self.order)

    def slopes(self, scores: Rows, targets: Floats) -> Rows:
        """Return ``sign(r) |r|^(order - 1)``; zero for a perfect prediction."""
        residuals = scores - targets
        return np.asarray(np.copysign(np.abs(residuals) ** (self.order - 1.0), residuals))

    def slope_bound(self, reach: float) -> float:
        """Return the slope at the largest residual, ``reach + max(-low, high)``."""
        return float((reach + max(-self.low, self.high)) ** (self.order - 1.0))

    @property
    def start_loss(self) -> float:
        """The loss of the largest target."""
        return float(max(-self.low, self.high, 0.0) ** self.order / self.order)


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

    Formal guarantees:
        As ``|phi'(s) - phi'(t)| <= H |s - t|^nu`` (see `LpFamily`),
        ``||grad f(x) - grad f(y)||_2 <= (H ||a||_2^(1 + nu) + ridge (2 sqrt(p) radius)^(1 - nu)) ||x - y||_2^nu``,
        since ``|<a, x - y>| <= ||a||_2 ||x - y||_2`` and ``||x - y||_2 <= 2 sqrt(p) radius``.
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
        if order < 2:
            reason = f"{self.name} with problem.order below 2 is not smooth at a perfect prediction"
            self.certificate = replace(self.certificate, hoelder=self._hoelder(order), reason=reason)

    def _hoelder(self, order: float) -> tuple[float, float] | None:
        nu, constant = order - 1.0, 2.0 ** (2.0 - order)
        reach = 2 * math.sqrt(self.dimension) * self.domain.radius
        total = constant * self.length ** (1 + nu) + (self.ridge * reach ** (1 - nu) if self.ridge else 0.0)
        return (nu, total) if math.isfinite(total) else None


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
        reason = f"{self.name} is not convex: residuals that are far off pull less"
        self.certificate = replace(
            self.certificate, convex=False, diagonally_dominant=False, strong_convexity=0.0, reason=reason
        )
        self.landscape = None


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
