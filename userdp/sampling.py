"""Who takes part in a round: the sampler that a ledger accounts is the one that is drawn from.

*Formal guarantees.* `DisjointBatches` draws a partition without looking at data: within an epoch every user is in at
most one batch, so replacing one user changes the input of one batch only (parallel composition); over the run a user
takes part at most `epochs` times (sequential composition). No amplification by sampling is claimed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput, PopulationTooSmall
from userdp.randomness import stream


@dataclass(frozen=True)
class DisjointBatches:
    """Disjoint batches of equal size, a new random partition each epoch.

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

    def __post_init__(self) -> None:
        if min(self.users, self.batch, self.epochs) < 1:
            raise BadInput(
                f"users = {self.users}, batch = {self.batch}, epochs = {self.epochs}: each must be at least 1"
            )
        if self.batch > self.users:
            raise PopulationTooSmall(
                f"a batch takes {self.batch} users and there are {self.users}: lower the batch or bring more users"
            )

    @property
    def rounds_per_epoch(self) -> int:
        """Batches in one pass over the users; up to ``batch - 1`` users are left out of each pass."""
        return self.users // self.batch

    @property
    def rounds(self) -> int:
        """Batches in all epochs."""
        return self.rounds_per_epoch * self.epochs

    def cohort(self, index: int) -> NDArray[np.int64]:
        """(batch,) rising user indices of batch ``index``, counted from 0 over all epochs."""
        if not 0 <= index < self.rounds:
            raise BadInput(f"batch {index} was asked for, there are {self.rounds}")
        epoch, position = divmod(index, self.rounds_per_epoch)
        if self.batch == self.users:
            return np.arange(self.users)
        order = stream(self.seed, "sampling", epoch).permutation(self.users)
        return np.sort(order[position * self.batch : (position + 1) * self.batch])
