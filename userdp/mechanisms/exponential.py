"""The exponential mechanism over scores that are given one by one."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.costs import Cost
from userdp.errors import BadInput
from userdp.noise import NoiseSource


@dataclass(frozen=True)
class ExponentialMechanism:
    """Chooses k with probability proportional to ``exp(epsilon score_k / (2 sensitivity))``.

    *Formal guarantees.* Let some vector of scores, and the scores of its neighbour plus any constant, differ by at most
    ``sensitivity`` in every entry; the constant may depend on the pair, for the same constant on all scores changes no
    probability. Then the choice is (epsilon, 0)-DP for that unit and relation (McSherry, Talwar 2007). More precisely,
    the log-likelihood ratio lies in an interval of length epsilon that the pair fixes, hence ``epsilon^2 / 8``-zCDP,
    a quarter of what pure privacy alone gives (Cesar, Rogers 2021). Assumption: real-valued Gumbel noise,
    which `userdp.noise.SecureNoise` is proven as good as; `SeededNoise` is a simulation of it.

    Utility: with probability ``1 - e^-t`` the score chosen is within ``(2 sensitivity / epsilon) (ln K + t)`` of the
    best of K.

    Attributes:
        sensitivity: > 0, in units of the scores.
        epsilon: > 0.
    """

    sensitivity: float
    epsilon: float

    def __post_init__(self) -> None:
        for name, value in (("sensitivity", self.sensitivity), ("epsilon", self.epsilon)):
            if not 0 < value < np.inf:
                raise BadInput(f"{name} = {value}: must be a positive number")

    @property
    def cost(self) -> Cost:
        """What one choice costs."""
        return Cost(pure_epsilon=self.epsilon)

    @property
    def rho(self) -> float:
        """What one choice costs in zero-concentrated differential privacy."""
        return self.epsilon**2 / 8

    def shortfall(self, choices: int, failure: float) -> float:
        """How far below the best of ``choices`` scores the chosen one is, but with probability ``failure``."""
        return float(2 * self.sensitivity / self.epsilon * np.log(choices / failure))

    def choose(self, scores: NDArray[np.float64], noise: NoiseSource) -> int:
        """The index chosen of (K,) scores.

        Raises:
            BadInput: the scores hold a NaN or an infinity, or overflow in units of the sensitivity.
        """
        noise.charge(self.cost)
        with np.errstate(over="ignore"):  # what overflows is refused
            return int(noise.choose(scores[None] / self.sensitivity, self.epsilon)[0])
