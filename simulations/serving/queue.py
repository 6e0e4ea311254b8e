"""The queue of runs, in the database of the accounts.

*Formal guarantees.* *Claim.* Every scheduled run ends in one state, is under way at one keeper at most, and has one
token and one folder from its beginning to its end, wherever processes are killed; at most one run is under way. *Why.*
Each method is one transaction, and those of all processes follow one another (`Accounts.transaction`). `Queue.take`
returns the run under way, if there is one, to its keeper alone, before it takes another. Token and folder are written
down with that, before anything is charged or asked. `Queue.finish` writes the end of a run and its repetition together.
*Assumptions.* Those of `Accounts`; a keeper's identity is its folder of results (`simulations.serving.keeper`).
"""

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import sqlalchemy as sql

from simulations.account.accounts import Accounts, somebody
from simulations.account.schema import bring_up
from simulations.config.run_config import NAME
from userdp.errors import BadInput

STATES = {
    "waiting": "for its time, or to be resumed",
    "running": "under way",
    "done": "ended, with everything that it promised to leave",
    "refused": "before anything was asked: it exceeds the budget, or its configuration cannot run",
    "failed": "stopped more often than it is resumed",
    "cancelled": "by somebody",
}
"""State -> its meaning."""
OPEN = ("waiting", "running")
_NEVER = datetime.max.replace(tzinfo=UTC)  # the time of a row that names none
_LONGEST = 100  # letters of a name in a folder's; rows of former versions may have longer ones
_PERIODS: dict[str, Callable[[int], pd.DateOffset]] = {
    "daily": lambda count: pd.DateOffset(days=count),
    "weekly": lambda count: pd.DateOffset(weeks=count),
    "monthly": lambda count: pd.DateOffset(months=count),
}
_HOURS = re.compile(r"(?:every )?([1-9][0-9]{0,4}) hours?")

_TABLES = sql.MetaData()
_QUEUE = sql.Table(
    "userdp_queue",
    _TABLES,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    *(sql.Column(name, sql.String, nullable=False) for name in ("name", "configuration", "who", "token", "state")),
    *(sql.Column(name, sql.String, nullable=False) for name in ("first", "earliest")),  # UTC, so that texts sort
    *(sql.Column(name, sql.String) for name in ("account", "every", "keeper", "folder", "run", "reason", "silos")),
    sql.Column("attempts", sql.Integer, nullable=False),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True)
class Scheduled:
    """A run of the queue."""

    number: int
    name: str
    configuration: str  # the text of its file
    who: str  # added it
    token: str  # of its entry in the account
    state: str  # of `STATES`
    first: datetime  # the time that repetitions count from
    earliest: datetime
    account: str | None
    every: str | None
    keeper: str | None  # identity of the keeper that took it
    folder: str | None  # name of its run directory
    run: str | None  # Flower's number of the run under way
    reason: str | None  # why it is in this state, for the operator
    silos: dict[str, bool]  # silo -> whether it was connected when the run began
    attempts: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        hidden = ("token", "configuration", "keeper", "first")
        values = {name: value for name, value in vars(self).items() if name not in hidden}
        return values | {"earliest": _text(self.earliest)}


