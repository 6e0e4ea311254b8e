"""Users' gradients, each of a loss that one number weighs, so that it is neither steep nor curved near a public model.

*Formal guarantees.* *Claim.* Let a user's average loss f be convex, with a Hessian of at most ``b`` everywhere, and let
s be the length of its gradient at a public start. Then ``w f``, with ``w = min(1, longest / (s + b reach), curvature /
b)``, is convex, has a Hessian of at most ``curvature``, and its gradient is no longer than ``longest`` at any model
within ``reach`` of the start. *Why.* w is a number of the user's own data, the start and constants, the same at every
model, so ``w f`` is convex, and its Hessian is at most ``w b``. At x with ``||x - start|| <= reach`` the gradient of f
differs from that at the start by at most ``b ||x - start||``. *Consequence.* With such losses of all users and ``eta <=
2 / curvature``, the step ``x - eta mean of w_i grad f_i(x)`` is 1-Lipschitz in l2 (Baillon, Haddad 1977: the gradient
g of a convex loss satisfies ``<g(x) - g(y), x - y> >= ||g(x) - g(y)||^2 / curvature``), however users differ.

A clip of gradients has no such property: cut to a length, they are those of no convex loss.
"""

import numpy as np

from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.nodes.moments import held_log
from userdp.problems.base import Problem
from userdp.problems.linear_scores import QUIET

_INWARDS = 1 - 1e-9  # So that rounding makes no weighted gradient longer than it may be


def steepest(problem: Problem, start: Vector, block: Block, reach: float) -> tuple[Array, Array]:
    """Bound each user's gradient within ``reach`` of ``start`` (p,), and its curvature: two (U,) arrays.

    A gradient that is not finite has no bound, NaN, so that whatever follows from it is counted as unusable.
    """
    curvatures = problem.user_curvatures(block)
    lengths = np.linalg.norm(dense(problem.user_gradients(start, block)), axis=1)
    return np.where(np.isfinite(lengths), lengths, np.nan) + curvatures * reach, curvatures


@QUIET
def weighed_gradient(
    problem: Problem,
    x: Vector,
    block: Block,
    longest: float,
    reach: float,
    curvature: float,
    start: Vector | None = None,
) -> Rows:
    """Compute (U, p): ``w`` times each user's gradient at x (see the module); the start is x if none is given."""
    steep, curved = steepest(problem, x if start is None else start, block, reach)
    with np.errstate(divide="ignore"):  # a loss without slope or curvature needs no weight
        weights = _INWARDS * np.minimum(1.0, np.minimum(longest / steep, curvature / curved))
    return np.asarray(weights[:, None] * dense(problem.user_gradients(x, block)))


@QUIET
def steepness(problem: Problem, x: Vector, block: Block, reach: float, low: float, high: float) -> Rows:
    """Compute (U, 1): the logarithm of `steepest` about x, from -1/2 at ``low`` and below to 1/2 from ``high`` on."""
    return held_log(steepest(problem, x, block, reach)[0], low, high)[:, None]
