"""Columns of categories without a declared vocabulary: each cell goes to one of a fixed number of buckets.

Buckets are public: they follow from the names of the columns and the cells alone, whatever else a table holds. So a
category that nobody has seen yet has one too, and no list of categories has to be agreed on, or taken from the data.
"""

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import Sparse, sparse_rows
from userdp.data.tables.cells import Texts


def bucket(column: str, cell: str, buckets: int) -> int:
    """The bucket of a cell, in 0..buckets - 1: blake2b of the cell, keyed by that of the column's name.

    The same on every machine and in every release. With b buckets, two given cells share one with chance 1/b
    (Weinberger, Dasgupta, Langford, Smola, Attenberg 2009).
    """
    key = blake2b(column.encode(), digest_size=16).digest()
    return int.from_bytes(blake2b(cell.encode(), digest_size=8, key=key).digest()) % buckets


def hashed_rows(table: Mapping[str, Texts], buckets: int) -> Sparse:
    """(N, buckets) float32 rows of l2 norm 1 (never above), from k columns of text with N cells each.

    Where the cells of a row lie in k buckets, each has the value 1/sqrt(k). A bucket that several of them share counts
    once for each, and the row is scaled to norm 1 all the same.

    *Formal guarantee*: a row depends on its own cells alone, to the last bit: counts are whole numbers, and IEEE 754
    rounds roots and quotients exactly wherever in an array they stand.
    """
    cells = np.sort(np.stack([_codes(column, texts, buckets) for column, texts in table.items()], axis=1), axis=1)
    first = np.diff(cells, axis=1, prepend=-1) > 0
    starts = np.flatnonzero(first)
    counts = np.diff(starts, append=first.size).astype(np.float64)
    ends = np.concatenate([[0], np.cumsum(first.sum(axis=1))])
    lengths = np.sqrt(np.add.reduceat(counts**2, ends[:-1]))
    return sparse_rows(_rounded_down(counts / np.repeat(lengths, np.diff(ends))), cells.ravel()[starts], ends, buckets)


def _codes(column: str, texts: Texts, buckets: int) -> NDArray[np.int64]:
    """(N,) the bucket of each cell; every distinct one is hashed once."""
    return texts.mapped(bucket(column, cell, buckets) for cell in texts.distinct)


def _rounded_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32, towards zero, so that no row becomes longer than it is declared to be."""
    near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(0)), near)
