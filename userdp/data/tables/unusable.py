"""One sentence, with a remedy, about each column without a usable cell; see `userdp.data.tables.counts`."""

import re
from collections.abc import Iterable, Mapping
from functools import reduce

from userdp.data.tables.codes import Codes
from userdp.data.tables.columns import Columns
from userdp.data.tables.counts import MISSING, NO_LEVEL, NO_RESULT, TEXT, WRONG_LENGTH, joined

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
    "numbers with commas": "write numbers with a decimal point and without other separators",
}


def kind_of_cells(texts: Iterable[str]) -> str:
    """Return the kind of the cells of a column without a number, in words that hold no cell's value."""
    return reduce(joined, (_kind(text.strip()) for text in texts), MISSING)


def _kind(text: str) -> str:
    if not text:
        return MISSING
    return next((kind for kind, form in _KINDS.items() if form.fullmatch(text)), TEXT)


def sentences(columns: Columns, kinds: Mapping[str, str | None]) -> list[str]:
    """Make a sentence (column, kind of its cells, remedy) for each column without a usable cell, by `Counts.kinds`."""
    unusable = {column: kinds.get(column) for column in [*columns.names, *(columns.derive or ())]}
    for name, made in (columns.derive or {}).items():
        if any(unusable[column] for column in made.of):
            unusable[name] = None  # the remedy is that of the columns it is made of
    return [_sentence(columns, column, kind) for column, kind in unusable.items() if kind is not None]


def _sentence(columns: Columns, column: str, kind: str) -> str:
    role = "the target" if column == columns.target else "the feature"
    if kind == MISSING:
        return f"{role} {column!r} has no cell with a value: check the file, or declare another column"
    if kind == NO_LEVEL:
        what, source = ("target", "target_levels") if column == columns.target else ("codes", "levels")
        return f"no cell of the {what} {column!r} is a declared level: check {source} and the spelling of the cells"
    if kind == WRONG_LENGTH:
        return f"every cell of the images {column!r} is {kind}: check image_shape"
    if kind == NO_RESULT:
        return f"the derived feature {column!r} is {kind} in any row: check derive.{column}"
    dated = column in columns.samples.dates
    fault = "a date, and no cell can be read as one" if dated else "numbers, and no cell holds one"
    remedy = (_remedy_of_dates if dated else _remedy)(kind, columns, column)
    return f"{role} {column!r} is declared as {fault}: its cells are {kind}; {remedy}"


def _remedy(kind: str, columns: Columns, column: str) -> str:
    if kind == "dates" and column != columns.target:
        bounds = f"dates = {{ {column} = ['1950-01-01', '2030-12-31'] }}"
        return f"declare it under dates, such as {bounds}, not under features"
    if kind in _REMEDIES:
        return _REMEDIES[kind]
    if column == columns.target:
        return "for two classes set positive to the cell that means 1; for several list them in target_levels"
    if isinstance(columns.samples, Codes):
        return "declare the list of its levels in place of their number"
    return "list the column under categorical with its levels, or write numbers"


def _remedy_of_dates(kind: str, columns: Columns, column: str) -> str:
    if (declared := columns.samples.dates[column]) is not None:
        return f"check date_formats.{column} = {declared!r}"
    if kind == "times of day":
        return "write the day before each time, as in 2021-04-03 09:30"
    form = f"declare their format, such as date_formats = {{ {column} = '%d.%m.%Y' }}"
    if kind == "dates":
        return f"which number is the day and which the month is not guessed: {form}, or write dates as 2021-04-03"
    if kind == "numbers":
        return "write dates as 2021-04-03, or declare numbers under features with their ranges"
    return f"write dates as 2021-04-03, or {form}"