class Queue:
    """The queue of a database; methods raise `BadInput` as those of `Accounts` do."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts

    def add(
        self, name: str, configuration: str, account: str | None, earliest: datetime, every: str | None = None
    ) -> int:
        """Add a run, which repeats ``every`` period (`next_time`), and return its number."""
        if not re.fullmatch(NAME, name):
            raise BadInput(f"name = {name[:20]!r}...: use letters, digits, dots, dashes and underscores, at most 100")
        if every is not None:
            next_time(earliest, every, earliest)  # refuses what is no period
        row = {"name": name, "configuration": configuration, "account": account, "who": somebody(), "every": every}
        with self._table() as connection:
            return _insert(connection, row, earliest, earliest)

    def runs(self) -> list[Scheduled]:
        """Return all runs, in the order of their numbers."""
        with self.accounts.transaction(making=True, reads=True) as connection:
            return _select(connection) if sql.inspect(connection).has_table(_QUEUE.name) else []

    def take(self, now: datetime, keeper: str) -> Scheduled | None:
        """Return the run under way, or take the next one that is due; None if none is.

        Raises `BadInput`: another keeper has a run under way.
        """
        with self._table() as connection:
            if under_way := _select(connection, _QUEUE.c.state == "running"):
                run = under_way[0]
                if run.keeper != keeper:
                    raise BadInput(
                        f"run {run.number} is under way at a userdp serve with other --results: stop this one; if "
                        f"those results are lost, give the run up with userdp serve cancel {run.number}"
                    )
                return run
            due = (_QUEUE.c.state == "waiting") & (_QUEUE.c.earliest <= _text(now))
            waiting = sorted(_select(connection, due), key=lambda run: (run.earliest, run.number))
            if not waiting:
                return None
            chosen = waiting[0]
            folder = chosen.folder or f"{chosen.number:05d}-{chosen.name[:_LONGEST]}"
            _update(connection, chosen.number, state="running", keeper=keeper, folder=folder)
            return _one(connection, chosen.number)

    def begun(self, number: int, run: str, silos: dict[str, bool]) -> None:
        """Write down Flower's number of a run that was submitted, and which silos were connected."""
        with self._table() as connection:
            attempts = _one(connection, number).attempts + 1
            _update(connection, number, run=run, silos=json.dumps(silos), attempts=attempts)

    def put_back(self, number: int, earliest: datetime, reason: str) -> None:
        """Let a run that stopped wait until it is resumed."""
        with self._table() as connection:
            if _one(connection, number).state == "running":
                _update(connection, number, state="waiting", run=None, earliest=_text(earliest), reason=reason)

    def finish(self, number: int, state: str, reason: str | None, now: datetime) -> None:
        """End a run, and schedule its repetition, unless it was refused: nothing is given back, so it never fits."""
        with self._table() as connection:
            run = _one(connection, number)
            if run.state != "running":  # cancelled in the meantime
                return
            _update(connection, number, state=state, reason=reason)
            if run.every is not None and state != "refused":
                again = {name: getattr(run, name) for name in ("name", "configuration", "account", "who", "every")}
                with suppress(BadInput):  # beyond the calendar
                    _insert(connection, again, run.first, next_time(run.first, run.every, now))

    def cancel(self, number: int) -> Scheduled:
        """Take a run out of the queue, with its repetitions, and return it as it was; what it asked stays charged.

        One that failed is given up: nobody retries it any more.
        """
        with self._table() as connection:
            run = _one(connection, number)
            if run.state not in (*OPEN, "failed"):
                raise BadInput(f"run {number} is {run.state} already")
            _update(connection, number, state="cancelled", reason=f"by {somebody()}")
        return run

    def stopped(self, number: int) -> None:
        """Write down that a run which was cancelled is no longer under way at Flower."""
        with self._table() as connection:
            _update(connection, number, run=None)

    def retry(self, number: int, now: datetime) -> Scheduled:
        """Let a run that failed wait again, in its folder and under its entry, without repetitions; return it."""
        with self._table() as connection:
            run = _one(connection, number)
            if run.state != "failed":
                raise BadInput(
                    f"run {number} is {run.state}: only failed runs go on, so add a new one with userdp serve add"
                )
            attempts = min(run.attempts, 1)  # that it was submitted stays known
            _update(connection, number, state="waiting", run=None, attempts=attempts, every=None, earliest=_text(now))
        return run

    @contextmanager
    def _table(self) -> Iterator[sql.Connection]:
        with self.accounts.transaction(making=True) as connection:
            _TABLES.create_all(connection)
            bring_up(connection, _TABLES)
            yield connection


def always_missing(runs: Sequence[Scheduled], starts: int = 3) -> list[str]:
    """Return the silos that were known and not connected whenever one of the last ``starts`` runs began, sorted."""
    rosters = [run.silos for run in runs if run.silos]
    if len(rosters) < starts:
        return []
    return sorted(silo for silo in rosters[-1] if all(roster.get(silo) is False for roster in rosters[-starts:]))


def _insert(connection: sql.Connection, row: dict[str, Any], first: datetime, earliest: datetime) -> int:
    whole = row | {"first": _text(first), "earliest": _text(earliest), "token": secrets.token_hex(16)}
    new = sql.insert(_QUEUE).values(whole | {"state": "waiting", "attempts": 0}).returning(_QUEUE.c.number)
    return int(connection.execute(new).scalar_one())


def _select(connection: sql.Connection, *where: sql.ColumnElement[bool]) -> list[Scheduled]:
    return [_scheduled(row) for row in connection.execute(sql.select(_QUEUE).where(*where).order_by(_QUEUE.c.number))]


def _one(connection: sql.Connection, number: int) -> Scheduled:
    found = _select(connection, _QUEUE.c.number == number)
    if not found:
        raise BadInput(f"there is no run {number} in the queue: userdp serve list")
    return found[0]


def _update(connection: sql.Connection, number: int, **values: Any) -> None:
    connection.execute(sql.update(_QUEUE).where(_QUEUE.c.number == number).values(values))


def _scheduled(row: Any) -> Scheduled:
    values = dict(row._mapping)
    times = {name: _read(moment, values[name], _NEVER) for name in ("first", "earliest")}
    silos = _read(json.loads, values["silos"] or "{}", {})
    return Scheduled(**values | times | {"silos": silos if isinstance(silos, dict) else {}})


def _read(read: Callable[[str], Any], text: str, otherwise: Any) -> Any:
    """Return what a column says, or ``otherwise`` if it cannot be read, so that one row stops no other."""
    try:
        return read(text)
    except (BadInput, ValueError, TypeError, RecursionError):
        return otherwise


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


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
