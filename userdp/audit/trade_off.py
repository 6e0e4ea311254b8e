"""Limits that a privacy promise sets for attackers: its trade-off between two errors, and the success of attacks.

An attacker sees the output and decides between two neighbouring data sets. The trade-off function ``f(a)`` is the least
share of missed canaries (false negatives) that any test with a share a of false alarms (false positives) can have. An
(epsilon, delta) promise bounds it from below (Wasserman, Zhou 2010), a mu-Gaussian one by that of N(0, 1) against N(mu,
1) (Dong, Roth, Su 2022).

>>> from userdp.audit.trade_off import Approximate
>>> round(Approximate(1.0, 0.0).membership_accuracy, 4)
0.7311
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from userdp.accounting.costs import Cost, calibrate_noise, epsilon_of
from userdp.errors import BadInput

Floats = NDArray[np.float64]


class TradeOff(ABC):
    """A promise as a trade-off function.

    *Formal guarantees.* Let every test between the output laws of two neighbouring data sets have errors (a, b) with
    ``b >= f(a)``. Then, against that pair:

    - *Membership.* An attacker who decides between the two data sets, each with probability 1/2, is right with
      probability at most ``(1 + max_a (1 - a - f(a))) / 2``, and this is attained where f is. *Proof.* It is right with
      probability ``1 - (a + b) / 2``.
    - *Guesses.* Let an attacker, who is right with probability p about something of a user (an attribute, a record up
      to some error) when the output does not depend on that user's value, attack the true output. It is right with
      probability at most ``1 - f(p)``. *Proof.* "The guess is right" is an event on the output for each value of the
      secret; its probability under one law is a, and under the neighbour's at most ``1 - f(a)``, which is concave, so
      that averaging over values keeps the bound (Hayes, Mahloujifar, Balle 2023; Kaissis et al. 2023; Kulynych et al.
      2024).
    """

    @abstractmethod
    def false_negatives(self, false_positives: ArrayLike) -> Floats:
        """Compute f: the least share of false negatives at these shares of false positives, each in [0, 1]."""

    @property
    @abstractmethod
    def membership_accuracy(self) -> float:
        """The largest probability of telling two equally likely neighbouring data sets apart."""

    def guess_success(self, base_rate: float) -> float:
        """Bound the success of a guess that is right with probability ``base_rate`` without the user's data."""
        if not 0 <= base_rate <= 1:
            raise BadInput(f"base_rate = {base_rate}: a probability lies between 0 and 1, such as 0.5")
        return 1 - float(self.false_negatives(base_rate))


@dataclass(frozen=True)
class Approximate(TradeOff):
    """The trade-off of (epsilon, delta): ``max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))``."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise BadInput(f"epsilon = {self.epsilon}: must not be negative")
        if not 0 <= self.delta <= 1:
            raise BadInput(f"delta = {self.delta}: must lie in [0, 1]")

    def false_negatives(self, false_positives: ArrayLike) -> Floats:
        alarms = np.asarray(false_positives, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            steep = np.where(alarms > 0, 1 - self.delta - np.exp(self.epsilon) * alarms, 1 - self.delta)
        return np.asarray(np.maximum(0.0, np.maximum(steep, np.exp(-self.epsilon) * (1 - self.delta - alarms))))

    @property
    def membership_accuracy(self) -> float:
        """The accuracy ``(1 + (e^epsilon - 1 + 2 delta) / (e^epsilon + 1)) / 2`` (Kairouz, Oh, Viswanath 2015)."""
        return (1 + math.tanh(self.epsilon / 2) + self.delta * (1 - math.tanh(self.epsilon / 2))) / 2


@dataclass(frozen=True)
class Gaussian(TradeOff):
    """The trade-off ``Phi(Phi^-1(1 - a) - mu)`` of one Gaussian; mu >= 0 is its distance in deviations."""

    mu: float

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise BadInput(f"mu = {self.mu}: must not be negative")

    @classmethod
    def of(cls, epsilon: float, delta: float) -> Self:
        """Return the Gaussian that is (epsilon, delta)-DP and no better; `BadInput` if there is none."""
        return cls(1 / calibrate_noise(epsilon, delta, 1))

    def epsilon(self, delta: float) -> float:
        """Compute the least epsilon at a delta in (0, 1), exactly (Balle, Wang 2018)."""
        return 0.0 if self.mu == 0 else epsilon_of(Cost(1 / self.mu), 1, delta)

    def false_negatives(self, false_positives: ArrayLike) -> Floats:
        # Phi^-1(1 - a) = -Phi^-1(a), without cancellation; at a = 0 and 1 the limits are 1 and 0.
        return np.asarray(ndtr(-ndtri(np.asarray(false_positives, dtype=np.float64)) - self.mu))

    @property
    def membership_accuracy(self) -> float:
        """The accuracy ``Phi(mu / 2)``."""
        return float(ndtr(self.mu / 2))
