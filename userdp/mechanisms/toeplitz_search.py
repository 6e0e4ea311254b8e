"""Coefficients of Toeplitz factorisations, found from public numbers alone: rounds and separation.

The search minimises the deviation of the last prefix sum's noise at a fixed privacy: the norm of B's last row times how
far a user moves C G. Privacy does not rest on it, since sensitivities are computed from the resulting coefficients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from userdp.arrays.types import Array, Vector

_MOST_BANDS = 64  # Of an optimised matrix or inverse: as many vectors are kept.
_BUFFERS = 4
_ITERATIONS = 300  # The most of L-BFGS.


@dataclass(frozen=True, eq=False)
class Buffers:
    """A Toeplitz matrix of first column ``1, sum_j a_j, sum_j a_j l_j, sum_j a_j l_j^2, ...``."""

    scales: Vector  # a, positive, of sum at most 1
    decays: Vector  # l, between 0 and 1

    def column(self, rounds: int) -> Vector:
        """Return (rounds,) the first column."""
        return np.append(1.0, self.scales @ _powers(self.decays, rounds - 1))

    def inverse_column(self, rounds: int) -> Vector:
        """Return (rounds,) the first column of the inverse matrix.

        The inverse keeps ``s <- (diag(l) - 1 a') s + z``; scaling by the roots of a makes it symmetric. With its
        eigenvalues m_j, and the squares b_j of the roots' coordinates, the column is 1 and ``-sum_j b_j m_j^(t-1)``.
        """
        roots = np.sqrt(self.scales)
        values, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(roots, roots))
        return np.append(1.0, -((roots @ vectors) ** 2) @ _powers(values, rounds - 1))


def _powers(bases: Vector, count: int) -> Array:
    return np.asarray(bases[:, None] ** np.arange(count))


def column_sum(column: Vector, separation: int) -> Vector:
    """Return (T,) the column added to itself moved down by ``separation``, by twice that, ..."""
    apart = max(1, min(separation, len(column)))
    padded = np.pad(column, (0, -len(column) % apart))
    return padded.reshape(-1, apart).cumsum(axis=0).ravel()[: len(column)]


def _log_error(column: Vector, inverse_column: Vector, separation: int) -> float:
    """Return the logarithm of the variance of the last sum's noise."""
    moved, row = column_sum(column, separation), np.cumsum(inverse_column)
    return float(np.log(moved @ moved) + np.log(row @ row))


def _of_bands(coefficients: Vector, rounds: int, separation: int, *, inverse: bool) -> tuple[float, Vector]:
    """Return `_log_error` and its (bands - 1,) slopes by coefficients 1, 2, ... of C, or of ``C^{-1}``."""
    series = padded(coefficients, rounds), reciprocal(coefficients, rounds)
    column, inverse_column = series[::-1] if inverse else series
    moved, row = column_sum(column, separation), np.cumsum(inverse_column)
    # The transpose of a running sum is the running sum from the end.
    by_column = column_sum(2 * moved[::-1] / (moved @ moved), separation)[::-1].copy()  # laid out for products
    by_inverse = np.cumsum((2 * row / (row @ row))[::-1])[::-1]
    own, other = (by_inverse, by_column) if inverse else (by_column, by_inverse)
    bands = len(coefficients)
    return _log_error(column, inverse_column, separation), own[1:bands] + _through(other, series[1], bands)


def reciprocal(coefficients: Vector, rounds: int) -> Vector:
    """Return (rounds,) coefficients of one over the power series, whose first is 1."""
    return np.asarray(scipy.signal.lfilter([1.0], coefficients, padded(np.ones(1), rounds)))


def padded(coefficients: Vector, rounds: int) -> Vector:
    """Return (rounds,) the coefficients, then zeros."""
    return np.pad(coefficients, (0, rounds - len(coefficients)))


def _through(slopes: Vector, series: Vector, bands: int) -> Vector:
    """Return (bands - 1,) slopes by coefficients 1, 2, ... of one over ``series``: it changes by its square."""
    squared = scipy.signal.fftconvolve(series, series)[: len(series)]
    return -np.array([slopes[k:] @ squared[:-k] for k in range(1, bands)])


def _square_root_weights(bands: int) -> Vector:
    """Return the (bands - 1,) weights of ``(1 - x)^{1/2} = 1 - w(x)``."""
    k = np.arange(2, bands, dtype=np.float64)
    return np.cumprod(np.append(0.5, (2 * k - 3) / (2 * k)))[: bands - 1]


def square_root(bands: int) -> Vector:
    """Return (bands,) coefficients of ``(1 - x)^{-1/2}``."""
    k = np.arange(1, bands, dtype=np.float64)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


@lru_cache(maxsize=64)
def best_bands(rounds: int, separation: int) -> tuple[float, ...]:
    """Return the inverse of the square root, cut to the bands of least error, a power of two or ``rounds``."""

    def error(bands: int) -> float:
        coefficients = np.append(1.0, -_square_root_weights(bands))
        return _log_error(reciprocal(coefficients, rounds), padded(coefficients, rounds), separation)

    bands = min([2**power for power in range((rounds - 1).bit_length())] + [rounds], key=error)
    return (1.0, *(-_square_root_weights(bands)).tolist())


@lru_cache(maxsize=64)
def best_diagonals(rounds: int, separation: int) -> tuple[float, ...]:
    """Return coefficients of C, between 0 and 1, with at most as many bands as participations are apart, and 64.

    They are logistic functions of the search variables; the search starts from the square root's.
    """
    start = square_root(min(rounds, separation, _MOST_BANDS))[1:]

    def error(logits: Vector) -> tuple[float, Vector]:
        own = scipy.special.expit(logits)
        value, slopes = _of_bands(np.append(1.0, own), rounds, separation, inverse=False)
        return value, slopes * own * (1 - own)

    return (1.0, *scipy.special.expit(_searched(error, scipy.special.logit(start))).tolist())


@lru_cache(maxsize=64)
def best_inverse(rounds: int, separation: int) -> tuple[float, ...]:
    """Return coefficients of ``1 - w(x)``, of at most 64 bands, with weights that are positive and sum to less than 1.

    Weights are shares ``e^(t_k) / (1 + sum_k e^(t_k))``; the search starts from the square root's.
    """
    start = _square_root_weights(min(rounds, _MOST_BANDS))

    def error(logits: Vector) -> tuple[float, Vector]:
        weights = _shares(logits)
        value, slopes = _of_bands(np.append(1.0, -weights), rounds, separation, inverse=True)
        return value, weights * (weights @ slopes - slopes)

    return (1.0, *(-_shares(_searched(error, np.log(start) - np.log1p(-start.sum())))).tolist())


def _searched(error: Callable[[Vector], tuple[float, Vector]], start: Vector) -> Vector:
    """Minimise the error from its values and slopes; return the start if it is empty."""
    if not start.size:
        return start
    found = scipy.optimize.minimize(error, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
    return np.asarray(found.x)


def _shares(logits: Vector) -> Vector:
    """Return (k,) positive numbers whose sum is less than 1."""
    return np.asarray(scipy.special.softmax(np.append(logits, 0.0))[:-1])


@lru_cache(maxsize=64)
def best_buffers(rounds: int, separation: int) -> Buffers:
    """Return four buffers; the search starts from decays that forget within a few rounds, within all, and between."""

    def buffers(found: Vector) -> Buffers:
        return Buffers(_shares(found[_BUFFERS:]), scipy.special.expit(found[:_BUFFERS]))

    def error(found: Vector) -> float:
        matrix = buffers(found)
        return _log_error(matrix.column(rounds), matrix.inverse_column(rounds), separation)

    left = np.geomspace(1 / max(rounds, 4), 0.7, _BUFFERS)
    scales = 0.5 * np.sqrt(left) / np.sqrt(left).sum()
    first = np.concatenate([np.log(1 / left - 1), np.log(scales / 0.5)])
    bounds = [(-8.0, 12.0)] * _BUFFERS + [(-20.0, 20.0)] * _BUFFERS
    found = scipy.optimize.minimize(error, first, bounds=bounds, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
    return buffers(found.x)
