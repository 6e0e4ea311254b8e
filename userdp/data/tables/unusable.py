"""Counts of cells for the data holder, and one sentence, with a remedy, about each column that teaches nothing.

Both are exact functions of all cells, so only the data holder may see them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # they load PyArrow, which a plan without a table does not need
    from userdp.data.tables.columns import Columns
    from userdp.data.tables.declaration import Declaration

MISSING = "missing"
NO_LEVEL = "no declared level"
WRONG_LENGTH = "of another length than image_shape"
NO_RESULT = "no finite number"
NOT_POSITIVE = "never positive"
_TEXT = "text"
_DAY = r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2}))"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9.]+)?[^ ]*"
_POWER = "(?:[eE][+-]?[0-9]{1,3})?"
_KINDS = {
    "dates": re.compile(rf"{_DAY}(?:[ T]+{_CLOCK})?"),
    "times of day": re.compile(_CLOCK),
    "infinite numbers": re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE),
    "numbers": re.compile(rf"[+-]?[0-9]{{1,15}}(?:\.[0-9]{{1,18}})?{_POWER}"),
    "numbers with commas": re.compile(r"[+-]?[0-9]+(?:[.' ][0-9]{3})*(?:,[0-9]+)+(?:\.[0-9]+)?" + _POWER),
}
_REMEDIES = {
    "dates": "write each date as a number, such as days since a public day",
    "infinite numbers": "leave such cells empty",
    "times of day": "write each time as a number, such as hours since midnight",
    "numbers with commas": "declare a CSV file's, such as csv = { decimal = ',' }, or write numbers with points alone",
    "numbers": "check the marks that csv declares",
}
CELLS = ("clipped", "unknown_levels", "unusable", "imputed", "steps")
"""The counts of cells by column, in `Counts` and in a load's report."""
_MOST_LISTED, _LOST, _NARROW = 5, 10, 1000
CHECK_RANGE = "check the range, and the unit of the cells"


