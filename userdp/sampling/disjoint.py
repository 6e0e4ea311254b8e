"""Batches that share nobody within an epoch: parallel composition, no amplification."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import AnyLedger, Cost, Ledger, Privacy, Relation, calibrate_noise, epsilon_of
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.errors import BadInput, PopulationTooSmall
from userdp.randomness import stream
from userdp.sampling.base import Sampler

_MARGIN = 1e-12
"""Relative; so that accounting what was calibrated never exceeds the budget by rounding."""


@dataclass(frozen=True)
class DisjointBatches(Sampler):
    """Disjoint batches of equal size, a new random partition each epoch.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. The partition is drawn without looking at data:
    within an epoch every user is in at most one batch, so replacing one user changes the input of one batch only
    (parallel composition); over the run a user takes part at most ``epochs`` times, and those Gaussians compose
    exactly. No amplification by sampling is claimed, so the partition may be public.

    Attributes:
        users: n, public.
        batch: users a batch; ``batch = users`` is full participation.
        epochs: how often each user may take part.
        seed: of the partition; public.

    Raises:
        BadInput: a number below one.
        PopulationTooSmall: fewer users than one batch.
    """

    users: int
    batch: int
    epochs: int = 1
    seed: int = 0

    relation: ClassVar[Relation] = "replace_one"
    accountant: ClassVar[str] = f"{ONE_GAUSSIAN}, composed over participations"
    assumption: ClassVar[str] = "n and who takes part are public"

    def __post_init__(self) -> None:
        if min(self.users, self.batch, self.epochs) < 1:
            raise BadInput(
                f"users = {self.users}, batch = {self.batch}, epochs = {self.epochs}: each must be at least 1"
            )
        check_batch(self.batch, self.users)

    @property
    def rounds_per_epoch(self) -> int:
        """Batches in one pass over the users; up to ``batch - 1`` users are left out of each pass."""
        return self.users // self.batch

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Batches in all epochs."""
        return self.rounds_per_epoch * self.epochs

    @property
    def expected_batch(self) -> float:
        """``batch``."""
        return float(self.batch)

    def cohort(self, index: int) -> NDArray[np.int64]:
        """(batch,) rising user indices of batch ``index``, counted from 0 over all epochs."""
        epoch, position = divmod(self._checked(index), self.rounds_per_epoch)
        if self.batch == self.users:
            return np.arange(self.users)
        order = stream(self.seed, "sampling", self._partition(epoch)).permutation(self.users)
        return np.sort(order[position * self.batch : (position + 1) * self.batch])

    def _partition(self, epoch: int) -> int:
        """Which partition an epoch uses."""
        return epoch

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """That of the most participations any user can have had after ``rounds`` rounds."""
        participations = -(-self._counted(rounds) // self.rounds_per_epoch)
        return epsilon_of(self._cost(noise_multiplier), participations, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """For ``epochs`` participations."""
        return calibrate_noise(epsilon, delta, self.epochs)

    def ledger(self, noise_multiplier: float, privacy: Privacy) -> AnyLedger:
        """One that counts participations, user by user."""
        return Ledger(self.users, self._cost(noise_multiplier), self.epochs, privacy)

    def _cost(self, noise_multiplier: float) -> Cost:
        """Of one participation."""
        return Cost(noise_multiplier=noise_multiplier)


class CyclicBatches(DisjointBatches):
    """Disjoint batches, the SAME random partition every epoch: nobody returns before ``separation`` rounds are over.

    *Formal guarantees.* Those of `DisjointBatches`, whose proof asks for no fresh partition. What the fixed order adds:
    user by user, participations are exactly ``separation`` rounds apart, on which correlated noise over rounds rests.
    """

    @property
    def separation(self) -> int:
        """Rounds between two participations of a user."""
        return self.rounds_per_epoch

    def _partition(self, epoch: int) -> int:
        return 0


class LaplaceBatches(DisjointBatches):
    """Disjoint batches whose sums get Laplace noise, for pure privacy (delta = 0).

    *Formal guarantees.* Noise multipliers are here the scale of the noise over the l1 sensitivity, so one participation
    is (1 / multiplier)-DP; over the run a user's participations add up. Otherwise those of `DisjointBatches`.
    """

    accountant: ClassVar[str] = "Laplace mechanism, epsilon added up over participations"

    def calibrate(self, epsilon: float, delta: float) -> float:
        """For ``epochs`` participations at delta = 0.

        Raises:
            BadInput: an epsilon that is not positive, or another delta.
        """
        if not 0 < epsilon < math.inf or delta != 0:
            raise BadInput(f"epsilon = {epsilon}, delta = {delta}: pure privacy has a positive epsilon and delta = 0")
        return self.epochs / epsilon * (1 + _MARGIN)

    def _cost(self, noise_multiplier: float) -> Cost:
        return Cost(pure_epsilon=1 / noise_multiplier)


def check_batch(batch: int, users: int) -> None:
    """Refuse a batch that the population cannot fill.

    Raises:
        PopulationTooSmall: fewer users than one batch.
    """
    if batch > users:
        raise PopulationTooSmall(
            f"a batch takes {batch} users and there are {users}: lower the batch or bring more users"
        )
