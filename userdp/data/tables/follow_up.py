"""The declarations about follow-up, and which of a person's rows is in force at the start of each period."""

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput
from userdp.settings import Section

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]


class FollowUp(Section):
    """Samples are the periods in which a person is at risk of an event, for logistic and cloglog, in place of a target.

    Whoever leaves during a period counts as without the event in it.
    """

    time: str
    """Column of the time, since follow-up began, at which a row ends. Of several rows of a person each begins where the
    one before ends: features may change from row to row, and those at a period's start count."""
    event: str
    """Column that says whether the event happened at that time. The first one ends a person's follow-up."""
    periods: list[float]
    """Public edges of K periods, K + 1 rising numbers such as [0, 6, 12, 24]; an edge belongs to the period it ends. A
    person's loss is the sum over its periods at risk over K, and not over their number, which depends on the outcome.
    """
    happened: str | int | float = 1
    """The cell of event for one that happened; all others mean none, and a missing one leaves its row out."""
    start: str | None = None
    """Column of the time at which a row begins, for people who are seen late or not all the time."""

    @property
    def columns(self) -> list[str]:
        """The table's columns."""
        return [name for name in (self.time, self.event, self.start) if name is not None]

    @property
    def count(self) -> int:
        """K."""
        return len(self.periods) - 1

    def check(self) -> None:
        """Refuse edges that do not rise, and one column for two things."""
        if len(self.periods) < 2 or not np.isfinite(self.periods).all() or not (np.diff(self.periods) > 0).all():
            raise BadInput(f"survival.periods = {self.periods}: must be the rising edges of periods, at least two")
        if len(set(self.columns)) < len(self.columns):
            raise BadInput("survival names a column twice: time, event and start must differ")

    @staticmethod
    def refuse_limits(min_samples: int, max_samples: int | None) -> None:
        """Refuse limits on a user's samples, of which everybody has K."""
        if max_samples is not None or min_samples > 1:
            raise BadInput("survival gives everybody the same number of samples: leave min_samples and max_samples out")

    def at_risk(
        self, owner: Integers, begin: Numbers | None, time: Numbers, happened: Integers
    ) -> tuple[Integers, NDArray[np.bool_]]:
        """Return (U, K) the row in force at the start of each period at risk, -1 elsewhere; and where the event is.

        Rows (N,): owners 0..U-1, begin and end, and 1 for an event, 0 for none, -1 for a row that is left out, like one
        without a time. A user is at risk in period k if a row begins at its start or before and ends after it, and no
        event came before; of several such rows the last to begin counts, and of these the last in the file. Without
        ``begin`` a row may also end at the first edge, as whoever has the event on the first day.
        """
        first, count = self.periods[0], int(owner.max()) + 1
        usable = np.flatnonzero((happened >= 0) & np.isfinite(time) & (True if begin is None else np.isfinite(begin)))
        if begin is None:
            usable = usable[np.lexsort((time[usable], owner[usable]))]
            follows = np.append(False, owner[usable][1:] == owner[usable][:-1])
            starts = np.where(follows, np.roll(time[usable], 1), -np.inf)
            time = np.where(time == first, np.nextafter(first, np.inf), time)
        else:
            usable = usable[np.lexsort((begin[usable], owner[usable]))]
            starts = begin[usable]
        users, ends = owner[usable], time[usable]
        event = happened[usable] == 1
        earliest = np.full(count, np.inf)
        np.minimum.at(earliest, users[event], ends[event])
        last = np.searchsorted(self.periods, earliest, side="left")  # the event's period, from 1; 0 before the first
        rows = np.full((count, self.count), -1, dtype=np.int64)
        for place, edge in enumerate(self.periods[:-1]):
            here = (starts <= edge) & (ends > edge) & (place < last[users])
            rows[users[here], place] = usable[here]
        return rows, (rows >= 0) & (np.arange(1, self.count + 1) == last[:, None])
