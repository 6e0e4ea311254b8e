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
        clipped: how many of the samples that are kept had to be clipped; of others nobody counts them.
    """

    def __init__(self, problem: Problem, federation: Federation, rows: NDArray[np.int64]) -> None:
        self._problem, self._federation, self._rows = problem, federation, rows
        ends = np.cumsum(federation.sizes[rows]) * federation.sample_bytes
        self._kept, self.clipped = int(np.searchsorted(ends, MEMORY_BYTES, side="right")), 0
        self._local: ColumnarFederation | None = None
        if self._kept:
            bounded, self.clipped = problem.bound(federation.block(rows[: self._kept]))
            self._local = ColumnarFederation(bounded)

    def blocks(self, positions: NDArray[np.int64], max_users: int | None) -> Iterator[tuple[slice, Block]]:
        """The samples of users at these rising positions, in blocks of at most ``max_users``.

        Yields:
            (where in ``positions``, block)
        """
        kept = int(np.searchsorted(positions, self._kept))
        if kept and self._local is not None:
            yield from self._local.blocks(positions[:kept], max_users=max_users)
        if kept < len(positions):
            for where, block in self._federation.blocks(self._rows[positions[kept:]], max_users=max_users):
                yield slice(where.start + kept, where.stop + kept), self._problem.bound(block)[0]
