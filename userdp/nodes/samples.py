"""A node's samples, clipped into the problem's bounds: those that fit in memory, and the others at each pass anew."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation, Federation
from userdp.problems.base import Problem

MEMORY_BYTES = 7 << 25
"""Of samples, as many of which a node keeps, those of its first users; it reads or makes the others at each pass. The
eight nodes that a machine has unless told otherwise keep seven quarters of a GiB together."""


class NodeSamples:
    """The samples of some users of a federation, block by block.

    Args:
        problem: whose bounds samples are clipped into.
        federation: where the samples come from.
        rows: (U,) where each user is in the federation.

    Attributes:
        clipped: how many of the samples that are kept, or stored in a file, had to be clipped; of those that are made
            anew at each pass nobody counts them.
    """

    def __init__(self, problem: Problem, federation: Federation, rows: NDArray[np.int64]) -> None:
        self._problem, self._federation, self._rows = problem, federation, rows
        ends = np.cumsum(federation.sizes[rows]) * federation.sample_bytes
        room = 0 if federation.stored else MEMORY_BYTES
        self._kept, self.clipped = int(np.searchsorted(ends, room, side="right")), 0
        self._local: ColumnarFederation | None = None
        if self._kept:
            bounded, self.clipped = problem.bound(federation.block(rows[: self._kept]))
            self._local = ColumnarFederation(bounded)
        elif federation.stored:
            self.clipped = sum(problem.bound(block)[1] for _, block in federation.blocks(rows))

    def blocks(self, positions: NDArray[np.int64], max_users: int | None) -> Iterator[tuple[slice, Block]]:
        """The samples of users at these rising positions, in blocks of at most ``max_users``.

        Where a block ends does not depend on what is kept, so sums over blocks do not either.

        Yields:
            (where in ``positions``, block)
        """
        rows = self._rows[positions]
        for where in self._federation.slices(rows, max_users=max_users):
            if self._local is not None and positions[where][-1] < self._kept:
                yield where, self._local.block(positions[where])
            else:
                yield where, self._problem.bound(self._federation.block(rows[where]))[0]
