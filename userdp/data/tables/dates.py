"""Columns of dates: bounds that are declared, and parts, such as the month, whose levels are public by nature."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from userdp.data.tables.cells import cell_text
from userdp.data.tables.declared import Range, did_you_mean
from userdp.data.tables.imputed import STATISTICS, not_from_data
from userdp.data.tables.moments import days_since, faults_of, moment
from userdp.errors import BadInput

PARTS: dict[str, tuple[str, ...]] = {
    "month": tuple(str(month) for month in range(1, 13)),
    "quarter": ("1", "2", "3", "4"),
    "weekday": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "hour": tuple(str(hour) for hour in range(24)),
}
"""Part of a date -> its levels."""
_BOUNDS = "['1950-01-01', '2030-12-31']"
_FORM = "'%d.%m.%Y'"


def text_of_date(value: object) -> object:
    """A date, a time or NumPy's or pandas' as ISO 8601, by which files say it; anything else stays as it is."""
    if isinstance(value, np.datetime64):
        return str(value)
    return cell_text(value) if isinstance(value, date) else value


def with_dates_as_text(declared: object) -> object:
    """The same with every date in it, at any depth of tables and lists, as text."""
    if isinstance(declared, Mapping):
        return {key: with_dates_as_text(value) for key, value in declared.items()}
    if isinstance(declared, list | tuple):
        return [with_dates_as_text(value) for value in declared]
    return text_of_date(declared)


def declared_moment(value: object) -> np.datetime64 | None:
    """A declared date as a moment in UTC: ISO 8601, or a date of Python, NumPy or pandas; None if it is none."""
    text = text_of_date(value)
    found = np.int64(moment(text) if isinstance(text, str) else moment("")).view("M8[us]")
    return None if np.isnat(found) else found


def checked_dates(field: str, bounds: object) -> tuple[np.datetime64, np.datetime64]:
    """Bounds of dates as (first, last).

    Raises:
        BadInput: not two dates that rise.
    """
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise BadInput(f"{field} = {bounds!r}: must be [first, last], two public dates, such as {_BOUNDS}")
    told = [text_of_date(bound) for bound in bounds]
    first, last = (declared_moment(bound) for bound in bounds)
    for value, found in zip(told, (first, last), strict=True):
        if found is None:
            raise BadInput(f"{field} = {told}: {value!r} is no date in ISO 8601; write two, such as {_BOUNDS}")
    if first is None or last is None or not first < last:
        raise BadInput(f"{field} = {told}: the first date must come before the last; swap them, or widen the bounds")
    return first, last


@dataclass(frozen=True)
class DateColumns:
    """What is declared of a table's columns of dates.

    Attributes:
        bounds: column -> [first, last]; it is one numeric feature, in days.
        parts: column -> names of its parts; each is a feature of 0 and 1 a level.
        formats: column -> how its dates are written that are not in ISO 8601.
        between: the columns of dates that derived features are made of.
    """

    bounds: Mapping[str, Sequence[object]]
    parts: Mapping[str, Sequence[str]]
    formats: Mapping[str, str]
    between: Sequence[str]

    @property
    def listed(self) -> list[str]:
        """The columns that are features themselves."""
        return list(dict.fromkeys([*self.bounds, *self.parts]))

    @property
    def read(self) -> list[str]:
        """The columns whose cells are read as dates."""
        return list(dict.fromkeys([*self.listed, *self.between]))

    @property
    def needed(self) -> list[str]:
        """Those of them without which a sample cannot be used; without a part it has no level."""
        return list(dict.fromkeys([*self.bounds, *self.between]))

    def check(self, *, numbers: Sequence[str], target: str | None) -> None:
        """Refuse what contradicts itself.

        Args:
            numbers: the columns that are read as numbers.
            target: the column to predict.

        Raises:
            BadInput: bounds that are no dates, parts that there are not, forms that cannot be relied on, or a column
                that is also declared as something else.
        """
        for column, bounds in self.bounds.items():
            checked_dates(f"dates.{column}", bounds)
        for column, parts in self.parts.items():
            _check_parts(column, parts)
        for column in self.listed:
            field = "dates" if column in self.bounds else "date_parts"
            if column in numbers:
                raise BadInput(
                    f"column {column!r} is declared as numbers and under {field}; leave it out of one of them"
                )
            if column == target:
                raise BadInput(
                    f"{field} names {column!r}, the target: a loss predicts numbers or classes; write it as a number, "
                    "such as days since a public day, and declare target_range"
                )
        for column, form in self.formats.items():
            self._check_form(column, form)

    def _check_form(self, column: str, form: object) -> None:
        if column not in self.read:
            hint = did_you_mean(column, self.read) or "; declare it under dates or date_parts, or leave it out"
            raise BadInput(f"date_formats names {column!r}, which is no column of dates{hint}")
        field = f"date_formats.{column} = {form!r}"
        if not isinstance(form, str):
            raise BadInput(f"{field}: must be text, such as {_FORM}")
        for fault in faults_of(form):
            raise BadInput(
                f"{field}: {fault}; write it as datetime.strptime takes it, such as {_FORM}, or the dates as 2021-04-03"
            )

    def range(self, column: str) -> Range:
        """(0, days from the first to the last bound) of a column that has bounds."""
        first, last = checked_dates(f"dates.{column}", self.bounds[column])
        return 0.0, float(days_since(np.array([last]), first)[0])

    def first(self, column: str) -> np.datetime64:
        """The moment from which the days of a column that has bounds are counted."""
        return checked_dates(f"dates.{column}", self.bounds[column])[0]

    def part_names(self, column: str) -> list[str]:
        """The features that the parts of a column become, in their order."""
        return [f"{column} {part}={level}" for part in self.parts[column] for level in PARTS[part]]

    @property
    def parts_in_all(self) -> int:
        """How many parts of columns are features; of each at most one level is 1."""
        return sum(map(len, self.parts.values()))

    def imputed(self, column: str, value: object) -> np.datetime64:
        """The date that stands for a missing cell of a column.

        Raises:
            BadInput: no date, or one outside the bounds; of a word, why a statistic cannot be it.
        """
        told = f"impute.{column} = {text_of_date(value)!r}"
        bounds = checked_dates(f"dates.{column}", self.bounds[column]) if column in self.bounds else None
        example = "a public date, such as 2000-01-01"
        if bounds is not None:
            middle = (bounds[0] + (bounds[1] - bounds[0]) // 2).astype("M8[D]")
            example = f"a public date, such as the middle of its bounds, {middle}"
        if isinstance(value, str) and value in STATISTICS:
            raise BadInput(not_from_data(told, example))
        found = declared_moment(value)
        if found is None:
            raise BadInput(f"{told}: must be {example}; missing_indicators tells such cells from others")
        if bounds is not None and not bounds[0] <= found <= bounds[1]:
            first, last = map(text_of_date, self.bounds[column])
            raise BadInput(f"{told}: must lie within dates.{column} = [{first}, {last}]")
        return found


def _check_parts(column: str, parts: object) -> None:
    field, known = f"date_parts.{column}", ", ".join(PARTS)
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise BadInput(f"{field} = {parts!r}: must be a list of parts, at least one of {known}")
    for place, part in enumerate(parts):
        if part not in PARTS:
            hint = did_you_mean(str(part), PARTS) or f"; there are {known}"
            if part in ("year", "years", "day", "date", "time"):
                hint = (
                    f"; the date as a number is declared as dates = {{ {column} = {_BOUNDS} }}, and parts are {known}"
                )
            raise BadInput(f"{field} names {part!r}, which is no part of a date{hint}")
        if part in parts[:place]:
            raise BadInput(f"{field} names {part!r} twice; leave one out")
