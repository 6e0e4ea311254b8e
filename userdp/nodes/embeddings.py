"""Rows of users for models with tables: which rows of these a user touches, and its gradient on some of them.

*Formal guarantees.* Unit: a user. A user TOUCHES a row of a table if its gradient has an entry there that is not zero.
*Claim.* `row_weights` are not negative and of l2 norm 1, or all zero. The two parts of a row of `gradient_and_weights`
have norms of at most ``clip`` and ``weight``, or the row is not finite, and so becomes zero as a whole. *Why.* A user
who touches t rows, t >= 1, has t entries of ``1 / sqrt(t)``; the gradient is clipped here. *Assumptions.* Those of the
gradient, up to rounding: whether an entry is zero follows to the last bit from the user's samples where
`Computation.separate` is asked for, as it is with secure noise.
"""

from collections.abc import Mapping

import numpy as np
from scipy.sparse import csr_array, hstack

from userdp.arrays.sparse_rows import AnyRows, Sparse, clip_rows, dense, scaled_rows
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.problems.base import Problem
from userdp.problems.embeddings import Tables


def row_weights(problem: Problem, x: Vector, block: Block, tables: Array) -> AnyRows:
    """Compute (U, V): ``1 / sqrt(t)`` in each of the t rows that a user touches, and 0 in the others."""
    weights = _weights(problem.rough_user_gradients(x, block), Tables.of(tables))
    return weights if problem.sparse else dense(weights)


def kept_gradient(problem: Problem, x: Vector, block: Block, tables: Array, rows: Vector) -> AnyRows:
    """Compute (U, k): each user's gradient in these rows of tables and outside of all tables."""
    gradients = problem.rough_user_gradients(x, block)
    return gradients[:, Tables.of(tables).kept(rows, problem.dimension)]


def gradient_and_weights(
    problem: Problem, x: Vector, block: Block, tables: Array, clip: float, weight: float
) -> AnyRows:
    """Compute (U, p + V): users' gradients, clipped to l2 norm ``clip``, and ``weight`` times their `row_weights`."""
    gradients = problem.rough_user_gradients(x, block)
    weights = weight * _weights(gradients, Tables.of(tables))
    with np.errstate(invalid="ignore"):  # what is not finite stays so, and the row becomes zero
        clipped = clip_rows(gradients, clip)
    if isinstance(clipped, csr_array):
        return hstack([clipped, weights], format="csr")
    return np.hstack([clipped, dense(weights)])


def _weights(gradients: AnyRows, tables: Tables) -> Sparse:
    touched = tables.touched(gradients)
    return scaled_rows(touched, 1 / np.sqrt(np.maximum(np.diff(touched.indptr), 1)))


def rows_of(dimension: int, arrays: Mapping[str, Array]) -> int:
    """Return V, the entries of `row_weights`."""
    return Tables.of(arrays["tables"]).rows


def kept_of(dimension: int, arrays: Mapping[str, Array]) -> int:
    """Return the entries of `kept_gradient`."""
    return len(Tables.of(arrays["tables"]).kept(arrays["rows"], dimension))


def both_of(dimension: int, arrays: Mapping[str, Array]) -> int:
    """Return the entries of `gradient_and_weights`."""
    return dimension + rows_of(dimension, arrays)
