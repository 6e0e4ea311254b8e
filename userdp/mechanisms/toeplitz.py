"""Factorisations ``A = B C`` of prefix sums in which C is Toeplitz: every round is treated like the one before.

C is given by its first column ``c_0 = 1, c_1, ...``, the coefficients of a power series c(x). Then ``C^{-1}`` has those
of ``1 / c(x)``, and B the running sums of those.

*Formal guarantees.* Here no c_k is negative, by construction: the worst changes of a user all point the same way, and
taking part more often never moves less. A user who takes part in rounds ``r, r + b, r + 2b, ...`` moves C G by the
column ``v = c + (c moved down by b) + (c moved down by 2b) + ...``, moved down by r and cut after T entries; so the
first order, r = 0, is the worst, and its norm is the exact sensitivity for users who return after EXACTLY b rounds (or
stay away), as in cyclic batches. If c also never rises, it is the worst of ALL patterns P whose rounds are at least b
apart: ``<C_i, C_j> = sum_s c_s c_{s + j - i}`` over ``s < T - j`` falls with j and with j - i, and the m-th round of P
is at least ``m b``, further from earlier ones than multiples of b are.

Optimised coefficients vary with the last digits of a machine's arithmetic. So encoders remember their terms of C: a run
resumed elsewhere releases rows of ONE matrix.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from userdp.arrays.types import Array, Vector
from userdp.mechanisms.prefix_sums import Factorisation, RowMap, Tree
from userdp.mechanisms.toeplitz_search import (
    Buffers,
    best_bands,
    best_buffers,
    best_diagonals,
    best_inverse,
    column_sum,
    padded,
    reciprocal,
    square_root,
)


@dataclass(frozen=True)
class Toeplitz(Factorisation):
    """A factorisation whose C is Toeplitz, without negative entries. *Formal guarantees.* See the module."""

    @abstractmethod
    def _column(self, *, inverse: bool) -> Vector: ...

    @abstractmethod
    def _map(self, *, inverse: bool) -> RowMap: ...

    @property
    def column(self) -> Vector:
        """The (T,) first column c of C."""
        return self._column(inverse=False)

    @property
    def inverse_column(self) -> Vector:
        """The (T,) first column of ``C^{-1}``."""
        return self._column(inverse=True)

    def encoder(self) -> RowMap:
        return self._map(inverse=False)

    def decoder(self) -> RowMap:
        """Return ``C^{-1}``, row by row."""
        return self._map(inverse=True)

    def sensitivity(self, rounds: int) -> float:
        """See `Factorisation.sensitivity`: the norm of v, cut after so many rounds."""
        return float(np.linalg.norm(column_sum(self.column[:rounds], self.separation)))

    def deviations(self) -> Vector:
        """See `Factorisation.deviations`: B's coefficients are running sums of those of ``C^{-1}``."""
        return np.asarray(np.sqrt(np.cumsum(np.cumsum(self.inverse_column) ** 2)))

    def noise(self) -> RowMap:
        """See `Factorisation.noise`: the running sum of ``C^{-1} Z``."""
        return _Summed(self.decoder())


@dataclass(frozen=True)
class Banded(Toeplitz):
    """C has few diagonals, no more than participations are apart.

    *Formal guarantees.* See the module. Columns at least ``separation >= bands`` apart share no row, so the squared
    norms of a user's columns add up; they fall from one column to the next, so the sensitivity is that of all patterns,
    also where c rises. Memory: bands vectors.
    """

    inverse: ClassVar[bool] = False  # True if ``C^{-1}`` has few diagonals, not C

    @property
    @abstractmethod
    def coefficients(self) -> Vector:
        """The (bands,) coefficients: of C 1, then numbers between 0 and 1; of ``C^{-1}`` 1, then negative weights."""

    @property
    def recursion(self) -> int:
        """See `Factorisation.recursion`: rows are sums, or have a product and a sum for each band."""
        return 2 * len(self.coefficients) if self.inverse else 0

    def _column(self, *, inverse: bool) -> Vector:
        return (padded if inverse == self.inverse else reciprocal)(self.coefficients, self.rounds)

    def _map(self, *, inverse: bool) -> RowMap:
        return (_Moving if inverse == self.inverse else _Recursive)(self.coefficients)


