"""Known terms of samples' scores: the logarithm of a declared exposure, or a declared offset."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.cells import Rows
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.declared import Range, checked_range, expanded_keys
from userdp.data.tables.unusable import Counts
from userdp.errors import BadInput


class Term(NamedTuple):
    """A column that makes the known terms."""

    column: str
    range: Range
    """(low, high) in the table's units, into which cells are clipped."""
    exposed: bool
    """True if the term is the logarithm of the cell, False if it is the cell over ``unit``."""
    unit: float

    @property
    def bounds(self) -> Range:
        """(low, high) of the terms."""
        low, high = self.range
        return (math.log(low), math.log(high)) if self.exposed else (low / self.unit, high / self.unit)

    def values(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32]:
        """Return the terms of the chosen ``rows`` (N,), NaN where a cell is missing.

        *Formal guarantee*: a term depends on its own row's cell alone; logarithms are taken one by one.
        """
        column, (low, high) = self.column, self.range
        counts.note_kind(column, table.kinds.get(column))
        cells = table.numbers[column][rows]
        counts.note_ends(column, cells)
        counts.clipped[column] = int(np.count_nonzero((cells < low) | (cells > high)))
        counts.unusable[column] = int(np.count_nonzero(np.isnan(cells)))
        inside = np.clip(cells, low, high)
        if not self.exposed:
            return (inside / self.unit).astype(np.float32)
        distinct, places = np.unique(inside, return_inverse=True)
        return np.array([math.log(one) for one in distinct.tolist()], dtype=np.float32)[places]


def term_of(declared: Declaration) -> Term | None:
    """Return the declared known term, None without one; raise `BadInput` for two, or one without a range."""
    given = {name: getattr(declared, name) for name in ("exposure", "offset") if getattr(declared, name) is not None}
    if not given:
        return None
    if len(given) > 1:
        raise BadInput("exposure and offset are both declared; declare the one that the score needs")
    ((name, column),) = given.items()
    ranges = expanded_keys("ranges", declared.ranges or {})
    if column not in ranges:
        raise BadInput(f"ranges has no [low, high] for {name} = {column!r}; declare it, by public knowledge")
    low, high = checked_range(f"ranges.{column}", ranges[column])
    if name == "exposure" and low <= 0:
        raise BadInput(f"ranges.{column} = [{low:g}, {high:g}]: an exposure is positive; declare a low end above 0")
    first, last = (-1.0, 1.0) if declared.target_range is None else declared.target_range
    return Term(column, (low, high), name == "exposure", (last - first) / 2)
