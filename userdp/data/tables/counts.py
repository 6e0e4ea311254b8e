"""What is counted while features are made, for the report to the holder of the data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_MOST_LISTED = 5


@dataclass(frozen=True)
class Counts:
    """Column -> cells, for the report; and a sentence for each column of which no cell is as declared."""

    clipped: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unusable: dict[str, int] = field(default_factory=dict)
    imputed: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    met_nowhere: list[str] = field(default_factory=list)

    def note_levels(self, column: str, declared: str, known: NDArray[np.bool_]) -> None:
        """Say so where of ALL cells of a column none is a declared level; how many cells is for the report alone."""
        if not known.any():
            self.met_nowhere.append(
                f"no cell of column {column!r} holds a declared level ({declared}): all of them count as unknown, so "
                "that the column tells nothing; check the spelling of the levels"
            )


def listed(levels: Sequence[object]) -> str:
    """The first declared levels, for people."""
    first = ", ".join(repr(level) for level in levels[:_MOST_LISTED])
    return first if len(levels) <= _MOST_LISTED else f"{first} and {len(levels) - _MOST_LISTED} more"
