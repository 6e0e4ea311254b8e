"""Cells of dates and times: each is read by itself, as a moment in UTC.

Only ISO 8601 and one declared form are read: with a format inferred from a column's first cells, as libraries do, one
person's cell would decide the meaning of everybody else's.
"""

import re
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.tables.cells import cell_text, texts_of, ticks_of

Moments = NDArray[np.datetime64]
"""Microseconds since 1970 in UTC, as ``datetime64[us]``; NaT for no date."""
MICROSECONDS_A_DAY = 86_400_000_000
_NONE = int(np.iinfo(np.int64).min)  # NumPy's NaT
_EPOCH = datetime(1970, 1, 1)
_FIRST, _LAST = ((end - _EPOCH) // timedelta(microseconds=1) for end in (datetime.min, datetime.max))
"""The first and the last moment of the years 1 to 9999; within them nothing overflows."""
_LONGEST = 100
"""The most characters of a date, so that no cell takes long to read."""

_DAY = (
    r"([0-9]{4})(?:([-/.])([0-9]{1,2})\2([0-9]{1,2})"  # 2021-04-03, 2021/4/3
    r"|([0-9]{2})([0-9]{2})"  # 20210403
    r"|-([0-9]{2}))?"  # 2021-04, 2021: their first day
)
_CLOCK = r"([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?|([0-9]{2})([0-9]{2})?)?"
_ZONE = r" ?(?:(Z)|([+-])([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?)"
_ISO = re.compile(rf"{_DAY}(?:[T ]{_CLOCK}(?:{_ZONE})?)?")

_DIRECTIVES = frozenset("YymdjbBaAHIMSfpzGVuUWw%")
"""Directives of `datetime.strptime` that mean the same on every machine; %Z does not, as it knows local zone names."""
_OF_A_YEAR = frozenset("YyG")
_TRIED = [datetime(2003, 2, 1, 4, 5, 6), datetime(2020, 10, 20, 20, 10, 30), datetime(2011, 12, 10, 11, 12, 10)]
"""Moments for testing a form: their days, months and years cannot be swapped unnoticed, and some end in zeros."""


def moment(text: str, form: str | None = None) -> int:
    """Return microseconds since 1970 in UTC of one cell's text; the number of NaT for no date.

    A text with an offset is converted to UTC; one without is UTC. A day, a month or a year in ISO 8601 is the midnight
    at which it begins. Digits after the microseconds are cut off. ``form``, for `datetime.strptime`, is the format of
    dates that are not in ISO 8601.
    """
    text = text.strip(" \t")
    if not text or len(text) > _LONGEST:
        return _NONE
    ticks = _iso_moment(text)
    if ticks is None and form is not None:
        ticks = _formed_moment(text, form)
    return ticks if ticks is not None and _FIRST <= ticks <= _LAST else _NONE


def _iso_moment(text: str) -> int | None:
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    (
        year, _, month, day, short_month, short_day, month_alone,
        hour, minute, second, fraction, short_minute, short_second,
        _, sign, away_hours, away_minutes, away_seconds,
    ) = match.groups()  # fmt: skip
    if hour is not None and not (day or short_day):
        return None  # a time without a day
    clock = hour or 0, minute or short_minute or 0, second or short_second or 0, (fraction or "")[:6].ljust(6, "0")
    hours, minutes, seconds, microseconds = map(int, clock)
    try:
        whole = date(int(year), int(month or short_month or month_alone or 1), int(day or short_day or 1))
        made = datetime.combine(whole, time(hours, minutes, seconds, microseconds))
        away = time(int(away_hours or 0), int(away_minutes or 0), int(away_seconds or 0))
    except ValueError:
        return None
    offset = datetime.combine(_EPOCH, away) - _EPOCH
    return _since_epoch(made, -offset if sign == "-" else offset)


def _formed_moment(text: str, form: str) -> int | None:
    try:
        made = datetime.strptime(text, form)
    except (ValueError, OverflowError):
        return None
    return _since_epoch(made.replace(tzinfo=None), made.utcoffset() or timedelta(0))


def _since_epoch(made: datetime, away: timedelta) -> int:
    return (made - _EPOCH - away) // timedelta(microseconds=1)


def fault_of(form: str) -> str | None:
    """Return why a form cannot be declared; None for a reliable one.

    Cells are normalised by `userdp.data.tables.cells.cell_text` and read as ISO 8601 first: a form that one of the two
    interprets otherwise is unreliable.
    """
    directives = re.findall(r"%(.?)", form, re.DOTALL)
    unknown = next((one for one in directives if one not in _DIRECTIVES), None)
    if unknown == "Z":
        return "names of time zones differ between machines; %z reads offsets"
    if unknown is not None:
        return f"there is no %{unknown}" if unknown else "it ends with a lone %"
    if not _OF_A_YEAR & set(directives):
        return "it has no year, which %Y is"
    for tried in _TRIED:
        text = tried.replace(tzinfo=UTC).strftime(form)
        try:
            wanted = _formed_moment(text, form)
        except re.error:  # a directive occurs twice
            wanted = None
        if wanted is None:
            return "no date can be read by it"
        if moment(cell_text(text), form) != wanted:
            return "dates in this format could be taken for others, or for numbers"
    return None


def moments_of(column: pa.ChunkedArray, name: str, form: str | None = None) -> Moments:
    """Return a column of N cells, called ``name`` in errors, as moments (N,); see `moment` for ``form``.

    *Formal guarantee*: a cell's moment depends on that cell and the declared form alone, and is the same for a date as
    such and for its text; no cell makes reading fail.
    """
    if (ticks := ticks_of(column)) is not None:
        return _of_ticks(*ticks)
    texts = texts_of(column, name)
    return texts.mapped(moment(text, form) for text in texts.distinct).view("M8[us]")


def _of_ticks(ticks: NDArray[np.int64], unit: str) -> Moments:
    """Convert whole numbers of a unit since 1970; there is no date beyond the years 1 to 9999, as in a text."""
    if unit == "ns":
        missing, unit = ticks == _NONE, "us"
        ticks = np.where(missing, _NONE, ticks // 1000)
    length = {"D": MICROSECONDS_A_DAY, "s": 1_000_000, "ms": 1000, "us": 1}[unit]
    inside = (ticks >= _FIRST // length) & (ticks <= _LAST // length)
    return np.where(inside, np.where(inside, ticks, 0) * length, _NONE).view("M8[us]")


def days_since(moments: Moments, first: np.datetime64) -> NDArray[np.float64]:
    """Return (N,) days since ``first``, times as fractions of a day; NaN for no date. Each by itself."""
    return np.where(np.isnat(moments), np.nan, (moments - first).astype(np.int64) / MICROSECONDS_A_DAY)


def part_codes(moments: Moments, part: str) -> NDArray[np.int64]:
    """Return (N,) positions among the levels of a month, quarter, weekday (from Monday) or hour; -1 for no date."""
    ticks = moments.astype(np.int64)
    if part == "hour":
        codes = ticks // (MICROSECONDS_A_DAY // 24) % 24
    elif part == "weekday":
        codes = (ticks // MICROSECONDS_A_DAY + 3) % 7  # 1970 began on a Thursday
    else:
        codes = moments.astype("M8[M]").astype(np.int64) % 12 // (3 if part == "quarter" else 1)
    return np.where(np.isnat(moments), -1, codes)
