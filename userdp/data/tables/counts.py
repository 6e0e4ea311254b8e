"""What is counted while features are made, for the report to the holder of the data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.unusable import MISSING, joined

_MOST_LISTED = 5


@dataclass(frozen=True)
class Counts:
    """Column -> cells, for the report; and sentence, that no cell is as declared -> whether some cell is.

    Attributes:
        kinds: column of which no cell can be used -> what kind of thing its cells are; None where some cell can.
    """

    clipped: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unusable: dict[str, int] = field(default_factory=dict)
    imputed: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    met: dict[str, bool] = field(default_factory=dict)
    kinds: dict[str, str | None] = field(default_factory=dict)

    @property
    def met_nowhere(self) -> list[str]:
        """A sentence for each column of which no cell is as declared."""
        return [sentence for sentence, met in self.met.items() if not met]

    def note(self, sentence: str, met: bool) -> None:
        """Say ``sentence`` unless this time or another the column had ``met`` what is declared."""
        self.met[sentence] = met or self.met.get(sentence, False)

    def note_kind(self, column: str, kind: str | None) -> None:
        """Note what kind of thing the cells of a column are of which none can be used; None if some cell can."""
        self.kinds[column] = joined(self.kinds.get(column, MISSING), kind)

    def add(self, others: "Counts") -> None:
        """What was counted in other rows of the same table."""
        pairs = (
            (self.clipped, others.clipped),
            (self.unknown, others.unknown),
            (self.unusable, others.unusable),
            (self.imputed, others.imputed),
            (self.steps, others.steps),
        )
        for own, more in pairs:
            for column, cells in more.items():
                own[column] = own.get(column, 0) + cells
        for sentence, met in others.met.items():
            self.note(sentence, met)
        for column, kind in others.kinds.items():
            self.note_kind(column, kind)

    def note_levels(self, column: str, declared: str, known: NDArray[np.bool_]) -> None:
        """Say so where of ALL cells of a column none is a declared level; how many cells is for the report alone."""
        self.note(
            f"no cell of column {column!r} holds a declared level ({declared}): all of them count as unknown, so that "
            "the column tells nothing; check the spelling of the levels",
            bool(known.any()),
        )

    def note_dates(self, column: str, met: bool) -> None:
        """Say so where of ALL cells of a column of dates none is one; its samples are usable without its parts."""
        self.note(
            f"no cell of column {column!r} can be read as a date, so that its parts tell nothing; write dates as "
            f"2021-04-03, or declare how they are written, such as date_formats = {{ {column} = '%d.%m.%Y' }}",
            met,
        )


def listed(levels: Sequence[object]) -> str:
    """The first declared levels, for people."""
    first = ", ".join(repr(level) for level in levels[:_MOST_LISTED])
    return first if len(levels) <= _MOST_LISTED else f"{first} and {len(levels) - _MOST_LISTED} more"
