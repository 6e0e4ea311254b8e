"""Gradients from small batches with the bias of a large one.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 3). A private mean that is projected is biased, and the less
the larger its batch. A telescoping sum over batches of all sizes, of which one term is drawn, has the expectation of
the largest batch and the cost of a typical small one.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors, expected_error
from userdp.arrays import Rows, Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.noise import NoiseSource


@dataclass(frozen=True)
class TruncatedGeometric:
    """Level k in 0..largest with probability proportional to ``2^-k``; a level stands for a batch of ``2^(k+1)``.

    Definition 5.1 of the paper. Raises `BadInput` for a largest level out of range.

    >>> TruncatedGeometric(2).chances.round(4).tolist()
    [0.5714, 0.2857, 0.1429]
    """

    largest: int  # M, the largest level, from 0 to 60

    def __post_init__(self) -> None:
        if not 0 <= self.largest <= 60:
            raise BadInput(f"largest level = {self.largest}: must lie between 0 and 60")

    @classmethod
    def for_records(cls, records: int) -> Self:
        """The law whose largest batch is the largest power of two up to n >= 2: M = floor(log2 n) - 1."""
        if records < 2:
            raise BadInput(f"records = {records}: a batch of two halves needs at least 2")
        return cls(records.bit_length() - 2)

    @cached_property
    def chances(self) -> NDArray[np.float64]:
        """(M + 1,): the probability of each level, ``2^-k / (2 (1 - 2^-(M+1)))``."""
        weights = np.exp2(-np.arange(self.largest + 1))
        return np.asarray(weights / (2 - 2.0**-self.largest))

    @property
    def batches(self) -> NDArray[np.int64]:
        """(M + 1,): the batch of each level, ``2^(k+1)``."""
        return np.asarray(2 << np.arange(self.largest + 1, dtype=np.int64))

    @property
    def mean_batch(self) -> float:
        """``E 2^(N+1) = (M + 1) / (1 - 2^-(M+1))``, exactly."""
        return (self.largest + 1) / (1 - 2.0 ** -(self.largest + 1))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Independent levels of that shape, by inversion of the distribution function."""
        steps = np.cumsum(self.chances)
        return np.asarray(np.minimum(np.searchsorted(steps, rng.random(size), side="right"), self.largest))


class MeanOracle(Protocol):
    """A private estimate of a batch's mean. Its law may depend on the mean and on the size of the batch alone."""

    def __call__(self, mean: Vector, size: int, noise: NoiseSource) -> Vector:
        """(d,): the estimate, from the exact mean (d,) of ``size`` records."""

    def squared_error(self, size: int) -> float:
        """A bound on ``E ||estimate - mean||_2^2``, whatever the batch of that size."""

    @property
    def largest_norm(self) -> float:
        """A bound on the l2 norm of every estimate."""


@dataclass(frozen=True)
class ProjectedMean:
    """Gaussian noise, then the nearest point that sparse records can have as their mean (Algorithm 1).

    *Formal guarantees.* Unit: a record; relation: replace-one within the batch, whose size is public. Records have l2
    norm at most L, so replacing one moves the mean of b by at most 2L / b, in whose units ``noise_multiplier`` is:
    one call is a Gaussian mechanism of that multiplier. Sparsity is NOT needed for privacy: it sets the ball that is
    projected on, which is post-processing.

    *Accuracy.* The mean lies in the l2 ball of radius L and, if every record has at most s entries that are not zero,
    or is a mean of such, in the l1 ball of radius L sqrt(s). For the noise Z of deviation sigma per coordinate, the
    error is at most ||Z||_2, its square at most 2 L sqrt(s) ||Z||_inf (the projection is the nearest point, and two
    points of the l1 ball differ by at most 2 L sqrt(s)), and it is at most 2L.

    Raises `BadInput` for an attribute out of range.
    """

    dimension: int  # d
    members: SparseVectors  # s and L
    noise_multiplier: float  # > 0

    def __post_init__(self) -> None:
        self.squared_error(1)  # refuses what is out of range

    @property
    def largest_norm(self) -> float:
        """L."""
        return self.members.norm

    def mechanism(self, size: int) -> GaussianMechanism:
        """The mechanism of a mean of ``size`` records."""
        return GaussianMechanism(2 * self.members.norm / size, self.noise_multiplier)

    def __call__(self, mean: Vector, size: int, noise: NoiseSource) -> Vector:
        """See `MeanOracle`. Raises `BadInput`: the mean holds a NaN or an infinity."""
        return self.members.project(self.mechanism(size).release(mean, noise))

    def squared_error(self, size: int) -> float:
        """The least of the three bounds of *Accuracy*; the expected largest entry is that of normal noise."""
        return expected_error(self.mechanism(size), self.members, self.dimension) ** 2


