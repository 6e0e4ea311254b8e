"""Counts of cells for the data holder; exact functions of all cells, so only the data holder may see them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MISSING = "missing"
NO_LEVEL = "no declared level"
WRONG_LENGTH = "of another length than image_shape"
NO_RESULT = "no finite number"
TEXT = "text"
CELLS = ("clipped", "unknown_levels", "unusable", "imputed", "steps")
"""The counts of cells by column, in `Counts` and in a load's report."""
_MOST_LISTED = 5


@dataclass(frozen=True)
class Counts:
    """Column -> cells, for the report."""

    clipped: Counter[str] = field(default_factory=Counter)
    unknown_levels: Counter[str] = field(default_factory=Counter)
    unusable: Counter[str] = field(default_factory=Counter)
    imputed: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    met: dict[str, bool] = field(default_factory=dict)
    """Sentence that no cell is as declared -> whether some cell is."""
    kinds: dict[str, str | None] = field(default_factory=dict)
    """Column without a usable cell -> the kind of its cells; None if some cell is usable."""

    @property
    def met_nowhere(self) -> list[str]:
        """The sentences about columns without any declared cell."""
        return [sentence for sentence, met in self.met.items() if not met]

    def note(self, sentence: str, met: bool) -> None:
        """Report ``sentence`` unless ``met`` in this call or another one."""
        self.met[sentence] = met or self.met.get(sentence, False)

    def note_kind(self, column: str, kind: str | None) -> None:
        """Note the kind of the cells of a column without a usable cell; None if some cell is usable."""
        known = self.kinds.get(column, MISSING)
        self.kinds[column] = None if known is None or kind is None else joined(known, kind)

    def add(self, others: "Counts") -> None:
        """Add the counts of other rows of the same table."""
        for name in CELLS:
            getattr(self, name).update(getattr(others, name))
        for sentence, met in others.met.items():
            self.note(sentence, met)
        for column, kind in others.kinds.items():
            self.note_kind(column, kind)

    def note_levels(self, column: str, declared: str, known: NDArray[np.bool_]) -> None:
        """Note whether any of ALL cells of a column is a declared level; their number is for the report alone."""
        self.note(
            f"no cell of column {column!r} holds a declared level ({declared}), so all of them count as unknown; check "
            "the spelling of the levels",
            bool(known.any()),
        )

    def note_dates(self, column: str, met: bool) -> None:
        """Note whether any of ALL cells of a column is a date; samples without its parts stay usable."""
        self.note(
            f"no cell of column {column!r} can be read as a date, so its parts are all zero; write dates as "
            f"2021-04-03, or declare their format, such as date_formats = {{ {column} = '%d.%m.%Y' }}",
            met,
        )


def listed(levels: Sequence[object]) -> str:
    """List the first declared levels, for people."""
    first = ", ".join(repr(level) for level in levels[:_MOST_LISTED])
    return first if len(levels) <= _MOST_LISTED else f"{first} and {len(levels) - _MOST_LISTED} more"


def joined(one: str, other: str) -> str:
    """Join the kinds of two parts of a column, in any order and grouping: where a table is cut changes nothing."""
    if other in (one, MISSING):
        return one
    if one == MISSING:
        return other
    return NO_LEVEL if NO_LEVEL in (one, other) else TEXT
