"""Laws of noise with mean exactly zero and known moments, made elementwise from raw noise; here the light-tailed ones.

A law's moment of order p is finite below its tail index, and then exact: a closed form, or an integral to rounding. So
a bound M with ``E |<u, Z>|^p <= M^p`` can be declared truthfully, and no data are read for it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
from scipy.special import digamma, expit, gammainc, gammaincc, gammaln, ndtr, polygamma

from userdp.data.checks import require_number
from userdp.data.synthetic.populations import Noise, Source
from userdp.errors import BadInput


@dataclass(frozen=True)
class Law(ABC):
    """A law of mean zero, in its natural scale.

    Attributes:
        shape: what tells members of the family apart; families without one ignore it.
    """

    name: ClassVar[str]
    symmetric: ClassVar[bool] = False
    least_shape: ClassVar[float] = 0.0
    most_shape: ClassVar[float] = math.inf
    shape: float

    def __post_init__(self) -> None:
        require_number("shape", self.shape, self.least_shape)
        if self.shape > self.most_shape:
            raise BadInput(f"shape of {self.name} must be at most {self.most_shape:g}, got {self.shape}")

    @abstractmethod
    def sources(self, width: int) -> tuple[Source, ...]:
        """The raw noise of a sample with ``width`` coordinates."""

    @abstractmethod
    def centred(self, noise: Sequence[Noise]) -> Noise:
        """(N, width) independent draws, in place of the first of the `sources`' arrays."""

    @property
    def tail(self) -> float:
        """Moments of this order and above are infinite."""
        return math.inf

    @property
    @abstractmethod
    def variance(self) -> float | None:
        """``E Z^2``; None where it is infinite."""

    @property
    def unit(self) -> float:
        """The standard deviation, or 1 where it is infinite: what a declared deviation is measured in."""
        return 1.0 if self.variance is None else math.sqrt(self.variance)

    @abstractmethod
    def survival(self, t: float) -> float:
        """``P(Z > t)``."""

    def moment(self, order: float) -> float:
        """``E |Z|^order``.

        Raises:
            BadInput: the order is not positive, or not below the `tail`.
        """
        if not 0 < order < self.tail:
            raise BadInput(
                f"{self.name} with shape {self.shape:g} has moments of orders above 0 and below {self.tail:g}, not "
                f"{order:g}: choose a smaller moment order or a larger shape"
            )
        return self._moment(order)

    @abstractmethod
    def _moment(self, order: float) -> float: ...


class Normal(Law):
    """The standard normal law."""

    name = "normal"
    symmetric = True

    def sources(self, width: int) -> tuple[Source, ...]:
        """Normals."""
        return (Source("sample", "normal", width),)

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """As they are."""
        return noise[0]

    @property
    def variance(self) -> float | None:
        """1."""
        return 1.0

    def survival(self, t: float) -> float:
        """The normal tail."""
        return float(ndtr(-t))

    def _moment(self, order: float) -> float:
        return 2 ** (order / 2) * math.exp(gammaln((order + 1) / 2)) / math.sqrt(math.pi)


class Logistic(Law):
    """``P(Z > t) = 1 / (1 + e^t)``: with this noise a logistic regression is well specified."""

    name = "logistic"
    symmetric = True

    def sources(self, width: int) -> tuple[Source, ...]:
        """Exponentials: ``exp(E) - 1`` exceeds t with probability ``1 / (1 + t)``."""
        return (Source("sample", "exponential", width),)

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """``log(exp(E) - 1)``; an exponential that is rounded to zero counts as 1e-12."""
        rows = noise[0]
        np.maximum(rows, np.float32(1e-12), out=rows)
        np.expm1(rows, out=rows)
        return np.log(rows, out=rows)

    @property
    def variance(self) -> float | None:
        """``pi^2 / 3``."""
        return math.pi**2 / 3

    def survival(self, t: float) -> float:
        """The logistic tail."""
        return float(expit(-t))

    def _moment(self, order: float) -> float:
        return integral(lambda t: 2 * order * t ** (order - 1) * self.survival(t), 0)


