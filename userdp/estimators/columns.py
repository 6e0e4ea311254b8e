"""Order statistics and means of columns: the same bits for every order of the rows, without sorting.

*Order statistics.* A sorted sample of rows cuts each column into equal bins, numbered by rising bytes. Eight rounds of
counting bytes find the bin of a rank, and its few values are sorted. The sample decides the speed, never the result:
columns with crowded bins (many equal values, a long tail) are sorted whole.

*Means.* Clipped values are counted in places so small that all of them add up to less than 2^62: whole numbers, which
add up exactly in any order.
"""

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.compiling import can_compile
from userdp.arrays.types import Rows, Vector

_FEW_ENTRIES = 1 << 16  # Entries up to which numpy is faster than compiling loops.
_SAMPLE = 64  # Rows of the sample, about.
_BINS, _NOBODYS = 254, 255  # Bins that a byte can number, and a number that no value has.
# Values in the bins of two ranks, or share of all, beyond which their column is sorted.
_CROWD, _CROWD_SHARE = 32, 1 / 50
# Columns of values below ``2^_SMALLEST_EXPONENT`` are added up as multiples of ``1 / _LIFT``.
_SMALLEST_EXPONENT, _LIFT = -900, 2.0**300


def order_statistics(rows: Rows, first: int, last: int) -> tuple[Vector, Vector]:
    """Return (d,) and (d,): of each column of (n, d) finite rows, the values of ranks ``first`` and ``last``.

    Ranks count from zero. The values are those of a sorted column, to the last bit, for ``0 <= first <= last < n``.
    """
    if rows.size <= _FEW_ENTRIES or len(rows) < 4 * _SAMPLE or not can_compile():
        return _sorted(rows, first, last)
    low, high, crowded = _binned(rows, first, last)
    if crowded.any():
        low[crowded], high[crowded] = _sorted(rows[:, crowded], first, last)
    return low, high


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
    places = _places(rows, low, high, scale)
    places -= dropped * ((low * scale).astype(np.int64) + (high * scale).astype(np.int64))
    return np.asarray(np.ldexp(places / (len(rows) - 2 * dropped), exponents))


def _places(rows: Rows, low: Vector, high: Vector, scale: Vector) -> NDArray[np.int64]:
    if rows.size <= _FEW_ENTRIES or not can_compile():
        return np.asarray((np.clip(rows, low, high) * scale).astype(np.int64).sum(axis=0))
    from userdp.estimators.loops import add_clipped  # noqa: PLC0415 -- compiled, for which only who needs it waits

    places = np.zeros(rows.shape[1], dtype=np.int64)
    add_clipped(rows, low, high, scale, places)
    return places


def _binned(rows: Rows, first: int, last: int) -> tuple[Vector, Vector, NDArray[np.bool_]]:
    """Return (d,) values of either rank, and (d,) whether their bins are too crowded for these to be right."""
    from userdp.estimators.loops import collect, number_bins  # noqa: PLC0415 -- see `_places`

    bins = np.empty(rows.shape, dtype=np.uint8)
    number_bins(rows, *_laid(rows, first, last), bins)
    (low, high), below, inside = _found(bins, (first, last))
    between = np.where(low < high, inside[0], 0)
    most = max(_CROWD, round(_CROWD_SHARE * len(rows)))
    crowded = between + inside[1] > most
    low[crowded] = high[crowded] = _NOBODYS
    values = np.full((rows.shape[1], most), np.inf)
    collect(rows, bins, low, high, np.zeros(-(-rows.size // 8) * 8, dtype=np.uint8), values)
    values.sort(axis=1)
    ranks = np.array([first - below[0], between + last - below[1]])
    at_low, at_high = np.take_along_axis(values.T, np.where(crowded, 0, ranks), axis=0)
    return at_low, at_high, crowded


def _laid(rows: Rows, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return (d,) each: the start of the bins, bins per unit, number of the last bin; only outer bins miss samples.

    Bins reach two and a half standard deviations of a sample's rank beyond the ranks. A column whose sample has no
    width, or one that overflows float32, has one bin, which is crowded. A value that overflows float32 counts as
    infinite, and nothing here is NaN: infinity is neither subtracted from infinity nor multiplied by zero.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        sample = rows[:: len(rows) // _SAMPLE].astype(np.float32)
        sample.sort(axis=0)
        slack = 1 + round(1.25 * len(sample) ** 0.5)
        start = sample[max(0, first * len(sample) // len(rows) - slack)]
        end = sample[min(len(sample) - 1, last * len(sample) // len(rows) + slack)]
        width = (end - start) / np.float32(_BINS - 2)
        start -= width
        scale = 1 / width
    usable = np.isfinite(start) & np.isfinite(width) & np.isfinite(scale)
    nothing, some, top = np.float32(0), np.float32(1), np.float32(_BINS - 1)
    return np.where(usable, start, nothing), np.where(usable, scale, some), np.where(usable, top, nothing)


def _found(
    bins: NDArray[np.uint8], ranks: tuple[int, int]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return (2, d) each: the bins of the ranks, how many values lie in lower bins, and how many in these."""
    from userdp.estimators.loops import count_below  # noqa: PLC0415 -- see `_places`

    found = np.zeros((2, bins.shape[1]), dtype=np.uint8)
    below, counts = np.zeros((2, *found.shape), dtype=np.int64)
    up_to, wanted = np.full_like(below, len(bins)), np.array(ranks)[:, None]
    for bit in (128, 64, 32, 16, 8, 4, 2, 1):
        middle = found + np.uint8(bit)
        count_below(bins, middle[0], middle[1], counts)
        beyond = counts <= wanted
        np.copyto(found, middle, where=beyond)
        np.copyto(below, counts, where=beyond)
        np.copyto(up_to, counts, where=~beyond)
    return found, below, up_to - below


def _sorted(rows: Rows, first: int, last: int) -> tuple[Vector, Vector]:
    ordered = np.array(rows.T, dtype=np.float64, order="C")
    ordered.sort(axis=1)
    return ordered[:, first].copy(), ordered[:, last].copy()
