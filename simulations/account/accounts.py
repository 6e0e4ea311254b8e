"""Accounts in a database: SQLite in one file, or PostgreSQL for several machines.

*Formal guarantees.* *Claim.* The prices of an account's entries never exceed its total (`userdp.accounting.filter`),
whatever number of processes enter at once, and wherever one is killed; nothing fits beside an entry of what was spent
elsewhere that does exceed it. `Accounts.enter` returns after its entry is on
the disk. *Why.* Reading what is spent, deciding and writing are one transaction, and one process at a time is in one:
SQLite's begins with the write lock of the file, PostgreSQL's with a lock that all writers take before they read, and
each later statement then sees what was committed before. A transaction that does not commit, because its process was
killed or the disk is full, leaves nothing. Commits are synchronous. Entries are numbered by the database; clocks are
only written down. Entries are never changed or removed.

*Assumptions.* The database keeps what it says it has written. Nobody writes into its tables by other means.
"""

import getpass
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.pool import NullPool

from simulations.account import schema
from simulations.account.postgresql import guarded
from simulations.records.run_directory import private_folder, writing
from userdp.accounting.costs import Cost
from userdp.accounting.filter import Price, Total, prices
from userdp.accounting.guarantee import Guarantee
from userdp.data.tables.declared import did_you_mean
from userdp.errors import BadInput

_TABLES = sql.MetaData()
_ACCOUNTS = sql.Table(
    "userdp_accounts",
    _TABLES,
    sql.Column("name", sql.String, primary_key=True),
    *(sql.Column(name, sql.Double, nullable=False) for name in ("epsilon", "delta", "others")),
    sql.Column("relation", sql.String, nullable=False),
)
_ENTRIES = sql.Table(
    "userdp_entries",
    _TABLES,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("account", sql.ForeignKey("userdp_accounts.name"), nullable=False),
    sql.Column("token", sql.String, nullable=False, unique=True),
    *(sql.Column(name, sql.Double, nullable=False) for name in ("mu_squared", "epsilon", "delta")),
    *(sql.Column(name, sql.String, nullable=False) for name in ("what", "place", "who", "entered", "promises")),
    sqlite_autoincrement=True,  # numbers only rise
)
_WAIT = 60.0  # Seconds to wait for another process's transaction.
_READERS_WAIT = 5.0  # Seconds that a reader waits for a writer who puts a transaction on the disk.
_ANSWERS = {"connect_timeout": 10, "tcp_user_timeout": 60_000}  # s and ms after which PostgreSQL is away
_LOCK = 0x75736572  # The key of the lock that writers take in PostgreSQL.


@dataclass(frozen=True)
class Wanted:
    """Something that is about to be done with a data set."""

    what: str  # for people
    promises: Sequence[Guarantee]  # the guarantees of its parts, which compose
    token: str  # names this entry alone: a run that resumes has the same
    place: str = ""  # the folder of its files
    times: int = 1  # how many such runs it consists of
    cost: Cost | None = None  # the cost of its first part, if that is known
    spent: bool = False  # it happened already, and counts even where it does not fit


