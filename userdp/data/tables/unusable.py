"""Counts of cells for the data holder, and one sentence, with a remedy, about each column without a usable cell.

Both are exact functions of all cells, so only the data holder may see them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.declaration import Declaration

MISSING = "missing"
NO_LEVEL = "no declared level"
WRONG_LENGTH = "of another length than image_shape"
NO_RESULT = "no finite number"
_TEXT = "text"
_DAY = r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2}))"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9.]+)?[^ ]*"
_KINDS = {
    "dates": re.compile(rf"{_DAY}(?:[ T]+{_CLOCK})?"),
    "times of day": re.compile(_CLOCK),
    "numbers": re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?"),
    "numbers with commas": re.compile(r"[+-]?[0-9]+(?:[.' ][0-9]{3})*(?:,[0-9]+)+(?:\.[0-9]+)?"),
}
_REMEDIES = {
    "dates": "write each date as a number, such as days since a public day",
    "times of day": "write each time as a number, such as hours since midnight",
    "numbers with commas": "declare a CSV file's, such as csv = { decimal = ',' }, or write numbers with points alone",
    "numbers": "check the marks that csv declares",
}
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
        self.kinds[column] = None if known is None or kind is None else _joined(known, kind)

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


def kind_of_cells(texts: Iterable[str]) -> str:
    """Return the kind of the cells of a column without a number, in words that hold no cell's value."""
    return reduce(_joined, (_kind(text.strip()) for text in texts), MISSING)


def _joined(one: str, other: str) -> str:
    """Join the kinds of two parts of a column, in any order and grouping: where a table is cut changes nothing."""
    if other in (one, MISSING):
        return one
    if one == MISSING:
        return other
    return NO_LEVEL if NO_LEVEL in (one, other) else _TEXT


def _kind(text: str) -> str:
    if not text:
        return MISSING
    return next((kind for kind, form in _KINDS.items() if form.fullmatch(text)), _TEXT)


def sentences(
    declared: Declaration, columns: Iterable[str], dates: Mapping[str, str | None], kinds: Mapping[str, str | None]
) -> list[str]:
    """Make a sentence (column, kind of its cells, remedy) for each column without a usable cell, by `Counts.kinds`.

    ``columns`` are those of the table; ``dates`` those read as dates, each with its format, None for ISO 8601.
    """
    derived = declared.derive or {}
    unusable = {column: kinds.get(column) for column in [*columns, *derived]}
    for name, made in derived.items():
        if any(unusable[column] for column in made.of):
            unusable[name] = None  # the remedy is that of the columns it is made of
    return [_sentence(declared, dates, column, kind) for column, kind in unusable.items() if kind is not None]


def _sentence(declared: Declaration, dates: Mapping[str, str | None], column: str, kind: str) -> str:
    role = "the target" if column == declared.target else "the feature"
    if kind == MISSING:
        return f"{role} {column!r} has no cell with a value: check the file, or declare another column"
    if kind == NO_LEVEL:
        what, source = ("target", "target_levels") if column == declared.target else ("codes", "levels")
        return f"no cell of the {what} {column!r} is a declared level: check {source} and the spelling of the cells"
    if kind == WRONG_LENGTH:
        return f"every cell of the images {column!r} is {kind}: check image_shape"
    if kind == NO_RESULT:
        return f"the derived feature {column!r} is {kind} in any row: check derive.{column}"
    dated = column in dates
    fault = "a date, and no cell can be read as one" if dated else "numbers, and no cell holds one"
    remedy = _remedy_of_dates(kind, column, dates[column]) if dated else _remedy(kind, declared, column)
    return f"{role} {column!r} is declared as {fault}: its cells are {kind}; {remedy}"


def _remedy(kind: str, declared: Declaration, column: str) -> str:
    if kind == "dates" and column != declared.target:
        bounds = f"dates = {{ {column} = ['1950-01-01', '2030-12-31'] }}"
        return f"declare it under dates, such as {bounds}, not under features"
    if kind in _REMEDIES:
        return _REMEDIES[kind]
    if column == declared.target:
        return "for two classes set positive to the cell that means 1; for several list them in target_levels"
    if declared.codes is not None:
        return "declare the list of its levels in place of their number"
    return "list the column under categorical with its levels, or write numbers"


def _remedy_of_dates(kind: str, column: str, declared: str | None) -> str:
    if declared is not None:
        return f"check date_formats.{column} = {declared!r}"
    if kind == "times of day":
        return "write the day before each time, as in 2021-04-03 09:30"
    form = f"declare their format, such as date_formats = {{ {column} = '%d.%m.%Y' }}"
    if kind == "dates":
        return f"which number is the day and which the month is not guessed: {form}, or write dates as 2021-04-03"
    if kind == "numbers":
        return "write dates as 2021-04-03, or declare numbers under features with their ranges"
    return f"write dates as 2021-04-03, or {form}"
