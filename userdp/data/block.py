"""A block: the samples of some users, columnar and ragged.

Samples lie in one array, user after user; ``offsets`` says where each user begins. No Python list of users exists.
Features of which few are not zero lie in one sparse array instead.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import Sparse, bytes_of, gathered_rows, part_of, require_canonical
from userdp.errors import BadInput

Features: TypeAlias = NDArray[np.generic] | Sparse


@dataclass(frozen=True, eq=False)
class Block:
    """Samples of U users.

    Attributes:
        features: (N, k) array, C-contiguous; float32 values, or int32 codes, -1 for what is no code. Or a
            `scipy.sparse.csr_array` of float32 values whose columns rise within each row, for sparse problems.
        offsets: (U + 1,) int64, user u owns rows ``offsets[u]:offsets[u + 1]``; every user owns at least one.
        targets: (N,) float32, or None for problems without a target.
        usable: (N,) which samples count, None where all do. A problem marks samples that it cannot use when it bounds
            a block, one by one: what one sample holds decides about that sample alone. Nobody reads the others' values.
    """

    features: Features
    offsets: NDArray[np.int64]
    targets: NDArray[np.float32] | None = None
    usable: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.features, np.ndarray):
            _require_sparse(self.features)
        if self.features.ndim != 2:
            raise BadInput(f"features must be (samples, columns), got shape {self.features.shape}")
        if (
            len(self.offsets) == 0
            or self.offsets[0] != 0
            or self.offsets[-1] != self.features.shape[0]
            or np.any(np.diff(self.offsets) <= 0)
        ):
            raise BadInput("offsets must rise strictly from 0 to the number of samples: no user may be empty")
        if self.targets is not None and self.targets.shape != (self.samples,):
            raise BadInput(f"targets must be ({self.samples},), got {self.targets.shape}")
        if self.usable is not None and self.usable.shape != (self.samples,):
            raise BadInput(f"usable must be ({self.samples},), got {self.usable.shape}")

    @property
    def users(self) -> int:
        """U, the number of users."""
        return len(self.offsets) - 1

    @property
    def samples(self) -> int:
        """N, the number of samples of all users."""
        return int(self.features.shape[0])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(U,) samples of each user."""
        return self.offsets[1:] - self.offsets[:-1]  # np.diff takes three times as long for a few users

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return bytes_of(self.features) + self.offsets.nbytes + (0 if self.targets is None else self.targets.nbytes)

    @property
    def dense_features(self) -> NDArray[np.generic]:
        """(N, k) features as an array.

        Raises:
            BadInput: they are sparse.
        """
        if isinstance(self.features, csr_array):
            raise BadInput(
                "samples are sparse rows, which this problem cannot use: choose sparse_logistic or sparse_squared, or "
                "make the features dense with toarray()"
            )
        return self.features

    @property
    def sparse_features(self) -> Sparse:
        """(N, k) features as sparse rows.

        Raises:
            BadInput: they are dense.
        """
        if not isinstance(self.features, csr_array):
            raise BadInput(
                "samples are dense rows, and this problem needs a scipy.sparse.csr_array: make one of them, or choose "
                "the problem's dense counterpart"
            )
        return self.features

    def gathered(self, samples: NDArray[np.int64] | NDArray[np.bool_], offsets: NDArray[np.int64]) -> "Block":
        """These samples (positions, or a mask) as a block of the users that ``offsets`` make of them."""
        targets = None if self.targets is None else self.targets[samples]
        usable = None if self.usable is None else self.usable[samples]
        if isinstance(self.features, csr_array):
            return Block(gathered_rows(self.features, samples), offsets, targets, usable)
        return Block(self.features[samples], offsets, targets, usable)

    def usable_samples(self) -> tuple[NDArray[np.int64], "Block | None"]:
        """Positions of the users who hold a usable sample, and their usable samples; None where nobody does."""
        if self.usable is None:
            return np.arange(self.users), self
        users, kept = self.thinned(self.usable)
        return users, None if kept is None else replace(kept, usable=None)

    def whole_users(self) -> NDArray[np.bool_]:
        """(U,) of which users all samples are usable."""
        if self.usable is None:
            return np.ones(self.users, dtype=bool)
        return np.asarray(np.logical_and.reduceat(self.usable, self.offsets[:-1]))

    def usable_users(self) -> tuple[NDArray[np.int64], "Block | None"]:
        """Positions of the users all of whose samples are usable, and their samples; None where there is nobody."""
        if self.usable is None:
            return np.arange(self.users), self
        users, kept = self.thinned(np.repeat(self.whole_users(), self.sizes))
        return users, None if kept is None else replace(kept, usable=None)

    def thinned(self, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], "Block | None"]:
        """The samples ``kept`` (N,), and the positions of the users who keep any; None where nobody does."""
        sizes = np.add.reduceat(kept, self.offsets[:-1], dtype=np.int64)
        users = np.flatnonzero(sizes)
        if not len(users):
            return users, None
        offsets = np.concatenate([[0], np.cumsum(sizes[users])])
        return users, self.gathered(kept, offsets)

    def part(self, first: int, last: int) -> "Block":
        """Users ``first:last`` as views, nothing copied."""
        return self.piece(
            int(self.offsets[first]), int(self.offsets[last]), self.offsets[first : last + 1] - self.offsets[first]
        )

    def piece(self, start: int, stop: int, offsets: NDArray[np.int64]) -> "Block":
        """Samples ``start:stop`` as views, of the users that ``offsets`` make of them.

        Nothing is checked again, for a run of this block's samples is as sound as the block, and checks of small
        pieces take half as long as the arithmetic on them.
        """
        features, made = self.features, object.__new__(Block)
        made.__dict__.update(
            features=part_of(features, start, stop) if isinstance(features, csr_array) else features[start:stop],
            offsets=offsets,
            targets=None if self.targets is None else self.targets[start:stop],
            usable=None if self.usable is None else self.usable[start:stop],
        )
        return made


def _require_sparse(features: object) -> None:
    """Refuse features that are neither an array nor sparse rows in the one format that there is.

    Raises:
        BadInput: another format or type of values, or columns that do not rise within a row.
    """
    if not isinstance(features, csr_array):
        raise BadInput(f"features must be an array or a scipy.sparse.csr_array, got {type(features).__name__}")
    if features.dtype != np.float32:
        raise BadInput(f"sparse features must be float32, got {features.dtype}; use astype(numpy.float32)")
    require_canonical(features.data, features.indices, features.indptr, features.shape[1], "features")
