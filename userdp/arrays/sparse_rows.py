"""Rows of which few entries are not zero, as `scipy.sparse.csr_array`: what nodes do with samples and gradients.

Nothing here takes time or memory by the number of columns, so a million of them cost no more than ten. A matrix is
CANONICAL if the columns of each row rise: sorted, none twice. Entries of a row are added up in an order that depends on
that row alone, so no user's row depends, to the last bit, on the rows next to it.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from userdp.arrays.types import Rows
from userdp.errors import BadInput

Sparse: TypeAlias = csr_array[Any, tuple[int, int]]
AnyRows: TypeAlias = Rows | Sparse
"""Vectors of users or samples: (U, p), dense or sparse."""


def sparse_rows(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], columns: int) -> Sparse:
    """The arrays themselves as a canonical matrix of ``len(indptr) - 1`` rows; whoever calls sees to canonical."""
    rows = csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns))
    rows.has_canonical_format = True
    return cast(Sparse, rows)


def require_canonical(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], columns: int, what: str) -> None:
    """Refuse arrays that are no canonical matrix, which scipy's routines would trust.

    Raises:
        BadInput: names ``what`` is wrong.
    """
    stored = len(indices)
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != stored or len(data) != stored:
        raise BadInput(f"{what} are no valid csr_array: indptr must rise from 0 to the number of entries")
    if np.any(indptr[1:] < indptr[:-1]):  # differences of integers could wrap round
        raise BadInput(f"{what} are no valid csr_array: indptr must not fall")
    if stored and (indices.min() < 0 or indices.max() >= columns):
        raise BadInput(f"{what} are no valid csr_array: a column lies outside 0..{columns - 1}")
    rising = np.diff(indices) > 0
    starts = indptr[(indptr > 0) & (indptr < stored)]
    rising[starts - 1] = True  # where the next row begins
    if not rising.all():
        raise BadInput(f"{what} have columns that do not rise within a row: call sum_duplicates() on the csr_array")


def dense(rows: AnyRows) -> Rows:
    """The rows as an array of all their entries; an array is returned as it is."""
    return np.asarray(rows.toarray()) if isinstance(rows, csr_array) else rows


def entries(rows: AnyRows) -> Rows:
    """All entries of an array, or the stored ones of sparse rows, as a flat array."""
    return np.asarray(rows.data) if isinstance(rows, csr_array) else rows.ravel()


def bytes_of(rows: NDArray[np.generic] | Sparse) -> int:
    """Bytes of the array, or of the three arrays of sparse rows."""
    if isinstance(rows, csr_array):
        return int(rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes)
    return rows.nbytes


def part_of(rows: Sparse, first: int, last: int) -> Sparse:
    """Rows ``first:last`` as views of their entries."""
    start, stop = int(rows.indptr[first]), int(rows.indptr[last])
    ends = rows.indptr[first : last + 1] - rows.indptr[first]
    return sparse_rows(rows.data[start:stop], rows.indices[start:stop], ends, rows.shape[1])


def gathered_rows(rows: Sparse, positions: NDArray[np.int64] | NDArray[np.bool_]) -> Sparse:
    """The rows at these positions (or where a mask is true), in this order."""
    chosen = rows[positions]
    return sparse_rows(chosen.data, chosen.indices, chosen.indptr, rows.shape[1])


def placed_rows(rows: AnyRows, positions: NDArray[np.int64], count: int) -> AnyRows:
    """(count, p): row i of ``rows`` at ``positions[i]``, which rise; zero elsewhere."""
    if not isinstance(rows, csr_array):
        placed = np.zeros((count, rows.shape[1]))
        placed[positions] = rows
        return placed
    sizes = np.zeros(count, dtype=rows.indptr.dtype)
    sizes[positions] = np.diff(rows.indptr)
    return sparse_rows(rows.data, rows.indices, np.concatenate([[0], np.cumsum(sizes)]), rows.shape[1])


def stacked(parts: Sequence[AnyRows]) -> AnyRows:
    """Rows one below the other; sparse if all are."""
    if all(isinstance(part, csr_array) for part in parts):
        whole = cast(Sparse, vstack(cast(Any, parts), format="csr"))
        return sparse_rows(whole.data, whole.indices, whole.indptr, whole.shape[1])
    return np.concatenate([dense(part) for part in parts])


def row_of_entry(rows: Sparse) -> NDArray[np.int64]:
    """(entries,): which row each stored entry is in."""
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))


def over_rows(reduce: np.ufunc, values: NDArray[Any], rows: Sparse) -> Rows:
    """(U,): one number for each stored entry, reduced row by row; 0 where a row stores none."""
    result = np.zeros(rows.shape[0])
    filled = np.diff(rows.indptr) > 0
    result[filled] = reduce.reduceat(values, rows.indptr[:-1][filled]) if filled.any() else 0.0
    return result


def squared_lengths(rows: Sparse) -> Rows:
    """(U,): squared l2 norms, in float64."""
    return over_rows(np.add, np.square(rows.data, dtype=np.float64), rows)


@overload
def scaled_rows(rows: Sparse, factors: Rows) -> Sparse: ...
@overload
def scaled_rows(rows: AnyRows, factors: Rows) -> AnyRows: ...
def scaled_rows(rows: AnyRows, factors: Rows) -> AnyRows:
    """Row i times ``factors[i]``, in float64; sparse rows share their columns with the result."""
    if not isinstance(rows, csr_array):
        return np.asarray(rows * factors[:, None])
    data = rows.data * np.repeat(factors, np.diff(rows.indptr))
    return sparse_rows(data, rows.indices, rows.indptr, rows.shape[1])


def summed_rows(rows: Sparse, offsets: NDArray[np.int64]) -> Sparse:
    """(U, p): the sums of consecutive rows, ``offsets[u]:offsets[u + 1]`` for row u.

    Such rows lie one after the other, so their entries are those of the sum already, but for order and duplicates.
    """
    joined = csr_array((rows.data, rows.indices, rows.indptr[offsets]), shape=(len(offsets) - 1, rows.shape[1]))
    sums = joined.copy()  # of features' own indices: what follows works in place
    # Else whether ALL rows are in order decides on sorting, which may swap equal columns: rows would hang together.
    sums.has_sorted_indices = False
    sums.sum_duplicates()
    return sums


def add_rows(total: Rows, rows: AnyRows) -> None:
    """Add all rows to ``total`` (p,), in place; a column's entries in the order of rows."""
    if isinstance(rows, csr_array):
        np.add.at(total, rows.indices, rows.data)
    else:
        total += rows.sum(axis=0)


