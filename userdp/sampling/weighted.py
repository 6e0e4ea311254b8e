"""Disjoint batches whose epochs get unequal shares of one budget."""

import math
from dataclasses import dataclass
from typing import ClassVar

from userdp.accounting import AnyLedger, Cost, Privacy, Relation, RoundLedger, calibrate_noise, epsilon_of
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.errors import BadInput
from userdp.sampling.disjoint import DisjointBatches


@dataclass(frozen=True)
class WeightedBatches(DisjointBatches):
    """Disjoint batches; epoch k releases Gaussian noise of multiplier ``z / sqrt(shares[k])``.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. Whoever takes part in an epoch meets one
    Gaussian release whose unit normal moves by ``sqrt(shares[k]) / z`` at worst. Gaussian releases compose,
    adaptively too, as one whose squared move is the sum of the squared moves (Dong, Roth, Su 2022, Corollary 3.3),
    here at most ``sum of shares / z^2 = 1 / z^2``: the whole run costs what ONE Gaussian of multiplier z costs,
    exactly. Clip and centre of a round may depend on what was released before it; its noise multiplier is fixed here,
    before any data is seen. After t rounds everybody counts as if they had taken part in every epoch begun.

    Attributes:
        shares: (epochs,) of the budget, positive, summing to 1 (or less).

    Raises:
        BadInput: shares that are no such numbers.
    """

    shares: tuple[float, ...] = (1.0,)

    accountant: ClassVar[str] = f"{ONE_GAUSSIAN}, composed over rounds of unequal noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shares) != self.epochs or not min(self.shares) > 0 or not sum(self.shares) <= 1 + 1e-9:
            raise BadInput(f"shares = {self.shares}: there must be {self.epochs} positive numbers that sum to 1")

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """Noise over sensitivity in round ``index``, when all rounds together are worth ``noise_multiplier``."""
        return noise_multiplier / math.sqrt(self.shares[self._checked(index) // self.rounds_per_epoch])

    def expected(self, index: int) -> float:
        """Users of round ``index``."""
        return self.expected_batch

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """That of a user who took part in every epoch begun."""
        begun = -(-self._counted(rounds) // self.rounds_per_epoch)
        if begun == 0:
            return 0.0
        spent = sum(self.shares[:begun]) / sum(self.shares)
        return epsilon_of(Cost(noise_multiplier=noise_multiplier / math.sqrt(spent)), 1, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """For all epochs together; rounding of the shares' sum is on the safe side."""
        return calibrate_noise(epsilon, delta, 1) * math.sqrt(max(1.0, sum(self.shares)))

    def ledger(self, noise_multiplier: float, privacy: Privacy) -> AnyLedger:
        """One that counts rounds."""
        return RoundLedger(self, noise_multiplier, privacy)


@dataclass(frozen=True)
class WeightedSlots(WeightedBatches):
    """`WeightedBatches` over n public places, of which a user may or may not fill one.

    *Formal guarantees.* As `WeightedBatches`, for adding or removing one user: an empty place adds zero to the sum and
    changes neither the divisor nor anybody else's batch, so a sum of rows clipped to norm C moves by C, half of what
    replacing a user can do. Which places are empty must not be published.
    """

    relation: ClassVar[Relation] = "add_or_remove"
    assumption: ClassVar[str] = "the number of places is public, which of them are empty is not published"
