"""Users' raw rows, made from their samples: no user's data make this fail, or change another user's row."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import AnyRows, Sparse, dense, placed_rows, stacked
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.errors import UserdpError
from userdp.nodes.computations import Computation
from userdp.nodes.partition import Partition
from userdp.problems.base import Problem
from userdp.problems.in_coordinates import InCoordinates


class RowMaker:
    """Makes the rows of a computation at a model x (p,), before the pipeline.

    A sample that is marked as unusable leaves its user's row, and nothing else. A user without a usable sample is
    UNUSABLE: its row is the centre, zero if there is none. If the loss fails on the data of a single user, the maker
    calls ``failed`` with the error; unless it is a sum over samples, the row is the centre.

    *Formal guarantees.* *Claim.* Each user's row follows from the model, public numbers and that user's samples alone,
    whichever of them can be used, so a clip C bounds what a user adds by C, as if no sample were unusable; nothing else
    of `Computation.sensitivity` changes. *Why.* A mark follows from its sample's values alone (`Problem.bound`). Marked
    samples are removed before the function of the row sees the block, so the row is that of the user who holds the
    usable samples and no others, who is one of the users for whom the bound holds anyway; divisors are the number of
    these samples, a user's secret that only its clipped row tells. Users are removed or kept as a whole, in their
    order. In sums over samples an unusable one weighs zero; each of the others keeps its coin or slot, which follows
    from its place among all of the user's samples, so that one changed sample moves no other (the unit of one sample).
    """

    def __init__(
        self, problem: Problem, x: Vector, computation: Computation, failed: Callable[[Exception], None]
    ) -> None:
        self._computation, self._function, self._x, self._failed = computation, computation.function, x, failed
        filled = computation.centre is not None or computation.partition is not None
        self._sparse, self._dimension = problem.sparse and self._function.keeps_zeros and not filled, problem.dimension
        seen = computation.coordinates
        self._problem = problem if seen is None else InCoordinates(problem, seen)

    @property
    def alone(self) -> bool:
        """True if blocks must hold one user, so that no other changes the last bits of its row."""
        kept = self._problem.fixed_order and self._function.fixed_order and self._computation.partition is None
        return self._computation.separate and not kept

    @property
    def of_means(self) -> bool:
        """True if the rows read nothing of samples but users' means."""
        parts = self._computation.coins, self._computation.partition
        return self._problem.mean_sufficient and self._function.of_gradients and parts == (None, None)

    def rows(self, block: Block, where: slice) -> tuple[AnyRows, int]:
        """Return the rows of a block's users, at positions ``where`` of the question, and the number of unusable users.

        If the loss fails, users are computed one by one, so that it fails only for those who cause it.
        """
        try:
            return self._drawn(block, where)
        except UserdpError:
            raise  # the error is in the question, not in data
        except Exception as error:
            if block.users == 1:
                self._failed(error)
                return self._without_failing(block, where)
        users = ((block.part(user, user + 1), where.start + user) for user in range(block.users))
        own = [self.rows(user, slice(place, place + 1)) for user, place in users]
        return stacked([rows for rows, _ in own]), sum(unusable for _, unusable in own)

    def _without_failing(self, block: Block, where: slice) -> tuple[AnyRows, int]:
        """Return a failing user's row; in a sum over samples those for which the loss does not fail must remain."""
        if not self._function.sums_samples:
            return self._centres(1), 1
        good = np.ones(block.samples, dtype=bool) if block.usable is None else block.usable.copy()
        for sample in np.flatnonzero(good):
            try:
                self._drawn(replace(block, usable=np.arange(block.samples) == sample), where)
            except Exception:
                good[sample] = False
        try:
            return self._drawn(replace(block, usable=good), where)
        except Exception:  # no sample fails alone, but together they do
            return self._centres(1), 1

    def _drawn(self, block: Block, where: slice) -> tuple[AnyRows, int]:
        """Return the block's rows; if samples are drawn by coins, the others are not read."""
        coins, partition = self._computation.coins, self._computation.partition
        part = None if partition is None else partition.part(where)
        if coins is None:
            return self._of_usable(block, part)
        users, drawn = block.thinned(coins.draw(where, block.sizes))
        if drawn is None:
            return self._centres(block.users), 0
        rows, unusable = self._of_usable(drawn, part)
        return placed_rows(rows, users, block.users), unusable

    def _of_usable(self, block: Block, partition: Partition | None) -> tuple[AnyRows, int]:
        """Return the block's rows, from the usable samples, and the number of unusable users."""
        if partition is not None:
            return self._grouped(block, partition), 0
        users, kept = self._kept(block)
        if kept is block:
            return self._made(block), 0
        unusable = 0 if self._function.sums_samples else block.users - len(users)
        if kept is None:
            return self._centres(block.users), unusable
        return self._placed(self._made(kept), users, block.users), unusable

    def _kept(self, block: Block) -> tuple[NDArray[np.int64], Block | None]:
        """Return the positions of users with samples that count, and these samples; the block itself if all do."""
        if self._function.counts_usable:
            return np.arange(block.users), block
        return block.usable_part()

    def _made(self, block: Block) -> AnyRows:
        return self._function.rows(
            self._problem, self._x, block, **self._computation.parameters, **self._computation.arrays
        )

    def _grouped(self, block: Block, partition: Partition) -> Rows:
        """Return (1, k p): the sums of the groups, one after the other; each group takes the place of a user."""
        present, regrouped = partition.regroup(block)
        sums = np.zeros((partition.count, self._dimension))
        if regrouped is not None:
            groups, kept = self._kept(regrouped)
            if kept is not None:
                sums[present[groups]] = dense(self._made(kept))
        return sums.reshape(1, -1)

    def _placed(self, rows: AnyRows, users: NDArray[np.int64], count: int) -> AnyRows:
        """Return (count, length): the rows at these users' positions, and the centre elsewhere."""
        if self._computation.centre is None:
            return placed_rows(rows, users, count)
        placed = dense(self._centres(count))
        placed[users] = dense(rows)
        return placed

    def _centres(self, users: int) -> AnyRows:
        shape = (users, self._computation.length(self._dimension))
        if self._sparse:
            return cast(Sparse, csr_array(shape))
        centre = self._computation.centre
        rows = np.zeros(shape)
        return rows if centre is None else rows + centre
