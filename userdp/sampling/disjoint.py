"""Batches that share no user within an epoch: parallel composition, no amplification."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import (
    AnyLedger,
    Cost,
    Ledger,
    Privacy,
    Relation,
    calibrate_noise,
    epsilon_of,
    largest_rho,
    zcdp_to_epsilon,
)
from userdp.accounting.guarantee import ONE_GAUSSIAN, ZERO_CONCENTRATED
from userdp.randomness import stream
from userdp.sampling.base import NamedSampler, Sampler, SizedSampler, Wanted, check_shares


@dataclass(frozen=True)
class DisjointBatches(SizedSampler, NamedSampler):
    """Disjoint batches of equal size, a new random partition each epoch.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. The partition is drawn without looking at data:
    within an epoch every user is in at most one batch, so replacing one user changes the input of one batch only
    (parallel composition); over the run a user takes part at most ``epochs`` times, and those Gaussians compose
    exactly. No amplification by sampling is claimed, so the partition may be public.
    """

    users: int
    batch: int  # users per batch, all users for full participation
    epochs: int = 1  # most participations of each user
    seed: int = 0  # seed of the partition; public

    relation: ClassVar[Relation] = "replace_one"
    accountant: ClassVar[str] = f"{ONE_GAUSSIAN}, composed over participations"
    assumption: ClassVar[str] = "n and who takes part are public"

    def __post_init__(self) -> None:
        self._check_sizes(epochs=self.epochs)

    @classmethod
    def of(cls, wanted: Wanted) -> Self:
        """See `NamedSampler`; whole epochs, so there may be more rounds than wanted."""
        batch = wanted.batch
        return cls(wanted.users, batch, -(-wanted.rounds // (wanted.users // batch)), wanted.seed)

    @property
    def rounds_per_epoch(self) -> int:
        """The batches in one pass over the users; each pass leaves out up to ``batch - 1`` users."""
        return self.users // self.batch

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """The batches in all epochs."""
        return self.rounds_per_epoch * self.epochs

    @property
    def planned_participations(self) -> int:
        return self.epochs

    def cohort(self, index: int) -> NDArray[np.int64]:
        """Return the (batch,) rising user indices of batch ``index``, counted from 0 over all epochs."""
        epoch, position = divmod(self.checked_round(index), self.rounds_per_epoch)
        if self.batch == self.users:
            return np.arange(self.users)
        order = stream(self.seed, "sampling", self._partition(epoch)).permutation(self.users)
        return np.sort(order[position * self.batch : (position + 1) * self.batch])

    def _partition(self, epoch: int) -> int:
        return epoch

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of the most participations that a user can have had after ``rounds`` rounds."""
        return epsilon_of(self.cost(noise_multiplier), self._begun(rounds), delta)

    def _begun(self, rounds: int | None) -> int:
        return -(-self.counted_rounds(rounds) // self.rounds_per_epoch)

    def calibrate(self, epsilon: float, delta: float) -> float:
        return calibrate_noise(epsilon, delta, self.epochs)

    def ledger(self, noise_multiplier: float, privacy: Privacy) -> AnyLedger:
        """Return a ledger that counts participations, user by user."""
        return Ledger(self.users, self.cost(noise_multiplier), self.epochs, privacy)

    def cost(self, noise_multiplier: float) -> Cost:
        """Return the cost of one participation."""
        return Cost(noise_multiplier=noise_multiplier)


class CyclicBatches(DisjointBatches):
    """Disjoint batches, the SAME random partition every epoch: no user returns before ``separation`` rounds are over.

    *Formal guarantees.* Those of `DisjointBatches`, whose proof needs no fresh partition. The fixed order adds:
    each user's participations are exactly ``separation`` rounds apart; noise correlated over rounds relies on that.
    """

    @property
    def separation(self) -> int:
        """The rounds between two participations of a user."""
        return self.rounds_per_epoch

    def _partition(self, epoch: int) -> int:
        return 0


@dataclass(frozen=True)
class ConcentratedBatches(DisjointBatches):
    """Disjoint batches with rho-zCDP rounds, ``rho = 1 / (2 noise_multiplier^2)``: the rho of such a Gaussian.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. rho adds up over the rounds that a user takes
    part in, adaptively (Bun, Steinke 2016, Lemma 2.3), at most ``epochs`` of them; disjoint users compose in
    parallel. The sum becomes (epsilon, delta) by Canonne, Kamath, Steinke 2020.
    """

    ledger = Sampler.ledger  # counts rounds
    accountant: ClassVar[str] = f"{ZERO_CONCENTRATED}, composed over participations"

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of a user who took part in every epoch begun."""
        return zcdp_to_epsilon(self._begun(rounds) / (2 * noise_multiplier**2), delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        return math.sqrt(self.epochs / (2 * largest_rho(epsilon, delta)))


@dataclass(frozen=True)
class WeightedBatches(DisjointBatches):
    """Disjoint batches; epoch k releases Gaussian noise of multiplier ``z / sqrt(shares[k])``.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. A user in an epoch meets one
    Gaussian release whose unit normal moves by ``sqrt(shares[k]) / z`` at worst. Gaussian releases compose,
    adaptively too, as one whose squared move is the sum of the squared moves (Dong, Roth, Su 2022, Corollary 3.3),
    here at most ``sum of shares / z^2 = 1 / z^2``: the whole run costs what ONE Gaussian of multiplier z costs,
    exactly. Clip and centre of a round may depend on earlier releases; its noise multiplier is fixed here,
    before any data is seen. After t rounds every user counts as a participant of every epoch begun.
    """

    shares: tuple[float, ...] = (1.0,)  # (epochs,) shares of the budget, positive, summing to 1 (or less)

    ledger = Sampler.ledger  # counts rounds
    accountant: ClassVar[str] = f"{ONE_GAUSSIAN}, composed over rounds of unequal noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.shares, self.epochs)

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """See `Sampler.multiplier`, for rounds that together cost ``noise_multiplier``."""
        return noise_multiplier / math.sqrt(self.shares[self.checked_round(index) // self.rounds_per_epoch])

    def expected(self, index: int) -> float:
        """Return the users of round ``index``."""
        return self.expected_batch

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of a user who took part in every epoch begun."""
        begun = self._begun(rounds)
        if begun == 0:
            return 0.0
        spent = sum(self.shares[:begun]) / sum(self.shares)
        return epsilon_of(Cost(noise_multiplier=noise_multiplier / math.sqrt(spent)), 1, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """See `Sampler.calibrate`; rounding of the shares' sum is on the safe side."""
        return calibrate_noise(epsilon, delta, 1) * math.sqrt(max(1.0, sum(self.shares)))


@dataclass(frozen=True)
class WeightedSlots(WeightedBatches):
    """`WeightedBatches` over n public places, each with one user or empty.

    *Formal guarantees.* Those of `WeightedBatches`, for adding or removing one user: an empty place adds zero to the
    sum and changes neither the divisor nor another user's batch, so a sum of rows clipped to norm C moves by C, half of
    the move by replacing a user. The empty places must not be published.
    """

    relation: ClassVar[Relation] = "add_or_remove"
    assumption: ClassVar[str] = "the number of places is public, which of them are empty is not published"

    def replaced(self, noise_multiplier: float, delta: float) -> tuple[float, float]:
        """See `Sampler.replaced`; exactly, as a replaced user moves a sum at most twice as far as an added one."""
        return self.epsilon(noise_multiplier / 2, delta), delta
