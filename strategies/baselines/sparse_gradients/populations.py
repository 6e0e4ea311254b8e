"""Users with sparse samples: one vector each, which makes private means hard, or regressions on a few of many columns.

Source of the vectors: the lower bounds of Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Lemmas 4.3, A.1 and A.3).
There a fixed number of records hold each vector; here users are drawn, so that they depend on the seed and their index
alone.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array

from userdp.arrays import Vector
from userdp.data import (
    Shape,
    Source,
    VectorPopulation,
    column_edges,
    linear_targets,
    logistic_targets,
)
from userdp.errors import BadInput

Noise = NDArray[np.float32]
SparseSamples = tuple[csr_array[Any, tuple[int, int]], Noise]
_MOST_CANDIDATES = 200_000
"""The most supports that `greedy_packing` compares."""


class RepeatedVectors(VectorPopulation):
    """All samples of a user are one vector of s entries ``norm / sqrt(s)`` in size, plus the user's shift."""

    truth_is = "mean"
    sparsity: int = Field(1, ge=1)
    """s, entries of a vector that are not zero."""
    norm: float = Field(1.0, gt=0)
    """l2 norm of the vectors."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shifts and coin of a user, and the number that selects its vector."""
        return (Source("user", "normal", self.dimension + 1), Source("user", "uniform", 1))

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> tuple[Noise, None]:
        """Return (N, d) rows, equal within a user."""
        rows = self._vectors(truth, noise[1][:, 0]).astype(np.float32)
        rows += self.own_truth(np.zeros(self.dimension), noise[0]).astype(np.float32)
        return np.repeat(rows, sizes, axis=0), None

    @abstractmethod
    def _vectors(self, truth: Vector, uniform: Noise) -> NDArray[np.float64]:
        """Return each user's vector, (U, d), from one uniform number per user."""


class SparseBlocks(RepeatedVectors):
    """A user holds one of ``blocks`` vectors without a common coordinate, each with the same chance.

    A single vector for all is an EASY instance for a projection; showing the rate in n takes many blocks. Block k has
    the s coordinates from ``k s`` on, with signs drawn from the seed.
    """

    name = "sparse_blocks"
    summary = "one of several sparse vectors without a common coordinate a user: hard for private sparse means"
    blocks: int = Field(1, ge=1)
    """K, number of vectors."""

    def model_post_init(self, _: Any) -> None:
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


class SparsePacking(RepeatedVectors):
    """A share of the users hold the same vector, one of a packing drawn from the seed; the others hold zero.

    The P vectors of the packing are at least ``norm / sqrt(2)`` apart. If at most ``ln(P / 2) / epsilon`` users hold
    the vector, an estimate that identifies it reveals more than epsilon allows.
    """

    name = "sparse_packing"
    summary = "one sparse vector of a packing for a share of the users, zero for the rest: hard for pure privacy"
    share: float = Field(1.0, gt=0, le=1)
    """Fraction of users who hold the vector, in (0, 1]."""

    def model_post_init(self, _: Any) -> None:
        _check_packing(self.dimension, self.sparsity)

    def truth(self, rng: np.random.Generator) -> Vector:
        """Return the share times the vector, (d,)."""
        packing = greedy_packing(self.dimension, self.sparsity)
        return np.asarray(self.share * self.norm * packing[rng.integers(len(packing))])

    def _vectors(self, truth: Vector, uniform: Noise) -> NDArray[np.float64]:
        holds = uniform.astype(np.float64) < self.share
        return np.asarray(holds[:, None] * (truth / self.share))


