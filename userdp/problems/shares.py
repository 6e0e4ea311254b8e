"""A problem that trains nothing: users answer with shares of a whole, whose sums are a table's statistics."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import Sparse
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Box, Certificate, Problem

_NO_MODEL = "a query trains no model, and has no loss; ask it by userdp query"


class SharesProblem(Problem):
    """Users' bounded answers in place of a loss; the released "model" (p,) holds their noisy sums and choices.

    Args:
        dimension: p, of what is released.
        columns: feature columns of a sample.
    """

    has_targets = False
    sparse = True  # ranks are; sums have few entries

    def __init__(self, dimension: int, columns: int) -> None:
        self.dimension, self.columns = dimension, columns
        self.domain, self.certificate = Box(np.zeros(dimension), np.inf), Certificate(reason=_NO_MODEL)

    @abstractmethod
    def user_shares(self, block: Block) -> Rows:
        """Return (U, p) rows of l2 norm at most 1; no two rows, of any users, have a negative inner product."""

    @abstractmethod
    def user_ranks(self, block: Block) -> Sparse:
        """Return (U, k) rows whose inner products are not negative: shares of each user's samples by interval."""

    def user_gradients(self, x: Vector, block: Block) -> Array:
        """Raise `BadInput`: there is no loss."""
        raise BadInput(_NO_MODEL)

    def sample_gradients(self, x: Vector, block: Block) -> Array:
        """Raise `BadInput`: there is no loss."""
        raise BadInput(_NO_MODEL)

    def sample_losses(self, x: Vector, block: Block) -> NDArray[np.float64]:
        """Raise `BadInput`: there is no loss."""
        raise BadInput(_NO_MODEL)
