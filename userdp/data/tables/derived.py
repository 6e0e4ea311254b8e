"""Columns derived from others, row by row: counts, ratios, differences, days between dates; within declared ranges."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput
from userdp.settings import Section

Cells = NDArray[np.float64]


class Derivation(Section):
    """A column made of others; it is a numeric feature like those of the table, clipped into its range and scaled."""

    kind: Literal["count_above", "ratio", "difference", "product", "log1p", "days_between"]
    """`count_above`: how many of the columns exceed the threshold (0 or 1 for a single one); `ratio`, `difference`,
    `product`: first column over, minus, times the second; `log1p`: log(1 + x) of one; `days_between`: days from the
    second column's date to the first's, with times as fractions."""
    of: list[str]
    """The table's columns of numbers (of `days_between`: of dates) that it is made of; they need not be features."""
    range: list[float]
    """[low, high], public: results are clipped into it and scaled."""
    threshold: float | None = None
    """The value to exceed in `count_above`; 0 if not given."""
    otherwise: float | None = None
    """The result, within the range, if a cell is missing (and not imputed), a denominator is 0, or a logarithm's x is
    at most -1. A ratio needs it; without it, such a sample is set aside."""

    @property
    def of_dates(self) -> bool:
        """True if its source columns hold dates; otherwise they hold numbers."""
        return self.kind == "days_between"

    def check(self, name: str) -> None:
        """Refuse contradictions in the derived column ``name``; `Columns` checks its range."""
        wanted = KINDS[self.kind].columns
        if not self.of or (wanted is not None and len(self.of) != wanted):
            needed = "at least one column" if wanted is None else f"{wanted} column{'s' if wanted > 1 else ''}"
            raise BadInput(f"derive.{name}.of = {self.of}: {self.kind} needs {needed}")
        if self.threshold is not None and self.kind != "count_above":
            raise BadInput(f"derive.{name}.threshold = {self.threshold:g}: only count_above has one; leave it out")
        field = f"derive.{name}.otherwise"
        if self.otherwise is None and self.kind == "ratio":
            raise BadInput(f"{field} is missing: declare the ratio for a denominator that is 0 or missing")
        if self.otherwise is not None and not self.range[0] <= self.otherwise <= self.range[1]:
            raise BadInput(f"{field} = {self.otherwise:g}: must lie within derive.{name}.range = {self.range}")

    def values(self, cells: Sequence[Cells]) -> tuple[Cells, int]:
        """Compute the results (N,), NaN if there is none, and the number of those that are ``otherwise``.

        *Formal guarantee*: a result depends on its own row's cells alone, to the last bit: IEEE 754 rounds sums,
        products and quotients exactly at every position of an array, and logarithms are taken one by one.

        The ``cells`` of each column (N,) are finite or NaN; dates are days since one common moment.
        """
        missing = np.logical_or.reduce([np.isnan(one) for one in cells])
        # Overflow gives infinity, which is clipped into the range like any large result.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            made = np.where(missing, math.nan, KINDS[self.kind].compute(cells, self.threshold or 0.0))
        gone = np.isnan(made)
        if self.otherwise is None:
            return made, 0
        return np.where(gone, self.otherwise, made), int(np.count_nonzero(gone))


def _log1p(cells: Sequence[Cells], threshold: float) -> Cells:
    """Take logarithms one distinct cell at a time: libraries may round a vector's last ones differently."""
    # -0.0 becomes 0.0; otherwise the sign of a zero would depend on which of the two stands first.
    distinct, where = np.unique(cells[0] + 0.0, return_inverse=True)
    logarithms = [math.log1p(cell) if cell > -1 else math.nan for cell in distinct.tolist()]
    return np.array(logarithms, dtype=np.float64)[where]


class Kind(NamedTuple):
    """A kind of derivation: how many columns it takes (None for any), and results from cells and threshold."""

    columns: int | None
    compute: Callable[[Sequence[Cells], float], Cells]


KINDS: dict[str, Kind] = {
    "count_above": Kind(None, lambda cells, above: np.sum([one > above for one in cells], axis=0, dtype=np.float64)),
    "ratio": Kind(2, lambda cells, threshold: np.where(cells[1] == 0, math.nan, cells[0] / cells[1])),
    "difference": Kind(2, lambda cells, threshold: cells[0] - cells[1]),
    "product": Kind(2, lambda cells, threshold: cells[0] * cells[1]),
    "log1p": Kind(1, _log1p),
    "days_between": Kind(2, lambda cells, threshold: cells[0] - cells[1]),
}
