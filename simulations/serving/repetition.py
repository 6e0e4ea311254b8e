"""Repetitions of a run: daily, weekly, monthly, or every so many hours."""

import re
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pandas as pd

from userdp.errors import BadInput

_PERIODS: dict[str, Callable[[int], pd.DateOffset]] = {
    "daily": lambda count: pd.DateOffset(days=count),
    "weekly": lambda count: pd.DateOffset(weeks=count),
    "monthly": lambda count: pd.DateOffset(months=count),
}
_HOURS = re.compile(r"(?:every )?([1-9][0-9]{0,4}) hours?")


def next_time(first: datetime, every: str, now: datetime) -> datetime:
    """Return the first repetition that is later than ``now``: what was missed is not made up for.

    Periods count from ``first``, so that months keep their day: 31 January, 28 February, 31 March. Raises `BadInput`:
    ``every`` is not "daily", "weekly", "monthly" or "every N hours".
    """
    start, periods = pd.Timestamp(first), _periods(every)
    hours = max(0, (now - first) // timedelta(hours=1))  # as many of the shortest periods have passed
    counts = range(1, hours + 3)
    try:
        count = counts[bisect_right(counts, now, key=lambda count: start + periods(count))]
        return (start + periods(count)).to_pydatetime()
    except (OverflowError, ValueError):
        raise BadInput(f"--every {every!r}: the next time is beyond the calendar") from None


def _periods(every: str) -> Callable[[int], pd.DateOffset]:
    """Return how long so many periods take."""
    if every in _PERIODS:
        return _PERIODS[every]
    if found := _HOURS.fullmatch(every):
        return lambda count: pd.DateOffset(hours=count * int(found[1]))
    raise BadInput(f"--every {every!r}: write daily, weekly, monthly, or 'every N hours'")


def moment(text: str) -> datetime:
    """Read a time such as "2026-12-01 03:00", in UTC unless it names another zone; `BadInput` for anything else."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadInput(f"--at {text!r}: write a time such as '2026-12-01 03:00', in UTC") from None
