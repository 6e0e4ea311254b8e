"""The Laplace mechanism."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.costs import Cost
from userdp.errors import BadInput
from userdp.noise import NoiseSource


@dataclass(frozen=True)
class LaplaceMechanism:
    """Adds independent Laplace noise of scale ``sensitivity / epsilon`` to each coordinate.

    *Formal guarantees.* (epsilon, 0)-DP for the unit and relation for which ``sensitivity`` bounds ``||v - v'||_1``
    (Dwork, McSherry, Nissim, Smith 2006). Assumption: real-valued noise, which
    `userdp.noise.SecureNoise` is proven as good as; `SeededNoise` is a simulation of it.

    Attributes:
        sensitivity: l1 sensitivity, > 0, in units of the value.
        epsilon: > 0.
    """

    sensitivity: float
    epsilon: float

    def __post_init__(self) -> None:
        for name, value in (("sensitivity", self.sensitivity), ("epsilon", self.epsilon)):
            if not 0 < value < np.inf:
                raise BadInput(f"{name} = {value}: must be a positive number")

    @property
    def scale(self) -> float:
        """Of the noise, in units of the value."""
        return self.sensitivity / self.epsilon

    @property
    def standard_deviation(self) -> float:
        """Of each coordinate's noise, in units of the value."""
        return math.sqrt(2) * self.scale

    @property
    def cost(self) -> Cost:
        """What one release costs."""
        return Cost(pure_epsilon=self.epsilon)

    def release(self, value: NDArray[np.floating], noise: NoiseSource) -> NDArray[np.float64]:
        """The value with noise, float64, of the same shape.

        Raises:
            BadInput: the value holds a NaN or an infinity.
        """
        noise.charge(self.cost)
        return noise.laplace(value, self.scale)