@dataclass(frozen=True)
class Counts:
    """Column -> cells, for the report."""

    clipped: Counter[str] = field(default_factory=Counter)
    unknown_levels: Counter[str] = field(default_factory=Counter)
    unusable: Counter[str] = field(default_factory=Counter)
    imputed: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, str | None] = field(default_factory=dict)
    """Column without a usable cell -> the kind of its cells; None if some cell is usable."""
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Column of numbers -> the least and the greatest."""

    def note_kind(self, column: str, kind: str | None) -> None:
        """Note the kind of the cells of a column without a usable cell; None if some cell is usable."""
        known = self.kinds.get(column, MISSING)
        self.kinds[column] = None if known is None or kind is None else _joined(known, kind)

    def note_ends(self, column: str, values: NDArray[np.float64]) -> None:
        """Note the least and the greatest of the numbers (N,) of a column."""
        if len(numbers := values[~np.isnan(values)]):
            least, greatest = self.ends.get(column, (math.inf, -math.inf))
            self.ends[column] = (min(least, float(numbers.min())), max(greatest, float(numbers.max())))

    def add(self, others: "Counts") -> None:
        """Add the counts of other rows of the same table."""
        for name in CELLS:
            getattr(self, name).update(getattr(others, name))
        for column, kind in others.kinds.items():
            self.note_kind(column, kind)
        for column, ends in others.ends.items():
            self.note_ends(column, np.array(ends))


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


def sentences(columns: "Columns", counts: Counts) -> list[str]:
    """Make a sentence (column, kind of its cells, remedy) for each column that teaches nothing.

    It has no usable cell, by `Counts.kinds`, or its declared range clips all cells to one number.
    """
    derived, dates = columns.derive or {}, columns.samples.dates
    unusable = {column: counts.kinds.get(column) for column in [*columns.names, *derived]}
    for name, made in derived.items():
        if any(unusable[column] for column in made.of):
            unusable[name] = None  # the remedy is that of the columns it is made of
    found = [_sentence(columns, dates, column, kind) for column, kind in unusable.items() if kind is not None]
    for column, bounds in columns.all_ranges.items():
        if end := clipped_end(counts.ends.get(column), bounds):
            told = f"{_role(columns, column)} {column!r} has no cell {end} of {_range_of(columns, column)}"
            found.append(f"{told}, so all of them count as that end: {CHECK_RANGE}")
    return found


def doubts(columns: "Columns", counts: Counts, samples: int) -> Iterator[str]:
    """Make a sentence for each column, of so many samples, that seems to be no column as it is declared.

    More than a tenth of its numbers lie outside the declared range, or all of them within a thousandth of it, or more
    than a tenth of its cells cannot be used.
    """
    for column, bounds in columns.all_ranges.items():
        ends, (low, high) = counts.ends.get(column, bounds), bounds
        if clipped_end(ends, bounds):
            continue  # a sentence of its own
        told, place = f"cells of {_role(columns, column)} {column!r}", _range_of(columns, column)
        if _LOST * counts.clipped[column] > samples - counts.unusable[column]:
            yield f"more than a tenth of the {told} lie outside {place}, and count as its ends: {CHECK_RANGE}"
        if _NARROW * (ends[1] - ends[0]) < high - low and samples > 1:
            yield f"all {told} lie within a thousandth of {place}, and a model hardly tells them apart: {CHECK_RANGE}"
    for column, kind in counts.kinds.items():
        lost = max(counts.unusable[column], counts.unknown_levels[column])
        if kind is None and _LOST * lost > counts.steps.get(column, samples):
            role = _role(columns, column)
            known = column in (columns.target, columns.exposure, columns.offset)
            remedy = "" if known else "; impute declares what a missing one counts as"
            yield (
                f"more than a tenth of the cells of {role} {column!r} are missing, or not as declared: check their "
                f"form and spelling{remedy}"
            )


def clipped_end(ends: tuple[float, float] | None, bounds: tuple[float, float]) -> str | None:
    """Return the end of a range to which it clips all numbers between these ``ends``, in words; None if they differ.

    None too if no number is outside.
    """
    (least, greatest), (low, high) = ends or bounds, bounds
    if least < low >= greatest:
        return "above the lower end"
    return "below the upper end" if least >= high < greatest else None


def _role(declared: "Declaration", column: str) -> str:
    if column in (declared.exposure, declared.offset):
        return "the exposure" if column == declared.exposure else "the offset"
    return "the target" if column == declared.target else "the feature"


def _range_of(columns: "Columns", column: str) -> str:
    """Return the key that declares the range of a column."""
    if column == columns.target:
        return "target_range"
    if column in (columns.derive or {}):
        return f"derive.{column}.range"
    return f"{'dates' if column in columns.samples.dates else 'ranges'}.{column}"


def _sentence(declared: "Declaration", dates: Mapping[str, str | None], column: str, kind: str) -> str:
    role = _role(declared, column)
    if kind == MISSING:
        return f"{role} {column!r} has no cell with a value: check the file, or declare another column"
    if kind == NO_LEVEL:
        return f"{role} {column!r} has no cell with a declared level: check their spelling, and that of the cells"
    if kind == NOT_POSITIVE:
        told = f"positive = {declared.positive!r} is in no cell of the target {column!r}, so all of them count as 0"
        if (form := declared.survival) is not None:
            told = f"survival.happened = {form.happened!r} is in no cell of {column!r}, so nobody has the event"
        return f"{told}: check its spelling"
    if kind == WRONG_LENGTH:
        return f"every cell of the images {column!r} is {kind}: check image_shape"
    if kind == NO_RESULT:
        return f"the derived feature {column!r} is {kind} in any row: check derive.{column}"
    dated = column in dates
    fault = "a date, and no cell can be read as one" if dated else "numbers, and no cell holds one"
    remedy = _remedy_of_dates(kind, column, dates[column]) if dated else _remedy(kind, declared, column)
    return f"{role} {column!r} is declared as {fault}: its cells are {kind}; {remedy}"


def _remedy(kind: str, declared: "Declaration", column: str) -> str:
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
