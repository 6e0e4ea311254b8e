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
