"""Compiled loops over users' rows, where numpy has no single call.

No result depends on the order of float additions, so any machine gives the same bits. Inputs are never NaN; infinities
come from overflow alone.
"""

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.compiling import compiled
from userdp.arrays.types import Rows, Vector


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
