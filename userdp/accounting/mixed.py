"""Gaussian releases and exponential mechanisms together, at one epsilon and delta."""

import math
from dataclasses import dataclass

from userdp.accounting.composition import zcdp_to_epsilon
from userdp.accounting.costs import Cost, epsilon_of
from userdp.errors import BadInput

MIXED_ACCOUNTANT = "composition of choices and Gaussians, pure or zero-concentrated, whichever costs less"
"""The method of `MixedReleases.epsilon`, for `Guarantee.accountant`."""
_STEPS = 100  # Bisections of the scale; the safe end is returned.


@dataclass(frozen=True)
class MixedReleases:
    """Adaptive releases that share a budget by weights: exponential mechanisms, and Gaussians that may fail.

    *Formal guarantees.* Unit and relation: those of the mechanisms. *Claim.* All releases together, each chosen by
    earlier ones, are (`epsilon` (delta), delta)-DP. *Why.* Both bounds hold, hence the smaller one. (a) A choice at
    epsilon_i has a range of log-likelihood ratios of length epsilon_i, so it is epsilon_i^2 / 8-zCDP (Cesar, Rogers
    2021), and a Gaussian of multiplier z_j is 1 / (2 z_j^2)-zCDP. These add up under adaptive composition (Bun, Steinke
    2016). Unless one of the events fails that `failure_delta` bounds together, so the delta of the conversion (Canonne,
    Kamath, Steinke 2020) is what they leave of delta. (b) Choices are pure, their epsilons add up, and the Gaussians
    are one Gaussian: `userdp.accounting.costs`. A few choices are cheaper by (b), many by (a).

    Attributes:
        choices: weights > 0 of the exponential mechanisms.
        gaussians: weights > 0 of the Gaussians.
        failure_delta: the probability that a Gaussian's release fails to protect, all of them together.
        scale: > 0; a release of weight w costs ``scale w`` in zCDP.
    """

    choices: tuple[float, ...]
    gaussians: tuple[float, ...]
    failure_delta: float = 0.0
    scale: float = 1.0

    def choice_epsilon(self, weight: float) -> float:
        """Return the epsilon of a choice of that weight."""
        return math.sqrt(8 * self.scale * weight)

    def noise_multiplier(self, weight: float) -> float:
        """Return the noise multiplier of a Gaussian of that weight."""
        return 1 / math.sqrt(2 * self.scale * weight)

    @property
    def cost(self) -> Cost:
        """The cost of all releases as the ledger adds them up."""
        total = sum(self.gaussians)
        multiplier = self.noise_multiplier(total) if total else math.inf
        return Cost(multiplier, sum(map(self.choice_epsilon, self.choices)), self.failure_delta)

    def epsilon(self, delta: float) -> float:
        """Compute epsilon of all releases; infinite if failures use up a delta that Gaussians need."""
        pure, left = epsilon_of(self.cost, 1, delta), delta - self.failure_delta
        if left <= 0:
            return pure
        return min(pure, zcdp_to_epsilon(self.scale * (sum(self.choices) + sum(self.gaussians)), left))

    @classmethod
    def calibrated(
        cls,
        choices: tuple[float, ...],
        gaussians: tuple[float, ...],
        failure_delta: float,
        epsilon: float,
        delta: float,
    ) -> "MixedReleases":
        """Return the releases of least noise for (epsilon, delta); `BadInput` without any, or if failures exceed it."""
        if not choices and not gaussians:
            raise BadInput("there is nothing to release: name a column to find facts about")
        if gaussians and not failure_delta < delta:
            raise BadInput(f"delta = {delta:g}: Gaussian noise needs more than the failures, {failure_delta:g}")
        low, high = math.log(1e-16 * min(1.0, epsilon) ** 2), math.log(1e8)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            spent = cls(choices, gaussians, failure_delta, math.exp(middle)).epsilon(delta)
            low, high = (middle, high) if spent <= epsilon else (low, middle)
        return cls(choices, gaussians, failure_delta, math.exp(low))
