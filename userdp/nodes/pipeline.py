"""The path of users' rows out of a node: finite, clipped, weighed, noisy, masked, summed, in one object."""

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import (
    AnyRows,
    add_clipped_rows,
    add_rows,
    clip_rows,
    compacted,
    dense,
    finite_lengths,
    finite_rows,
    row_lengths,
    stacked,
)
from userdp.arrays.types import Vector
from userdp.masking.grid import Residues
from userdp.masking.masks import MaskKey
from userdp.nodes.computations import Computation
from userdp.nodes.statistics import statistic

ROW_BYTES = 1 << 26
"""The bytes of rows in work at once: wide models get fewer users a block."""


class RowPipeline:
    """Takes raw rows of ``users`` (U,), block by block, through all steps before they leave a node.

    The steps, in their order:

    1. *Finite*: the centre is subtracted; a row that is not finite then becomes zero, and is counted, in a masked sum
       by an entry of its own if `Computation.counted`.
    2. *Clip*: to an l2 norm, then to an l1 norm; the statistic, of the row before the clip, is one more column.
    3. *Noise* of each user, if users add their own.
    4. *Weigh*: a row of a masked sum has its statistic weighted, and is put on the grid.
    5. *Sum*, or rows in their places.
    6. *Mask*: the node adds its share of noise and its masks to a masked sum.

    Sums over groups of samples are finite, and clipped sample by sample: only the sum applies to them. The model has
    ``dimension`` parameters; ``sparse`` says whether the problem's gradients are. Raises `BadInput` if the function or
    statistic is unknown, or the centre is no finite vector of the rows' length.

    Attributes:
        non_finite: users so far whose row was not finite, or who have no usable sample, and became zero;
            always zero for masked sums, because the server must not know it.
        lengths: (U,) l2 norms before the clip; None if not requested.
    """

    def __init__(
        self, computation: Computation, users: NDArray[np.int64], dimension: int, *, sparse: bool = False
    ) -> None:
        computation.check_centre(dimension)
        self._asked, self._users = computation, users
        self.non_finite, self.lengths = 0, np.zeros(len(users)) if computation.lengths else None
        self._statistic = None if computation.statistic is None else statistic(computation.statistic)
        self._sparse, self._summed = sparse and computation.keeps_zeros, computation.reduce == "sum"
        self._width, masked = computation.width(dimension), computation.masked is not None
        self._widest = max(self._width, dimension if computation.function.from_wide else 0)
        self._stacks = self._sparse and not self._summed
        self._blocks = list[AnyRows]()
        columns = 0 if masked or self._stacks else self._width
        self._values = np.zeros((1 if self._summed else len(users), columns))
        self._total = np.zeros(self._width if masked else 0, dtype=np.int64)
        # Dense rows that are clipped and added up, and nothing else, are so in one pass.
        others = (computation.l1_norm, self._statistic, computation.partition, computation.noise, computation.masked)
        plain = self._summed and not self._sparse and all(other is None for other in others)
        self._clip_of_sum = computation.clip_norm if plain else None

    @property
    def max_users(self) -> int | None:
        """The most users of a block; None if the federation's own limit on samples is enough."""
        # Sparse rows take about as much as the samples that they come from, which the federation bounds.
        return None if self._sparse else max(1, ROW_BYTES // (8 * self._widest))

    def add(self, rows: AnyRows, where: slice, unusable: int = 0) -> None:
        """Take the raw rows (U', length) of users at ``where`` through all steps; ``unusable`` of them are centres."""
        broken = ~np.isfinite(dense(rows)).all(axis=1, keepdims=True) if self._asked.counted else None
        if self._clip_of_sum is None or self._asked.centre is not None:
            rows, non_finite = self.finite(rows)
            lengths = row_lengths(rows) if self._clip_of_sum is not None or self.lengths is not None else None
        else:
            rows, non_finite, lengths = finite_lengths(dense(rows))
        if self._asked.masked is None:
            self.non_finite += non_finite + unusable
        if self.lengths is not None:
            self.lengths[where] = lengths
        if self._clip_of_sum is not None and lengths is not None:
            add_clipped_rows(self._values[0], dense(rows), self._clip_of_sum, lengths)
        else:
            rows = self.clipped(rows)
            if broken is not None:
                rows = np.column_stack([broken * self._asked.longest, np.where(broken, 0.0, dense(rows))])
            self.collect(rows, where)

    def finite(self, rows: AnyRows) -> tuple[AnyRows, int]:
        """Return the rows about the centre, sparse if possible, and how many were not finite and became zero."""
        if self._asked.partition is not None:
            return rows, 0
        if self._asked.centre is not None:
            with np.errstate(over="ignore"):  # a row that overflows is not finite, and counts as the centre
                rows = dense(rows) - self._asked.centre
        elif self._statistic is not None and self.lengths is None:
            rows = dense(rows)
        return finite_rows(rows)

    def clipped(self, rows: AnyRows) -> AnyRows:
        """Return (U', width): finite rows, clipped, with the statistic beside them if requested."""
        asked, clipped = self._asked, rows
        if asked.partition is not None:
            return rows
        if asked.clip_norm is not None:
            clipped = clip_rows(clipped, asked.clip_norm)
        if asked.l1_norm is not None:
            clipped = clip_rows(clipped, asked.l1_norm, order=1)
        if self._statistic is None or asked.clip_norm is None:
            return clipped
        return np.column_stack([dense(clipped), self._statistic.compute(dense(rows), asked.clip_norm)])

    def collect(self, rows: AnyRows, where: slice) -> None:
        """Put clipped rows in their places, or add them up; with the users' own noise, or on the grid of a mask."""
        if self._asked.noise is not None:
            rows = self._asked.noise.add(dense(rows), self._users[where])
        if self._asked.masked is not None:
            self._total += self._asked.masked.whole(dense(rows)).sum(axis=0)
        elif self._stacks:
            self._blocks.append(rows)
        elif self._summed:
            add_rows(self._values[0], rows)
        else:
            self._values[where] = dense(rows)

    @property
    def values(self) -> AnyRows:
        """The (U, width) rows or (1, width) their sum, after the last block; (1, 0) if the sum is masked."""
        if self._stacks:
            return stacked(self._blocks)
        return compacted(self._values) if self._sparse else self._values

    def masked(self, key: MaskKey, x: Vector) -> Residues:
        """Return the (width,) sum on the grid, noisy and masked by ``key``, for a question at x, after all blocks."""
        assert self._asked.masked is not None
        return self._asked.masked.hidden(self._total, key, self._asked.question(x), int(self._users[0]))
