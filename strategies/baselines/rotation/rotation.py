"""Random rotations that spread a vector evenly over its coordinates, and private intervals for each coordinate.

Source: Levy, Sun, Amin, Kale, Kulesza, Mohri, Suresh, "Learning with User-Level Privacy" (2021).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Cost
from userdp.arrays import Rows
from userdp.errors import BadInput
from userdp.noise import NoiseSource, Scores
from userdp.randomness import stream


@dataclass(frozen=True)
class HadamardRotation:
    """``U = H D / sqrt(d')``: random public signs D, then the Walsh-Hadamard matrix of size d', the next power of two.

    U keeps l2 distances. For any vector v and t > 0, ``P[|(U v)_j| > t] <= 2 exp(-t^2 d' / (2 ||v||^2))`` for each j,
    since ``(U v)_j`` is a sum of independent terms ``+-v_k / sqrt(d')`` (Hoeffding 1963).
    """

    dimension: int  # d, coordinates before the rotation
    seed: int  # of the signs

    @property
    def size(self) -> int:
        """The number d' of coordinates after the rotation."""
        return 1 << (self.dimension - 1).bit_length()

    def largest_coordinate(self, norm: float, vectors: int, failure: float) -> float:
        """Return the bound on all coordinates of ``vectors`` vectors of that norm, but with probability ``failure``."""
        return norm * math.sqrt(2 * math.log(2 * self.size * vectors / failure) / self.size)

    @property
    def _signs(self) -> NDArray[np.float64]:
        return stream(self.seed, "sampling", 1 << 20).choice([-1.0, 1.0], self.size)

    def __call__(self, rows: Rows) -> Rows:
        """Rotate (B, d) to (B, d'), never NaN: a coordinate beyond the largest float is infinite.

        Rows are first scaled exactly by a power of two to a size near 1, so no sum overflows.
        """
        exponents = np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1]
        padded = np.zeros((len(rows), self.size))
        padded[:, : self.dimension] = np.ldexp(rows, -exponents)
        with np.errstate(over="ignore"):
            return np.asarray(np.ldexp(_hadamard(padded * self._signs), exponents))

    def inverse(self, rows: Rows) -> Rows:
        """Rotate (B, d') back to (B, d)."""
        return np.asarray((_hadamard(rows) * self._signs)[:, : self.dimension])


def _hadamard(rows: Rows) -> Rows:
    """Each row times the orthonormal Walsh-Hadamard matrix, in d' log d' additions."""
    users, size = rows.shape
    half = 1
    while half < size:
        pairs = rows.reshape(users, size // (2 * half), 2, half)
        rows = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    return np.asarray(rows.reshape(users, size) / math.sqrt(size), dtype=np.float64)


@dataclass(frozen=True)
class CellGrid:
    """Cells of width ``2 half_width`` (tau' = half_width > 0) that cover [-reach, reach] in each coordinate; public."""

    reach: float
    half_width: float

    def __post_init__(self) -> None:
        if not (0 < self.reach < math.inf and 0 < self.half_width < math.inf):
            raise BadInput(f"reach = {self.reach} and half_width = {self.half_width} must be positive numbers")

    @property
    def cells(self) -> int:
        """The number K of cells."""
        return max(1, math.ceil(self.reach / self.half_width))

    @property
    def centres(self) -> NDArray[np.float64]:
        """The (K,) centres of the cells, symmetric about zero."""
        return np.asarray((2 * np.arange(self.cells) - self.cells + 1) * self.half_width, dtype=np.float64)

    def scores(self, rows: Rows) -> Scores:
        """Return (d', K) scores: minus the larger of the numbers of rows left and right of a cell; best at the median.

        *Formal guarantees.* Replacing one row changes the number left of a cell by at most 1, likewise right of it, and
        so the larger one by at most 1.
        """
        users, columns = rows.shape
        with np.errstate(over="ignore"):  # infinitely many cells away is at the end, too
            cell = np.floor(rows / (2 * self.half_width) + self.cells / 2)
        cell = np.clip(cell, 0, self.cells - 1).astype(np.int64) + self.cells * np.arange(columns)
        counts = np.bincount(cell.ravel(), minlength=columns * self.cells).reshape(columns, self.cells)
        upto = counts.cumsum(axis=1)
        return Scores(np.asarray(-np.maximum(upto - counts, users - upto), dtype=np.float64), 1.0)

    def select(self, rows: Rows, epsilon: float, noise: NoiseSource) -> NDArray[np.float64]:
        """Return the (d',) centre of a cell near each coordinate's median, by the exponential mechanism.

        *Formal guarantees.* Each coordinate's choice is (epsilon, 0)-DP for replacing one row, and epsilon^2/8-zCDP as
        an exponential mechanism (Cesar, Rogers 2021, Lemma 3.2); the d' choices compose to ``d' epsilon^2 / 8``,
        which is what a Gaussian of multiplier ``2 / (epsilon sqrt(d'))`` costs in that account.
        """
        noise.charge(Cost(noise_multiplier=2 / (epsilon * math.sqrt(rows.shape[1]))))
        return np.asarray(self.centres[noise.choose(self.scores(rows), epsilon)])
