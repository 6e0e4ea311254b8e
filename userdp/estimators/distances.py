"""Sup-norm distances of all pairs of rows, most of them from a few of the coordinates.

A pair's distance is the largest of its d differences, and where a difference is large, one of the two rows lies far
from the centre. So each row i is compared with all others in its own farthest coordinates alone, those in which it lies
more than ``t_i`` from the centre. In any other coordinate, two rows differ by at most ``t_i + t_j``: a largest
difference of at least that is the distance over all coordinates. The remaining pairs are compared in all of them.

*Floating point.* Computed deviations and differences are the exact ones, each rounded once (not at all where subnormal;
to infinity where it overflows), with u = 2^-53. A difference outside the farthest coordinates is at most
``(t_i + t_j) (1 + 2u)`` and, rounded, at most ``(t_i + t_j) (1 + 4u)``; ``(t_i + t_j) (1 + 8u)``, as computed, is at
least ``(t_i + t_j) (1 + 5u)``. Subnormal sums are exact, and nothing is larger than infinity. So both ways give the
same bits: the largest of rounded differences.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.compiling import can_compile
from userdp.arrays.types import Rows

TILE = 1024  # The rows and columns of a tile of distances: 8 MiB of float64
SLACK = 1 + 2.0**-50  # More than rounding can change a deviation from the centre, relative to its size

_SEARCHED_FROM = 256  # Coordinates; with fewer, comparing all of them is faster.
# Farthest coordinates of a row over the root of all; independent, equal ones decide 99 % of pairs.
_SEARCHED_ROOTS = 1.5
_UNDECIDED = 1 / 16  # Share of undecided pairs beyond which a tile is computed anew, in all coordinates.
_COMPARED_ENTRIES = 1 << 16  # Entries of the pairs compared at a time (512 KiB, which stay in a processor's cache).

Distances = NDArray[np.float64]


def all_pairs(rows: Rows, centre: NDArray[np.float64]) -> Iterator[Distances]:
    """Yield the distances of all pairs of (B, d) finite rows by tiles, in no order; ``centre`` (d,) is that of most."""
    searched = rows.shape[1] >= _SEARCHED_FROM and can_compile()
    tiles = [_Tile(rows[first : first + TILE], centre, searched) for first in range(0, len(rows), TILE)]
    for place, tile in enumerate(tiles):
        yield tile.within()
        for other in tiles[place + 1 :]:
            yield tile.to(other)


class _Tile:
    """Rows, the coordinates in which each is farthest from the centre, and a bound on its deviation in the others."""

    def __init__(self, rows: Rows, centre: NDArray[np.float64], searched: bool) -> None:
        self.rows = np.ascontiguousarray(rows, dtype=np.float64)
        self._searched = searched
        if not searched:
            return
        columns = rows.shape[1]
        others = columns - math.ceil(_SEARCHED_ROOTS * math.sqrt(columns))
        deviations = np.abs(self.rows - centre)
        order = np.argpartition(deviations, others - 1, axis=1)
        self._farthest = order[:, others:]
        self._bounds = np.take_along_axis(deviations, order[:, others - 1 : others], axis=1)[:, 0] * SLACK

    def within(self) -> Distances:
        """Return the (L (L - 1) / 2,) distances of all pairs of the tile."""
        import torch  # noqa: PLC0415 -- takes seconds, for which only who compares pairs should wait

        if self._searched:
            found = self._found(self)
            distances, pairs = np.maximum(found, found.T), np.triu(np.ones(found.shape, dtype=np.bool_), 1)
            if self._complete(distances, other=self, pairs=pairs):
                return np.asarray(distances[pairs])
        return np.asarray(torch.pdist(torch.from_numpy(self.rows), p=torch.inf).numpy())

    def to(self, other: "_Tile") -> Distances:
        """Return the (L, R) distances of the tile's rows and another's."""
        if self._searched:
            distances = np.maximum(self._found(other), other._found(self).T)
            if self._complete(distances, other, pairs=np.ones(distances.shape, dtype=np.bool_)):
                return np.asarray(distances)
        return sup_distances(self.rows, other.rows)

    def _found(self, other: "_Tile") -> Distances:
        """Return (L, R): the largest difference of a row and another's, in the farthest coordinates of the former."""
        from userdp.estimators.loops import largest_differences  # noqa: PLC0415 -- compiled: only who needs it waits

        found = np.zeros((len(self.rows), len(other.rows)))
        values = np.take_along_axis(self.rows, self._farthest, axis=1)
        largest_differences(values, self._farthest, np.ascontiguousarray(other.rows.T), found)
        return found

    def _complete(self, distances: Distances, other: "_Tile", pairs: NDArray[np.bool_]) -> bool:
        """Write the distances of undecided pairs and return True, if they are few."""
        undecided = distances < self._bounds[:, None] + other._bounds
        undecided &= pairs
        first, second = np.nonzero(undecided)
        if len(first) > _UNDECIDED * pairs.sum():
            return False
        step = max(1, _COMPARED_ENTRIES // self.rows.shape[1])
        for begin in range(0, len(first), step):
            left, right = first[begin : begin + step], second[begin : begin + step]
            distances[left, right] = np.abs(self.rows[left] - other.rows[right]).max(axis=1)
        return True


def sup_distances(left: Rows, right: Rows) -> Distances:
    """Return the (L, R) distances, from all coordinates."""
    import torch  # noqa: PLC0415 -- takes seconds, for which only who compares pairs should wait

    one, other = (torch.from_numpy(np.ascontiguousarray(each, dtype=np.float64)) for each in (left, right))
    return np.asarray(torch.cdist(one, other, p=torch.inf).numpy())
