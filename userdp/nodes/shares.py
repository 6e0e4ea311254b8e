"""Users' answers to a query of a table; see `userdp.problems.shares.SharesProblem`."""

from userdp.arrays.sparse_rows import Sparse
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.shares import SharesProblem


def user_shares(problem: Problem, x: Vector, block: Block) -> Rows:
    """Compute (U, p): each user's shares for the statistics that are sums."""
    return _asked(problem).user_shares(block)


def user_ranks(problem: Problem, x: Vector, block: Block, bins: Array) -> Sparse:
    """Compute (U, sum of ``bins``): each user's shares of samples by interval, for the statistics that are choices."""
    return _asked(problem).user_ranks(block)


def _asked(problem: Problem) -> SharesProblem:
    if not isinstance(problem, SharesProblem):
        raise BadInput(f"problem.kind = {problem.name!r} is no query of a table: use userdp query")
    return problem
