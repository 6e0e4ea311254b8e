"""Pictures from columns of raw bytes, one byte a pixel."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.tables.cells import bytes_in


def pixels(cells: pa.LargeBinaryArray, rows: NDArray[np.int64], length: int) -> NDArray[np.float32]:
    """The pictures of the chosen rows: bytes divided by 255.

    *Formal guarantee*: a row of the result depends on its own cell alone, to the last bit; IEEE 754 rounds quotients
    exactly. A cell of another length, or a missing one, is a row of NaN, which problems set aside.

    Args:
        cells: of all rows.
        rows: (N,) chosen rows.
        length: P, the bytes of a picture.

    Returns:
        (N, P) in [0, 1].
    """
    chosen = cells.take(pa.array(rows))
    whole = pc.fill_null(pc.equal(pc.binary_length(chosen), length), False)
    features = np.full((len(rows), length), np.nan, dtype=np.float32)
    features[whole.to_numpy(zero_copy_only=False)] = bytes_in(chosen.filter(whole)).reshape(-1, length)
    features /= np.float32(255)
    return features