@dataclass(frozen=True)
class Draw:
    """The records that one estimate looks at."""

    level: int  # N; the batch has ``2^(N+1)`` records
    # (2^(N+1),) distinct records in random order; its first half and its second half are the two halves
    batch: NDArray[np.int64]
    single: NDArray[np.int64]  # (1,) one more record, drawn by itself; it may be in the batch too

    @classmethod
    def of(cls, records: int, level: int, rng: np.random.Generator) -> "Draw":
        """A uniform draw without replacement, and the single record independently; `BadInput` for too few records."""
        if level < 0 or 2 << level > records:
            raise BadInput(f"level = {level}: a batch of 2^(level + 1) must not exceed the {records} records")
        return cls(level, rng.choice(records, 2 << level, replace=False), rng.integers(records, size=1))

    @property
    def records(self) -> NDArray[np.int64]:
        """Everybody drawn, rising, once each."""
        return np.union1d(self.batch, self.single)


def bias_reduced_gradient(batch: Rows, single: Rows, chance: float, oracle: MeanOracle, noise: NoiseSource) -> Vector:
    """One estimate of the mean over ALL records, from those drawn.

    *Formal guarantees.* Four calls of the oracle: on the batch, on its two halves, on the single record. A record of
    the batch enters two of the first three, since the halves are disjoint; the single record enters the fourth.

    *Bias.* If the oracle's law depends on the mean and the size alone, the expectation over level, draw and noise is
    that of the oracle on a uniform batch of ``2^(M+1)`` records: given the level k, each half is a uniform batch of
    size 2^k, so the expected difference over ``chance`` telescopes over k = 0..M, and the single record adds the
    expectation at size 1. The level must be drawn by `TruncatedGeometric` and never be replaced by a cheaper one.

    ``batch`` (2^(N+1), d) and ``single`` (1, d) hold the rows of a `Draw`, in its order; ``chance`` is p_N, of the
    level. The four calls draw their noise one after the other. Raises `BadInput` for rows that do not fit together.
    """
    half = len(batch) // 2
    if half < 1 or len(batch) != 2 * half or single.shape != (1, batch.shape[1]):
        raise BadInput(f"rows of shapes {batch.shape} and {single.shape}: a batch of two halves and one row are needed")
    first, second = batch[:half].mean(axis=0), batch[half:].mean(axis=0)
    # The batch's mean as that of its halves, to the last bit: without noise the three cancel.
    whole = oracle((first + second) / 2, 2 * half, noise)
    halves = (oracle(first, half, noise) + oracle(second, half, noise)) / 2
    return (whole - halves) / chance + oracle(single[0], 1, noise)


def second_moment_bound(levels: TruncatedGeometric, oracle: MeanOracle) -> float:
    """nu^2, a bound on ``E ||bias_reduced_gradient||_2^2``, whatever the data.

    With v_k the oracle's squared error at size 2^k, R its largest norm and D the difference at level k, ``E ||D||^2``
    is at most ``2 v_(k+1) + 2 v_k`` (the batch's mean is that of its halves) and at most ``4 R^2``. So
    ``E ||G||^2 <= 2 R^2 + 2 sum_k E ||D||^2 / p_k``.
    """
    errors = np.array([oracle.squared_error(2**k) for k in range(levels.largest + 2)])
    differences = np.minimum(2 * (errors[1:] + errors[:-1]), 4 * oracle.largest_norm**2)
    return float(2 * oracle.largest_norm**2 + 2 * (differences / levels.chances).sum())
