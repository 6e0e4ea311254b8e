"""A partition of a federation's samples into groups, from public numbers alone.

The number of a user's samples may be private, or unknown to the server. So the partition is of SLOTS: every user
has ``slots`` of them, the public bound on its samples; its i-th sample lies in slot i, and slots without a sample hold
the zero vector.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block
from userdp.errors import BadInput

OUTSIDE = -1
"""The group number of slots without a group."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The group of each slot of each user: ``groups`` (U, s) int32, from 0 to ``count - 1``, or `OUTSIDE`.

    The k = ``count`` groups are those of the whole population; users of one node may be in few of them.
    """

    groups: NDArray[np.int32]
    count: int

    def __post_init__(self) -> None:
        valid = self.groups.ndim == 2 and self.groups.min(initial=0) >= OUTSIDE
        if not valid or self.groups.max(initial=OUTSIDE) >= self.count:
            raise BadInput(f"groups of slots must be a matrix of numbers from {OUTSIDE} to {self.count - 1}")

    @property
    def slots(self) -> int:
        """The slots of a user."""
        return int(self.groups.shape[1])

    @property
    def longest(self) -> float:
        """The l2 norm of the numbers of one user's slots in each group, for the user for whom it is largest."""
        user, slot = np.nonzero(self.groups != OUTSIDE)
        places, slots = np.unique(user * self.count + self.groups[user, slot], return_counts=True)
        squares = np.bincount(places // self.count, weights=slots**2)
        return math.sqrt(squares.max(initial=0.0))

    def part(self, users: slice | NDArray[np.int64]) -> "Partition":
        """Return the partition of some users, by their positions."""
        return Partition(self.groups[users], self.count)

    def regroup(self, block: Block) -> tuple[NDArray[np.int64], Block | None]:
        """Return the groups that have samples, rising, and a block with each in place of a user; None if none has.

        Samples beyond a user's slots are in no group: nobody weighs more than declared. `BadInput` for other users.
        """
        if block.users != len(self.groups):
            raise BadInput(f"a partition of {len(self.groups)} users was sent for {block.users}")
        user = np.repeat(np.arange(block.users), block.sizes)
        slot = np.arange(block.samples) - block.offsets[user]
        group = np.where(slot < self.slots, self.groups[user, np.minimum(slot, self.slots - 1)], OUTSIDE)
        order = np.argsort(group, kind="stable")
        order = order[np.searchsorted(group[order], 0) :]
        if len(order) == 0:
            return np.empty(0, dtype=np.int64), None
        present, sizes = np.unique(group[order], return_counts=True)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return present.astype(np.int64), block.gathered(order, offsets)
