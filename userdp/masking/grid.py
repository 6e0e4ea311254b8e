"""Real vectors as whole numbers, whose sums are exact in any order and modulo 2^64.

>>> import numpy as np
>>> from userdp.masking.grid import IntegerGrid
>>> grid = IntegerGrid.finest(deviation=1.0, terms=3, longest=1.0)
>>> total = grid.whole(np.array([[0.5], [-0.25], [0.125]])).sum(axis=0).view(np.uint64)
>>> grid.values(total).tolist()
[0.375]
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput

Residues = NDArray[np.uint64]
"""Whole numbers modulo 2^64."""

_BITS = 62  # A sum and its noise stay below 2^62: a quarter of what 64 bits hold, signs included.
_TAIL = 16  # Standard deviations that bound the noise of all p coordinates, but for a chance of p 2^-180.
# Bound on how much a clipped row exceeds its clip, relatively; see `userdp.noise.rounding_slack`.
_CLIP_ERROR = 2.0**-20
_EXPONENTS = range(-900, 900)


@dataclass(frozen=True)
class IntegerGrid:
    """The multiples of ``2^exponent``.

    *Formal guarantees.* (a) *Sensitivity.* A row is moved towards zero, coordinate by coordinate, to the next multiple.
    No coordinate grows, so neither does the l2 norm: proofs about clipped rows hold on the grid, and adding whole
    numbers rounds nothing. (b) *No wrap-around.* With at most ``terms`` rows of norm at most ``longest (1 + 2^-20)``
    and noise within 16 standard deviations, each coordinate of the total is at most 2^62 grid steps. Sums are taken
    modulo 2^64, so parts may wrap: the total, read as a signed number, is the true one. If noise is larger, the release
    is wrong and as private as any other, for a residue is a function of the total.

    Raises `BadInput` for an exponent whose power float64 does not hold with room to spare.
    """

    exponent: int  # of the grid step, a power of two

    def __post_init__(self) -> None:
        if self.exponent not in _EXPONENTS:
            raise BadInput(f"the grid step 2^{self.exponent} of a masked sum is out of range: measure in other units")

    @classmethod
    def finest(cls, deviation: float, terms: int, longest: float) -> Self:
        """Return the finest grid on which no sum wraps around.

        At most ``terms`` rows are added, clipped to l2 norm ``longest`` > 0, with noise of standard deviation
        ``deviation`` > 0. Raises `BadInput` for a number out of range.
        """
        reach = terms * longest * (1 + _CLIP_ERROR) + _TAIL * deviation
        if not (terms >= 1 and longest > 0 and deviation > 0 and math.isfinite(reach)):
            raise BadInput(
                f"a masked sum of {terms} vectors of norm {longest} with noise {deviation}: each must be positive and "
                "finite"
            )
        return cls(math.frexp(reach)[1] - _BITS)

    @property
    def step(self) -> float:
        """The distance of neighbouring points."""
        return math.ldexp(1.0, self.exponent)

    def whole(self, rows: Rows) -> NDArray[np.int64]:
        """Return finite rows in grid steps, each coordinate moved towards zero; same shape."""
        return np.trunc(np.ldexp(rows, -self.exponent)).astype(np.int64)

    def values(self, total: Residues) -> Vector:
        """Return the values of a sum of whole numbers, known modulo 2^64; same shape."""
        return np.asarray(np.ldexp(total.view(np.int64).astype(np.float64), self.exponent))
