"""A node's samples, clipped into the problem's bounds: kept in memory if they fit, else made anew at each pass."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation, Federation
from userdp.problems.base import Problem

MEMORY_BYTES = 7 << 25
"""The bytes of samples that a node keeps, those of its first users; it reads or makes the others at each pass. The
eight nodes of a machine by default keep seven quarters of a GiB together."""


class NodeSamples:
    """Samples of some users of a federation (its users ``rows``), clipped into a problem's bounds, block by block.

    Attributes:
        clipped: how many of the kept or stored samples had to be clipped; samples made anew at each pass do not count.
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
        """Yield (where in ``positions``, block) for rising positions; blocks do not depend on the kept samples."""
        rows = self._rows[positions]
        for where in self._federation.slices(rows, max_users=max_users):
            if self._local is not None and positions[where][-1] < self._kept:
                yield where, self._local.block(positions[where])
            else:
                yield where, self._problem.bound(self._federation.block(rows[where]))[0]
