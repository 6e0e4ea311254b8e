"""Sums over each user's samples, in pieces that stay in the processor's cache.

Stored data is float32 and gradients are float64: casting two megabytes at a time costs little more than reading it, and
no float64 copy of a block ever exists. Results agree to rounding (1e-9 relative) however users are grouped.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import bytes_of
from userdp.arrays.types import Array
from userdp.data.block import Block

CHUNK_BYTES = 1 << 21
"""Bytes of one piece: small enough for the cache, large enough to drown the cost of a Python call."""

AT_HAND_BYTES = 1 << 20
"""Bytes of one piece that is read twice: few enough for the cache that is each core's own."""

Number = TypeVar("Number", bound=np.floating)


def parts(block: Block, row_bytes: int | None = None) -> Iterator[tuple[slice, Block]]:
    """Cut a block into pieces of about `CHUNK_BYTES`.

    Args:
        block: what to cut.
        row_bytes: bytes that one sample costs the caller; default, the bytes of its features.

    Yields:
        (users, piece): whole users as long as they fit. A user too large for one piece comes in several, so add what
        is computed to what is there (``sums[users] += ...``).
    """
    offsets = block.offsets
    for users, samples in _slices(offsets, _rows(block, row_bytes)):
        own = offsets[users.start : users.stop + 1] - samples.start
        if users.stop - users.start == 1:
            own = np.array([0, samples.stop - samples.start], dtype=np.int64)
        yield users, block.piece(samples.start, samples.stop, own)


def _slices(offsets: NDArray[np.int64], rows: int) -> Iterator[tuple[slice, slice]]:
    """(users, samples) of pieces of at most so many rows: whole users as long as they fit, else pieces of one."""
    first, users = 0, len(offsets) - 1
    while first < users:
        last = int(offsets.searchsorted(offsets[first] + rows, side="right")) - 1
        if last > first:
            yield slice(first, last), slice(int(offsets[first]), int(offsets[last]))
            first = last
            continue
        for start in range(int(offsets[first]), stop := int(offsets[first + 1]), rows):
            yield slice(first, first + 1), slice(start, min(start + rows, stop))
        first += 1


def float64_parts(block: Block) -> Iterator[tuple[slice, Block, Array]]:
    """Pieces of a block with their features in float64.

    Yields:
        (users, piece, its features): as `parts`. The features lie in one array that the next piece overwrites: fresh
        arrays of this size cost more in page faults than the cast itself.
    """
    scratch = np.empty((min(block.samples, _rows(block, None)), block.dense_features.shape[1]))
    for users, part in parts(block):
        features = scratch[: part.samples]
        np.copyto(features, part.dense_features)
        yield users, part, features


def _rows(block: Block, row_bytes: int | None) -> int:
    """Samples of a piece, at ``row_bytes`` each."""
    return max(1, CHUNK_BYTES // (row_bytes or bytes_of(block.features) // block.samples or 1))


def weighted_sums(values: NDArray[Number], offsets: NDArray[np.int64], weights: NDArray[Number]) -> NDArray[Number]:
    """Each user's weighted sum of rows: ``sum_i weights[i] * values[i]`` over its samples.

    Args:
        values: (N, k).
        offsets: (U + 1,) where each user's rows begin.
        weights: (N,).

    Returns:
        (U, k), in the precision of values and weights. Equal users take one batched matrix product; ragged users a
        sparse (U, N) by dense (N, k) product, several times faster than ``np.add.reduceat`` and without its (N, k)
        temporary.
    """
    users, samples = len(offsets) - 1, len(values)
    size = samples // users
    if (offsets[1:] - offsets[:-1] == size).all():
        return np.asarray(np.matmul(weights.reshape(users, 1, size), values.reshape(users, size, -1))[:, 0])
    return np.asarray(csr_array((weights, np.arange(samples), offsets), shape=(users, samples)) @ values)


def weighted_as_read(
    values: NDArray[Number], offsets: NDArray[np.int64], weigh: Callable[[NDArray[Number], slice], NDArray[Number]]
) -> NDArray[Number]:
    """`weighted_sums` by weights that follow from the samples themselves: both in one reading of the samples.

    Args:
        values: (N, k).
        offsets: (U + 1,) where each user's rows begin.
        weigh: from a piece's values (n, k), and where in all they are, to its weights (n,).

    Returns:
        (U, k).
    """
    users, size, columns = len(offsets) - 1, int(offsets[1]), values.shape[1]
    sums, rows = np.zeros((users, columns), dtype=values.dtype), max(1, AT_HAND_BYTES // (values[0].nbytes or 1))
    if size <= rows and (offsets[1:] - offsets[:-1] == size).all():
        by_user, together = values.reshape(users, size, columns), rows // size
        for first in range(0, users, together):
            last = min(first + together, users)
            weights = weigh(values[first * size : last * size], slice(first * size, last * size))
            np.matmul(weights.reshape(-1, 1, size), by_user[first:last], out=sums[first:last, None])
        return sums
    for part, samples in _slices(offsets, rows):
        own = np.clip(offsets[part.start : part.stop + 1], samples.start, samples.stop) - samples.start
        sums[part] += weighted_sums(values[samples], own, weigh(values[samples], samples))
    return sums


def user_means(block: Block) -> Array:
    """(U, k): each user's mean sample, in float64."""
    sums = np.zeros((block.users, block.features.shape[1]))
    for users, part, features in float64_parts(block):
        sums[users] += weighted_sums(features, part.offsets, np.ones(part.samples))
    sums /= block.sizes[:, None]
    return sums


def user_averages(values: Array, block: Block) -> Array:
    """(U,): each user's average of one number a sample."""
    return np.asarray(np.add.reduceat(values, block.offsets[:-1]) / block.sizes)


def user_shares(classes: NDArray[np.int64], block: Block, count: int) -> Array:
    """(U, count): of each user's samples the share of each class, of (N,) classes 0 to ``count`` - 1."""
    users = np.repeat(np.arange(block.users), block.sizes)
    counts = np.bincount(users * count + classes, minlength=block.users * count)
    return np.asarray(counts.reshape(block.users, count) / block.sizes[:, None])


def clip_factors(squares: Array, clip_norm: float) -> Array:
    """What scales each vector of squared length ``squares`` to length at most ``clip_norm``; 0 if it is not finite."""
    finite = np.isfinite(squares)
    norms = np.sqrt(np.where(finite, np.maximum(squares, 0.0), 0.0))
    return np.where(finite, clip_norm / np.maximum(norms, clip_norm), 0.0)
