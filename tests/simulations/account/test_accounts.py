"""Accounts in a database: never beyond the total, whoever enters at once, is killed, or has a clock that goes back."""

import multiprocessing
import os
import random
import secrets
import signal
import sqlite3
import time
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from helpers import PATIENCE
from helpers_accounts import own_postgres, promise

from simulations.account import accounts as module
from simulations.account.accounts import Accounts, Wanted
from userdp.accounting import Price, Total
from userdp.errors import BadInput

FITTING = 12
"""Gaussian runs of (1, 1e-6) that a total of (4, 1e-6) holds."""


@pytest.fixture(scope="module")
def server():
    with own_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'folder' / 'accounts.sqlite'}"
    return request.getfixturevalue("server")


@pytest.fixture
def name(url):
    """An account of (4, 1e-6), of a name of its own."""
    made = f"data-{secrets.token_hex(4)}"
    Accounts(url).create(made, Total(4.0, 1e-6))
    return made


def run(token=None, *, place="", **budget):
    return Wanted("a run", (promise(**budget),), token or secrets.token_hex(16), place)


def test_what_is_entered_is_read_again_and_a_token_counts_once(url, name):
    accounts = Accounts(url)
    one = run("first", place="/runs/a")
    price = accounts.enter(name, one)
    assert accounts.enter(name, one) == price
    two = Wanted("an audit", (promise(0.5), promise(0.25)), "second", times=2)
    accounts.enter(name, two)
    first, second = accounts.read(name).entries
    assert (first.what, first.place, first.token, first.promises) == ("a run", "/runs/a", "first", one.promises)
    assert first.price == price == Total(4.0, 1e-6).charged(Price(), one.promises)
    assert second.price == Total(4.0, 1e-6).charged(price, two.promises, 2)
    assert accounts.read(name).spent == Price.sum([first.price, second.price])
    assert name in accounts.names()
    with pytest.raises(BadInput, match=f"an account '{name}' already"):
        accounts.create(name, Total(8.0, 1e-6))
    accounts.create(name, Total(8.0, 1e-6), anew=False)
    assert accounts.read(name).total == Total(4.0, 1e-6)


@pytest.mark.parametrize("other", [{"place": "/runs/copy"}, {"epsilon": 0.5}])
def test_the_token_of_another_run_is_refused(url, name, other):
    accounts = Accounts(url)
    accounts.enter(name, run("token-" + name, place="/runs/a"))
    with pytest.raises(BadInput, match="put the folder back and resume it there, or start a new run"):
        accounts.enter(name, run("token-" + name, **({"place": "/runs/a"} | other)))
    assert len(accounts.read(name).entries) == 1


def test_an_unknown_account_and_a_total_that_is_spent_are_refused(url, name):
    accounts = Accounts(url)
    with pytest.raises(BadInput, match=rf"no account '{name}x' in .*did you mean '{name}'"):
        accounts.enter(name + "x", run())
    accounts.enter(name, run(epsilon=4.0))
    with pytest.raises(BadInput, match=rf"privacy\.account = '{name}': .*userdp account show {name}"):
        accounts.enter(name, run(epsilon=0.1))
    assert len(accounts.read(name).entries) == 1


def _enter_all(url, name, count, start):
    """Enter until refused; the exit code is the number of entries."""
    entered, accounts = 0, Accounts(url)
    start.wait()
    for _ in range(count):
        try:
            accounts.enter(name, run())
        except BadInput:
            continue
        entered += 1
    os._exit(entered)


@pytest.mark.parametrize(("processes", "each"), [(8, 2), pytest.param(40, 1, marks=pytest.mark.slow)])
def test_processes_that_enter_at_once_stay_within_the_total(url, name, processes, each):
    fork = multiprocessing.get_context("fork")
    start = fork.Event()
    started = [fork.Process(target=_enter_all, args=(url, name, each, start)) for _ in range(processes)]
    for process in started:
        process.start()
    start.set()
    for process in started:
        process.join(PATIENCE)
    account = Accounts(url).read(name)
    assert account.spent.within(account.total.limits)
    assert len(account.entries) == sum(process.exitcode for process in started) == FITTING
    assert [one.number for one in account.entries] == sorted({one.number for one in account.entries})


