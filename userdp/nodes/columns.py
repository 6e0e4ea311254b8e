"""Computations about the columns of linear scores, thousands of which may be rare: moments, gradients, and their sum.

The sum of a sample's columns takes the place of an intercept, which such losses lack: it is the same for all samples of
one-hot columns, and about the same for other columns that are not negative.
"""

from typing import cast

import numpy as np
from scipy.sparse import csr_array, hstack

from userdp.arrays.sparse_rows import AnyRows, Sparse, dense, over_rows, scaled_rows, sparse_rows, summed_rows
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.linear_scores import QUIET
from userdp.problems.one_hot import OneHot
from userdp.problems.segments import user_averages
from userdp.problems.sparse_linear import SparseLinear


def column_moments(problem: Problem, x: Vector, block: Block) -> AnyRows:
    """Compute (U, p): the mean square of each column over a user's samples: the diagonal of its second moments.

    Entries are not negative, and add up to the mean squared l2 norm of the user's samples.
    """
    features = _features(problem, block)
    data = np.square(features.data, dtype=np.float64)
    squares = sparse_rows(data, features.indices, features.indptr, problem.dimension)
    rows = scaled_rows(summed_rows(squares, block.offsets), 1.0 / block.sizes)
    return rows if problem.sparse else dense(rows)


@QUIET
def scaled_gradient(problem: Problem, x: Vector, block: Block, scales: Vector) -> AnyRows:
    """Compute (U, p + 1): a user's mean gradient by each column, and by the sum of all, times ``scales`` (p + 1,).

    It is the gradient by z for models ``x + scales[:p] z[:p] + scales[p] z[p]``.
    """
    rows = problem.user_gradients(x, block)
    sums = _row_sums(rows)[:, None] * scales[-1]
    if not isinstance(rows, csr_array):
        return np.hstack([rows * scales[:-1], sums])
    data = rows.data * scales[rows.indices]
    columns = sparse_rows(data, rows.indices, rows.indptr, problem.dimension)
    whole = cast(Sparse, hstack([columns, csr_array(sums)], format="csr"))
    return sparse_rows(whole.data, whole.indices, whole.indptr, problem.dimension + 1)


@QUIET
def sum_of_columns(problem: Problem, x: Vector, block: Block, slope: float, length: float) -> Rows:
    """Compute (U, 2): a user's mean slope by the sum of columns, and the root mean square of that sum.

    The slope goes from -1/2 at ``-slope * length`` and below to 1/2 at ``slope * length`` and above, the other number
    from -1/2 at zero to 1/2 at ``length`` and above. A user whose slope is not finite sends zeros.
    """
    slopes = _row_sums(problem.user_gradients(x, block)) / (2 * slope * length)
    squares = np.square(_row_sums(_features(problem, block)))
    sizes = np.sqrt(user_averages(squares, block)) / length
    return np.column_stack([np.clip(slopes, -0.5, 0.5), np.minimum(sizes, 1.0) - 0.5])


def _features(problem: Problem, block: Block) -> Sparse:
    """Return the (N, p) features of a block as sparse rows."""
    if isinstance(problem, SparseLinear):
        return block.sparse_features
    if isinstance(problem, OneHot):
        codes = block.dense_features[:, 0].astype(np.int64)
        return sparse_rows(np.ones(block.samples), codes, np.arange(block.samples + 1), problem.dimension)
    raise BadInput(f"problem.kind = {problem.name!r} is no generalised linear model on sparse or one-hot features")


def _row_sums(rows: AnyRows) -> Rows:
    if isinstance(rows, csr_array):
        return over_rows(np.add, rows.data.astype(np.float64), rows)
    return np.asarray(rows.sum(axis=1))
