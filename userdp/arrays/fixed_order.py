"""Products and sums whose last bits follow from each row, or each user's samples, alone.

Matrix products round by the shapes of whole arrays: where one user holds a sample more, the last bits of another user's
gradient change. Noise that is proven in floating point must exclude that. One call for each user would, at a hundred
times the cost; within `fixed_order` whole blocks are computed, in sums whose order other rows cannot change.

*Formal guarantees.* Within `fixed_order` a row of `product`, a number of `inner` and a matrix of `grams` follows to the
last bit from the row, or the stack, at its place and from the second factor alone: not from the number of the others,
their values, or where the array lies in memory. *Why.* A product of a sparse and a dense matrix (scipy) adds up the
entries of a row one after the other, and reads no other row. Elementwise products are exact functions of two numbers
(IEEE 754), and numpy's sum along the last axis of a contiguous array splits each row by its length alone. Neither BLAS
is called, nor einsum, whose buffer of 8192 numbers cuts a long row where those before it end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.types import Array

Number = TypeVar("Number", bound=np.floating)

EINSUM = partial(np.einsum, "ij,ij->i")
"""Computes `inner` within the buffer of numpy's iterator, in no fixed order."""

_FIXED: ContextVar[bool] = ContextVar("fixed_order", default=False)


@contextmanager
def fixed_order(wanted: bool) -> Iterator[None]:
    """Take products and sums in a fixed order within the block, in this thread, if ``wanted``."""
    before = _FIXED.set(wanted)
    try:
        yield
    finally:
        _FIXED.reset(before)


def order_is_fixed() -> bool:
    """Return whether the call is within `fixed_order`."""
    return _FIXED.get()


def product(rows: NDArray[Number] | csr_array[Any, tuple[int, int]], matrix: NDArray[Number]) -> NDArray[Number]:
    """Compute ``rows @ matrix`` (N,) or (N, j), of rows (N, k), also sparse ones, and ``matrix`` (k,) or (k, j)."""
    if isinstance(rows, csr_array) or rows.ndim == 1 or not order_is_fixed():
        return np.asarray(rows @ matrix)
    return _one_by_one(rows, np.zeros(len(rows), dtype=np.int64), matrix)


def inner(rows: NDArray[Number], others: NDArray[Number], plain: Callable[..., Any] = np.vecdot) -> NDArray[Number]:
    """Compute the inner product (N,) of each two rows of rows and others (N, k); ``plain`` does in no fixed order."""
    if not order_is_fixed():
        return np.asarray(plain(rows, others))
    return np.asarray(np.multiply(rows, others, order="C").sum(axis=1))


def grams(stacks: Array) -> Array:
    """Compute ``S S^T`` (g, m, m) of each matrix S of stacks (g, m, k)."""
    if not order_is_fixed():
        again = stacks.copy("K")  # the product of one array by itself is another routine, of other last bits
        return np.asarray(np.matmul(stacks, again.transpose(0, 2, 1)))
    count, rows, columns = stacks.shape
    first = np.repeat(np.arange(count) * columns, rows)
    made = _one_by_one(stacks.reshape(-1, columns), first, stacks.transpose(0, 2, 1).reshape(-1, rows))
    return made.reshape(count, rows, rows)


def _one_by_one(rows: NDArray[Number], first: NDArray[np.int64], values: NDArray[Number]) -> NDArray[Number]:
    """Compute the product of each row (k,) of rows with the k rows of ``values`` that begin at its ``first``."""
    count, columns = rows.shape
    whole = np.int32 if max(rows.size, len(values)) < 1 << 31 else np.int64  # scipy would look for this again
    places = np.add.outer(first.astype(whole), np.arange(columns, dtype=whole)).ravel()
    ends = np.arange(count + 1, dtype=whole) * whole(columns)
    sparse = csr_array((rows.ravel(), places, ends), shape=(count, len(values)))
    return np.asarray(sparse @ values)
