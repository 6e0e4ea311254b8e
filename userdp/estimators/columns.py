"""Order statistics and means of columns: the same bits for every order of the rows.

*Means.* Clipped values are counted in places so small that all of them add up to less than 2^62: whole numbers, which
add up exactly in any order.
"""

import numpy as np

from userdp.arrays.types import Rows, Vector

_ENTRIES = 1 << 15  # Entries (256 KiB) in work at a time, which stay in a processor's cache.
# Columns of values below ``2^_SMALLEST_EXPONENT`` are added up as multiples of ``1 / _LIFT``.
_SMALLEST_EXPONENT, _LIFT = -900, 2.0**300


def order_statistics(rows: Rows, first: int, last: int) -> tuple[Vector, Vector]:
    """Return (d,) and (d,): of each column of (n, d) finite rows, the values of ranks ``first`` and ``last``.

    Ranks count from zero, ``0 <= first <= last < n``.
    """
    step, found = max(1, _ENTRIES // len(rows)), np.empty((2, rows.shape[1]))
    for place in range(0, rows.shape[1], step):
        ordered = np.array(rows[:, place : place + step].T, order="C")
        ordered.sort(axis=1)
        found[:, place : place + step] = ordered[:, [first, last]].T
    return found[0], found[1]


def clipped_mean(rows: Rows, low: Vector, high: Vector, dropped: int = 0) -> Vector:
    """Return the (d,) mean of (n, d) finite rows clipped to [low, high], without ``dropped`` values at each end.

    With the order statistics of ranks k and n - k - 1 as ends and ``dropped = k`` this is the trimmed mean: values
    beyond the ends are clipped to them, and dropped with them. With ``M = max(|low|, |high|)`` and u = 2^-53, the mean
    errs by at most ``(2 + n / 128) u M``, or by 2^-1074 where it is subnormal.
    *Proof.* With ``M < 2^E <= 2M`` and ``n <= 2^b < 2n``, a place is ``2^(E + b - 62) <= n u M / 128``; n values within
    M add up to less than 2^62 places. Each value kept loses less than a place, dropped values lose what is subtracted
    for them, and the conversion of the sum and the division round by u each.
    """
    largest = np.maximum(np.abs(low), np.abs(high))
    exponents = np.frexp(largest)[1]
    if exponents.min() < _SMALLEST_EXPONENT:  # whose places would be too small for a float
        lift = np.where(exponents < _SMALLEST_EXPONENT, _LIFT, 1.0)
        with np.errstate(over="ignore"):
            return clipped_mean(rows * lift, low * lift, high * lift, dropped) / lift
    exponents += (len(rows) - 1).bit_length() - 62
    scale = np.ldexp(1.0, -exponents)
    step, places = max(1, _ENTRIES // rows.shape[1]), np.zeros(rows.shape[1], dtype=np.int64)
    for first in range(0, len(rows), step):
        places += (np.clip(rows[first : first + step], low, high) * scale).astype(np.int64).sum(axis=0)
    places -= dropped * ((low * scale).astype(np.int64) + (high * scale).astype(np.int64))
    return np.asarray(np.ldexp(places / (len(rows) - 2 * dropped), exponents))
