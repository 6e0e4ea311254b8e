"""Sparse rows, as `scipy.sparse.csr_array`, and operations on samples and gradients that take rows dense or sparse.

Time and memory do not grow with the number of columns, so a million cost no more than ten. A matrix is CANONICAL if the
columns of each row rise: sorted, none twice. Entries of a row are added up in an order that depends on that row alone,
so no user's row depends, to the last bit, on the rows next to it.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from userdp.arrays.fixed_order import inner
from userdp.arrays.types import Rows
from userdp.errors import BadInput

Sparse: TypeAlias = csr_array[Any, tuple[int, int]]
AnyRows: TypeAlias = Rows | Sparse
SomeRows = TypeVar("SomeRows", bound=AnyRows)
"""Vectors of users or samples: (U, p), dense or sparse."""


def sparse_rows(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], columns: int) -> Sparse:
    """Wrap the arrays themselves as a matrix of ``len(indptr) - 1`` rows; the caller ensures that it is canonical."""
    rows = csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns))
    rows.has_canonical_format = True
    return cast(Sparse, rows)


def require_canonical(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], columns: int, what: str) -> None:
    """Refuse arrays that are no canonical matrix, which scipy's routines would trust (`BadInput`, naming ``what``)."""
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
    """Return the rows as a dense array; a dense array is returned as it is."""
    return np.asarray(rows.toarray()) if isinstance(rows, csr_array) else rows


def entries(rows: AnyRows) -> Rows:
    """Return all entries of an array, or the stored ones of sparse rows, as a flat array."""
    return np.asarray(rows.data) if isinstance(rows, csr_array) else rows.ravel()


def bytes_of(rows: NDArray[np.generic] | Sparse) -> int:
    """Count the bytes of the array, or of the three arrays of sparse rows."""
    if isinstance(rows, csr_array):
        return int(rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes)
    return rows.nbytes


def part_of(rows: Sparse, first: int, last: int) -> Sparse:
    """Return rows ``first:last`` as views of their entries."""
    start, stop = int(rows.indptr[first]), int(rows.indptr[last])
    ends = rows.indptr[first : last + 1] - rows.indptr[first]
    return sparse_rows(rows.data[start:stop], rows.indices[start:stop], ends, rows.shape[1])


def gathered_rows(rows: Sparse, positions: NDArray[np.int64] | NDArray[np.bool_]) -> Sparse:
    """Return the rows at these positions (or under a mask), in this order."""
    chosen = rows[positions]
    return sparse_rows(chosen.data, chosen.indices, chosen.indptr, rows.shape[1])


def placed_rows(rows: AnyRows, positions: NDArray[np.int64], count: int) -> AnyRows:
    """Return (count, p): row i of ``rows`` at ``positions[i]``, which rise; zero elsewhere."""
    if not isinstance(rows, csr_array):
        placed = np.zeros((count, rows.shape[1]))
        placed[positions] = rows
        return placed
    sizes = np.zeros(count, dtype=rows.indptr.dtype)
    sizes[positions] = np.diff(rows.indptr)
    return sparse_rows(rows.data, rows.indices, np.concatenate([[0], np.cumsum(sizes)]), rows.shape[1])


def stacked(parts: Sequence[AnyRows]) -> AnyRows:
    """Concatenate rows; the result is sparse if all parts are."""
    if all(isinstance(part, csr_array) for part in parts):
        whole = cast(Sparse, vstack(cast(Any, parts), format="csr"))
        return sparse_rows(whole.data, whole.indices, whole.indptr, whole.shape[1])
    return np.concatenate([dense(part) for part in parts])


def row_of_entry(rows: Sparse) -> NDArray[np.int64]:
    """Return (entries,) the row of each stored entry."""
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))


def over_rows(reduce: np.ufunc, values: NDArray[Any], rows: Sparse) -> Rows:
    """Reduce one number for each stored entry row by row, (U,); 0 for a row that stores none."""
    result = np.zeros(rows.shape[0])
    filled = np.diff(rows.indptr) > 0
    result[filled] = reduce.reduceat(values, rows.indptr[:-1][filled]) if filled.any() else 0.0
    return result


def squared_lengths(rows: Sparse) -> Rows:
    """Compute (U,) squared l2 norms, in float64."""
    return over_rows(np.add, np.square(rows.data, dtype=np.float64), rows)


def scaled_rows(rows: SomeRows, factors: Rows) -> SomeRows:
    """Multiply row i by ``factors[i]``, in float64; sparse rows share their columns with the result."""
    if not isinstance(rows, csr_array):
        return cast(SomeRows, rows * factors[:, None])
    data = rows.data * np.repeat(factors, np.diff(rows.indptr))
    return cast(SomeRows, sparse_rows(data, rows.indices, rows.indptr, rows.shape[1]))


def summed_rows(rows: Sparse, offsets: NDArray[np.int64]) -> Sparse:
    """Compute (U, p) the sums of consecutive rows, ``offsets[u]:offsets[u + 1]`` for row u.

    Such rows lie one after the other, so their entries are already those of the sum, but for order and duplicates.
    """
    joined = csr_array((rows.data, rows.indices, rows.indptr[offsets]), shape=(len(offsets) - 1, rows.shape[1]))
    sums = joined.copy()  # the indices are those of the features, and the next lines work in place
    # Else the order of ALL rows decides on sorting, which may swap equal columns: rows would depend on each other.
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
    """Return one row (1, p) in its smaller form: the array itself, or its entries that are not zero."""
    if 12 * int(np.count_nonzero(rows)) >= rows.nbytes:
        return rows
    indices = np.flatnonzero(rows[0]).astype(np.int32)
    return sparse_rows(rows[0][indices], indices, np.array([0, len(indices)], dtype=np.int32), rows.shape[1])


