"""Sums over each user's samples, in pieces that stay in the processor's cache.

Stored data are float32 and gradients float64: casting two megabytes at a time costs little more than reading them, and
no float64 copy of a block ever exists. Results agree to rounding (1e-9 relative) for every grouping of users.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.fixed_order import order_is_fixed
from userdp.arrays.sparse_rows import bytes_of
from userdp.arrays.types import Array
from userdp.data.block import Block

CHUNK_BYTES = 1 << 21
"""The bytes of one piece: small enough for the cache, large enough to outweigh a Python call."""

AT_HAND_BYTES = 1 << 20
"""The bytes of one piece that is read twice: small enough for the cache of one core."""

Number = TypeVar("Number", bound=np.floating)


def parts(block: Block, row_bytes: int | None = None) -> Iterator[tuple[slice, Block]]:
    """Yield (users, piece) of a block, in pieces of about `CHUNK_BYTES`; a sample has ``row_bytes``, or its features.

    Pieces hold whole users as long as they fit. A user too large for one piece gets several, so add results to
    earlier ones (``sums[users] += ...``).
    """
    offsets = block.offsets
    for users, samples in _slices(offsets, _rows(block, row_bytes)):
        own = offsets[users.start : users.stop + 1] - samples.start
        if users.stop - users.start == 1:
            own = np.array([0, samples.stop - samples.start], dtype=np.int64)
        yield users, block.piece(samples.start, samples.stop, own)


def _slices(offsets: NDArray[np.int64], rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield (users, samples) of pieces of at most so many rows: whole users as long as they fit, else pieces of one."""
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
    """Yield (users, piece, its features in float64) as `parts`; the next piece overwrites the features, for speed."""
    scratch = np.empty((min(block.samples, _rows(block, None)), block.dense_features.shape[1]))
    for users, part in parts(block):
        features = scratch[: part.samples]
        np.copyto(features, part.dense_features)
        yield users, part, features


def _rows(block: Block, row_bytes: int | None) -> int:
    return max(1, CHUNK_BYTES // (row_bytes or bytes_of(block.features) // block.samples or 1))


def weighted_sums(values: NDArray[Number], offsets: NDArray[np.int64], weights: NDArray[Number]) -> NDArray[Number]:
    """Compute each user's weighted sum (U, k) of its rows of ``values`` (N, k), in the precision of values and weights.

    Equal users take one batched matrix product; ragged users, and a fixed order, a sparse (U, N) by dense (N, k)
    product, several times faster than ``np.add.reduceat`` and without its (N, k) temporary.
    """
    users, samples = len(offsets) - 1, len(values)
    size = samples // users
    if not order_is_fixed() and (offsets[1:] - offsets[:-1] == size).all():
        return np.asarray(np.matmul(weights.reshape(users, 1, size), values.reshape(users, size, -1))[:, 0])
    return np.asarray(csr_array((weights, np.arange(samples), offsets), shape=(users, samples)) @ values)


def weighted_as_read(
    values: NDArray[Number], offsets: NDArray[np.int64], weigh: Callable[[NDArray[Number], slice], NDArray[Number]]
) -> NDArray[Number]:
    """Compute `weighted_sums` in one reading; ``weigh`` maps a piece (n, k), and its positions, to weights (n,)."""
    users, size, columns = len(offsets) - 1, int(offsets[1]), values.shape[1]
    sums, rows = np.zeros((users, columns), dtype=values.dtype), max(1, AT_HAND_BYTES // (values[0].nbytes or 1))
    if not order_is_fixed() and size <= rows and (offsets[1:] - offsets[:-1] == size).all():
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
    """Compute each user's mean sample (U, k), in float64."""
    if block.users == block.samples:
        return np.asarray(block.dense_features, dtype=np.float64)
    sums = np.zeros((block.users, block.features.shape[1]))
    for users, part, features in float64_parts(block):
        sums[users] += weighted_sums(features, part.offsets, np.ones(part.samples))
    sums /= block.sizes[:, None]
    return sums


def mean_block(block: Block) -> Block:
    """Return a block in which one sample, the mean, stands for all samples of a user."""
    return Block(user_means(block), np.arange(block.users + 1))


def user_averages(values: Array, block: Block) -> Array:
    """Compute each user's average of one number per sample (U,)."""
    return np.asarray(np.add.reduceat(values, block.offsets[:-1]) / block.sizes)


def user_shares(classes: NDArray[np.int64], block: Block, count: int) -> Array:
    """Compute (U, count): the share of each class among each user's samples, of (N,) classes 0 to ``count`` - 1."""
    users = np.repeat(np.arange(block.users), block.sizes)
    counts = np.bincount(users * count + classes, minlength=block.users * count)
    return np.asarray(counts.reshape(block.users, count) / block.sizes[:, None])


def clip_factors(squares: Array, clip_norm: float) -> Array:
    """Compute factors that scale vectors of squared lengths ``squares`` to at most ``clip_norm``; 0 if not finite."""
    finite = np.isfinite(squares)
    norms = np.sqrt(np.where(finite, np.maximum(squares, 0.0), 0.0))
    return np.where(finite, clip_norm / np.maximum(norms, clip_norm), 0.0)
