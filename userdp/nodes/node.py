"""A node: some users' data, and its answers. It knows no network; the Flower side wraps it."""

import hashlib
import logging
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.arrays.fixed_order import fixed_order, order_is_fixed
from userdp.arrays.sparse_rows import AnyRows, bytes_of
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.federation import BLOCK_BYTES, ColumnarFederation, Federation
from userdp.errors import BadInput
from userdp.masking.grid import Residues
from userdp.masking.masks import MaskKey
from userdp.nodes.computations import Computation
from userdp.nodes.pipeline import ROW_BYTES, RowPipeline
from userdp.nodes.row_maker import RowMaker
from userdp.problems.base import Problem
from userdp.problems.segments import mean_block
from userdp.threads import ahead
from userdp.tracebacks import told

log = logging.getLogger("userdp")

MEMORY_BYTES = 3 << 26
"""The bytes that a node keeps: users' means, up to half of it, if gradients need nothing else, and its first users'
samples. It reads or makes the others at each pass. The eight nodes of a machine by default keep 1.5 GiB together."""
DIGEST_BYTES = 16
_PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])


def identities(labels: Iterable[str], salt: bytes) -> NDArray[np.uint8]:
    """Return (U, 16) digests of normalised labels, under one salt of 16 to 64 random bytes for all silos.

    A user-level guarantee bounds the influence of ONE index of 0..n-1. A person with two indices, in two silos, has
    twice the influence, so the server compares digests before training. Equal labels give equal digests; different ones
    among n labels collide with probability below n^2 / 2^129, and then the run stops without need.

    Every run draws a new salt, so digests of two runs cannot be matched. They hide nothing from a party that knows the
    salt and can guess labels: the server, which is trusted with much more.
    """
    texts = (unicodedata.normalize("NFKC", label).strip().encode() for label in labels)
    digests = b"".join(hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=salt).digest() for text in texts)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def repeated(digests: NDArray[np.uint8]) -> int:
    """Return how many of the (U, 16) digests have occurred before."""
    pairs = np.ascontiguousarray(digests).view(_PAIR).ravel()
    return len(pairs) - len(np.unique(pairs))


@dataclass(frozen=True)
class Answer:
    """The answer of a node."""

    users: NDArray[np.int64]
    """(U,) the users of the values, rising."""
    values: AnyRows
    """(U, p) rows, or (1, p) their sum; a `scipy.sparse.csr_array` for sparse rows, and for a sum of them that takes
    fewer bytes that way. (1, 0) if the sum is masked."""
    non_finite: int
    """Users whose row was not finite, or who have no usable sample, and became zero."""
    lengths: NDArray[np.float64] | None = None
    """(U,) l2 norms before the clip, if requested."""
    masked: Residues | None = None
    """(p,) the sum on a grid, noisy and masked, if requested."""


