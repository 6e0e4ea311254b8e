"""A block: the samples of some users in one array, dense or sparse, user after user; ``offsets`` cut it into users."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import Sparse, bytes_of, gathered_rows, part_of, require_canonical, stacked
from userdp.errors import BadInput

Features: TypeAlias = NDArray[np.generic] | Sparse


@dataclass(frozen=True, eq=False)
class Block:
    """Samples of U users.

    Attributes:
        features: (N, k) array, C-contiguous; float32 values, or int32 codes, -1 for no code. Or, for sparse problems, a
            `scipy.sparse.csr_array` of float32 values whose columns rise within each row.
        offsets: (U + 1,) int64, user u owns rows ``offsets[u]:offsets[u + 1]``; every user owns at least one.
        targets: (N,) float32, or None for problems without a target.
        usable: (N,) mask of the samples that count; None for all. When a problem bounds a block, it marks each sample
            that it cannot use by that sample's values alone. The values of unusable samples are never read.
        terms: (N,) float32 known terms of the samples' scores; None for none.
    """

    features: Features
    offsets: NDArray[np.int64]
    targets: NDArray[np.float32] | None = None
    usable: NDArray[np.bool_] | None = None
    terms: NDArray[np.float32] | None = None

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
        for name, values in (("usable", self.usable), ("terms", self.terms)):
            if values is not None and values.shape != (self.samples,):
                raise BadInput(f"{name} must be ({self.samples},), got {values.shape}")

    @property
    def users(self) -> int:
        """The number U of users."""
        return len(self.offsets) - 1

    @property
    def samples(self) -> int:
        """The number N of samples of all users."""
        return int(self.features.shape[0])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples of each user, (U,)."""
        return self.offsets[1:] - self.offsets[:-1]  # np.diff takes three times as long for a few users

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """The user of each sample, (N,)."""
        return np.repeat(np.arange(self.users), self.sizes)

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        numbers = sum(each.nbytes for each in (self.targets, self.terms) if each is not None)
        return bytes_of(self.features) + self.offsets.nbytes + numbers

    @property
    def dense_features(self) -> NDArray[np.generic]:
        """The (N, k) features as an array; raises `BadInput` if they are sparse."""
        if isinstance(self.features, csr_array):
            raise BadInput(
                "samples are sparse rows, which this problem cannot use: choose sparse_logistic or sparse_squared, or "
                "make the features dense with toarray()"
            )
        return self.features

    @property
    def sparse_features(self) -> Sparse:
        """The (N, k) features as sparse rows; raises `BadInput` if they are dense."""
        if not isinstance(self.features, csr_array):
            raise BadInput(
                "samples are dense rows, and this problem needs a scipy.sparse.csr_array: convert them, or choose the "
                "problem's dense counterpart"
            )
        return self.features

    def gathered(self, samples: NDArray[np.int64] | NDArray[np.bool_], offsets: NDArray[np.int64]) -> "Block":
        """Return these samples (positions, or a mask) as a block; ``offsets`` cut them into users."""
        targets = None if self.targets is None else self.targets[samples]
        usable = None if self.usable is None else self.usable[samples]
        terms = None if self.terms is None else self.terms[samples]
        own = self.features
        chosen = gathered_rows(own, samples) if isinstance(own, csr_array) else own[samples]
        return Block(chosen, offsets, targets, usable, terms)

    def followed_by(self, other: "Block") -> "Block":
        """Return the users of both blocks, whose samples have the same form and no marks yet."""
        features = stacked([self.features, other.features])  # type: ignore[list-item]
        pairs = (self.targets, other.targets), (self.terms, other.terms)
        targets, terms = (None if a is None or b is None else np.concatenate([a, b]) for a, b in pairs)
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Block(features, offsets, targets, terms=terms)

    def usable_part(self) -> tuple[NDArray[np.int64], "Block | None"]:
        """Return the positions of the users with a usable sample, and all users' usable samples; None for nobody."""
        if self.usable is None:
            return np.arange(self.users), self
        users, block = self.thinned(self.usable)
        return users, None if block is None else replace(block, usable=None)

    def thinned(self, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], "Block | None"]:
        """Return the positions of the users with a sample in the mask ``kept`` (N,), and these samples; or None."""
        sizes = np.add.reduceat(kept, self.offsets[:-1], dtype=np.int64)
        users = np.flatnonzero(sizes)
        if not len(users):
            return users, None
        offsets = np.concatenate([[0], np.cumsum(sizes[users])])
        return users, self.gathered(kept, offsets)

    def part(self, first: int, last: int) -> "Block":
        """Return users ``first:last`` as views."""
        return self.piece(
            int(self.offsets[first]), int(self.offsets[last]), self.offsets[first : last + 1] - self.offsets[first]
        )

    def piece(self, start: int, stop: int, offsets: NDArray[np.int64]) -> "Block":
        """Return samples ``start:stop`` as views, for speed not checked again; ``offsets`` cut them into users."""
        features, made = self.features, object.__new__(Block)
        made.__dict__.update(
            features=part_of(features, start, stop) if isinstance(features, csr_array) else features[start:stop],
            offsets=offsets,
            targets=None if self.targets is None else self.targets[start:stop],
            usable=None if self.usable is None else self.usable[start:stop],
            terms=None if self.terms is None else self.terms[start:stop],
        )
        return made


def _require_sparse(features: object) -> None:
    """Refuse sparse features of another format or type, or with columns that do not rise within a row."""
    if not isinstance(features, csr_array):
        raise BadInput(f"features must be an array or a scipy.sparse.csr_array, got {type(features).__name__}")
    if features.dtype != np.float32:
        raise BadInput(f"sparse features must be float32, got {features.dtype}; use astype(numpy.float32)")
    require_canonical(features.data, features.indices, features.indptr, features.shape[1], "features")
