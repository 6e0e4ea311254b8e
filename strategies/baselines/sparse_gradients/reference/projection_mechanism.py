"""Records made members of the set that private means of sparse vectors are for."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from userdp.arrays import clip_rows, finite_rows
from userdp.errors import BadInput


def enforce_membership(rows: ArrayLike, sparsity: int, norm: float) -> NDArray[np.float64]:
    """Rows with their s largest entries kept, scaled down to l2 norm at most L: privacy then rests on no promise.

    Rows that hold a NaN or an infinity become zero. Rows that were members stay as they are. What becomes of a row
    depends on that row alone. Raises `BadInput`: rows of another shape, or a number out of range.

    Args:
        rows: (n, d).
        sparsity: s, at least 1.
        norm: L, > 0.
    """
    members = SparseVectors(sparsity, norm)
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2:
        raise BadInput(f"rows must be a matrix (n, d), got shape {values.shape}")
    values, _ = finite_rows(values)
    if members.sparsity < values.shape[1]:
        kept = np.argpartition(-np.abs(values), members.sparsity - 1, axis=1)[:, : members.sparsity]
        thinned = np.zeros_like(values)
        np.put_along_axis(thinned, kept, np.take_along_axis(values, kept, axis=1), axis=1)
        values = thinned
    return clip_rows(values, members.norm)
