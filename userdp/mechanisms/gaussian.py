"""The Gaussian mechanism."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.costs import Cost, calibrate_noise
from userdp.errors import BadInput
from userdp.noise import NoiseSource


@dataclass(frozen=True)
class GaussianMechanism:
    """Adds independent normal noise to each coordinate.

    *Formal guarantees.* Neighbouring relation and unit: those for which ``l2_sensitivity`` bounds ``||v - v'||_2``.
    By rotation the two outputs are as far apart as N(0, 1) and N(mu, 1) with ``mu = 1 / noise_multiplier`` at
    worst, whatever the dimension; `userdp.accounting.costs` turns that into the exact epsilon and delta (Balle,
    Wang 2018). Assumption: real-valued noise, which `userdp.noise.SecureNoise` is proven as good as;
    `SeededNoise` is a simulation of it.

    Attributes:
        l2_sensitivity: > 0, in units of the value.
        noise_multiplier: > 0, standard deviation over sensitivity.
    """

    l2_sensitivity: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        for name, value in (("l2 sensitivity", self.l2_sensitivity), ("noise multiplier", self.noise_multiplier)):
            if not 0 < value < np.inf:
                raise BadInput(f"{name} = {value}: must be a positive number")

    @classmethod
    def calibrated(cls, l2_sensitivity: float, epsilon: float, delta: float) -> Self:
        """The least noise that makes one release (epsilon, delta)-DP, rounded up.

        Raises:
            BadInput: a sensitivity or budget out of range.
        """
        return cls(l2_sensitivity, calibrate_noise(epsilon, delta, 1))

    @property
    def standard_deviation(self) -> float:
        """Of each coordinate's noise, in units of the value."""
        return self.l2_sensitivity * self.noise_multiplier

    @property
    def cost(self) -> Cost:
        """What one release costs."""
        return Cost(noise_multiplier=self.noise_multiplier)

    def release(self, value: NDArray[np.floating], noise: NoiseSource) -> NDArray[np.float64]:
        """The value with noise, float64, of the same shape.

        Raises:
            BadInput: the value holds a NaN or an infinity.
        """
        noise.charge(self.cost)
        return noise.gaussian(value, self.standard_deviation)