def _finite_sparse_rows(rows: Sparse) -> tuple[Sparse, int]:
    """Set every row that holds a NaN or an infinity to zero, and count such rows."""
    wrong = ~np.isfinite(rows.data)
    if not wrong.any():
        return rows, 0
    bad = over_rows(np.maximum, wrong.astype(np.float64), rows) > 0
    data = np.where(bad[row_of_entry(rows)], 0.0, rows.data)
    return sparse_rows(data, rows.indices, rows.indptr, rows.shape[1]), int(bad.sum())


def _clip_sparse_rows(rows: Sparse, clip_norm: float, order: int) -> Sparse:
    """Scale each finite row down to l1 or l2 norm at most ``clip_norm``, as `clip_rows` does dense ones."""
    largest = over_rows(np.maximum, np.abs(rows.data), rows)
    scale = np.where(largest > 0, largest, 1.0)
    owner = row_of_entry(rows)
    unit = np.asarray(rows.data / scale[owner])
    norms = over_rows(np.add, np.abs(unit), rows) if order == 1 else np.sqrt(over_rows(np.add, unit**2, rows))
    factors = np.minimum(scale, clip_norm / np.maximum(norms, 1.0))
    return sparse_rows(unit * factors[owner], rows.indices, rows.indptr, rows.shape[1])


def finite_rows(rows: SomeRows) -> tuple[SomeRows, int]:
    """Set every row that holds a NaN or an infinity to zero, and count such rows; copies only if there are any."""
    if isinstance(rows, csr_array):
        return cast(tuple[SomeRows, int], _finite_sparse_rows(rows))
    if np.isfinite(_squares(rows)).all():  # a row whose square overflows may still be finite
        return rows, 0
    bad = ~np.asarray(np.isfinite(rows).all(axis=1))
    return (cast(SomeRows, np.where(bad[:, None], 0.0, rows)), int(bad.sum())) if bad.any() else (rows, 0)


def clip_rows(rows: SomeRows, clip_norm: float, order: Literal[1, 2] = 2) -> SomeRows:
    """Scale each finite row down to l2 (or l1) norm at most ``clip_norm``; zero rows stay zero.

    The clipped row depends on that row alone, to the last bit. Rows whose square is far from overflow and underflow are
    multiplied by one number; norms of the others are taken after dividing by the largest entry, so that huge rows do
    not overflow and escape the clip.
    """
    if isinstance(rows, csr_array):
        return cast(SomeRows, _clip_sparse_rows(rows, clip_norm, order))
    if order == 1:
        return cast(SomeRows, _clip_any_rows(rows, clip_norm, order))
    squares = _squares(rows)
    plain = _plain(squares)
    clipped = np.asarray(rows * _factors(np.sqrt(squares), plain, clip_norm)[:, None])
    if not plain.all():
        clipped[~plain] = _clip_any_rows(rows[~plain], clip_norm, order)
    return cast(SomeRows, clipped)


def add_clipped_rows(total: Rows, rows: Rows, clip_norm: float, lengths: Rows) -> None:
    """Add all finite rows, each scaled down to l2 norm at most ``clip_norm``, to ``total`` (p,), in place.

    ``lengths`` are the `row_lengths`; the clipped rows are not stored.
    """
    plain = (lengths > 2.0**-450) & (lengths < 2.0**450)
    if plain.all():
        total += _factors(lengths, plain, clip_norm) @ rows
    else:
        add_rows(total, clip_rows(rows, clip_norm))


def _factors(lengths: Rows, plain: NDArray[np.bool_], clip_norm: float) -> Rows:
    """Compute (U,) the factors that scale plain rows of these lengths down to length at most ``clip_norm``."""
    return np.minimum(1.0, clip_norm / np.where(plain, lengths, clip_norm or 1.0))


def finite_lengths(rows: Rows) -> tuple[Rows, int, Rows]:
    """Compute `finite_rows` and their `row_lengths`, as both do, from the same squares if all of these are finite."""
    squares = _squares(rows)
    if np.isfinite(squares).all():
        return rows, 0, row_lengths(rows, squares)
    rows, wrong = finite_rows(rows)
    return rows, wrong, row_lengths(rows)


def row_lengths(rows: AnyRows, squares: Rows | None = None) -> Rows:
    """Compute (U,) the l2 norm of each finite row, of known squares if so; infinite if float64 cannot hold it."""
    with np.errstate(over="ignore"):
        if isinstance(rows, csr_array):
            return np.sqrt(squared_lengths(rows))
        squares = _squares(rows) if squares is None else squares
        lengths, plain = np.sqrt(squares), _plain(squares)
        if not plain.all():
            unit, scale = _scaled(rows[~plain])
            lengths[~plain] = scale * np.linalg.norm(unit, axis=1)
        return np.asarray(lengths)


def _squares(rows: Rows) -> Rows:
    """Compute (U,) squared l2 norms, which may overflow, underflow or be NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return inner(rows, rows)


def _plain(squares: Rows) -> NDArray[np.bool_]:
    """Mark (U,) squared norms that neither overflowed nor lost anything to underflow."""
    return (squares > 2.0**-900) & (squares < 2.0**900)


def _scaled(rows: Rows) -> tuple[Rows, Rows]:
    """Return rows over their largest entries (U, p), and those entries (U,), 1 for a row of zeros."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    return rows / scale[:, None], scale


def _clip_any_rows(rows: Rows, clip_norm: float, order: Literal[1, 2]) -> Rows:
    unit, scale = _scaled(rows)
    norms = np.linalg.norm(unit, ord=order, axis=1)
    return np.asarray(unit * np.minimum(scale, clip_norm / np.maximum(norms, 1.0))[:, None])
