"""Users whose samples are one sparse vector each: data on which no private mean of sparse vectors can be good.

From the proofs of the lower bounds of Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Lemmas 4.3, A.1 and A.3). There a
fixed number of records hold each vector; here users are drawn, so that they depend on the seed and their index alone.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Vector
from userdp.data.checks import require_number
from userdp.data.synthetic.populations import Noise, Population, Samples, Source, add_per_user, per_sample
from userdp.errors import BadInput

_MOST_CANDIDATES = 200_000
"""Supports that `greedy_packing` looks at, at most."""


@dataclass(frozen=True, kw_only=True)
class RepeatedVectors(Population):
    """All samples of a user are one vector of s entries ``norm / sqrt(s)`` in size, and its own shift.

    Attributes:
        dimension: d, coordinates of a sample.
        sparsity: s, entries of a vector that are not zero.
        norm: l2 norm of the vectors.
    """

    truth_is = "mean"
    dimension: int
    sparsity: int = 1
    norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("dimension", self.dimension, 1, strict=False)
        require_number("sparsity", self.sparsity, 1, strict=False)
        require_number("norm", self.norm, 0.0)

    @property
    def columns(self) -> int:
        """The d coordinates."""
        return self.dimension

    @property
    def sample_bytes(self) -> int:
        """4 d."""
        return 4 * self.dimension

    @property
    def sources(self) -> tuple[Source, ...]:
        """Shifts and coin of a user, and the number that says which vector it holds."""
        return (Source("user", "normal", self.dimension + 1), Source("user", "uniform", 1))

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """(N, d) rows, those of a user alike."""
        rows = np.asarray(per_sample(self._vectors(truth, noise[1][:, 0]), sizes), dtype=np.float32)
        add_per_user(rows, self.own_truth(np.zeros(self.dimension), noise[0]), sizes)
        return rows, None

    @abstractmethod
    def _vectors(self, truth: Vector, uniform: Noise) -> NDArray[np.float64]:
        """(U, d): each user's vector, from a uniform number a user."""


@dataclass(frozen=True, kw_only=True)
class SparseBlocks(RepeatedVectors):
    """A user holds one of ``blocks`` vectors, no two of which share a coordinate, each with the same chance.

    One vector that all hold is an EASY instance for a projection; it takes many blocks to show the rate in n. Block k
    has the coordinates from ``k s`` on, with signs of the seed's.

    Attributes:
        blocks: K, how many vectors there are.
    """

    name = "sparse_blocks"
    summary = "one of several sparse vectors without a common coordinate a user: hard for private sparse means"
    blocks: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("blocks", self.blocks, 1, strict=False)
        if self.blocks * self.sparsity > self.dimension:
            raise BadInput(
                f"blocks = {self.blocks}: {self.dimension} coordinates hold at most "
                f"{self.dimension // self.sparsity} blocks of sparsity = {self.sparsity}"
            )

    def truth(self, rng: np.random.Generator) -> Vector:
        """(d,) the mean of the blocks' vectors."""
        mean, filled = np.zeros(self.dimension), self.blocks * self.sparsity
        mean[:filled] = rng.choice([-1.0, 1.0], filled) * self.norm / math.sqrt(self.sparsity) / self.blocks
        return mean

    def _vectors(self, truth: Vector, uniform: Noise) -> NDArray[np.float64]:
        block = np.minimum((uniform.astype(np.float64) * self.blocks).astype(np.int64), self.blocks - 1)
        columns = block[:, None] * self.sparsity + np.arange(self.sparsity)
        vectors = np.zeros((len(uniform), self.dimension))
        np.put_along_axis(vectors, columns, self.blocks * truth[columns], axis=1)
        return vectors


@dataclass(frozen=True, kw_only=True)
class SparsePacking(RepeatedVectors):
    """Users hold the same vector, one of a packing that the seed draws, but for a share who hold zero.

    The vectors of the packing are at least ``norm / sqrt(2)`` apart, and there are so many of them that whoever tells
    which it is has told more than epsilon allows, if few enough users hold it (``ln(P / 2) / epsilon`` of them).

    Attributes:
        share: of the users who hold the vector, in (0, 1].
    """

    name = "sparse_packing"
    summary = "one sparse vector of a packing for a share of the users, zero for the rest: hard for pure privacy"
    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise BadInput(f"share must be a fraction of users in (0, 1], got {self.share}")
        _check_packing(self.dimension, self.sparsity)

    def truth(self, rng: np.random.Generator) -> Vector:
        """(d,) the share of the vector."""
        packing = greedy_packing(self.dimension, self.sparsity)
        return np.asarray(self.share * self.norm * packing[rng.integers(len(packing))])

    def _vectors(self, truth: Vector, uniform: Noise) -> NDArray[np.float64]:
        holds = uniform.astype(np.float64) < self.share
        return np.asarray(holds[:, None] * (truth / self.share))


def greedy_packing(dimension: int, sparsity: int) -> NDArray[np.float64]:
    """Unit vectors with s entries ``1 / sqrt(s)`` whose pairwise l2 distances are at least ``1 / sqrt(2)``.

    Takes each support in turn and drops all that differ from it in at most ``s / 2`` entries (Lemma A.1), so there are
    at least ``(d / s - 1 / 2)^(s / 2)`` vectors for ``s <= d / 2``.

    Args:
        dimension: d.
        sparsity: s, from 1 to d.

    Returns:
        (P, d).

    Raises:
        BadInput: s outside 1..d, or more than 200,000 supports.
    """
    _check_packing(dimension, sparsity)
    supports = np.array(list(combinations(range(dimension), sparsity)))
    candidates = np.zeros((len(supports), dimension))
    np.put_along_axis(candidates, supports, 1.0, axis=1)
    kept = []
    while len(candidates):
        kept.append(candidates[0])
        differing = 2 * (sparsity - candidates @ candidates[0])
        candidates = candidates[differing > sparsity / 2]
    return np.array(kept) / math.sqrt(sparsity)


def _check_packing(dimension: int, sparsity: int) -> None:
    if not 1 <= sparsity <= dimension or math.comb(dimension, sparsity) > _MOST_CANDIDATES:
        raise BadInput(
            f"dimension = {dimension}, sparsity = {sparsity}: there must be from 1 to {_MOST_CANDIDATES} supports"
        )
