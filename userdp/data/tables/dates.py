"""Columns of dates: declared bounds, and parts, such as the month, whose levels are public by nature."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from userdp.data.tables.cells import cell_text
from userdp.data.tables.date_cells import days_since, fault_of, moment
from userdp.data.tables.declared import STATISTICS, Range, did_you_mean, not_from_data
from userdp.errors import BadInput

PARTS: dict[str, tuple[str, ...]] = {
    "month": tuple(str(month) for month in range(1, 13)),
    "quarter": ("1", "2", "3", "4"),
    "weekday": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "hour": tuple(str(hour) for hour in range(24)),
}
"""The levels of each part of a date."""
_BOUNDS = "['1950-01-01', '2030-12-31']"
_FORM = "'%d.%m.%Y'"


def text_of_date(value: object) -> object:
    """Return a date or time of Python, NumPy or pandas as ISO 8601 text; anything else unchanged."""
    if isinstance(value, np.datetime64):
        return str(value)
    return cell_text(value) if isinstance(value, date) else value


def with_dates_as_text(declared: object) -> object:
    """Turn every date, at any depth of tables and lists, into text."""
    if isinstance(declared, Mapping):
        return {key: with_dates_as_text(value) for key, value in declared.items()}
    if isinstance(declared, list | tuple):
        return [with_dates_as_text(value) for value in declared]
    return text_of_date(declared)


def declared_moment(value: object) -> np.datetime64 | None:
    """Return a declared date (ISO 8601, or of Python, NumPy or pandas) as a moment in UTC; None if it is none."""
    text = text_of_date(value)
    ticks = np.int64(moment(text if isinstance(text, str) else "")).view("M8[us]")
    return None if np.isnat(ticks) else ticks


def checked_dates(field: str, bounds: object) -> tuple[np.datetime64, np.datetime64]:
    """Return bounds of dates as (first, last); raise `BadInput` unless they are two dates that rise."""
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise BadInput(f"{field} = {bounds!r}: must be [first, last], two public dates, such as {_BOUNDS}")
    texts = [text_of_date(bound) for bound in bounds]
    first, last = (declared_moment(bound) for bound in bounds)
    if first is None or last is None:
        wrong = texts[0] if first is None else texts[1]
        raise BadInput(f"{field} = {texts}: {wrong!r} is no date in ISO 8601; write two, such as {_BOUNDS}")
    if not first < last:
        raise BadInput(f"{field} = {texts}: the first date must come before the last; swap them, or widen the bounds")
    return first, last


@dataclass(frozen=True)
class DateColumns:
    """The declarations about a table's columns of dates."""

    bounds: Mapping[str, Sequence[object]]
    """Column -> [first, last]; one numeric feature, in days."""
    parts: Mapping[str, Sequence[str]]
    """Column -> names of its parts; each level of a part is a feature of 0 and 1."""
    formats: Mapping[str, str]
    """Column -> the format of dates that are not in ISO 8601."""
    between: Sequence[str]
    """The columns of dates that derived features are made of."""

    @property
    def listed(self) -> list[str]:
        """The columns that are features themselves."""
        return list(dict.fromkeys([*self.bounds, *self.parts]))

    @property
    def read(self) -> list[str]:
        """The columns read as dates."""
        return list(dict.fromkeys([*self.listed, *self.between]))

    @property
    def needed(self) -> list[str]:
        """The columns of dates that a sample must have; without a part it has no level."""
        return list(dict.fromkeys([*self.bounds, *self.between]))

    def check(self, *, numbers: Sequence[str], target: str | None) -> None:
        """Refuse contradictions, given the columns read as ``numbers`` and the ``target``."""
        for column, bounds in self.bounds.items():
            checked_dates(f"dates.{column}", bounds)
        for column, parts in self.parts.items():
            _check_parts(column, parts)
        for column in self.listed:
            field = "dates" if column in self.bounds else "date_parts"
            if column in numbers:
                raise BadInput(f"column {column!r} is declared as numbers and under {field}; leave it out of one")
            if column == target:
                problem = f"{field} names {column!r}, the target: a loss predicts numbers or classes"
                raise BadInput(f"{problem}; write it as a number, such as days since a public day, with target_range")
        for column, form in self.formats.items():
            self._check_form(column, form)

    def _check_form(self, column: str, form: object) -> None:
        if column not in self.read:
            hint = did_you_mean(column, self.read) or "; declare it under dates or date_parts, or leave it out"
            raise BadInput(f"date_formats names {column!r}, which is no column of dates{hint}")
        field = f"date_formats.{column} = {form!r}"
        if not isinstance(form, str):
            raise BadInput(f"{field}: must be text, such as {_FORM}")
        if fault := fault_of(form):
            raise BadInput(
                f"{field}: {fault}; write it as datetime.strptime takes it, such as {_FORM}, or the dates as 2021-04-03"
            )

    def range(self, column: str) -> Range:
        """Return (0, days from the first to the last bound) of a column with bounds."""
        first, last = checked_dates(f"dates.{column}", self.bounds[column])
        return 0.0, float(days_since(np.array([last]), first)[0])

    def first(self, column: str) -> np.datetime64:
        """Return the moment from which the days of a column with bounds are counted."""
        return checked_dates(f"dates.{column}", self.bounds[column])[0]

    def imputed(self, column: str, value: object) -> np.datetime64:
        """Return the date that stands for a missing cell; refuse a statistic, no date, or one outside the bounds."""
        field = f"impute.{column} = {text_of_date(value)!r}"
        bounds = checked_dates(f"dates.{column}", self.bounds[column]) if column in self.bounds else None
        example = "a public date, such as 2000-01-01"
        if bounds is not None:
            middle = (bounds[0] + (bounds[1] - bounds[0]) // 2).astype("M8[D]")
            example = f"a public date, such as the middle of its bounds, {middle}"
        if isinstance(value, str) and value in STATISTICS:
            raise BadInput(not_from_data(field, example))
        instead = declared_moment(value)
        if instead is None:
            raise BadInput(f"{field}: must be {example}; missing_indicators marks such cells")
        if bounds is not None and not bounds[0] <= instead <= bounds[1]:
            first, last = map(text_of_date, self.bounds[column])
            raise BadInput(f"{field}: must lie within dates.{column} = [{first}, {last}]")
        return instead


def _check_parts(column: str, parts: object) -> None:
    field, known = f"date_parts.{column}", ", ".join(PARTS)
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise BadInput(f"{field} = {parts!r}: must be a list of parts, at least one of {known}")
    for place, part in enumerate(parts):
        if part not in PARTS:
            hint = did_you_mean(str(part), PARTS) or f"; there are {known}"
            if part in ("year", "years", "day", "date", "time"):
                hint = f"; declare the date as a number by dates = {{ {column} = {_BOUNDS} }}; parts are {known}"
            raise BadInput(f"{field} names {part!r}, which is no part of a date{hint}")
        if part in parts[:place]:
            raise BadInput(f"{field} names {part!r} twice; leave one out")
