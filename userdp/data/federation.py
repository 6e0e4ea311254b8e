"""Federations: users with fixed numbers, so that cohorts, noise and the order of sums are the same on every engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block
from userdp.errors import BadInput

BLOCK_BYTES = 1 << 24
"""Bytes of samples processed at once; bounds memory for every population."""


@dataclass(frozen=True, eq=False)
class RegressionModel:
    """The law of a synthetic regression: features a of mean zero, independent of the target's noise e.

    Attributes:
        link: "linear" for ``y = <a, theta> + e``, "logistic" for ``y = 1 if <a, theta> + e > 0 else 0``.
        parameter: (d,) theta.
        variance: v with ``E a a^T = v I``; None if it is infinite.
        symmetric: whether -e has the law of e; e has mean zero in any case.
        homogeneous: whether every user's own parameter is theta.
        scale: for "logistic", the c for which c theta minimises the expected logistic loss; None if it is unknown.
    """

    link: Literal["linear", "logistic"]
    parameter: NDArray[np.float64]
    variance: float | None
    symmetric: bool
    homogeneous: bool
    scale: float | None = None


class Federation(ABC):
    """Users 0..n-1, each with at least one sample.

    Attributes:
        sizes: (n,) int64, samples of each user.
        columns: k, the feature columns of a sample.
        sample_bytes: bytes of one sample, features and target.
        population_mean: (d,) mean of a synthetic population; None if it is unknown.
        regression: how a synthetic regression makes samples; None if the best model does not follow from it.
        stored: whether samples lie in a file because memory is short; callers should not keep them in memory.
    """

    sizes: NDArray[np.int64]
    columns: int
    sample_bytes: int
    population_mean: NDArray[np.float64] | None = None
    regression: RegressionModel | None = None
    stored: bool = False

    @property
    def users(self) -> int:
        """The number n of users."""
        return len(self.sizes)

    @property
    def samples(self) -> int:
        """The number of samples of all users."""
        return int(self.sizes.sum())

    @property
    def nbytes(self) -> int:
        """The bytes of all samples in memory."""
        return self.samples * self.sample_bytes

    @abstractmethod
    def block(self, users: NDArray[np.int64]) -> Block:
        """Return the samples of ``users`` (indices, in this order) as one block."""

    def select(self, users: NDArray[np.int64]) -> "Federation":
        """Return ``users``, renumbered 0, 1, ... in this order, as a federation; `BadInput` for unknown indices."""
        return _Selection(self, checked_users(users, self.users))

    def blocks(
        self, users: NDArray[np.int64], max_bytes: int = BLOCK_BYTES, max_users: int | None = None
    ) -> Iterator[tuple[slice, Block]]:
        """Yield (positions in ``users``, block) for blocks of at most ``max_bytes`` and ``max_users``, or one user."""
        for where in self.slices(users, max_bytes, max_users):
            yield where, self.block(users[where])

    def slices(
        self, users: NDArray[np.int64], max_bytes: int = BLOCK_BYTES, max_users: int | None = None
    ) -> Iterator[slice]:
        """Yield the positions in ``users`` of each block of `blocks`, computed from the users' numbers of samples."""
        ends = np.cumsum(self.sizes[users]) * self.sample_bytes
        first = 0
        while first < len(users):
            start = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, start + max_bytes, side="right")))
            if max_users is not None:
                last = min(last, first + max_users)
            yield slice(first, last)
            first = last


class _Selection(Federation):
    """Some users of another federation; their samples are made or read on demand."""

    def __init__(self, whole: Federation, users: NDArray[np.int64]) -> None:
        self._whole, self._chosen = whole, users
        self.sizes = whole.sizes[users]
        self.columns, self.sample_bytes = whole.columns, whole.sample_bytes
        self.population_mean, self.regression, self.stored = whole.population_mean, whole.regression, whole.stored

    def block(self, users: NDArray[np.int64]) -> Block:
        return self._whole.block(self._chosen[checked_users(users, self.users)])


class JoinedFederation(Federation):
    """The users of one federation, and after them those of another, whose samples have the same form.

    The first may have more ``places`` than users, of which the last are empty; those of the second follow all of them.
    """

    def __init__(self, first: Federation, second: Federation, places: int | None = None) -> None:
        self._first, self._second = first, second
        self._places = first.users if places is None else places
        empty = np.ones(self._places - first.users, dtype=np.int64)  # nobody asks for them
        self.sizes = np.concatenate([first.sizes, empty, second.sizes])
        self.columns, self.sample_bytes = first.columns, max(first.sample_bytes, second.sample_bytes)
        self.stored = first.stored or second.stored

    def block(self, users: NDArray[np.int64]) -> Block:
        """See `Federation.block`; raises `BadInput` for users of both who do not rise."""
        users, before = checked_users(users, self.users), self._places
        own, others = users[users < before], users[users >= before] - before
        if not len(others):
            return self._first.block(own)
        if not len(own):
            return self._second.block(others)
        if np.any(np.diff(users) < 0):
            raise BadInput("users of both parts of a joined federation must be asked for in rising order")
        return self._first.block(own).followed_by(self._second.block(others))


class ColumnarFederation(Federation):
    """A federation held in memory as one block."""

    def __init__(self, block: Block, population_mean: NDArray[np.float64] | None = None) -> None:
        self._block = block
        self.sizes = block.sizes
        self.columns = block.features.shape[1]
        self.sample_bytes = max(1, (block.nbytes - block.offsets.nbytes) // block.samples)
        self.population_mean = population_mean

    def block(self, users: NDArray[np.int64]) -> Block:
        """See `Federation.block`; views if ``users`` are consecutive, one gather otherwise."""
        users = checked_users(users, self.users)
        if np.all(users[1:] - users[:-1] == 1):
            return self._block.part(int(users[0]), int(users[-1]) + 1)
        sizes = self.sizes[users]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.arange(offsets[-1]) + np.repeat(self._block.offsets[users] - offsets[:-1], sizes)
        return self._block.gathered(rows, offsets)

    def select(self, users: NDArray[np.int64]) -> "ColumnarFederation":
        """See `Federation.select`; the samples are gathered once."""
        return ColumnarFederation(self.block(users), self.population_mean)


def checked_users(users: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return user indices as a flat int64 array; raise `BadInput` if there is none, or one outside 0..count-1."""
    users = np.asarray(users, dtype=np.int64)
    if users.ndim != 1 or len(users) == 0 or users.min() < 0 or users.max() >= count:
        raise BadInput(f"users must be a flat array of indices in 0..{count - 1}, at least one")
    return users
