"""Laws of noise with mean exactly zero, made elementwise from raw noise; the light-tailed ones.

Moments below the tail index are exact, so that a bound M with ``E |<u, Z>|^p <= M^p`` can be declared without data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import digamma, expit, gammainc, gammaincc, gammaln, ndtr, polygamma

from userdp.data import Source, require_number
from userdp.errors import BadInput

Noise = NDArray[np.float32]
RawLaw: TypeAlias = Literal["normal", "uniform", "exponential", "gamma"]


@dataclass(frozen=True)
class Law(ABC):
    """A law of mean zero, in its natural scale.

    Attributes:
        draws: the laws of the raw noise behind one coordinate.
        power_tail: whether the shape is a tail index: moments of that order and above are infinite.
        shape: the parameter of the family; families without one ignore it.
    """

    name: ClassVar[str]
    draws: ClassVar[tuple[RawLaw, ...]]
    symmetric: ClassVar[bool] = False
    power_tail: ClassVar[bool] = False
    least_shape: ClassVar[float] = 0.0
    most_shape: ClassVar[float] = math.inf
    shape: float

    def __post_init__(self) -> None:
        require_number("shape", self.shape, self.least_shape)
        if self.shape > self.most_shape:
            raise BadInput(f"shape of {self.name} must be at most {self.most_shape:g}, got {self.shape}")

    def sources(self, width: int, *, spherical: bool = False) -> tuple[Source, ...]:
        """Return the raw noise of a sample with ``width`` coordinates; ``spherical``: they share one gamma variable."""
        return tuple(
            Source("sample", law, 1 if spherical else width, self._gamma_shape)
            if law == "gamma"
            else Source("sample", law, width)
            for law in self.draws
        )

    @property
    def _gamma_shape(self) -> float:
        return self.shape / 2

    @abstractmethod
    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return (N, width) independent draws, in place of the first of the `sources`' arrays."""

    @property
    def tail(self) -> float:
        """The order from which on moments are infinite."""
        return self.shape if self.power_tail else math.inf

    @property
    def variance(self) -> float | None:
        """The variance ``E Z^2``; None where it is infinite."""
        return self._variance() if self.tail > 2 else None

    @abstractmethod
    def _variance(self) -> float: ...

    @property
    def unit(self) -> float:
        """The standard deviation, or 1 where it is infinite: declared deviations are measured in it."""
        return 1.0 if self.variance is None else math.sqrt(self.variance)

    def survival(self, t: float) -> float:
        """Return ``P(Z > t)``."""
        return self._survival(t)

    @abstractmethod
    def _survival(self, t: float) -> float: ...

    def moment(self, order: float) -> float:
        """Return ``E |Z|^order``; raise `BadInput` unless the order is positive and below the `tail`."""
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
    draws = ("normal",)
    symmetric = True

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return the normals unchanged."""
        return noise[0]

    def _variance(self) -> float:
        return 1.0

    def _survival(self, t: float) -> float:
        return float(ndtr(-t))

    def _moment(self, order: float) -> float:
        return 2 ** (order / 2) * math.exp(gammaln((order + 1) / 2)) / math.sqrt(math.pi)


class Logistic(Law):
    """``P(Z > t) = 1 / (1 + e^t)``: with this noise a logistic regression is well specified."""

    name = "logistic"
    draws = ("exponential",)
    symmetric = True

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return ``log(exp(E) - 1)``; an exponential E that is rounded to zero counts as 1e-12."""
        rows = noise[0]
        np.maximum(rows, np.float32(1e-12), out=rows)
        np.expm1(rows, out=rows)
        return np.log(rows, out=rows)

    def _variance(self) -> float:
        return math.pi**2 / 3

    def _survival(self, t: float) -> float:
        return float(expit(-t))

    def _moment(self, order: float) -> float:
        return integral(lambda t: 2 * order * t ** (order - 1) * self._survival(t), 0)


