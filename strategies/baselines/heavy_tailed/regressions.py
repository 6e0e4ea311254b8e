"""Regressions with heavy-tailed features, noise or both, with known optimum and moments.

Problems on them declare no bound (``feature_norm = inf``), so strategies must clip gradients. Every law is centred: the
true parameter minimises the expected squared, Huber and Lp loss, and a known multiple of it the logistic loss.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import Field

from strategies.baselines.heavy_tailed.laws import Law, Logistic, Noise, Normal, integral
from strategies.baselines.heavy_tailed.power_laws import LAWS, LawName, StudentT, directional_moment
from userdp.arrays import Vector
from userdp.data import RegressionModel, Shape, Source, WithParameter
from userdp.errors import BadInput


class HeavyTailedRegression(WithParameter):
    """Features a and noise e of declared laws, independent, both of mean exactly zero; score ``<a, theta> + e``."""

    link: ClassVar[Literal["linear", "logistic"]]
    feature_law: LawName = "normal"
    """The law of every feature."""
    feature_shape: float = 3.0
    """Shape of the feature law; laws without a shape ignore it."""
    feature_deviation: float = Field(1.0, gt=0)
    """Standard deviation of a feature, or its scale where the variance is infinite."""
    spherical: bool = False
    """One factor a sample, so that features have the same law in every direction (multivariate t); only for normal
    and student_t features. Independent coordinates otherwise."""
    noise_law: LawName = "student_t"
    """The law of the noise."""
    noise_shape: float = 3.0
    """Shape of the noise law; laws without a shape ignore it."""
    noise_deviation: float = Field(1.0, gt=0)
    """Standard deviation of the noise, or its scale where the variance is infinite."""

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        if self.spherical and not isinstance(self._feature, (Normal, StudentT)):
            raise BadInput(f"spherical = true needs feature_law normal or student_t, got {self.feature_law}")
        _ = self._feature, self._noise  # refuse shapes out of range

    @cached_property
    def _feature(self) -> Law:
        return _law(self.feature_law, self.feature_shape, "feature_shape")

    @cached_property
    def _noise(self) -> Law:
        return _law(self.noise_law, self.noise_shape, "noise_shape")

    @property
    def sample_shape(self) -> Shape:
        target_range = (-math.inf, math.inf) if self.link == "linear" else (0.0, 1.0)
        return Shape(self.columns, has_target=True, feature_norm=math.inf, target_range=target_range)

    @property
    def _feature_scale(self) -> float:
        return self.feature_deviation / self._feature.unit

    @property
    def _noise_scale(self) -> float:
        return self.noise_deviation / self._noise.unit

    @property
    def sources(self) -> tuple[Source, ...]:
        """The own parameter and coin of a user, then the raw noise of the laws of features and noise."""
        features = self._feature.sources(self.dimension, spherical=self.spherical)
        return (Source("user", "normal", self.dimension + 1), *features, *self._noise.sources(1))

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> tuple[Noise, Noise]:
        """Return unbounded features, and targets from each user's own parameter."""
        split = 1 + len(self._feature.sources(1))
        features = self._feature.centred(noise[1:split])
        features *= np.float32(self._feature_scale)
        scores = self.predictors(features, truth, noise[0], sizes)
        scores += self._noise_scale * self._noise.centred(noise[split:])[:, 0]
        return features, scores.astype(np.float32) if self.link == "linear" else (scores > 0).astype(np.float32)

    def regression(self, truth: Vector) -> RegressionModel:
        variance = self.feature_deviation**2 if self._feature.variance is not None else None
        scale = self._logistic_scale(truth) if self.link == "logistic" else None
        return RegressionModel(self.link, truth, variance, self._noise.symmetric, self.heterogeneity == 0, scale)

    def _logistic_scale(self, truth: Vector) -> float | None:
        """Return the c for which ``c theta`` minimises the expected logistic loss; None if it is not known.

        Logistic noise of scale k: ``y = 1`` has probability ``sigmoid(<a, theta> / k)``, so c = 1 / k. Other noise, and
        features of the same law in every direction: given ``s = <a, theta>`` the mean of a is a multiple of theta, so
        the gradient at ``c theta``, ``E (sigmoid(c s) - P(e > -s)) a``, is one too. Since s has a symmetric law, it is
        zero where ``E s tanh(c s / 2) = E s (P(e > -s) - P(e > s))`` over ``s > 0``.
        """
        if isinstance(self._noise, Logistic):
            return 1 / self._noise_scale
        length = self._feature_scale * float(np.linalg.norm(truth))
        if not (self.spherical or isinstance(self._feature, Normal)) or length == 0:
            return None

        def mean(weight: Callable[[float], float]) -> float:
            return integral(lambda t: t * _density(self._feature, t) * weight(length * t), 0)

        def agreement(s: float) -> float:
            e = s / self._noise_scale
            return self._noise.survival(-e) - self._noise.survival(e)

        def predicted(log_half: float) -> float:
            return mean(lambda s: math.tanh(math.exp(log_half) * s))

        reached, middle = mean(agreement), -math.log(length)
        # c s / 2 from e^-12 to e^12: noise a hundred thousand times larger or smaller than the score is no model.
        if not predicted(middle - 12) < reached < predicted(middle + 12):
            return None
        root: float = scipy.optimize.brentq(lambda log_half: predicted(log_half) - reached, middle - 12, middle + 12)
        return 2 * math.exp(root)

    def feature_moment(self, order: float) -> float:
        """Return M with ``E |<u, a>|^order <= M^order`` for every unit u; ``order >= 2``; see `power_laws`."""
        return self._feature_scale * directional_moment(self._feature, order, spherical=self.spherical)

    def gradient_moment(self, order: float, growth: float, distance: float, *, slope: float = 1.0) -> float:
        """Return M with ``E |<u, phi'(r) a>|^p <= M^p`` for every unit u and x with ``||x - theta||_2 <= distance``.

        The bound holds for losses with ``|phi'(r)| <= slope |r|^(q - 1)``, without ridge and intercept; p >= 2 is the
        order and q in [1, 2] the growth: 2 for least squares, p for Lp, 1 for logistic (slope 1) and Huber (slope =
        threshold). At r = 0 with growth 1, ``|phi'| <= slope``.

        *Proof.* Growth 1: ``|<u, phi' a>| <= slope |<u, a>|``. Growth q > 1: with ``r = <a, x - theta> - e``,
        ``|r|^(q-1) <= |<a, x - theta>|^(q-1) + |e|^(q-1)``, as ``q - 1 <= 1``. By Minkowski the L_p norm of
        ``<u, phi' a>`` is at most slope times the sum of two norms. As e and a are independent, one is at most
        ``(E |e|^((q-1) p))^(1/p) F(p)`` with F the `feature_moment`; by Hoelder's inequality with exponents
        ``q / (q - 1)`` and q, the other is at most ``distance^(q-1) F(q p)^q``. Raises
        `BadInput` for growth outside [1, 2], users that differ, or laws without the moments needed.
        """
        if not 1 <= growth <= 2:
            raise BadInput(f"growth = {growth}: must lie in [1, 2]")
        if self.heterogeneity or self.outliers:
            raise BadInput("gradient_moment holds for users with one parameter: set heterogeneity and outliers to 0")
        if growth == 1:
            return slope * self.feature_moment(order)
        power = (growth - 1) * order
        noise = self._noise_scale ** (growth - 1) * self._noise.moment(power) ** (1 / order)
        far = distance ** (growth - 1) * self.feature_moment(growth * order) ** growth if distance else 0.0
        return float(slope * (noise * self.feature_moment(order) + far))


