"""The mechanisms that add noise to each coordinate: Gaussian and Laplace."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.checks import check_positive
from userdp.accounting.costs import Cost, calibrate_noise
from userdp.noise import NoiseSource


@dataclass(frozen=True)
class GaussianMechanism:
    """Adds independent normal noise to each coordinate.

    *Formal guarantees.* Neighbouring relation and unit: those for which ``l2_sensitivity`` bounds ``||v - v'||_2``. By
    rotation the two outputs are as far apart as N(0, 1) and N(mu, 1) with ``mu = 1 / noise_multiplier`` at worst, in
    any dimension; `userdp.accounting.costs` turns that into the exact epsilon and delta (Balle, Wang 2018). Assumption:
    real-valued noise, which `userdp.noise.SecureNoise` is proven to match; `SeededNoise` simulates it.
    """

    l2_sensitivity: float  # > 0, in units of the value
    noise_multiplier: float  # > 0, standard deviation over sensitivity

    def __post_init__(self) -> None:
        check_positive(l2_sensitivity=self.l2_sensitivity, noise_multiplier=self.noise_multiplier)

    @classmethod
    def calibrated(cls, l2_sensitivity: float, epsilon: float, delta: float) -> Self:
        """Return the mechanism of least noise, rounded up, for one (epsilon, delta)-DP release, or `BadInput`."""
        return cls(l2_sensitivity, calibrate_noise(epsilon, delta, 1))

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of each coordinate's noise, in units of the value."""
        return self.l2_sensitivity * self.noise_multiplier

    @property
    def cost(self) -> Cost:
        """The cost of one release."""
        return Cost(noise_multiplier=self.noise_multiplier)

    def release(self, value: NDArray[np.floating], noise: NoiseSource) -> NDArray[np.float64]:
        """Return the value with noise, float64, of the same shape; `BadInput` if it is not finite."""
        noise.charge(self.cost)
        return noise.gaussian(value, self.standard_deviation)


@dataclass(frozen=True)
class LaplaceMechanism:
    """Adds independent Laplace noise of scale ``sensitivity / epsilon`` to each coordinate.

    *Formal guarantees.* (epsilon, 0)-DP for the unit and relation for which ``sensitivity`` bounds ``||v - v'||_1``
    (Dwork, McSherry, Nissim, Smith 2006). Assumption: real-valued noise, see `GaussianMechanism`.
    """

    sensitivity: float  # l1 sensitivity, > 0, in units of the value
    epsilon: float  # > 0

    def __post_init__(self) -> None:
        check_positive(sensitivity=self.sensitivity, epsilon=self.epsilon)

    @property
    def scale(self) -> float:
        """The scale of the noise, in units of the value."""
        return self.sensitivity / self.epsilon

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of each coordinate's noise, in units of the value."""
        return math.sqrt(2) * self.scale

    @property
    def cost(self) -> Cost:
        """The cost of one release."""
        return Cost(pure_epsilon=self.epsilon)

    def release(self, value: NDArray[np.floating], noise: NoiseSource) -> NDArray[np.float64]:
        """See `GaussianMechanism.release`."""
        noise.charge(self.cost)
        return noise.laplace(value, self.scale)
