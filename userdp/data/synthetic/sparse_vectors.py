"""Users who each hold one sparse vector: hard data for private means of sparse vectors.

Source: the lower bounds of Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Lemmas 4.3, A.1 and A.3). There a fixed
number of records hold each vector; here users are drawn, so that they depend on the seed and their index alone.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Vector
from userdp.data.checks import AT_LEAST_ONE, POSITIVE
from userdp.data.synthetic.populations import Noise, Samples, Source, VectorPopulation, add_per_user, per_sample
from userdp.errors import BadInput

_MOST_CANDIDATES = 200_000
"""The most supports that `greedy_packing` compares."""


@dataclass(frozen=True, kw_only=True)
class RepeatedVectors(VectorPopulation):
    """All samples of a user are one vector of s entries ``norm / sqrt(s)`` in size, plus the user's shift.

    Attributes:
        sparsity: s, entries of a vector that are not zero.
        norm: l2 norm of the vectors.
    """

    truth_is = "mean"
    sparsity: int = field(default=1, metadata=AT_LEAST_ONE)
    norm: float = field(default=1.0, metadata=POSITIVE)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shifts and coin of a user, and the number that selects its vector."""
        return (Source("user", "normal", self.dimension + 1), Source("user", "uniform", 1))

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """Return (N, d) rows, equal within a user."""
        rows = np.asarray(per_sample(self._vectors(truth, noise[1][:, 0]), sizes), dtype=np.float32)
        add_per_user(rows, self.own_truth(np.zeros(self.dimension), noise[0]), sizes)
        return rows, None

    @abstractmethod
    def _vectors(self, truth: Vector, uniform: Noise) -> NDArray[np.float64]:
        """Return each user's vector, (U, d), from one uniform number a user."""


@dataclass(frozen=True, kw_only=True)
class SparseBlocks(RepeatedVectors):
    """A user holds one of ``blocks`` vectors without a common coordinate, each with the same chance.

    A single vector for all is an EASY instance for a projection; showing the rate in n takes many blocks. Block k has
    the s coordinates from ``k s`` on, with signs drawn from the seed.

    Attributes:
        blocks: K, number of vectors.
    """

    name = "sparse_blocks"
    summary = "one of several sparse vectors without a common coordinate a user: hard for private sparse means"
    blocks: int = field(default=1, metadata=AT_LEAST_ONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks * self.sparsity > self.dimension:
            raise BadInput(
                f"blocks = {self.blocks}: {self.dimension} coordinates hold at most "
                f"{self.dimension // self.sparsity} blocks of sparsity = {self.sparsity}"
            )

    def truth(self, rng: np.random.Generator) -> Vector:
        """Return the mean (d,) of the blocks' vectors."""
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
    """A share of the users hold the same vector, one of a packing drawn from the seed; the others hold zero.

    The P vectors of the packing are at least ``norm / sqrt(2)`` apart. If at most ``ln(P / 2) / epsilon`` users hold
    the vector, an estimate that identifies it reveals more than epsilon allows.

    Attributes:
        share: fraction of users who hold the vector, in (0, 1].
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
        """Return the share times the vector, (d,)."""
        packing = greedy_packing(self.dimension, self.sparsity)
        return np.asarray(self.share * self.norm * packing[rng.integers(len(packing))])

    def _vectors(self, truth: Vector, uniform: Noise) -> NDArray[np.float64]:
        holds = uniform.astype(np.float64) < self.share
        return np.asarray(holds[:, None] * (truth / self.share))


def greedy_packing(dimension: int, sparsity: int) -> NDArray[np.float64]:
    """Return (P, d) unit vectors with s entries ``1 / sqrt(s)``, pairwise at least ``1 / sqrt(2)`` apart in l2.

    The construction takes each support in turn and drops all that differ from it in at most ``s / 2`` entries (Lemma
    A.1), so there are at least ``(d / s - 1 / 2)^(s / 2)`` vectors for ``s <= d / 2``. Raises
    `BadInput` for s outside 1..d, or more than 200,000 supports.
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
