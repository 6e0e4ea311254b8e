"""A node: some users' data, and the answers it gives. Knows no network; the Flower side wraps it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import (
    AnyRows,
    add_clipped_rows,
    add_rows,
    compacted,
    dense,
    placed_rows,
    row_lengths,
    stacked,
)
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.data.federation import Federation
from userdp.errors import BadInput, UserdpError
from userdp.masking.grid import Residues
from userdp.masking.masks import MaskKey
from userdp.nodes.computations import SAMPLE_SUMS, Computation
from userdp.nodes.identities import identities
from userdp.nodes.samples import NodeSamples
from userdp.problems.base import Problem

log = logging.getLogger("userdp")

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


class _SoFar:
    """What a node has of an answer: rows in their places or their sum, block by block.

    Attributes:
        sparse: whether rows, or what their sum is made of, are sparse.
        width: columns of a row.
        values: (U, width) rows, or (1, width) their sum; without columns where that is masked.
        total: (width,) the sum on a grid, where it is masked.
        adds_clipped: whether rows are clipped and added up, and nothing else is done to them.
    """

    def __init__(self, problem: Problem, computation: Computation, users: int) -> None:
        self._computation, self._kept = computation, list[AnyRows]()
        self.sparse, self._summed = problem.sparse and computation.keeps_zeros, computation.reduce == "sum"
        masked, self.width = computation.masked is not None, computation.width(problem.dimension)
        self._rows_stay_sparse = self.sparse and not self._summed
        columns = 0 if masked or self._rows_stay_sparse else self.width
        self.values = np.zeros((1 if self._summed else users, columns))
        self.total = np.zeros(self.width if masked else 0, dtype=np.int64)
        plain = self._summed and not self.sparse and not masked and computation.noise is None
        self.adds_clipped = plain and computation.only_clips

    def add_clipped(self, rows: Rows, lengths: NDArray[np.float64]) -> None:
        """Finite rows of these lengths, clipped and added."""
        assert self._computation.clip_norm is not None
        add_clipped_rows(self.values[0], rows, self._computation.clip_norm, lengths)

    def add(self, rows: AnyRows, where: slice, users: NDArray[np.int64]) -> None:
        """The finished rows of these users, who are there in the answer."""
        computation = self._computation
        if computation.noise is not None:
            rows = computation.noise.add(dense(rows), users)
        if computation.masked is not None:
            self.total += computation.masked.whole(dense(rows)).sum(axis=0)
        elif self._rows_stay_sparse:
            self._kept.append(rows)
        elif self._summed:
            add_rows(self.values[0], rows)
        else:
            self.values[where] = dense(rows)

    def whole(self) -> AnyRows:
        """All rows, or their sum."""
        if self._rows_stay_sparse:
            return stacked(self._kept)
        return compacted(self.values) if self.sparse else self.values


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
        if computation.lengths and self.labels is not None:
            raise BadInput("this node's users have names, so they are no simulation's: their lengths are not told")
        if x.shape != (self.problem.dimension,):
            raise BadInput(f"the model has shape {x.shape}, the problem needs ({self.problem.dimension},)")
        if computation.masked is not None:
            self.key.spend(computation.masked.round)
        so_far = _SoFar(self.problem, computation, len(users))
        non_finite, lengths = 0, np.zeros(len(users)) if computation.lengths else None
        # Sparse rows take about as much as the samples that they come from, which the federation bounds.
        wide = None if so_far.sparse else max(1, ROW_BYTES // (8 * so_far.width))
        max_users = 1 if computation.separate else wide
        added = so_far.adds_clipped
        made, clip = computation.halves if added or computation.lengths else (computation, computation)
        for where, block in self._samples.blocks(positions, max_users):
            rows, bad = self._answered(made, x, block, where)
            non_finite += bad
            if made is not computation:
                norms = row_lengths(rows)
                if lengths is not None:
                    lengths[where] = norms
                if added:
                    so_far.add_clipped(dense(rows), norms)
                    continue
                rows = clip.clipped(rows)
            so_far.add(rows, where, users[where])
        if computation.masked is not None:
            hidden = computation.masked.hidden(so_far.total, self.key, computation.question(x), int(users[0]))
            return Answer(users, so_far.values, 0, masked=hidden)
        return Answer(users, so_far.whole(), non_finite, lengths)

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
