"""Users' votes: shares of one whole that say where a user's samples lie, computed from a block of samples.

*Formal guarantees.* *Claim.* A row of `by_level`, `by_bin`, `moments` or `totals` has no negative entry; entries add
up to 1 at most, for any data; so its l2 norm is at most 1, and no two rows have a negative inner product. It follows
from its own user's samples alone, to the last bit. *Why.* Entries are averages over the user's samples of indicators,
of Bernstein polynomials, which are not negative and add up to 1, or of both parts of a number in [-1, 1]; or they are
the parts of one such number. Samples without a usable cell add nothing. An average over samples divides by ``most``, or
by the user's own number if that is larger. All operations are sums, products and quotients of single users' numbers, in
the order of the samples, which IEEE 754 rounds alike at every position.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import Sparse, sparse_rows
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.data.shape import Column
from userdp.data.tables.declared import scaled
from userdp.errors import BadInput
from userdp.nodes.moments import upper_triangle

Codes = NDArray[np.int64]


def bernstein(values: Array, degree: int) -> Array:
    """Return the Bernstein polynomials (..., degree + 1) of values in [0, 1]: not negative, adding up to 1."""
    other = 1.0 - values
    powers, others = [np.ones_like(values)], [np.ones_like(values)]
    for _ in range(degree):
        powers.append(powers[-1] * values)
        others.append(others[-1] * other)
    parts = [math.comb(degree, k) * powers[k] * others[degree - k] for k in range(degree + 1)]
    return np.stack(parts, axis=-1)


def units(block: Block, column: Column) -> Vector:
    """Return the cells (N,) of a column of numbers, from 0 at the low end of its range to 1; NaN for no number."""
    cells = block.dense_features[:, column.places[0]].astype(np.float64)
    return np.asarray((cells - column.least) / (1.0 - column.least))


@dataclass(frozen=True)
class Pairs(Column):
    """The pairs of levels of two columns, as one column of levels; the level of the second varies fastest."""

    parts: tuple[Column, ...] = ()

    @classmethod
    def of(cls, columns: Sequence[Column]) -> "Pairs":
        """Return the pairs of these columns."""
        places = tuple(place for column in columns for place in column.places)
        levels = tuple(", ".join(pair) for pair in product(*(column.levels for column in columns)))
        return cls(", ".join(column.name for column in columns), places, levels=levels, parts=tuple(columns))


def level_codes(block: Block, column: Column) -> Codes:
    """Return the level (N,) of each sample, -1 for none, or for a pair of which one is none."""
    if isinstance(column, Pairs):
        first, second = (level_codes(block, part) for part in column.parts)
        return np.where((first >= 0) & (second >= 0), first * len(column.parts[1].levels) + second, -1)
    codes = np.full(block.samples, -1)
    for code, place in reversed(list(enumerate(column.places))):
        codes[np.asarray(block.dense_features[:, place] > np.float32(0.5))] = code
    return codes


def bin_codes(block: Block, column: Column, edges: Vector) -> Codes:
    """Return the bin (N,) of each sample between k + 1 rising edges in the table's units, -1 for none.

    A bin holds its lower edge, and the last bin both. Edges are scaled like cells, so that a cell equal to an edge lies
    on its right side.
    """
    assert column.range is not None
    cells = block.dense_features[:, column.places[0]]
    scaled_edges = scaled(edges, column.range, column.least, 1.0)[0]
    codes = np.searchsorted(scaled_edges, cells, side="right") - 1
    codes[cells == scaled_edges[-1]] = len(edges) - 2
    codes[np.isnan(cells) | (codes > len(edges) - 2)] = -1
    return np.asarray(codes, dtype=np.int64)


def shares(block: Block, codes: Codes, count: int, counted: NDArray[np.bool_], most: int | None) -> Sparse:
    """Return (U, count): the share of each code among a user's ``counted`` samples (N,), or among ``most`` samples.

    The rows are sparse: of many codes a user has few.
    """
    there = codes >= 0
    places, counts = np.unique(block.owners[there] * count + codes[there], return_counts=True)
    owners, columns = np.divmod(places, count)
    starts = np.searchsorted(owners, np.arange(block.users + 1))
    return sparse_rows(counts / _wholes(block, counted, most)[owners], columns, starts, count)


def by_level(block: Block, column: Column, most: int | None) -> Sparse:
    """Return (U, K): the share of each level among each user's samples, or among ``most`` samples."""
    everything = np.ones(block.samples, dtype=bool)
    return shares(block, level_codes(block, column), len(column.levels), everything, most)


def by_bin(block: Block, column: Column, edges: Vector, most: int | None) -> Sparse:
    """Return (U, K): the share of each bin among each user's samples with a number, or among ``most`` samples."""
    known = ~np.isnan(block.dense_features[:, column.places[0]])
    return shares(block, bin_codes(block, column, edges), len(edges) - 1, known, most)


def moments(block: Block, column: Column, degree: int, most: int | None, groups: Column | None = None) -> Rows:
    """Return (U, G (degree + 1)): the share of each group of levels, times `bernstein` of the user's mean in it.

    Without ``groups`` all samples are one group. With ``most`` each sample counts by itself: the mean over ``most``
    samples of `bernstein` of their cells.
    """
    values = units(block, column)
    codes = np.zeros(block.samples, dtype=np.int64) if groups is None else level_codes(block, groups)
    count = 1 if groups is None else len(groups.levels)
    usable = ~np.isnan(values) & (codes >= 0)
    places, cells = (block.owners * count + codes)[usable], values[usable]
    size = block.users * count
    if most is not None:
        parts = [np.bincount(places, part, minlength=size) for part in bernstein(cells, degree).T]
        rows = np.stack(parts, axis=-1) / np.repeat(_wholes(block, usable, most), count)[:, None]
        return np.asarray(rows.reshape(block.users, -1))
    counts = np.bincount(places, minlength=size)
    means = np.bincount(places, cells, minlength=size) / np.maximum(counts, 1)
    share = counts / np.repeat(_wholes(block, usable, None), count)
    rows = share[:, None] * bernstein(np.clip(means, 0.0, 1.0), degree)
    return np.asarray(rows.reshape(block.users, -1))