def compacted(rows: Rows) -> AnyRows:
    """Of one row (1, p), whichever takes fewer bytes: the array itself, or its entries that are not zero."""
    if 12 * int(np.count_nonzero(rows)) >= rows.nbytes:
        return rows
    indices = np.flatnonzero(rows[0]).astype(np.int32)
    return sparse_rows(rows[0][indices], indices, np.array([0, len(indices)], dtype=np.int32), rows.shape[1])


def finite_sparse_rows(rows: Sparse) -> tuple[Sparse, int]:
    """Rows with every row that holds a NaN or an infinity set to zero, and how many there were."""
    wrong = ~np.isfinite(rows.data)
    if not wrong.any():
        return rows, 0
    bad = over_rows(np.maximum, wrong.astype(np.float64), rows) > 0
    data = np.where(bad[row_of_entry(rows)], 0.0, rows.data)
    return sparse_rows(data, rows.indices, rows.indptr, rows.shape[1]), int(bad.sum())


def clip_sparse_rows(rows: Sparse, clip_norm: float, order: int) -> Sparse:
    """Each finite row scaled down to l1 or l2 norm at most ``clip_norm``, as dense ones are by `clip_rows`."""
    largest = over_rows(np.maximum, np.abs(rows.data), rows)
    scale = np.where(largest > 0, largest, 1.0)
    owner = row_of_entry(rows)
    unit = np.asarray(rows.data / scale[owner])
    norms = over_rows(np.add, np.abs(unit), rows) if order == 1 else np.sqrt(over_rows(np.add, unit**2, rows))
    factors = np.minimum(scale, clip_norm / np.maximum(norms, 1.0))
    return sparse_rows(unit * factors[owner], rows.indices, rows.indptr, rows.shape[1])


