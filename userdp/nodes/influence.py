"""Rows for standard errors of coefficients: users' curvatures, slopes and squared influences at a model.

Parameters are seen along ``directions`` T (p, k), coordinates in which the loss is about equally curved. A user's
``H = mean_j phi''(<x, a_j>) (T^T a_j) (T^T a_j)^T`` is positive semidefinite. A user weighs ``w = size / ||H||`` if
that is less than one, in curvature and slope alike. The weight depends on features and on public numbers, never on
targets, so slopes keep their mean zero at the true coefficients wherever the model of the mean is right. By period, how
long a user is at risk depends on targets: there samples weigh, not users (`userdp.nodes.moments.followed`).
"""

import math
from typing import Any, cast

import numpy as np

from userdp.arrays.fixed_order import product
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.nodes.moments import PieceRows, by_period, followed, norms_of_products, summed_products
from userdp.problems.base import Problem
from userdp.problems.by_period import Weigh
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.linear_scores import QUIET


@QUIET
def user_curvature(
    problem: Problem, x: Vector, block: Block, size: float, directions: Array, weighing: Vector, curvature: float = 0.0
) -> Rows:
    """Compute (U, k (k + 1) / 2): the triangle of each user's H at the model ``weighing`` (p,).

    Clipped to ``size`` it is w H. By period samples weigh as if the loss had that ``curvature`` everywhere.
    """
    weigh = _followed(problem, size, directions, curvature)
    rows = _curved(problem, weighing, directions, weigh)
    return np.asarray(summed_products(problem, block, rows, directions.shape[1]) / block.sizes[:, None])


@QUIET
def weighted_slope(
    problem: Problem,
    x: Vector,
    block: Block,
    size: float,
    directions: Array,
    weighing: Vector,
    model: Vector,
    curvature: float = 0.0,
) -> Rows:
    """Compute (U, k): w times each user's mean gradient along the directions, at ``model`` (p,)."""
    weigh = _followed(problem, size, directions, curvature)
    if weigh is not None:
        return product(cast(GeneralisedLinear, problem).weighted_gradients(model, block, weigh), directions)
    norms = norms_of_products(problem, block, _curved(problem, weighing, directions), directions.shape[1])
    slopes = product(dense(problem.user_gradients(model, block)), directions)
    return np.asarray((size / np.maximum(norms, size))[:, None] * slopes)


def slope_sizes(problem: Problem, x: Vector, block: Block, edges: Vector, **asked: Any) -> Rows:
    """Compute (U, n + 1): 1 in the interval between n rising edges that holds the norm of `weighted_slope`, else 0.

    It takes all arguments of `weighted_slope`.
    """
    slopes = weighted_slope(problem, x, block, **asked)
    norms = np.where(np.isfinite(slopes).all(axis=1), np.linalg.norm(slopes, axis=1), np.inf)
    return np.eye(len(edges) + 1)[np.searchsorted(edges, norms, side="right")]


@QUIET
def squared_influence(problem: Problem, x: Vector, block: Block, influence: Array, **asked: Any) -> Rows:
    """Compute (U, K): the square of how far each user moves each of K coefficients; ``influence`` is (K, k).

    It takes all arguments of `weighted_slope`.
    """
    return np.asarray(np.square(product(weighted_slope(problem, x, block, **asked), influence.T)))


def _followed(problem: Problem, size: float, directions: Array, curvature: float) -> Weigh | None:
    hazards = by_period(problem)
    return None if hazards is None else followed(hazards, size / curvature if curvature > 0 else math.inf, directions)


def _curved(problem: Problem, x: Vector, directions: Array, weigh: Weigh | None = None) -> PieceRows:
    """Return the function from features (n, d) of a piece to its ``sqrt(phi'') T^T a`` (n, k), by period weighed."""
    if not isinstance(problem, GeneralisedLinear) or problem.family.curvatures(np.zeros(1)) is None:
        raise BadInput(f"problem.kind = {problem.name!r} has no curvature that follows from its scores alone")
    model = problem

    def rows(features: Array, part: Block) -> Array:
        curvatures = model.family.curvatures(model.whole_scores(product(features, x), part))
        assert curvatures is not None
        if weigh is not None:
            curvatures = curvatures * weigh(features, part)
        return np.asarray(np.sqrt(curvatures)[:, None] * product(features, directions))

    return rows
