"""Noise for all prefix sums at once: correlated over rounds, so that sums need far less than fresh noise each time.

Let G be the (T, p) sums of rounds 1..T and A the lower-triangular matrix of ones, so that A G are the prefix sums. For
a factorisation ``A = B C`` into lower-triangular matrices release ``B (C G + Z) = A G + B Z``, Z independent normal.

*Formal guarantees.* Unit, relation: those for which a participation changes a row of G by a vector of norm at most h; a
user takes part in rounds P only, at least ``separation`` apart. Round t of ``C G + Z`` is row t of C G with fresh
noise, and the rounds together move by ``||C D||_F <= h sensitivity`` for every change D of the rows P. That bound holds
however later rounds depend on earlier releases, so the whole run is ONE Gaussian mechanism (Denisov, McMahan, Rush,
Smith, Thakurta 2022, Theorem 2.1). With k participations, ``||C D||_F^2 = sum_{i,j in P} <D_i, D_j> <C_i, C_j> <= h^2
sum_{i,j in P} <C_i, C_j>`` as all entries of C are non-negative here. An encoder gives the rows of C G, which a
Gaussian mechanism safe in floating point turns into ``C G + Z``; `noise` turns these rows into prefix sums, by
post-processing. Fed with Z alone it gives the noise of the prefix sums, which is the same in real arithmetic.

*Caution.* The noise must be that of ``B = A C^{-1}``: with C banded and its own rows used as noise, the matrix that
meets the data would be ``C^{-1} A``, whose columns are neither short nor banded.
"""

import math
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms.additive import GaussianMechanism
from userdp.noise import NoiseSource
from userdp.state import Stateful


class RowMap(Stateful, ABC):
    """A map of the rows of a matrix, one a round, to those of its product with a lower-triangular matrix."""

    @abstractmethod
    def add(self, row: Vector) -> Vector:
        """Return (p,) the next row of the product, from the next row."""


@dataclass(frozen=True)
class Factorisation(ABC):
    """A factorisation ``A = B C`` for T rounds. Raises `BadInput` for a number below one."""

    rounds: int  # T
    separation: int  # least rounds between two participations of a user; T or more for one participation

    def __post_init__(self) -> None:
        if min(self.rounds, self.separation) < 1:
            raise BadInput(f"rounds = {self.rounds}, separation = {self.separation}: each must be at least 1")

    @abstractmethod
    def sensitivity(self, rounds: int) -> float:
        """Return how far a user can move the first ``rounds`` rounds of C G, in units of h (Frobenius norm)."""

    @abstractmethod
    def deviations(self) -> Vector:
        """Return the (T,) standard deviation of each prefix sum's noise over that of Z: the norms of B's rows."""

    @property
    @abstractmethod
    def recursion(self) -> int:
        """The roundings that an encoder adds to its input for each round since; 0 where a row is one sum."""

    @abstractmethod
    def noise(self) -> RowMap:
        """Return the map of ``C G + Z``, or of fresh noise Z alone, to prefix sums for a new run: B, row by row."""

    @abstractmethod
    def encoder(self) -> RowMap:
        """Return C, row by row, for a new run."""