@overload
def finite_rows(rows: Rows) -> tuple[Rows, int]: ...
@overload
def finite_rows(rows: AnyRows) -> tuple[AnyRows, int]: ...
def finite_rows(rows: AnyRows) -> tuple[AnyRows, int]:
    """Rows with every row that holds a NaN or an infinity set to zero, and how many there were.

    Copies only when there are such rows.
    """
    if isinstance(rows, csr_array):
        return finite_sparse_rows(rows)
    # A row whose square is finite is finite; of the others some are large and no more.
    doubtful = ~np.isfinite(_squares(rows))
    if not doubtful.any():
        return rows, 0
    bad = ~np.asarray(np.isfinite(rows).all(axis=1))
    if not bad.any():
        return rows, 0
    return np.where(bad[:, None], 0.0, rows), int(bad.sum())


@overload
def clip_rows(rows: Rows, clip_norm: float, order: Literal[1, 2] = 2) -> Rows: ...
@overload
def clip_rows(rows: AnyRows, clip_norm: float, order: Literal[1, 2] = 2) -> AnyRows: ...
def clip_rows(rows: AnyRows, clip_norm: float, order: Literal[1, 2] = 2) -> AnyRows:
    """Scale each finite row down to l2 (or l1) norm at most ``clip_norm``; zero rows stay zero.

    What becomes of a row depends on that row alone, to the last bit. Rows whose square is far from overflow and
    underflow are multiplied by one number; norms of the others are taken after dividing by the largest entry, so that
    huge rows do not overflow and escape the clip.
    """
    if isinstance(rows, csr_array):
        return clip_sparse_rows(rows, clip_norm, order)
    if order == 1:
        return _clip_any_rows(rows, clip_norm, order)
    squares = _squares(rows)
    plain = _plain(squares)
    clipped = np.asarray(rows * _factors(np.sqrt(squares), plain, clip_norm)[:, None])
    if not plain.all():
        clipped[~plain] = _clip_any_rows(rows[~plain], clip_norm, order)
    return clipped


def add_clipped_rows(total: Rows, rows: Rows, clip_norm: float, lengths: Rows) -> None:
    """Add all finite rows, each scaled down to l2 norm at most ``clip_norm``, to ``total`` (p,), in place.

    In one pass, without the clipped rows themselves. ``lengths`` are the `row_lengths`.
    """
    plain = (lengths > 2.0**-450) & (lengths < 2.0**450)
    if plain.all():
        total += _factors(lengths, plain, clip_norm) @ rows
    else:
        add_rows(total, clip_rows(rows, clip_norm))


def _factors(lengths: Rows, plain: NDArray[np.bool_], clip_norm: float) -> Rows:
    """(U,): what scales plain rows of these lengths down to length at most ``clip_norm``."""
    return np.minimum(1.0, clip_norm / np.where(plain, lengths, clip_norm or 1.0))


def row_lengths(rows: AnyRows) -> Rows:
    """(U,): the l2 norm of each finite row; infinite where it is no number that there is."""
    with np.errstate(over="ignore"):
        if isinstance(rows, csr_array):
            return np.sqrt(squared_lengths(rows))
        squares = _squares(rows)
        lengths, plain = np.sqrt(squares), _plain(squares)
        if not plain.all():
            unit, scale = _scaled(rows[~plain])
            lengths[~plain] = scale * np.linalg.norm(unit, axis=1)
        return np.asarray(lengths)


def _squares(rows: Rows) -> Rows:
    """(U,): squared l2 norms as computed, which may overflow, underflow or be no number."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.vecdot(rows, rows))


def _plain(squares: Rows) -> NDArray[np.bool_]:
    """(U,): which squared norms neither overflowed nor lost anything to underflow."""
    return (squares > 2.0**-900) & (squares < 2.0**900)


def _scaled(rows: Rows) -> tuple[Rows, Rows]:
    """Rows over their largest entries (U, p), and those entries (U,), 1 for a row of zeros."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    return rows / scale[:, None], scale


def _clip_any_rows(rows: Rows, clip_norm: float, order: Literal[1, 2]) -> Rows:
    """`clip_rows` for finite rows of any size."""
    unit, scale = _scaled(rows)
    norms = np.linalg.norm(unit, ord=order, axis=1)
    return np.asarray(unit * np.minimum(scale, clip_norm / np.maximum(norms, 1.0))[:, None])