class SparseRegression(VectorPopulation):
    """A few columns per sample, target from <a, theta>; samples are sparse rows of l2 norm ``feature_norm``.

    A sample draws ``nonzeros`` columns, column j with frequency proportional to ``(j + 1)^-skew``, each with a normal
    value; values of a column drawn twice add up. Then it is scaled to its norm. A user shifts all its predictors by one
    number of deviation ``heterogeneity``, an outlier by ``outlier_shift`` more.
    """

    name = "sparse_regression"
    summary = "a few of many columns per sample as sparse rows, zero-one or normal targets, a true parameter"
    truth_is = "parameter"
    nonzeros: int = Field(20, ge=1)
    """Entries of a sample that are not zero; fewer if a column is drawn twice."""
    feature_norm: float = Field(1.0, gt=0)
    """l2 norm of every sample."""
    skew: float = Field(0.0, ge=0)
    """0 for columns of equal frequency, 1 for Zipf's law."""
    link: Literal["logistic", "linear"] = "logistic"
    """Logistic for zero-one targets, linear for predictors with normal noise."""
    parameter_nonzeros: int | None = None
    """Coordinates of the true parameter that are not zero, the most frequent columns; None for all."""
    parameter_deviation: float = Field(1.0, gt=0)
    """Standard deviation of those coordinates, which are normal."""
    noise_deviation: float = Field(0.1, ge=0)
    """Standard deviation of a linear target around its prediction."""

    def model_post_init(self, _: Any) -> None:
        for name in ("nonzeros", "parameter_nonzeros"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= self.dimension:
                raise BadInput(f"{name} must lie between 1 and dimension = {self.dimension}, got {value}")

    @property
    def sample_shape(self) -> Shape:
        bounds = (0.0, 1.0) if self.link == "logistic" else None
        return Shape(self.columns, True, target_range=bounds, sparsity=self.nonzeros, feature_length=self.feature_norm)

    @property
    def sample_bytes(self) -> int:
        """8 bytes for each entry (value and column), 4 for the row's end and 4 for the target."""
        return 8 * self.nonzeros + 8

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shift and coin of a user; columns (two uniforms each) and values of a sample; its target's noise."""
        return (
            Source("user", "normal", 2),
            Source("sample", "uniform", 2 * self.nonzeros),
            Source("sample", "normal", self.nonzeros),
            Source("sample", "normal", 1),
        )

    def truth(self, rng: np.random.Generator) -> Vector:
        """Return a parameter (d,) that is normal on the most frequent columns and zero on the others."""
        parameter = np.zeros(self.dimension)
        count = self.parameter_nonzeros or self.dimension
        parameter[:count] = self.parameter_deviation * rng.normal(size=count)
        return parameter

    @cached_property
    def _edges(self) -> Vector:
        return column_edges(self.dimension, self.skew)

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> SparseSamples:
        """Return (N, d) sparse rows and their targets."""
        samples = len(noise[1])
        # A float32 uniform has 24 bits, too few for a million columns: two of them make one of 48.
        coarse, fine = np.split(noise[1].astype(np.float64), 2, axis=1)
        columns = np.searchsorted(self._edges, (coarse + fine * 2.0**-24).ravel(), side="right").astype(np.int32)
        ends = np.arange(0, samples * self.nonzeros + 1, self.nonzeros, dtype=np.int32)
        rows = csr_array((noise[2].ravel(), columns, ends), shape=(samples, self.dimension))
        rows.sum_duplicates()
        starts, sizes_of_rows = rows.indptr[:-1], np.diff(rows.indptr)  # every row stores an entry
        squares = np.add.reduceat(np.square(rows.data, dtype=np.float64), starts)
        # Slightly inside the ball, so that no other rounding of the norm puts a sample outside.
        lengths = np.maximum(np.sqrt(squares), np.finfo(np.float32).tiny)  # a normal can be zero
        scaled = rows.data * np.repeat(self.feature_norm * (1 - 1e-5) / lengths, sizes_of_rows)
        features = csr_array((scaled.astype(np.float32), rows.indices, rows.indptr), shape=rows.shape)
        features.has_canonical_format = True
        shifts = np.repeat(self.own_truth(np.zeros(1), noise[0])[:, 0], sizes)
        predictors = np.add.reduceat(features.data * truth[features.indices], starts) + shifts
        if self.link == "logistic":
            return features, logistic_targets(predictors, noise[3][:, 0])
        return features, linear_targets(predictors, noise[3][:, 0], self.noise_deviation)


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
