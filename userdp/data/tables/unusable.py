"""Columns of which no cell can be used: what their cells look like, and what to do, said to whoever holds the data.

Every sample would be set aside, and a run would learn from nobody. That is an exact function of all cells: the holder
of the data alone may see it.
"""

import re
from collections.abc import Iterable, Mapping
from functools import reduce

from userdp.data.tables.columns import Columns

MISSING = "missing"
"""What all cells are of a column that holds none."""
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
    "numbers with commas": "write numbers with a decimal point and without other separators",
}


def kind_of_cells(texts: Iterable[str]) -> str:
    """The kind of the cells of a column without a number: a word that holds no cell's value."""
    return reduce(_both, (_kind(text.strip()) for text in texts), MISSING)


def joined(one: str | None, other: str | None) -> str | None:
    """The kind of the cells of two parts of a column; None if some cell of a part can be used."""
    return None if one is None or other is None else _both(one, other)


def _both(one: str, other: str) -> str:
    """In any order and grouping the same, so that where a table is cut changes nothing."""
    if other in (one, MISSING):
        return one
    if one == MISSING:
        return other
    return NO_LEVEL if NO_LEVEL in (one, other) else _TEXT


def _kind(text: str) -> str:
    if not text:
        return MISSING
    return next((kind for kind, form in _KINDS.items() if form.fullmatch(text)), _TEXT)


def sentences(columns: Columns, kinds: Mapping[str, str | None]) -> list[str]:
    """One sentence for each column of which no cell can be used: column, kind of its cells, remedy.

    Args:
        columns: what is declared.
        kinds: column -> what its cells are instead; None where some cell can be used.
    """
    found = {column: kinds.get(column) for column in [*columns.names, *columns.derive]}
    for name, made in columns.derive.items():
        if any(found[column] for column in made.of):
            found[name] = None  # whoever mends those mends it
    return [_sentence(columns, column, kind) for column, kind in found.items() if kind is not None]


def _sentence(columns: Columns, column: str, kind: str) -> str:
    role = "the target" if column == columns.target else "the feature"
    if kind == MISSING:
        return f"{role} {column!r} has no cell with a value: check the file, or declare another column"
    if kind == NO_LEVEL:
        what, field = ("target", "target_levels") if column == columns.target else ("codes", "levels")
        return f"no cell of the {what} {column!r} is a declared level: check {field} and the spelling of the cells"
    if kind == WRONG_LENGTH:
        return f"every cell of the images {column!r} is {kind}: check image_shape"
    if kind == NO_RESULT:
        return f"the derived feature {column!r} is {kind} in any row: check derive.{column}"
    if column in columns.dated.read:
        told = f"{role} {column!r} is declared as a date, and no cell can be read as one: its cells are {kind}"
        return f"{told}; {_remedy_of_dates(kind, columns, column)}"
    told = f"{role} {column!r} is declared as numbers, and no cell holds one: its cells are {kind}"
    return f"{told}; {_remedy(kind, columns, column)}"


def _remedy(kind: str, columns: Columns, column: str) -> str:
    if kind == "dates" and column != columns.target:
        return (
            f"declare it under dates, such as dates = {{ {column} = ['1950-01-01', '2030-12-31'] }}, not under features"
        )
    if kind in _REMEDIES:
        return _REMEDIES[kind]
    if column == columns.target:
        return "for two classes set positive to the cell that means 1; for several list them in target_levels"
    if column in columns.coded:
        return "declare the list of its levels in place of their number"
    return "list the column under categorical with its levels, or write numbers"


def _remedy_of_dates(kind: str, columns: Columns, column: str) -> str:
    if column in columns.date_formats:
        return f"check date_formats.{column} = {columns.date_formats[column]!r}"
    if kind == "times of day":
        return "write the day before each time, as in 2021-04-03 09:30"
    form = f"declare how they are written, such as date_formats = {{ {column} = '%d.%m.%Y' }}"
    if kind == "dates":
        return f"which number is the day and which the month is not guessed: {form}, or write dates as 2021-04-03"
    if kind == "numbers":
        return "write dates as 2021-04-03, or declare numbers under features with their ranges"
    return f"write dates as 2021-04-03, or {form}"
