"""A random partition of a federation's samples into groups of exactly one size, from public numbers alone.

The number of a user's samples may be private, or unknown to the server. So the partition is of SLOTS: every user
has ``slots`` of them, the public bound on its samples; its i-th sample lies in slot i, and slots without a sample hold
the zero vector. All groups have exactly ``users * slots // groups`` slots, which privacy by shuffling needs; the number
of slots with samples differs a little from group to group, which costs accuracy and no privacy.
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

    @classmethod
    def draw(cls, users: int, slots: int, count: int, rng: np.random.Generator) -> "Partition":
        """Draw a uniformly random partition into groups of one size, a random few slots left over; see `group_size`."""
        size = group_size(users, slots, count)
        groups = np.full(users * slots, OUTSIDE, dtype=np.int32)
        groups[: size * count] = np.repeat(np.arange(count, dtype=np.int32), size)
        rng.shuffle(groups)
        return cls(groups.reshape(users, slots), count)

    @classmethod
    def spread(cls, users: int, slots: int, count: int, rng: np.random.Generator) -> "Partition":
        """Draw groups with a user's slots far apart: two share a group only if they must; `BadInput` as `group_size`.

        A user's slots go round the k groups from a random first one, in steps of a random length prime to k, so each
        slot is equally likely in each group, and a group has ``slots // k`` slots of a user, or one more. Groups have
        one size on average only: privacy by shuffling does not hold, that of `spread_length` does.
        """
        group_size(users, slots, count)
        strides = np.flatnonzero(np.gcd(np.arange(1, count + 1), count) == 1) + 1
        first = rng.integers(count, size=(users, 1))
        stride = rng.choice(strides, size=(users, 1))
        groups = (first + stride * np.arange(slots)) % count
        return cls(groups.astype(np.int32), count)

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


def spread_length(slots: int, count: int) -> float:
    """Return the l2 norm of the numbers of one user's slots in each group of `Partition.spread`.

    If each slot moves its group's sum by at most s, one user moves the k sums, as one vector, by at most s times this:
    sqrt(slots) if there are groups enough, and never less than ``slots / sqrt(k)``.
    """
    full, left = divmod(slots, count)
    return math.sqrt(left * (full + 1) ** 2 + (count - left) * full**2)


def group_size(users: int, slots: int, count: int) -> int:
    """Return ``users * slots // count``, the slots of a group; `BadInput` for no group, or fewer slots than groups."""
    if not 1 <= count <= users * slots:
        raise BadInput(f"strategy.groups = {count}: must lie between 1 and the {users * slots} slots for samples")
    return users * slots // count