@dataclass(frozen=True)
class SquareRoot(Banded):
    """C the square root of A, cut to ``bands = min(T, separation)`` diagonals (one participation: not cut at all).

    ``c_0 = 1, c_k = c_{k-1} (2k - 1) / (2k)``, the coefficients of ``(1 - x)^{-1/2}``, and ``c_k = 0`` for k >= bands
    (Fichtenberger, Henzinger, Upadhyay 2023; bands Choquette-Choo et al. 2023; Kalinin, Lampert 2024).

    *Formal guarantees.* See `Banded`. For one participation it keeps a whole run's vectors.
    """

    @property
    def coefficients(self) -> Vector:
        return square_root(min(self.rounds, self.separation))


@dataclass(frozen=True)
class OptimisedBanded(Banded):
    """At most 64 diagonals, optimised for the last prefix sum (Choquette-Choo et al. 2023, arXiv 2306.08153).

    *Formal guarantees.* See `Banded`, for any result of the optimisation.
    """

    @property
    def coefficients(self) -> Vector:
        return np.array(best_diagonals(self.rounds, self.separation))


@dataclass(frozen=True)
class BandedInverseSquareRoot(Banded):
    """The inverse of the square root of A, cut to the number of diagonals that has the least error.

    With ``r_0 = 1, r_k = r_{k-1} (2k - 3) / (2k)``, the coefficients of ``(1 - x)^{1/2}``, and ``r_k = 0`` for
    k >= bands (Kalinin, McKenna, Upadhyay, Lampert 2025, arXiv 2505.12128). Bands are a power of two, or T.

    *Formal guarantees.* See the module: ``1 / c(x) = 1 - w(x)`` with weights ``w_k = -r_k >= 0`` of sum at most 1, so
    ``c_t = sum_{k>0} w_k c_{t-k}`` is neither negative nor above 1. c falls, so the sensitivity is that of all
    patterns: for t < bands it is the column of the square root, later ``c_t - c_{t-1}`` is a sum of earlier differences
    with weights w_k. Memory: bands vectors.
    """

    inverse: ClassVar[bool] = True

    @property
    def coefficients(self) -> Vector:
        return np.array(best_bands(self.rounds, self.separation))


@dataclass(frozen=True)
class BandedInverse(Banded):
    """At most 64 diagonals of ``C^{-1}``, optimised for the last prefix sum (as in arXiv 2505.12128).

    *Formal guarantees.* See `BandedInverseSquareRoot`, for any weights ``w_k >= 0`` of sum at most 1 that the
    optimisation returns. But c may rise, so the sensitivity is that of fixed orders.
    """

    inverse: ClassVar[bool] = True

    @property
    def coefficients(self) -> Vector:
        return np.array(best_inverse(self.rounds, self.separation))


@dataclass(frozen=True)
class Buffered(Toeplitz):
    """``c_t = sum_j a_j l_j^(t-1)`` for t > 0 and four terms: a buffered linear Toeplitz matrix.

    Optimised for the last prefix sum (McMahan, Xu, Zhang 2024, arXiv 2408.08868; Dvijotham et al. 2024).

    *Formal guarantees.* See the module, for any result of the optimisation: a_j is positive, their sum at most 1, and
    l_j lies between 0 and 1, so c never rises. ``C^{-1}`` is of the same form with other terms. Memory: four vectors,
    however long the run.
    """

    @property
    def buffers(self) -> Buffers:
        """The scales a and the decays l."""
        return best_buffers(self.rounds, self.separation)

    @property
    def recursion(self) -> int:
        """See `Factorisation.recursion`: a product and a sum for each buffer and for its decay."""
        return 2 * len(self.buffers.decays) + 2

    def _column(self, *, inverse: bool) -> Vector:
        return (self.buffers.inverse_column if inverse else self.buffers.column)(self.rounds)

    def _map(self, *, inverse: bool) -> RowMap:
        return (_Unbuffered if inverse else _Buffered)(self.buffers)