class HeavyTailedLinear(HeavyTailedRegression):
    """y = <a, theta> + e."""

    name = "heavy_tailed_linear"
    summary = "features and noise of declared laws, unbounded, of known moments; real targets, a true parameter"
    link = "linear"


class HeavyTailedLogistic(HeavyTailedRegression):
    """y = 1 if <a, theta> + e > 0, else 0; with logistic noise a well specified logistic regression."""

    name = "heavy_tailed_logistic"
    summary = "features and noise of declared laws, unbounded, of known moments; signs as targets, a known optimum"
    link = "logistic"
    noise_law: LawName = "logistic"
    """The law of the noise."""
    noise_deviation: float = Field(math.pi / math.sqrt(3), gt=0)
    """Standard deviation of the noise, or its scale where the variance is infinite."""


def _law(name: str, shape: float, shape_field: str) -> Law:
    try:
        return LAWS[name](shape)
    except BadInput as error:
        raise BadInput(f"{shape_field} of {name}: {error}") from None


def _density(law: Law, t: float) -> float:
    """Return the density of the standard normal law or of Student's t at ``t``."""
    if isinstance(law, StudentT):
        nu = law.shape
        logs = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - (nu + 1) / 2 * math.log1p(t * t / nu)
        return math.exp(logs) / math.sqrt(nu * math.pi)
    return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