@dataclass(frozen=True)
class Entry:
    """An entry of an account."""

    number: int
    token: str
    price: Price
    what: str
    place: str
    who: str
    entered: str  # by the clock of the machine that entered it, UTC
    promises: tuple[Guarantee, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = {name: value for name, value in vars(self).items() if name not in ("token", "price", "promises")}
        return values | asdict(self.price) | {"guarantees": [promise.as_dict() for promise in self.promises]}


@dataclass(frozen=True)
class Account:
    """An account with its entries, in their order."""

    name: str
    total: Total
    entries: tuple[Entry, ...]

    @property
    def spent(self) -> Price:
        """The sum of all prices."""
        return Price.sum(entry.price for entry in self.entries)

    @property
    def spent_epsilon(self) -> float:
        """The epsilon spent, at the total's delta, as if all prices had been fixed beforehand."""
        return self.total.spent_epsilon(self.spent)

    @property
    def left_epsilon(self) -> float:
        """The largest epsilon of one more Gaussian run, at the total's delta."""
        return self.total.left(self.spent, self.total.delta) if self.total.delta else 0.0

    def price(self, wanted: Wanted) -> Price:
        """Return the price of something within what is left; raise `BadInput` if it does not fit, or has no price."""
        try:
            return self.total.charged(self.spent, wanted.promises, wanted.times, wanted.cost)
        except BadInput as error:
            if wanted.spent:
                costs = (wanted.cost, *(None for _ in wanted.promises))
                known = zip(wanted.promises, costs, strict=False)
                return Price.sum(prices(promise, self.total.relation, cost)[0] for promise, cost in known)
            raise BadInput(f"privacy.account = {self.name!r}: {error} (userdp account show {self.name})") from None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; ``left_epsilon`` is that of one more Gaussian run at the total's delta."""
        return {
            "name": self.name,
            **asdict(self.total),
            "limits": asdict(self.total.limits),
            "spent": asdict(self.spent),
            "spent_epsilon": self.spent_epsilon,
            "left_epsilon": self.left_epsilon,
            "entries": [entry.as_dict() for entry in self.entries],
        }


class Accounts:
    """The accounts of a database.

    Args:
        url: such as "sqlite:////home/me/accounts.sqlite" or "postgresql://user@host/database".

    Methods raise `BadInput`: the database cannot be used, or there is no account of that name.
    """

    def __init__(self, url: str) -> None:
        try:
            place = sql.make_url(url)
        except sql.exc.ArgumentError:
            example = "sqlite:////home/me/accounts.sqlite or postgresql://user@host/database"
            raise BadInput("privacy.accounts is no database's address: write one such as " + example) from None
        self._dialect = place.get_backend_name()
        if self._dialect not in ("sqlite", "postgresql"):
            raise BadInput(
                f"privacy.accounts: {self._dialect} is not supported; use sqlite:///FILE or postgresql://..."
            )
        if self._dialect == "sqlite" and place.database in (None, "", ":memory:"):
            raise BadInput("privacy.accounts names no file: write sqlite:///FILE, since accounts have to last")
        if self._dialect == "postgresql":
            place = guarded(place)
        self.url = place.render_as_string(hide_password=True)
        self._file = Path(place.database or "") if self._dialect == "sqlite" else None
        # PostgreSQL: each statement after the lock has to see what others committed before; readers see one state.
        self._engine = _engine(place, _WAIT, "READ COMMITTED", _careful, "BEGIN IMMEDIATE")
        self._readers = _engine(place, _READERS_WAIT, "REPEATABLE READ", _as_told, "BEGIN")

    @property
    def file(self) -> Path | None:
        """The file of SQLite's; None for PostgreSQL."""
        return self._file

    def create(self, name: str, total: Total, *, anew: bool = True) -> None:
        """Make an account; `BadInput` if there is one of that name, unless it need not be ``anew``."""
        with self.transaction(making=True) as connection:
            _TABLES.create_all(connection)
            schema.bring_up(connection, _TABLES)
            if connection.scalar(sql.select(_ACCOUNTS.c.name).where(_ACCOUNTS.c.name == name)) is None:
                connection.execute(sql.insert(_ACCOUNTS).values(name=name, **asdict(total)))
            elif anew:
                raise BadInput(f"there is an account {name!r} already: its total stays; userdp account show {name}")

    def names(self) -> list[str]:
        """Return the names of all accounts, sorted."""
        with self.transaction(reads=True) as connection:
            if not sql.inspect(connection).has_table(_ACCOUNTS.name):
                return []
            return list(connection.scalars(sql.select(_ACCOUNTS.c.name).order_by(_ACCOUNTS.c.name)))

    def places(self) -> dict[str, tuple[str, str]]:
        """Return the account and the folder of each entry, by its token."""
        if self._file is not None and not self._file.exists():
            return {}
        with self.transaction() as connection:
            if not sql.inspect(connection).has_table(_ENTRIES.name):
                return {}
            rows = connection.execute(sql.select(_ENTRIES.c.token, _ENTRIES.c.account, _ENTRIES.c.place))
            return {row.token: (row.account, row.place) for row in rows}

    def read(self, name: str) -> Account:
        """Return an account with its entries."""
        with self.transaction(reads=True) as connection:
            return self._read(connection, name)

    def enter(self, name: str, wanted: Wanted) -> Price:
        """Enter something into an account, durably, and return its price; once for each token.

        Raises `BadInput`: it does not fit into what is left, or has the token of something else.
        """
        with self.transaction() as connection:
            account = self._read(connection, name)
            known = connection.execute(sql.select(_ENTRIES).where(_ENTRIES.c.token == wanted.token)).one_or_none()
            promises = _as_text(wanted.promises)
            if known is not None:
                if (known.account, known.place, known.promises) != (name, wanted.place, promises):
                    raise BadInput(
                        f"{wanted.place} resumes what account {known.account!r} has as entry {known.number}, made in "
                        f"{known.place} with other settings or in another folder: put the folder back and resume it "
                        "there, or start a new run"
                    )
                return _entry(known).price
            price = account.price(wanted)
            row = {"account": name, "token": wanted.token, "what": wanted.what, "place": wanted.place}
            now = datetime.now(UTC).isoformat(timespec="seconds")
            row |= {"who": somebody(), "entered": now, "promises": promises, **asdict(price)}
            connection.execute(sql.insert(_ENTRIES).values(row))
        return price

    def _read(self, connection: sql.Connection, name: str) -> Account:
        found = connection.execute(sql.select(_ACCOUNTS).where(_ACCOUNTS.c.name == name)).one_or_none()
        if found is None:
            near = did_you_mean(name, list(connection.scalars(sql.select(_ACCOUNTS.c.name))))
            raise BadInput(
                f"there is no account {name!r} in {self.url}{near}: userdp account create {name} --epsilon 4 "
                "--delta 1e-6"
            )
        total = Total(found.epsilon, found.delta, found.relation, found.others)
        rows = connection.execute(sql.select(_ENTRIES).where(_ENTRIES.c.account == name).order_by(_ENTRIES.c.number))
        return Account(name, total, tuple(map(_entry, rows)))

    @contextmanager
    def transaction(self, *, making: bool = False, reads: bool = False) -> Iterator[sql.Connection]:
        """Begin a transaction that no other process's overlaps, and commit it at the end; ``making`` a missing file.

        One that only ``reads`` sees what was committed when its first statement began; it holds no lock that a writer
        needs, and waits for none that a writer has but while SQLite puts a transaction on the disk.

        Raises `AccountsUnavailable`: the database does not answer.
        """
        if self._file is not None and making:
            with writing(f"privacy.accounts: {self._file.parent}"):
                private_folder(self._file.parent)
                with suppress(FileExistsError):  # SQLite gives its journal the rights of the database
                    os.close(os.open(self._file, os.O_CREAT | os.O_EXCL, 0o600))
        elif self._file is not None and not self._file.exists():
            raise BadInput(f"there are no accounts in {self.url}: userdp account create NAME makes the first")
        try:
            with (self._readers if reads else self._engine).begin() as connection:
                if self._dialect == "postgresql" and not reads:
                    connection.execute(sql.text("SET LOCAL synchronous_commit = on"))
                    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
                if reads:
                    schema.insist(connection)
                else:
                    schema.bring_up(connection, _TABLES)
                yield connection
        except sql.exc.DBAPIError as error:
            reason = f"the accounts in {self.url} cannot be used: {str(error.orig).partition(chr(10))[0]}"
            if "no such table" in reason or "does not exist" in reason:
                raise BadInput(f"{reason}; userdp account create NAME makes the first account") from None
            raise AccountsUnavailable(reason) from None


class AccountsUnavailable(BadInput):
    """The database of accounts does not answer, now: that says nothing about what was asked of it."""


def _engine(place: sql.URL, wait: float, isolation: str, connected: Callable[..., None], begin: str) -> sql.Engine:
    """Return a connection for each transaction, because processes that fork share none.

    SQLite waits ``wait`` seconds for locks, and its transactions ``begin`` so; PostgreSQL has levels of ``isolation``.
    """
    if place.get_backend_name() != "sqlite":
        return sql.create_engine(place, poolclass=NullPool, isolation_level=isolation, connect_args=_ANSWERS)
    engine = sql.create_engine(place, poolclass=NullPool, connect_args={"timeout": wait})
    sql.event.listen(engine, "connect", connected)
    sql.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _as_told(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin where `_engine` says so


def _careful(connection: Any, _: object) -> None:
    _as_told(connection, _)
    connection.execute("PRAGMA synchronous = EXTRA")  # FULL, and the folder too
    connection.execute("PRAGMA foreign_keys = ON")


def _as_text(promises: Sequence[Guarantee]) -> str:
    return json.dumps([promise.as_dict() for promise in promises])


def _entry(row: Any) -> Entry:
    price = Price(row.mu_squared, row.epsilon, row.delta)
    return Entry(row.number, row.token, price, row.what, row.place, row.who, row.entered, _promises(row.promises))


@lru_cache(maxsize=10_000)  # whoever keeps a federation reads the same entries again and again
def _promises(text: str) -> tuple[Guarantee, ...]:
    return tuple(map(Guarantee.from_dict, json.loads(text)))


def somebody() -> str:
    """Return who runs this process, and where."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
