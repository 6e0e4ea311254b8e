"""Random partitions of users' slots for samples into groups, from public numbers alone. See `Partition`."""

import math

import numpy as np

from userdp.errors import BadInput
from userdp.nodes import OUTSIDE, Partition


def shuffled(users: int, slots: int, count: int, rng: np.random.Generator) -> Partition:
    """Draw a uniformly random partition into groups of one size, a random few slots left over; see `group_size`.

    All groups have exactly ``users * slots // count`` slots, which privacy by shuffling needs; the number of slots with
    samples differs a little from group to group, which costs accuracy and no privacy.
    """
    size = group_size(users, slots, count)
    groups = np.full(users * slots, OUTSIDE, dtype=np.int32)
    groups[: size * count] = np.repeat(np.arange(count, dtype=np.int32), size)
    rng.shuffle(groups)
    return Partition(groups.reshape(users, slots), count)


def spread(users: int, slots: int, count: int, rng: np.random.Generator) -> Partition:
    """Draw groups with a user's slots far apart: two share a group only if they must; `BadInput` as `group_size`.

    A user's slots go round the k groups from a random first one, in steps of a random length prime to k, so each slot
    is equally likely in each group, and a group has ``slots // k`` slots of a user, or one more. Groups have one size
    on average only: privacy by shuffling does not hold, that of `spread_length` does.
    """
    group_size(users, slots, count)
    strides = np.flatnonzero(np.gcd(np.arange(1, count + 1), count) == 1) + 1
    first = rng.integers(count, size=(users, 1))
    stride = rng.choice(strides, size=(users, 1))
    groups = (first + stride * np.arange(slots)) % count
    return Partition(groups.astype(np.int32), count)


def spread_length(slots: int, count: int) -> float:
    """Return the l2 norm of the numbers of one user's slots in each group of `spread`.

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
