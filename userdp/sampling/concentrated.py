"""Disjoint batches accounted in zero-concentrated differential privacy, for rounds that are no single Gaussian."""

import math
from dataclasses import dataclass
from typing import ClassVar

from userdp.accounting import AnyLedger, Privacy, RoundLedger, largest_rho, zcdp_to_epsilon
from userdp.sampling.disjoint import DisjointBatches


@dataclass(frozen=True)
class ConcentratedBatches(DisjointBatches):
    """Disjoint batches whose every round is rho-zCDP, ``rho = 1 / (2 noise_multiplier^2)``: that of such a Gaussian.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. rho adds up over the rounds that a user takes
    part in, adaptively (Bun, Steinke 2016, Lemma 2.3), at most ``epochs`` of them; disjoint users compose in
    parallel. The sum becomes (epsilon, delta) by Canonne, Kamath, Steinke 2020.
    """

    accountant: ClassVar[str] = "zero-concentrated privacy, composed over participations"

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """That of a user who took part in every epoch begun."""
        begun = -(-self._counted(rounds) // self.rounds_per_epoch)
        return zcdp_to_epsilon(begun / (2 * noise_multiplier**2), delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """For all epochs."""
        return math.sqrt(self.epochs / (2 * largest_rho(epsilon, delta)))

    def ledger(self, noise_multiplier: float, privacy: Privacy) -> AnyLedger:
        """One that counts rounds."""
        return RoundLedger(self, noise_multiplier, privacy)
