"""Disjoint batches accounted in zero-concentrated differential privacy, for rounds other than a single Gaussian."""

import math
from dataclasses import dataclass
from typing import ClassVar

from userdp.accounting import largest_rho, zcdp_to_epsilon
from userdp.sampling.base import Sampler
from userdp.sampling.disjoint import DisjointBatches


@dataclass(frozen=True)
class ConcentratedBatches(DisjointBatches):
    """Disjoint batches with rho-zCDP rounds, ``rho = 1 / (2 noise_multiplier^2)``: the rho of such a Gaussian.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. rho adds up over the rounds that a user takes
    part in, adaptively (Bun, Steinke 2016, Lemma 2.3), at most ``epochs`` of them; disjoint users compose in
    parallel. The sum becomes (epsilon, delta) by Canonne, Kamath, Steinke 2020.
    """

    ledger = Sampler.ledger  # counts rounds
    accountant: ClassVar[str] = "zero-concentrated privacy, composed over participations"

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of a user who took part in every epoch begun."""
        return zcdp_to_epsilon(self._begun(rounds) / (2 * noise_multiplier**2), delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """See `Sampler.calibrate`."""
        return math.sqrt(self.epochs / (2 * largest_rho(epsilon, delta)))