class Laplace(Law):
    """``P(|Z| > t) = exp(-t)``."""

    name = "laplace"
    symmetric = True

    def sources(self, width: int) -> tuple[Source, ...]:
        """Two exponentials a coordinate."""
        return (Source("sample", "exponential", width), Source("sample", "exponential", width))

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Their difference."""
        rows, others = noise
        rows -= others
        return rows

    @property
    def variance(self) -> float | None:
        """2."""
        return 2.0

    def survival(self, t: float) -> float:
        """Half the exponential tail above zero."""
        return 0.5 * math.exp(-t) if t > 0 else 1 - 0.5 * math.exp(t)

    def _moment(self, order: float) -> float:
        return math.gamma(order + 1)


class ChiSquared(Law):
    """Chi-squared with ``shape`` degrees of freedom, minus its mean."""

    name = "chi_squared"

    def sources(self, width: int) -> tuple[Source, ...]:
        """Gamma noise."""
        return (Source("sample", "gamma", width, self.shape / 2),)

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Twice a gamma variable, centred."""
        rows = noise[0]
        rows *= np.float32(2)
        rows -= np.float32(self.shape)
        return rows

    @property
    def variance(self) -> float | None:
        """``2 shape``."""
        return 2.0 * self.shape

    def survival(self, t: float) -> float:
        """An incomplete gamma function."""
        return float(gammaincc(self.shape / 2, max(0.0, self.shape + t) / 2))

    def _moment(self, order: float) -> float:
        half = self.shape / 2

        def below(t: float) -> float:
            return float(order * t ** (order - 1) * float(gammainc(half, half - t / 2)))

        def beyond(t: float) -> float:
            return float(order * t ** (order - 1) * self.survival(t))

        return integral(below, 0, self.shape) + integral(beyond, 0, self.shape) + integral(beyond, self.shape)


class LogGamma(Law):
    """The logarithm of a gamma variable of ``shape``, minus its mean: a long tail below, a short one above."""

    name = "log_gamma"

    def sources(self, width: int) -> tuple[Source, ...]:
        """Gamma noise of a shape one larger, and exponentials."""
        return (Source("sample", "gamma", width, self.shape + 1), Source("sample", "exponential", width))

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """``ln G - E / shape``, centred: a gamma variable is one of a shape one larger times a power of a uniform.

        Of a small shape itself float32 draws are often zero, which has no logarithm.
        """
        rows, exponentials = noise
        np.log(np.maximum(rows, np.finfo(np.float32).tiny), out=rows)
        rows -= exponentials / np.float32(self.shape)
        rows -= np.float32(self._mean)
        return rows

    @property
    def _mean(self) -> float:
        return float(digamma(self.shape))

    @property
    def variance(self) -> float | None:
        """The trigamma function."""
        return float(polygamma(1, self.shape))

    def survival(self, t: float) -> float:
        """An incomplete gamma function."""
        return float(gammaincc(self.shape, np.exp(min(t + self._mean, 700.0))))

    def _moment(self, order: float) -> float:
        def near(t: float) -> float:
            below = float(gammainc(self.shape, math.exp(self._mean - t)))
            return float(order * t ** (order - 1) * (self.survival(t) + below))

        return integral(near, 0, self.unit) + integral(near, self.unit)


class LogNormal(Law):
    """``exp(shape N - shape^2 / 2) - 1`` with N normal; above shape 4 float32 samples would be mostly rounding."""

    name = "log_normal"
    most_shape = 4.0

    def sources(self, width: int) -> tuple[Source, ...]:
        """Normals."""
        return (Source("sample", "normal", width),)

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Their exponentials, centred."""
        rows = noise[0]
        rows *= np.float32(self.shape)
        rows -= np.float32(self.shape**2 / 2)
        np.expm1(rows, out=rows)
        return rows

    @property
    def variance(self) -> float | None:
        """``exp(shape^2) - 1``."""
        return math.expm1(self.shape**2)

    def survival(self, t: float) -> float:
        """A normal tail."""
        return float(ndtr(-self.shape / 2 - math.log1p(t) / self.shape)) if t > -1 else 1.0

    def _moment(self, order: float) -> float:
        s = self.shape

        def weighted(x: float) -> float:
            # With the density inside the exponential, so that nothing overflows where the integrand is largest.
            value = abs(math.expm1(s * x - s * s / 2))
            return math.exp(order * math.log(value) - x * x / 2) / math.sqrt(2 * math.pi) if value else 0.0

        zero, top = s / 2, order * s  # where the variable is zero, and about where the integrand peaks
        return (
            integral(weighted, zero - 12 - s, zero)
            + integral(weighted, zero, max(zero, top))
            + integral(weighted, max(zero, top), max(zero, top) + 15)
        )


def integral(function: Callable[[float], float], low: float, high: float = math.inf) -> float:
    """Of a function of one variable, to about nine digits."""
    return float(scipy.integrate.quad(function, low, high, limit=400, epsabs=0, epsrel=1e-9)[0])
