"""Compiled loops over users' rows, where numpy has no single call.

No result depends on the order of float additions, so any machine gives the same bits. Inputs are never NaN; infinities
come from overflow alone.
"""

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.compiling import compiled
from userdp.arrays.types import Rows, Vector

Bytes = NDArray[np.uint8]
Singles = NDArray[np.float32]


@compiled("nnan", "nsz")
def number_bins(rows: Rows, start: Singles, scale: Singles, last: Singles, bins: Bytes) -> None:
    """Write into ``bins`` (n, d) how many 1 / ``scale`` (d,) each value exceeds ``start`` (d,), in 0 .. ``last``."""
    nothing = np.float32(0)
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            place = (np.float32(rows[row, column]) - start[column]) * scale[column]
            place = nothing if place < nothing else place
            place = last[column] if place > last[column] else place
            bins[row, column] = np.uint8(np.int32(place))


@compiled("nnan", "nsz")
def count_below(bins: Bytes, low: Bytes, high: Bytes, counts: NDArray[np.int64]) -> None:
    """Write into ``counts`` (2, d) how many rows of each column are below ``low`` (d,), and below ``high`` (d,)."""
    counts[:] = 0
    few = np.empty(counts.shape, dtype=np.uint8)
    for first in range(0, bins.shape[0], 255):
        few[:] = 0
        for row in range(first, min(first + 255, bins.shape[0])):
            for column in range(bins.shape[1]):
                few[0, column] += np.uint8(bins[row, column] < low[column])
            for column in range(bins.shape[1]):
                few[1, column] += np.uint8(bins[row, column] < high[column])
        counts += few


@compiled("nnan", "nsz")
def collect(rows: Rows, bins: Bytes, low: Bytes, high: Bytes, marks: Bytes, found: NDArray[np.float64]) -> None:
    """Write into ``found`` (d, c) at most c values of each column in the bins ``low`` and ``high``.

    ``marks`` holds zeros: n d bytes, rounded up to a multiple of eight.
    """
    columns = rows.shape[1]
    for row in range(rows.shape[0]):
        for column in range(columns):
            byte = bins[row, column]
            marks[row * columns + column] = np.uint8((byte == low[column]) | (byte == high[column]))
    filled = np.zeros(columns, dtype=np.int64)
    eights = marks.view(np.uint64)
    for eight in range(len(eights)):
        if eights[eight]:  # few are
            for place in range(8 * eight, 8 * eight + 8):
                if marks[place]:
                    column = place % columns
                    found[column, filled[column]] = rows[place // columns, column]
                    filled[column] += 1


@compiled("nnan", "nsz")
def add_clipped(rows: Rows, low: Vector, high: Vector, scale: Vector, total: NDArray[np.int64]) -> None:
    """Add to ``total`` (d,) each row, clipped to [low, high], times ``scale``, without fractions."""
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            value = rows[row, column]
            value = low[column] if value < low[column] else value
            value = high[column] if value > high[column] else value
            total[column] += np.int64(value * scale[column])


@compiled("nnan", "nsz")
def largest_differences(values: Rows, coordinates: NDArray[np.int64], others: Rows, largest: Rows) -> None:
    """Write into ``largest`` (L, R), zeros, the largest difference of a row from another in its own c coordinates.

    The row's are (L, c) ``coordinates``, with its (L, c) ``values`` there; the other rows are (d, R), in columns.
    """
    for row in range(values.shape[0]):
        for place in range(values.shape[1]):
            coordinate, value = coordinates[row, place], values[row, place]
            for other in range(others.shape[1]):
                difference = abs(others[coordinate, other] - value)
                largest[row, other] = max(largest[row, other], difference)
