"""Computations for heavy tails: gradients, or the data before the gradients, are truncated before sums.

Entry points of the group ``userdp.row_functions`` give each `RowFunction` its name in messages.
"""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from strategies.baselines.smoothed_truncation import truncated_samples
from userdp.arrays import Rows, Vector, dense
from userdp.data import Block
from userdp.nodes import RowFunction
from userdp.problems import Problem, float64_parts, parts, targets_of, weighted_sums


def truncated(values: Rows, threshold: float) -> Rows:
    """Clip every entry to ``[-K, K]``; NaN becomes zero."""
    return np.clip(np.where(np.isnan(values), 0.0, values), -threshold, threshold)


def truncated_gradients(x: Vector, block: Block, threshold: float) -> Rows:
    """Compute (U, d): each user's mean of ``2 a (<a, x> - y)`` over its samples, with a and y `truncated`.

    *Formal guarantees.* With ``||x||_1 <= r`` every entry lies in ``+-2 (r + 1) K^2``, for any data.
    """
    sums = np.zeros((block.users, block.features.shape[1]))
    for users, part, raw in float64_parts(block):
        features = truncated(raw, threshold)
        targets = truncated(np.asarray(targets_of(part), dtype=np.float64), threshold)
        sums[users] += weighted_sums(features, part.offsets, 2 * (features @ x - targets))
    return np.asarray(sums / block.sizes[:, None])


def truncated_sample_sum(problem: Problem, x: Vector, block: Block, scale: float, inverse_variance: float) -> Rows:
    """Compute each user's sum of smoothly truncated gradients, coordinate by coordinate, in units of ``scale``."""
    return _sums(problem, x, block, lambda gradients: truncated_samples(gradients, scale, inverse_variance))


def _sums(problem: Problem, x: Vector, block: Block, change: Callable[[Rows], Rows]) -> Rows:
    sums = np.zeros((block.users, problem.dimension))
    for users, part in parts(block, row_bytes=8 * problem.dimension):
        values = change(dense(problem.sample_gradients(x, part)))
        sums[users] += weighted_sums(values, part.offsets, np.ones(part.samples))
    return sums


def truncated_user_gradient(problem: Problem, x: Vector, block: Block, scale: float, inverse_variance: float) -> Rows:
    """Compute each user's MEAN gradient, smoothly truncated coordinate by coordinate, in units of ``scale``."""
    gradients = dense(problem.user_gradients(x, block))
    rows = truncated_samples(gradients, scale, inverse_variance)
    rows[~np.isfinite(gradients).all(axis=1)] = np.nan  # the pipeline counts it and makes it zero
    return rows


def truncated_data_gradient(problem: Problem, x: Vector, block: Block, level: float, bound: float) -> Rows:
    """Compute each user's average gradient on data cut at ``level``, clipped to ``+-bound`` for any loss."""
    rows = dense(problem.user_gradients(x, _cut(block, level)))
    # A value that is not finite must stay so: the pipeline counts such a user and gives it no weight.
    return np.clip(np.where(np.isfinite(rows), rows, np.nan), -bound, bound)


def truncated_data_sum(problem: Problem, x: Vector, block: Block, level: float, bound: float) -> Rows:
    """Compute each user's sum of gradients on data cut at ``level``, clipped to ``+-bound``; zero if not finite."""

    def clipped(gradients: Rows) -> Rows:
        counted = np.isfinite(gradients).all(axis=1, keepdims=True)
        return np.clip(np.where(counted, gradients, 0.0), -bound, bound)

    return _sums(problem, x, _cut(block, level), clipped)


def _cut(block: Block, level: float) -> Block:
    """Clip features and targets to ``+-level``; integer codes, which have no size, stay."""
    targets = None if block.targets is None else np.clip(block.targets, -level, level)
    if np.issubdtype(block.features.dtype, np.integer):
        return Block(block.features, block.offsets, targets, terms=block.terms)
    features = block.features.copy()
    values = features.data if isinstance(features, csr_array) else features
    np.clip(values, -level, level, out=values)
    return Block(features, block.offsets, targets, terms=block.terms)


SAMPLE_SUM = RowFunction(truncated_sample_sum, sums_samples=True)
USER_GRADIENT = RowFunction(truncated_user_gradient)
REGRESSION_GRADIENT = RowFunction(lambda problem, x, block, threshold: truncated_gradients(x, block, threshold))
REGRESSION_SUM = RowFunction(
    lambda problem, x, block, threshold: truncated_gradients(x, block, threshold) * block.sizes[:, None],
    sums_samples=True,
)
DATA_GRADIENT = RowFunction(truncated_data_gradient)
DATA_SUM = RowFunction(truncated_data_sum, sums_samples=True)