class NodeSamples:
    """Samples of some users of a federation (its users ``rows``), clipped into a problem's bounds, block by block.

    Attributes:
        clipped: how many of the kept or stored samples had to be clipped; samples made anew at each pass do not count.
    """

    def __init__(self, problem: Problem, federation: Federation, rows: NDArray[np.int64]) -> None:
        self._problem, self._federation, self._rows = problem, federation, rows
        ends = np.cumsum(federation.sizes[rows]) * federation.sample_bytes
        room = 0 if federation.stored else MEMORY_BYTES
        self._means, self._room, self._limits = dict[tuple[int, int, bool], Block](), 0, dict[str, int]()
        if problem.sample_entries is not None:
            most = ROW_BYTES // (16 * problem.sample_entries) * federation.sample_bytes
            self._limits = {"max_bytes": min(BLOCK_BYTES, most)}
        if problem.mean_sufficient and ends[-1:].sum() > room:
            self._room = min(room // 2, 8 * len(rows) * problem.columns)
        self._kept, self.clipped = int(np.searchsorted(ends, room - self._room, side="right")), 0
        self._makes = self._kept < len(rows) and not federation.stored
        self._local: ColumnarFederation | None = None
        if self._kept:
            bounded, self.clipped = problem.bound(federation.block(rows[: self._kept]))
            self._local = ColumnarFederation(bounded)
        elif federation.stored:
            self.clipped = sum(problem.bound(block)[1] for _, block in federation.blocks(rows))

    def blocks(
        self, positions: NDArray[np.int64], max_users: int | None, *, of_means: bool = False
    ) -> Iterator[tuple[slice, Block]]:
        """Yield (where in ``positions``, block) for rising positions; blocks do not depend on the kept samples.

        With ``of_means``, one sample, the mean, may stand for all samples of a user. A pass over everybody keeps means
        while there is room; later passes take them for the same users in the same order of sums: with the same bits.
        """
        rows, fixed = self._rows[positions], order_is_fixed()
        known = self._means if len(positions) == len(self._rows) else {}
        slices = list(self._federation.slices(rows, max_users=max_users, **self._limits))
        means = [known.get((where.start, where.stop, fixed)) for where in slices]
        missing = (where for where, block in zip(slices, means, strict=True) if block is None or not of_means)
        made: Iterator[Block] = (self._made(positions[where], rows[where]) for where in missing)
        made = ahead(made) if self._makes else made
        for where, block in zip(slices, means, strict=True):
            if block is not None and of_means:
                yield where, block
                continue
            samples = next(made)
            if block is None and known is self._means and self._room > 0 and samples.usable is None:
                kept = self._means[where.start, where.stop, fixed] = mean_block(samples)
                self._room -= bytes_of(kept.features)
            yield where, samples

    def _made(self, positions: NDArray[np.int64], rows: NDArray[np.int64]) -> Block:
        if self._local is not None and positions[-1] < self._kept:
            return self._local.block(positions)
        return self._problem.bound(self._federation.block(rows))[0]


def _positions(given: ArrayLike) -> NDArray[np.int64]:
    found = np.asarray(given)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise BadInput(
            f"a node's users and rows are given as {found.ndim} dimensions of {found.dtype}: give whole numbers, such "
            "as np.arange(300), and users' names as labels"
        )
    return found.astype(np.int64, copy=False)


class Node:
    """A node that answers for ``users``, whose samples lie in ``federation``.

    Args (`BadInput` for users that do not rise, or another number of rows or labels):
        problem: the loss; samples are clipped into its declared bounds before any computation.
        federation: the source of the samples.
        users: rising indices, among the n users of the whole population, of this node's users.
        rows: their positions in ``federation``; default, ``users``. A silo whose own table starts at user 300 of the
            population gives ``users = 300 + rows``.
        labels: their names, the same in every silo; None if users have no names (simulations).

    Attributes:
        door: what every message has to pass first, where data are of people (`strategies.wire.claims.Door`); or None.
    """

    door: Any = None

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        users: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self.problem = problem
        self.users = _positions(users)
        if np.any(np.diff(self.users) <= 0):
            raise BadInput("a node's users must rise: each user once, in the order of the population")
        rows = self.users if rows is None else _positions(rows)
        if rows.shape != self.users.shape:
            raise BadInput(f"{len(rows)} rows are given for {len(self.users)} users: one row per user")
        if labels is not None and len(labels) != len(self.users):
            raise BadInput(f"{len(labels)} labels are given for {len(self.users)} users: one label a user")
        self.labels = labels
        self._samples = NodeSamples(problem, federation, rows)
        self.clipped_samples = self._samples.clipped
        self._warned = False

    @cached_property
    def key(self) -> MaskKey:
        """The key of this node's masks, drawn on first use, with the rounds it has answered; a new run draws anew."""
        return MaskKey()

    def identities(self, salt: bytes) -> NDArray[np.uint8]:
        """Return (U, 16) salted digests of labels; raise `BadInput` without labels or a salt of 16 to 64 bytes."""
        if self.labels is None:
            raise BadInput("this node's users have no labels: give the node labels")
        if not 16 <= len(salt) <= 64:
            raise BadInput(f"the salt must be 16 to 64 bytes, got {len(salt)}")
        return identities(self.labels, salt)

    def compute(self, x: Vector, users: NDArray[np.int64], computation: Computation) -> Answer:
        """Compute rows (or their sum) for ``users``, block by block; and their lengths, if requested.

        No user's data make it fail: a user without a usable sample counts as the centre (zero, if there is none), and
        so does a user on whose data alone the loss itself fails, such as a torch module's. Raises `BadInput` for a user
        of another node or one who is named twice, a model of the wrong length, lengths of users with labels, or a
        masked sum in an answered round.
        """
        users = np.asarray(users, dtype=np.int64)
        positions = self._positions(users)
        if computation.lengths and self.labels is not None:
            raise BadInput("this node's users have labels, so it does not reveal their lengths: only simulations do")
        if x.shape != (self.problem.dimension,):
            raise BadInput(f"the model has shape {x.shape}, the problem needs ({self.problem.dimension},)")
        pipeline = RowPipeline(computation, users, self.problem.dimension, sparse=self.problem.sparse)
        maker = RowMaker(self.problem, x, computation, self._warn)
        with fixed_order(computation.separate):
            most = 1 if maker.alone else pipeline.max_users
            for where, block in self._samples.blocks(positions, most, of_means=maker.of_means):
                rows, unusable = maker.rows(block, where)
                pipeline.add(rows, where, unusable)
        hidden = None if computation.masked is None else pipeline.masked(self.key, x)
        return Answer(users, pipeline.values, pipeline.non_finite, pipeline.lengths, hidden)

    def _positions(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        if np.array_equal(users, self.users) and len(users):
            return np.arange(len(users))
        positions = np.searchsorted(self.users, users)
        if len(users) == 0 or np.any(positions >= len(self.users)) or np.any(self.users[positions] != users):
            raise BadInput("the question names users that it does not hold")
        if np.any(np.diff(users) <= 0):
            raise BadInput("the users of a question must rise: each user once, in the order of the population")
        return positions

    def _warn(self, error: Exception) -> None:
        """Log once that the loss fails here; a faulty loss fails for all users."""
        if not self._warned:
            log.warning("the loss fails on users' data (%s): each such user counts as zero", told(error))
        self._warned = True
