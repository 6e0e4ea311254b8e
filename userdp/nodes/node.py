"""A node: some users' data, and the answers it gives. Knows no network; the Flower side wraps it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import AnyRows
from userdp.arrays.types import Vector
from userdp.data.federation import Federation
from userdp.errors import BadInput
from userdp.masking.grid import Residues
from userdp.masking.masks import MaskKey
from userdp.nodes.computations import Computation
from userdp.nodes.identities import identities
from userdp.nodes.pipeline import RowPipeline
from userdp.nodes.row_maker import RowMaker
from userdp.nodes.samples import NodeSamples
from userdp.problems.base import Problem

log = logging.getLogger("userdp")


@dataclass(frozen=True)
class Answer:
    """What a node returns.

    Attributes:
        users: (U,) the users that the values speak for, rising.
        values: (U, p) rows, or (1, p) their sum; a `scipy.sparse.csr_array` for sparse rows, and for a sum of them
            that takes fewer bytes that way. (1, 0) where the sum is masked.
        non_finite: users whose row was not finite, or whose data could not be used, and became zero.
        lengths: (U,) l2 norms before the clip, where they were asked for.
        masked: (p,) the sum on a grid, noisy and masked, where that was asked for.
    """

    users: NDArray[np.int64]
    values: AnyRows
    non_finite: int
    lengths: NDArray[np.float64] | None = None
    masked: Residues | None = None


class Node:
    """Answers for ``users``, whose samples lie in ``federation``.

    Args:
        problem: the loss; samples are clipped into its declared bounds before anything is computed.
        federation: where the samples come from.
        users: rising indices, among the n users of the whole population, of those held by this node.
        rows: where each of them is in ``federation``; the same as ``users`` if not given. A silo with a table of its
            own, of which user 0 is user 300 of the population, gives ``users = 300 + rows``.
        labels: what each of them is called, the same in every silo; None where nobody has a name (simulations).

    Raises:
        BadInput: users that do not rise, or another number of rows or labels than of users.
    """

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        users: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self.problem = problem
        self.users = np.asarray(users, dtype=np.int64)
        if np.any(np.diff(self.users) <= 0):
            raise BadInput("a node's users must rise: each user once, in the order of the population")
        rows = self.users if rows is None else np.asarray(rows, dtype=np.int64)
        if rows.shape != self.users.shape:
            raise BadInput(f"{len(rows)} rows are given for {len(self.users)} users: one row a user")
        if labels is not None and len(labels) != len(self.users):
            raise BadInput(f"{len(labels)} labels are given for {len(self.users)} users: one label a user")
        self.labels = labels
        self._everybody = np.arange(len(self.users))
        self._samples = NodeSamples(problem, federation, rows)
        self.clipped_samples = self._samples.clipped
        self._warned = False

    @cached_property
    def key(self) -> MaskKey:
        """Of this node's masks in one run, with the rounds that it has answered.

        Drawn when it is first asked for; whoever makes nodes anew puts the old one back, and a new run gets a new one.
        """
        return MaskKey()

    def identities(self, salt: bytes) -> NDArray[np.uint8]:
        """(U, 16) salted digests of the labels; see `userdp.nodes.identities`.

        Raises:
            BadInput: nobody has a label here, or the salt is no 16 to 64 bytes.
        """
        if self.labels is None:
            raise BadInput("this node does not know what its users are called")
        if not 16 <= len(salt) <= 64:
            raise BadInput(f"the salt must be 16 to 64 bytes, got {len(salt)}")
        return identities(self.labels, salt)

    def compute(self, x: Vector, users: NDArray[np.int64], computation: Computation) -> Answer:
        """The computation's rows (or their sum) for ``users``, block by block; and their lengths, if asked.

        No user's data make it fail: whoever's cannot be used counts as the centre (zero, if there is none), and so does
        a user for whose data alone the loss itself fails, such as a torch module's.

        Raises:
            BadInput: a user that this node does not hold, a model of the wrong length, a question for lengths where
                users have labels, or one for a masked sum in a round that was answered.
        """
        users = np.asarray(users, dtype=np.int64)
        positions = self._positions(users)
        self._accept(x, computation)
        pipeline = RowPipeline(computation, users, self.problem.dimension, sparse=self.problem.sparse)
        maker = RowMaker(self.problem, x, computation, self._warn)
        for where, block in self._samples.blocks(positions, pipeline.max_users):
            rows, unusable = maker.rows(block, where)
            pipeline.add(rows, where, unusable)
        hidden = None if computation.masked is None else pipeline.masked(self.key, x)
        return Answer(users, pipeline.values, pipeline.non_finite, pipeline.lengths, hidden)

    def _accept(self, x: Vector, computation: Computation) -> None:
        """Refuse a question that is not to be answered; a round of masks is spent by asking.

        Raises:
            BadInput: as `compute`.
        """
        if computation.lengths and self.labels is not None:
            raise BadInput("this node's users have names, so they are no simulation's: their lengths are not told")
        if x.shape != (self.problem.dimension,):
            raise BadInput(f"the model has shape {x.shape}, the problem needs ({self.problem.dimension},)")
        if computation.masked is not None:
            self.key.spend(computation.masked.round)

    def _positions(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where these users are among the node's own.

        Raises:
            BadInput: somebody is not, or there is nobody.
        """
        if np.array_equal(users, self.users) and len(users):
            return self._everybody
        positions = np.searchsorted(self.users, users)
        if len(users) == 0 or np.any(positions >= len(self.users)) or np.any(self.users[positions] != users):
            raise BadInput("the node was asked for users that it does not hold")
        return positions

    def _warn(self, error: Exception) -> None:
        """Tell whoever runs this node, once, that the loss fails here; for all users it does if it has a fault."""
        if not self._warned:
            # What a loss says may quote users' data, which a simulation alone may print.
            said = "" if self.labels is not None else f": {error}".partition("\n")[0]
            told = f"{type(error).__name__}{said}"
            log.warning("the loss fails on users' data (%s): each such user counts as zero", told)
        self._warned = True