def _release_on_and_on(url, name, released):
    """Enter, and only then release: the token is on the disk, as a message that has left."""
    accounts = Accounts(url)
    while True:
        token = secrets.token_hex(16)
        accounts.enter(name, run(token, epsilon=0.02, delta=1e-6))
        handle = os.open(released, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{token}\n".encode())
        os.close(handle)


@pytest.mark.slow
def test_nothing_is_released_that_is_not_entered_whenever_processes_are_killed(url, name, tmp_path):
    released, fork, draw = tmp_path / "released", multiprocessing.get_context("fork"), random.Random(7)
    for _ in range(25):
        started = [fork.Process(target=_release_on_and_on, args=(url, name, released)) for _ in range(2)]
        for process in started:
            process.start()
        while not released.exists():  # a busy machine takes its time
            time.sleep(0.01)
        time.sleep(draw.uniform(0.01, 0.2))
        for process in started:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    account = Accounts(url).read(name)
    known = {one.token for one in account.entries}
    left = set(released.read_text().split())
    assert left
    assert left <= known
    assert len(known) <= len(left) + 2 * 25  # at most one entry of each killed process released nothing
    assert account.spent.within(account.total.limits)


def test_a_clock_that_is_set_back_changes_no_order(url, name, monkeypatch):
    class Clock(datetime):
        hours = 0

        @classmethod
        def now(cls, tz=None):
            cls.hours += 1
            return datetime(2026, 1, 1, tzinfo=tz) - timedelta(hours=cls.hours)

    monkeypatch.setattr(module, "datetime", Clock)
    tokens = [secrets.token_hex(8) for _ in range(3)]
    for token in tokens:
        Accounts(url).enter(name, run(token))
    entries = Accounts(url).read(name).entries
    assert [one.token for one in entries] == tokens
    assert [one.entered for one in entries] == sorted((one.entered for one in entries), reverse=True)


def test_a_full_disk_refuses_an_entry_and_spoils_nothing(tmp_path, monkeypatch):
    accounts = Accounts(f"sqlite:///{tmp_path / 'accounts.sqlite'}")
    accounts.create("data", Total(1000.0, 1e-6, others=1.0))

    def careful(connection, record):
        connection.execute("PRAGMA max_page_count = 16")
        before(connection, record)

    before = module._careful
    monkeypatch.setattr(module, "_careful", careful)
    full, entered = Accounts(accounts.url), 0
    with pytest.raises(BadInput, match="cannot be used: database or disk is full"):  # noqa: PT012
        for token in map(str, range(100)):
            full.enter("data", Wanted("a run" * 1000, [promise(0.5, 0.0, gaussian=False)], token))
            entered += 1
    account = accounts.read("data")
    assert 0 < entered == len(account.entries) < 100
    assert account.spent.epsilon == pytest.approx(entered * 0.5)


def test_entries_are_on_the_disk_when_entering_returns(tmp_path):
    accounts = Accounts(f"sqlite:///{tmp_path / 'accounts.sqlite'}")
    with accounts._engine.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3  # EXTRA
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


class Noted:
    """An engine of PostgreSQL without a server: it notes what is asked, and has nothing."""

    def __init__(self):
        self.asked = []

    @contextmanager
    def begin(self):
        yield self
        self.asked.append("COMMIT")

    def execute(self, statement):
        self.asked.append(" ".join(str(statement).split()))
        return SimpleNamespace(one_or_none=lambda: None)

    def scalars(self, statement):
        return []


@pytest.mark.parametrize("reads", [False, True])
def test_writers_of_postgresql_lock_before_they_read_and_wait_for_the_disk(monkeypatch, reads):
    """Without a server. SQLite's writers lock when they begin."""
    monkeypatch.setattr(module, "_engine", lambda *given: Noted())
    for name in ("insist", "bring_up"):
        monkeypatch.setattr(module.schema, name, lambda connection, *_: connection.asked.append("VERSION"))
    accounts = Accounts("postgresql://me@host/database")
    with pytest.raises(BadInput, match="there is no account"):
        accounts.read("data") if reads else accounts.enter("data", run())
    asked = (accounts._readers if reads else accounts._engine).asked
    first = [] if reads else ["SET LOCAL synchronous_commit = on", "SELECT pg_advisory_xact_lock("]
    assert [one[: len(start)] for one, start in zip(asked, first, strict=False)] == first
    assert asked[len(first)] == "VERSION"
    assert asked[len(first) + 1].startswith("SELECT userdp_accounts.name")
    assert (accounts._engine if reads else accounts._readers).asked == []


def test_writers_of_sqlite_lock_when_they_begin(tmp_path):
    accounts = Accounts(f"sqlite:///{tmp_path / 'accounts.sqlite'}")
    accounts.create("data", Total(4.0, 1e-6))
    with (
        closing(sqlite3.connect(accounts._file, timeout=0.0, isolation_level=None)) as other,
        accounts.transaction(),
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("BEGIN IMMEDIATE")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("not an address", "write one such as sqlite:////home"),
        ("mysql://user@host/database", "mysql is not supported"),
        ("sqlite://", "names no file"),
        ("sqlite:////dev/null/accounts.sqlite", "privacy.accounts: /dev/null cannot be written"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(address, reason):
    with pytest.raises(BadInput, match=reason):
        Accounts(address).create("data", Total(1.0, 1e-6))


def test_looking_for_accounts_makes_no_file(tmp_path):
    for look in (Accounts.names, lambda accounts: accounts.read("data")):
        with pytest.raises(BadInput, match=r"there are no accounts in .*: userdp account create"):
            look(Accounts(f"sqlite:///{tmp_path / 'accounts.sqlite'}"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "notes").write_text("milk and bread\n" * 100)
    with pytest.raises(BadInput, match="cannot be used: file is not a database"):
        Accounts(f"sqlite:///{tmp_path / 'notes'}").read("data")


def test_no_password_is_shown():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    assert "secret" not in Accounts("postgresql://me:secret@host/database").url