class _Summed(RowMap):
    remembered: ClassVar[tuple[str, ...]] = ("_total",)
    parts: ClassVar[tuple[str, ...]] = ("_decoder",)

    def __init__(self, decoder: RowMap) -> None:
        self._decoder = decoder
        self._total: Vector | float = 0.0

    def add(self, fresh: Vector) -> Vector:
        self._total = self._total + self._decoder.add(fresh)
        return self._total


class _Moving(RowMap):
    """The Toeplitz matrix of few coefficients."""

    remembered: ClassVar[tuple[str, ...]] = ("_past", "_coefficients")

    def __init__(self, coefficients: Vector) -> None:
        self._coefficients = coefficients
        self._past: list[Vector] = []

    def add(self, total: Vector) -> Vector:
        self._past = [total, *self._past][: len(self._coefficients)]
        row = np.zeros_like(total)
        for coefficient, past in zip(self._coefficients, self._past, strict=False):
            row += coefficient * past
        return row


class _Recursive(_Moving):
    """The inverse of the Toeplitz matrix of few coefficients, the first of them 1."""

    def __init__(self, coefficients: Vector) -> None:
        super().__init__(coefficients[1:])

    def add(self, total: Vector) -> Vector:
        row = total.copy()
        for coefficient, past in zip(self._coefficients, self._past, strict=False):
            row -= coefficient * past
        self._past = [row, *self._past][: len(self._coefficients)]
        return row


class _Buffered(RowMap):
    remembered: ClassVar[tuple[str, ...]] = ("_kept", "_scales", "_decays")

    def __init__(self, buffers: Buffers) -> None:
        self._scales, self._decays = buffers.scales, buffers.decays
        self._kept: Array | None = None

    def _sums(self, like: Vector) -> Array:
        """Return the (buffers, p) sums s_j; zeros before the first round."""
        return np.zeros((len(self._decays), len(like))) if self._kept is None else self._kept

    def add(self, total: Vector) -> Vector:
        kept = self._sums(total)
        row = total + self._scales @ kept
        self._kept = self._decays[:, None] * kept + total
        return np.asarray(row)


class _Unbuffered(_Buffered):
    """The inverse of `_Buffered`: ``w_t = z_t - sum_j a_j s_j``, then ``s_j <- l_j s_j + w_t``."""

    def add(self, total: Vector) -> Vector:
        kept = self._sums(total)
        row = np.asarray(total - self._scales @ kept)
        self._kept = self._decays[:, None] * kept + row
        return row


FactorisationName = Literal["square_root", "tree", "banded", "banded_inverse_square_root", "banded_inverse", "buffered"]
FACTORISATIONS: dict[FactorisationName, type[Factorisation]] = {
    "square_root": SquareRoot,
    "tree": Tree,
    "banded": OptimisedBanded,
    "banded_inverse_square_root": BandedInverseSquareRoot,
    "banded_inverse": BandedInverse,
    "buffered": Buffered,
}

_BY_MEMORY: tuple[FactorisationName, ...] = (
    "buffered",
    "tree",
    "banded",
    "banded_inverse",
    "banded_inverse_square_root",
    "square_root",
)  # From the fewest vectors kept to the most, in a long run.

_EQUAL = 1.001  # Errors with a ratio up to this one count as equal.


def last_error(name: FactorisationName, rounds: int, separation: int) -> float:
    """Return the deviation of the last prefix sum's noise, over noise multiplier times what one participation moves."""
    factorisation = FACTORISATIONS[name](rounds, separation)
    return factorisation.sensitivity(rounds) * float(factorisation.deviations()[-1])


def best_factorisation(rounds: int, separation: int) -> FactorisationName:
    """Return the name of least `last_error`, of equals that of least memory; `BadInput` below one round."""
    errors = {name: last_error(name, rounds, separation) for name in _BY_MEMORY}
    return next(name for name in _BY_MEMORY if errors[name] <= _EQUAL * min(errors.values()))
