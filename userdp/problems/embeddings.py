"""Tables of rows among a model's parameters, such as embeddings: a user's samples read a few rows of them."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.projections import project_l1
from userdp.arrays.sparse_rows import AnyRows, Sparse, row_of_entry, sparse_rows
from userdp.arrays.types import Array, Vector


@dataclass(frozen=True)
class Tables:
    """The tables of a model, in the order of their places; their rows are numbered from 0, one table after the other.

    Attributes:
        places: (first entry in the model, number of rows, entries of a row) of each table.
    """

    places: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, described: Array) -> Self:
        """Return the tables that `described` (T, 3) numbers."""
        return cls(tuple((int(first), int(rows), int(width)) for first, rows, width in described))

    @property
    def described(self) -> Array:
        """(T, 3) the places, for a message."""
        return np.array(self.places, dtype=np.float64).reshape(-1, 3)

    @property
    def rows(self) -> int:
        """The number V of rows of all tables."""
        return sum(rows for _, rows, _ in self.places)

    @property
    def entries(self) -> int:
        """The number of parameters in all tables."""
        return sum(rows * width for _, rows, width in self.places)

    @property
    def widest(self) -> int:
        """The most entries of a row."""
        return max((width for _, _, width in self.places), default=0)

    def touched(self, gradients: AnyRows) -> Sparse:
        """Return (U, V) ones in rows where a user's gradient (U, p) has an entry that is not zero, such as a NaN."""
        entries = csr_array(gradients)
        users, columns, seen, found = row_of_entry(entries), entries.indices, 0, list[NDArray[np.int64]]()
        for first, rows, width in self.places:
            inside = (columns >= first) & (columns < first + rows * width) & (entries.data != 0)
            found.append(users[inside] * self.rows + seen + (columns[inside] - first) // width)
            seen += rows
        users, rows_touched = np.divmod(np.unique(np.concatenate(found)), self.rows)
        ends = np.searchsorted(users, np.arange(gradients.shape[0] + 1))
        return sparse_rows(np.ones(len(users)), rows_touched, ends, self.rows)

    def shrunk(self, vector: Vector, radius: float) -> Vector:
        """Return the vector (p,) nearest to this one whose rows of tables have l2 norms of sum ``radius`` at most."""
        norms = [np.linalg.norm(vector[first : first + n * w].reshape(n, w), axis=1) for first, n, w in self.places]
        whole, shrunk = np.concatenate(norms), vector.copy()
        factors = np.split(project_l1(whole, radius) / np.where(whole > 0, whole, 1.0), np.cumsum([*map(len, norms)]))
        for (first, rows, width), factor in zip(self.places, factors, strict=False):
            shrunk[first : first + rows * width] *= np.repeat(factor, width)
        return shrunk

    def kept(self, rows: Vector, dimension: int) -> NDArray[np.int64]:
        """Return the rising places (k,), of ``dimension`` parameters, that are in these rows or in no table."""
        chosen, whole, seen = np.zeros(self.rows, dtype=bool), np.ones(dimension, dtype=bool), 0
        chosen[np.asarray(rows, dtype=np.int64)] = True
        for first, count, width in self.places:
            whole[first : first + count * width] = np.repeat(chosen[seen : seen + count], width)
            seen += count
        return np.flatnonzero(whole)