def totals(block: Block, column: Column, bound: float, most: int | None) -> Rows:
    """Return (U, 2): the positive and the negative part of each user's sum of cells, over ``bound`` and 1 at most.

    With ``most`` they are means, over ``most`` samples, of the parts of each cell over ``bound``.
    """
    assert column.range is not None
    low, high = column.range
    cells = low + (high - low) * units(block, column)
    usable = ~np.isnan(cells)

    def parts(numbers: Vector) -> Rows:
        return np.clip(np.stack([numbers, -numbers]) / bound, 0.0, 1.0)

    def added(numbers: Vector) -> Vector:
        return np.asarray(np.bincount(block.owners[usable], numbers, minlength=block.users), dtype=np.float64)

    if most is None:
        return parts(added(cells[usable])).T
    return np.stack([added(part) / _wholes(block, usable, most) for part in parts(cells[usable])], axis=1)


def sizes(block: Block, most: int | None) -> Rows:
    """Return (U, 1): 1 for each user, or its number of samples over ``most``."""
    return np.minimum(block.sizes / (most or block.sizes), 1.0)[:, None]


def products(block: Block, columns: list[Column], most: int | None, *, replaced: bool) -> Rows:
    """Return (U, K (K + 1) / 2): upper triangles of z z^T, z = (1, k means in [-1, 1]), K = k + 1, centred and scaled.

    *Formal guarantees.* Rows have norm at most 1. If users are ``replaced``, two of them differ by sqrt(2) at most.
    *Why.* A triangle T has ``2 |T - T'|^2 = |z z^T - w w^T|^2 + sum_i (z_i^2 - w_i^2)^2``, which is at most ``|z|^4 +
    |w|^4 + sum_i (z_i^2 - w_i^2)^2``. That is convex in each square, so largest where squares are 0 or 1; one more 1 in
    w adds 3 at least to the second term and takes 1 at most off the third. So all are 1, and ``|T - T'| <= K``. And ``2
    |T|^2 <= K^2 + K <= 2 K^2``, for the zero of a user without a number in one of the columns. A half off the diagonal
    leaves ``|T - c|^2 <= K (K - 1) / 2 + K / 4 <= K^2 / 2``. With ``most`` each sample has a triangle, and a row is
    their mean, or that of ``most`` with zeros: a difference of means is a mean of differences.
    """
    cells = np.stack([2.0 * units(block, column) - 1.0 for column in columns], axis=1)
    usable = np.asarray(~np.isnan(cells).any(axis=1))
    whole, owners = _wholes(block, usable, most), block.owners[usable]

    def averages(numbers: Rows) -> Rows:
        return np.stack([np.bincount(owners, one, minlength=block.users) / whole for one in numbers.T], axis=1)

    if most is not None:
        found = averages(_triangles(cells[usable]))
    else:
        there = np.bincount(owners, minlength=block.users) > 0
        found = there[:, None] * _triangles(np.clip(averages(cells[usable]), -1.0, 1.0))
    scale, centre = product_scale(len(columns), replaced=replaced)
    return np.asarray(scale * (found - centre))


def product_scale(k: int, *, replaced: bool) -> tuple[float, Vector]:
    """Return the factor of the rows of `products` of k columns, and what is taken off each triangle before."""
    rows, columns, _ = upper_triangle(k + 1)
    if replaced:
        return math.sqrt(2.0) / (k + 1), 0.5 * (rows == columns)
    return 1.0 / math.sqrt(len(rows)), np.zeros(len(rows))


def _triangles(means: Rows) -> Rows:
    z = np.column_stack([np.ones(len(means)), means])
    rows, columns, _ = upper_triangle(z.shape[1])
    return np.asarray(z[:, rows] * z[:, columns])


def checked_edges(field: str, edges: list[float], column: Column) -> Vector:
    """Return the edges of bins as an array; raise `BadInput` unless they rise, and numbers of the column are in one."""
    assert column.range is not None
    found, (low, high) = np.asarray(edges, dtype=np.float64), column.range
    if len(found) < 2 or not np.isfinite(found).all() or np.any(np.diff(found) <= 0):
        raise BadInput(f"{field} = {list(edges)}: must be two or more edges that rise, such as [0, 10, 20]")
    if found[0] >= high or found[-1] <= low:
        raise BadInput(
            f"{field} = {list(edges)}: must reach into data.ranges.{column.name} = [{low:.12g}, {high:.12g}], into "
            "which cells are clipped"
        )
    return found


def _owners(block: Block) -> Codes:
    return np.repeat(np.arange(block.users), block.sizes)


def _wholes(block: Block, counted: NDArray[np.bool_], most: int | None) -> Vector:
    """Return the samples (U,) that make one whole: those counted of a user, or ``most``."""
    if most is not None:
        return np.maximum(block.sizes, most).astype(np.float64)
    own = np.bincount(block.owners[counted], minlength=block.users)
    return np.maximum(own, 1).astype(np.float64)
