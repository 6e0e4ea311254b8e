"""A node: some users' data, and the answers it gives. Knows no network; the Flower side wraps it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import AnyRows, add_rows, compacted, dense, placed_rows, stacked
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation, Federation
from userdp.errors import BadInput, UserdpError
from userdp.masking.grid import Residues
from userdp.masking.masks import MaskKey
from userdp.nodes.computations import SAMPLE_SUMS, Computation, lengths_of
from userdp.nodes.identities import identities
from userdp.problems.base import Problem

log = logging.getLogger("userdp")

MEMORY_BYTES = 1 << 29
"""A node whose samples fit in this many bytes keeps them; a larger one reads or makes them again at each pass."""

ROW_BYTES = 1 << 26
"""Rows rows worked on at once, in bytes: wide models get fewer users a block."""


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
        self._rows = self.users if rows is None else np.asarray(rows, dtype=np.int64)
        if self._rows.shape != self.users.shape:
            raise BadInput(f"{len(self._rows)} rows are given for {len(self.users)} users: one row a user")
        if labels is not None and len(labels) != len(self.users):
            raise BadInput(f"{len(labels)} labels are given for {len(self.users)} users: one label a user")
        self.labels = labels
        self._federation = federation
        self._local: ColumnarFederation | None = None
        self.clipped_samples = 0
        self._warned = False
        if len(self.users) and int(federation.sizes[self._rows].sum()) * federation.sample_bytes <= MEMORY_BYTES:
            bounded, self.clipped_samples = problem.bound(federation.block(self._rows))
            self._local = ColumnarFederation(bounded)

    @cached_property
    def key(self) -> MaskKey:
        """Of this node's masks, drawn when it is first asked for; whoever makes nodes anew puts the old one back."""
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
            BadInput: a user that this node does not hold, a model of the wrong length, or a question for lengths where
                users have labels.
        """
        users = np.asarray(users, dtype=np.int64)
        positions = self._positions(users)
        if computation.lengths and self.labels is not None:
            raise BadInput("this node's users have names, so they are no simulation's: their lengths are not told")
        if x.shape != (self.problem.dimension,):
            raise BadInput(f"the model has shape {x.shape}, the problem needs ({self.problem.dimension},)")
        sparse, summed = self.problem.sparse and computation.keeps_zeros, computation.reduce == "sum"
        masked, width = computation.masked, computation.width(self.problem.dimension)
        shape = (1 if summed else len(users), width if masked is None else 0)
        total = np.zeros(0 if masked is None else width, dtype=np.int64)
        values = None if sparse and not summed else np.zeros(shape)
        kept: list[AnyRows] = []
        non_finite, lengths = 0, np.zeros(len(users)) if computation.lengths else None
        source: Federation = self._federation if self._local is None else self._local
        ids = self._rows[positions] if self._local is None else positions
        # Sparse rows take about as much as the samples that they come from, which the federation bounds.
        wide = None if sparse else max(1, ROW_BYTES // (8 * width))
        max_users = 1 if computation.separate else wide
        for where, block in source.blocks(ids, max_users=max_users):
            if lengths is None:
                rows, bad = self._answered(computation, x, self._bounded(block), where)
            else:
                made, clip = computation.halves()
                rows, bad = self._answered(made, x, self._bounded(block), where)
                lengths[where] = lengths_of(rows)
                rows, _ = clip.finish(rows)
            non_finite += bad
            if computation.noise is not None:
                rows = computation.noise.add(dense(rows), users[where])
            if masked is not None:
                total += masked.grid.whole(dense(rows)).sum(axis=0)
            elif values is None:
                kept.append(rows)
            elif summed:
                add_rows(values[0], rows)
            else:
                values[where] = dense(rows)
        if values is None:
            return Answer(users, stacked(kept), non_finite, lengths)
        if masked is not None:
            hidden = masked.hidden(total, self.key, computation.question(x), int(users[0]))
            return Answer(users, values, 0, masked=hidden)
        return Answer(users, compacted(values) if sparse else values, non_finite, lengths)

    def _positions(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where these users are among the node's own.

        Raises:
            BadInput: somebody is not, or there is nobody.
        """
        positions = np.searchsorted(self.users, users)
        if len(users) == 0 or np.any(positions >= len(self.users)) or np.any(self.users[positions] != users):
            raise BadInput("the node was asked for users that it does not hold")
        return positions

    def _answered(self, computation: Computation, x: Vector, block: Block, where: slice) -> tuple[AnyRows, int]:
        """A block's rows; user by user if the loss fails, so that it fails for those alone who make it."""
        try:
            return self._computed(computation.part(where), x, block, where)
        except UserdpError:
            raise  # about the question, which is the same whatever anybody's data
        except Exception as error:
            if block.users == 1:
                self._warn(error)
                return self._without_failing(computation, x, block, where)
        users = ((block.part(user, user + 1), where.start + user) for user in range(block.users))
        own = [self._answered(computation, x, user, slice(place, place + 1)) for user, place in users]
        return stacked([rows for rows, _ in own]), sum(bad for _, bad in own)

    def _without_failing(self, computation: Computation, x: Vector, block: Block, where: slice) -> tuple[AnyRows, int]:
        """A user's row where the loss fails: zero; of a sum over samples, that of the samples for which it does not.

        Where one sample is protected, the others of its user must not vanish with it.
        """
        if computation.name not in SAMPLE_SUMS:
            return computation.nothing(1, self.problem), 1
        good = np.ones(block.samples, dtype=bool) if block.usable is None else block.usable.copy()
        part = computation.part(where)
        for sample in np.flatnonzero(good):
            try:
                self._computed(part, x, replace(block, usable=np.arange(block.samples) == sample), where)
            except Exception:
                good[sample] = False
        try:
            return self._computed(part, x, replace(block, usable=good), where)
        except Exception:  # of samples none of which fails alone
            return computation.nothing(1, self.problem), 1

    def _warn(self, error: Exception) -> None:
        """Tell whoever runs this node, once, that the loss fails here; for all users it does if it has a fault."""
        if not self._warned:
            # What a loss says may quote users' data, which a simulation alone may print.
            said = "" if self.labels is not None else f": {error}".partition("\n")[0]
            told = f"{type(error).__name__}{said}"
            log.warning("the loss fails on users' data (%s): each such user counts as zero", told)
        self._warned = True

    def _computed(self, computation: Computation, x: Vector, block: Block, where: slice) -> tuple[AnyRows, int]:
        """A block's rows; where samples are drawn by coins, only those drawn are looked at."""
        if computation.coins is None:
            return computation(self.problem, x, block)
        users, drawn = block.thinned(computation.coins.draw(where, block.sizes))
        if drawn is None:
            return computation.nothing(block.users, self.problem), 0
        drawn_rows, bad = computation(self.problem, x, drawn)
        return placed_rows(drawn_rows, users, block.users), bad

    def _bounded(self, block: Block) -> Block:
        return block if self._local is not None else self.problem.bound(block)[0]