class PrefixSums(Stateful):
    """Releases the prefix sums of a run's values, one a round: one Gaussian mechanism with a memory.

    Args:
        factorisation: correlates the noise.
        row: the mechanism of a row of C G, for the sensitivity of all rows together.
        dimension: p, the entries of a value.
        encodes: add noise to the rows of C G, as noise needs that is safe in floating point, rather than correlate
            noise and add it to the sums.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_sum", "deviation")
    parts: ClassVar[tuple[str, ...]] = ("_correlated", "_encoder")
    given: ClassVar[tuple[str, ...]] = ("_cost", "_encodes")

    def __init__(self, factorisation: Factorisation, row: GaussianMechanism, dimension: int, *, encodes: bool) -> None:
        self._encodes, self._cost = encodes, row.cost
        # Remembered with the encoder's terms, to whose sensitivity it is calibrated.
        self.deviation = row.standard_deviation
        self._correlated, self._encoder = factorisation.noise(), factorisation.encoder()
        self._sum = np.zeros(dimension)

    def release(self, value: Vector, noise: NoiseSource) -> Vector:
        """Return the (p,) noisy sum of all values up to this one; a round is charged the cost of all rounds."""
        noise.charge(self._cost)
        if self._encodes:
            self._sum = self._correlated.add(noise.gaussian(self._encoder.add(value), self.deviation))
            return self._sum
        self._sum += value
        return self._sum + self._correlated.add(noise.gaussian(np.zeros(len(value)), self.deviation))

    def skip(self) -> None:
        """Leave out a round that an encoder may have released: its row, which holds earlier values, is not drawn again.

        In its place comes the row after which the noisy sum stays the same: post-processing, as B has a diagonal of 1.
        """
        none = np.zeros_like(self._sum)
        self._encoder.add(none)
        self._correlated.add(self._sum - deepcopy(self._correlated).add(none))


@dataclass(frozen=True)
class Tree(Factorisation):
    """The sums over dyadic intervals: the classic baseline (Dwork, Naor, Pitassi, Rothblum 2010; Kairouz et al. 2021).

    Row t of C (counted from 1) sums rounds ``t - l + 1 .. t``, with l the largest power of two that divides t; row t of
    B adds up the intervals that tile ``1 .. t``, one for each binary digit 1 of t: at most ``ceil(log2(T + 1))``.

    *Formal guarantees.* See the module. A round lies in at most ``ceil(log2(T + 1))`` of these intervals, so that is
    ``sensitivity^2`` for one participation. Several participations meet in the larger intervals; the sensitivity is
    exact for users who return after EXACTLY ``separation`` rounds (or stay away), as in cyclic batches.
    """

    def sensitivity(self, rounds: int) -> float:
        """See `Factorisation.sensitivity`: the largest over the ``separation`` fixed orders."""
        return _tree_sensitivity(rounds, self.separation)

    def deviations(self) -> Vector:
        """See `Factorisation.deviations`: square roots of the number of binary digits 1."""
        return np.sqrt(np.bitwise_count(np.arange(1, self.rounds + 1)).astype(np.float64))

    @property
    def recursion(self) -> int:
        """See `Factorisation.recursion`: rows are sums."""
        return 0

    def noise(self) -> RowMap:
        """See `Factorisation.noise`; it keeps one vector for each binary digit."""
        return _TreeNoise()

    def encoder(self) -> RowMap:
        """See `Factorisation.encoder`; it keeps the sum of one interval for each binary digit."""
        return _TreeEncoder()


@lru_cache(maxsize=4096)
def _tree_sensitivity(rounds: int, separation: int) -> float:
    if rounds == 0:
        return 0.0
    if rounds <= separation:
        return math.sqrt(rounds.bit_length())
    ends = np.arange(1, rounds + 1)
    starts = ends - (ends & -ends)
    # A user of order r takes part in rounds r + 1, r + 1 + separation, ...: how often within starts + 1 .. ends?
    moves = [np.square((ends - 1 - r) // separation - (starts - 1 - r) // separation).sum() for r in range(separation)]
    return math.sqrt(max(moves))


class _Intervals(Stateful):
    remembered: ClassVar[tuple[str, ...]] = ("_round", "_intervals")

    def __init__(self) -> None:
        self._round = 0
        self._intervals: dict[int, Vector] = {}

    def _begin_round(self) -> int:
        """Return the level of the largest interval that ends at the new round."""
        self._round += 1
        return (self._round & -self._round).bit_length() - 1


class _TreeNoise(_Intervals, RowMap):
    def add(self, row: Vector) -> Vector:
        level = self._begin_round()
        self._intervals = {height: noise for height, noise in self._intervals.items() if height > level}
        self._intervals[level] = row
        return np.asarray(sum(self._intervals.values()))


class _TreeEncoder(_Intervals, RowMap):
    def add(self, row: Vector) -> Vector:
        level = self._begin_round()
        # The intervals below this one tile its rounds but the last.
        row = row + sum(self._intervals.pop(height) for height in range(level))
        self._intervals[level] = row
        return row