class Laplace(Law):
    """``P(|Z| > t) = exp(-t)``."""

    name = "laplace"
    draws = ("exponential", "exponential")
    symmetric = True

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return the difference of two exponentials."""
        rows, others = noise
        rows -= others
        return rows

    def _variance(self) -> float:
        return 2.0

    def _survival(self, t: float) -> float:
        return 0.5 * math.exp(-t) if t > 0 else 1 - 0.5 * math.exp(t)

    def _moment(self, order: float) -> float:
        return math.gamma(order + 1)


class ChiSquared(Law):
    """Chi-squared with ``shape`` degrees of freedom, minus its mean."""

    name = "chi_squared"
    draws = ("gamma",)

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return twice a gamma variable, centred."""
        rows = noise[0]
        rows *= np.float32(2)
        rows -= np.float32(self.shape)
        return rows

    def _variance(self) -> float:
        return 2.0 * self.shape

    def _survival(self, t: float) -> float:
        return float(gammaincc(self.shape / 2, max(0.0, self.shape + t) / 2))

    def _moment(self, order: float) -> float:
        half = self.shape / 2

        def below(t: float) -> float:
            return float(order * t ** (order - 1) * float(gammainc(half, half - t / 2)))

        def beyond(t: float) -> float:
            return float(order * t ** (order - 1) * self._survival(t))

        return integral(below, 0, self.shape) + integral(beyond, 0, self.shape) + integral(beyond, self.shape)


class LogGamma(Law):
    """The logarithm of a gamma variable of ``shape``, minus its mean: a long tail below, a short one above."""

    name = "log_gamma"
    draws = ("gamma", "exponential")

    @property
    def _gamma_shape(self) -> float:
        return self.shape + 1

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return ``ln G - E / shape``, centred: gammas of a small shape are often zero in float32, G's is larger."""
        rows, exponentials = noise
        np.log(np.maximum(rows, np.finfo(np.float32).tiny), out=rows)
        rows -= exponentials / np.float32(self.shape)
        rows -= np.float32(self._mean)
        return rows

    @property
    def _mean(self) -> float:
        return float(digamma(self.shape))

    def _variance(self) -> float:
        return float(polygamma(1, self.shape))

    def _survival(self, t: float) -> float:
        return float(gammaincc(self.shape, np.exp(min(t + self._mean, 700.0))))

    def _moment(self, order: float) -> float:
        def near(t: float) -> float:
            below = float(gammainc(self.shape, math.exp(self._mean - t)))
            return float(order * t ** (order - 1) * (self._survival(t) + below))

        return integral(near, 0, self.unit) + integral(near, self.unit)


class LogNormal(Law):
    """``exp(shape N - shape^2 / 2) - 1`` with N normal; above shape 4 float32 samples would be mostly rounding."""

    name = "log_normal"
    draws = ("normal",)
    most_shape = 4.0

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return exponentials of normals, centred."""
        rows = noise[0]
        rows *= np.float32(self.shape)
        rows -= np.float32(self.shape**2 / 2)
        np.expm1(rows, out=rows)
        return rows

    def _variance(self) -> float:
        return math.expm1(self.shape**2)

    def _survival(self, t: float) -> float:
        return float(ndtr(-self.shape / 2 - math.log1p(t) / self.shape)) if t > -1 else 1.0

    def _moment(self, order: float) -> float:
        s = self.shape

        def weighted(x: float) -> float:
            # The density stands inside the exponential, so that nothing overflows where the integrand is largest.
            value = abs(math.expm1(s * x - s * s / 2))
            return math.exp(order * math.log(value) - x * x / 2) / math.sqrt(2 * math.pi) if value else 0.0

        zero, top = s / 2, order * s  # where the variable is zero, and about where the integrand peaks
        return (
            integral(weighted, zero - 12 - s, zero)
            + integral(weighted, zero, max(zero, top))
            + integral(weighted, max(zero, top), max(zero, top) + 15)
        )


def integral(function: Callable[[float], float], low: float, high: float = math.inf) -> float:
    """Integrate a function of one variable, to about nine digits."""
    return float(scipy.integrate.quad(function, low, high, limit=400, epsabs=0, epsrel=1e-9)[0])
