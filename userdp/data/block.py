"""A block: the samples of some users, columnar and ragged.

Samples lie in one array, user after user; ``offsets`` says where each user begins. No Python list of users exists.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput


@dataclass(frozen=True, eq=False)
class Block:
    """Samples of U users.

    Attributes:
        features: (N, k) array, C-contiguous; float32 values, or int32 codes for one-hot problems.
        offsets: (U + 1,) int64, user u owns rows ``offsets[u]:offsets[u + 1]``; every user owns at least one.
        targets: (N,) float32, or None for problems without a target.
    """

    features: NDArray[np.generic]
    offsets: NDArray[np.int64]
    targets: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if self.features.ndim != 2:
            raise BadInput(f"features must be (samples, columns), got shape {self.features.shape}")
        if (
            len(self.offsets) == 0
            or self.offsets[0] != 0
            or self.offsets[-1] != len(self.features)
            or np.any(np.diff(self.offsets) <= 0)
        ):
            raise BadInput("offsets must rise strictly from 0 to the number of samples: no user may be empty")
        if self.targets is not None and self.targets.shape != (len(self.features),):
            raise BadInput(f"targets must be ({len(self.features)},), got {self.targets.shape}")

    @property
    def users(self) -> int:
        """U, the number of users."""
        return len(self.offsets) - 1

    @property
    def samples(self) -> int:
        """N, the number of samples of all users."""
        return len(self.features)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(U,) samples of each user."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return self.features.nbytes + self.offsets.nbytes + (0 if self.targets is None else self.targets.nbytes)

    def thinned(self, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], "Block | None"]:
        """The samples ``kept`` (N,), and the positions of the users who keep any; None where nobody does."""
        sizes = np.add.reduceat(kept, self.offsets[:-1], dtype=np.int64)
        users = np.flatnonzero(sizes)
        if not len(users):
            return users, None
        offsets = np.concatenate([[0], np.cumsum(sizes[users])])
        return users, Block(self.features[kept], offsets, None if self.targets is None else self.targets[kept])

    def part(self, first: int, last: int) -> "Block":
        """Users ``first:last`` as views, nothing copied."""
        rows = slice(int(self.offsets[first]), int(self.offsets[last]))
        targets = None if self.targets is None else self.targets[rows]
        return Block(self.features[rows], self.offsets[first : last + 1] - self.offsets[first], targets)
