"""Copies of the database of accounts, their return, its form's version, and how PostgreSQL is reached."""

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql
from helpers_accounts import own_postgres, promise
from typer.testing import CliRunner

from simulations.account import accounts as module
from simulations.account import schema
from simulations.account.accounts import Accounts, Wanted
from simulations.account.backup import back_up, restore
from simulations.account.command import app
from simulations.account.postgresql import PASSWORD, guarded
from simulations.deployment.keys import make_keys
from simulations.records.run_directory import TOKEN
from userdp.accounting import Total
from userdp.errors import BadInput

AWAY = "postgresql://userdp@db.example.org/userdp"


@pytest.fixture
def kept(tmp_path):
    accounts = Accounts(f"sqlite:///{tmp_path / 'place' / 'accounts.sqlite'}")
    accounts.create("clinic", Total(8.0, 1e-4))
    return accounts


def spend(accounts, token, results=None):
    place = ""
    if results is not None:
        folder = results / token
        folder.mkdir(parents=True)
        (folder / TOKEN).write_text(json.dumps({"account": "clinic", "token": token}))
        place = str(folder)
    accounts.enter("clinic", Wanted("a run", [promise(0.1)], token, place))


def tokens(accounts):
    return set(accounts.places())


# Copies -------------------------------------------------------------------------------------------------------------


def test_a_copy_is_what_was_there_and_returns_where_nothing_is_left(kept, tmp_path):
    results = tmp_path / "results"
    for token in ("a", "b"):
        spend(kept, token, results)
    before = kept.read("clinic")
    back_up(kept, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="is there already"):
        back_up(kept, tmp_path / "copy")
    with pytest.raises(BadInput, match="move the file away"):
        restore(kept, tmp_path / "copy", results)
    kept.file.unlink()
    held = (tmp_path / "copy").read_bytes()
    assert restore(kept, tmp_path / "copy", results) == 2
    assert kept.read("clinic") == before
    assert (tmp_path / "copy").read_bytes() == held
    spend(kept, "c")  # and accounts go on


def test_a_copy_that_lacks_what_was_released_since_does_not_return(kept, tmp_path):
    results = tmp_path / "results"
    spend(kept, "a", results)
    back_up(kept, tmp_path / "old")
    spend(kept, "b", results)
    kept.file.rename(tmp_path / "lost")
    with pytest.raises(BadInput, match=r"1 runs without an entry in .*old \(b\)"):
        restore(kept, tmp_path / "old", results)
    assert not list(kept.file.parent.iterdir())  # nor half of it
    with pytest.raises(BadInput, match="nothing was compared"):
        restore(kept, tmp_path / "old", tmp_path / "elsewhere")
    assert restore(kept, tmp_path / "lost", results) == 2


@pytest.mark.parametrize("ending", ["-journal", "-wal"])
def test_what_a_killed_process_left_beside_the_database_is_not_written_into_the_copy(kept, tmp_path, ending):
    """SQLite finds the journal by its name, and takes it for the copy's, which it damages as soon as it reads it."""
    spend(kept, "a")
    back_up(kept, tmp_path / "copy")
    kept.file.rename(tmp_path / "lost")
    left = kept.file.with_name(kept.file.name + ending)
    left.write_bytes(b"pages of the lost database")
    with pytest.raises(BadInput, match=f"sqlite{ending} is there: .*move the file away"):
        restore(kept, tmp_path / "copy", tmp_path)
    left.unlink()
    restore(kept, tmp_path / "copy", tmp_path)
    assert tokens(kept) == {"a"}


@pytest.mark.parametrize("spoil", ["text", "cut", "empty"])
def test_what_is_no_copy_does_not_return(kept, tmp_path, spoil):
    for number in range(5):
        spend(kept, f"t{number}")
    back_up(kept, tmp_path / "copy")
    content = (tmp_path / "copy").read_bytes()
    (tmp_path / "copy").write_bytes(
        {"text": b"no database" * 99, "cut": content[: len(content) // 2], "empty": b""}[spoil]
    )
    kept.file.unlink()
    with pytest.raises(BadInput, match="is no"):
        restore(kept, tmp_path / "copy", tmp_path)
    assert not kept.file.exists()


def test_copies_that_are_made_while_others_enter_are_whole(kept, tmp_path):
    stop, entered = threading.Event(), []

    def enter():
        while not stop.is_set():
            spend(kept, f"t{len(entered)}")
            entered.append(f"t{len(entered)}")

    thread = threading.Thread(target=enter)
    thread.start()
    try:
        for number in range(5):
            before = len(entered)
            back_up(kept, tmp_path / f"copy-{number}")
            copied = tokens(Accounts(f"sqlite:///{tmp_path / f'copy-{number}'}"))
            assert copied == {f"t{at}" for at in range(len(copied))}
            assert len(copied) >= before
    finally:
        stop.set()
        thread.join()


def test_the_command_copies_and_returns(kept, tmp_path):
    results, address = tmp_path / "results", ["--accounts", f"sqlite:///{kept.file}"]
    spend(kept, "a", results)

    def call(*words):
        return CliRunner().invoke(app, [*words, *address])

    assert call("backup", str(tmp_path / "copy")).exit_code == 0
    assert call("restore", str(tmp_path / "copy"), str(results)).exit_code == 2
    kept.file.unlink()
    done = call("restore", str(tmp_path / "copy"), str(results))
    assert (done.exit_code, "the entries of 1 runs" in done.output) == (0, True)
    assert call("check", str(results)).exit_code == 0
    assert call("backup", str(tmp_path / "nowhere" / "copy")).exit_code == 2


def test_postgresql_has_its_own_tools(tmp_path):
    for call in (lambda one: back_up(one, tmp_path / "copy"), lambda one: restore(one, tmp_path, tmp_path)):
        with pytest.raises(BadInput, match=r"pg_(dump|restore)"):
            call(Accounts("postgresql://owner@/userdp"))


# The form of the tables ---------------------------------------------------------------------------------------------


def version(accounts):
    with accounts.transaction(reads=True) as connection:
        return schema.insist(connection)


def test_a_database_of_a_newer_form_is_neither_read_nor_written(kept):
    spend(kept, "a")
    assert version(kept) == schema.VERSION
    with closing(sqlite3.connect(kept.file)) as file, file:
        file.execute("UPDATE userdp_schema SET version = ?", (schema.VERSION + 1,))
    for call in (
        lambda: kept.read("clinic"),
        lambda: spend(kept, "b"),
        lambda: kept.create("other", Total(1.0, 1e-6)),
        kept.places,
        kept.names,
    ):
        with pytest.raises(BadInput, match="upgrade userdp here"):
            call()
    with closing(sqlite3.connect(kept.file)) as file:
        assert file.execute("SELECT count(*) FROM userdp_entries").fetchone() == (1,)


def test_a_newer_form_whose_tables_have_other_names_is_not_read_as_an_empty_one(kept):
    with closing(sqlite3.connect(kept.file)) as file, file:
        file.execute("UPDATE userdp_schema SET version = ?", (schema.VERSION + 1,))
        file.execute("DROP TABLE userdp_entries")
        file.execute("DROP TABLE userdp_accounts")
    with pytest.raises(BadInput, match="upgrade userdp here"):
        kept.places()


def older(accounts):
    """Make a database what a former version left: without a version, and without a column."""
    with closing(sqlite3.connect(accounts.file)) as file, file:
        file.execute("DROP TABLE userdp_schema")


def test_an_older_database_is_brought_up_without_a_loss(kept, monkeypatch):
    spend(kept, "a")
    before = kept.read("clinic")
    older(kept)
    assert version(kept) == 1
    assert kept.read("clinic") == before
    more = sql.MetaData()
    columns = [column._copy() for column in module._ENTRIES.columns]
    sql.Table("userdp_accounts", more, sql.Column("name", sql.String, primary_key=True))
    sql.Table("userdp_entries", more, *columns, sql.Column("note", sql.String))
    with kept.transaction() as connection:
        schema.bring_up(connection, more)
        schema.bring_up(connection, more)
    assert version(kept) == schema.VERSION
    assert kept.read("clinic") == before
    with closing(sqlite3.connect(kept.file)) as file:
        assert file.execute("SELECT note FROM userdp_entries").fetchall() == [(None,)]
    spend(kept, "b")


def test_what_fails_leaves_the_old_form(kept):
    spend(kept, "a")
    older(kept)
    with pytest.raises(ZeroDivisionError), kept.transaction():
        raise ZeroDivisionError
    assert version(kept) == 1


# PostgreSQL ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGSSLMODE", PASSWORD):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "nonsense"])
@pytest.mark.parametrize("how", ["address", "environment"])
def test_another_machines_database_is_never_asked_in_the_open(mode, how, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("PGSSLMODE", mode)
    address = AWAY if how == "environment" else f"{AWAY}?sslmode={mode}"
    with pytest.raises(BadInput, match=f"sslmode = {mode} lets"):
        Accounts(address)


@pytest.mark.parametrize(
    ("address", "environment", "mode"),
    [
        (AWAY, {}, "verify-full"),
        (f"{AWAY}?sslmode=require", {"PGSSLMODE": "disable"}, "require"),
        ("postgresql:///userdp", {}, None),
        ("postgresql://owner@localhost/userdp", {}, None),
        ("postgresql:///userdp?host=/run/postgresql", {}, None),
        ("postgresql:///userdp?host=db.example.org", {}, "verify-full"),
        ("postgresql:///userdp?host=/run/postgresql,db.example.org", {}, "verify-full"),
        ("postgresql:///userdp?host=/run/postgresql&host=db.example.org", {}, "verify-full"),
        ("postgresql://localhost/userdp?host=db.example.org", {}, "verify-full"),
        ("postgresql://localhost/userdp?hostaddr=10.0.0.1", {}, "verify-full"),
        ("postgresql:///userdp", {"PGHOST": "db.example.org"}, "verify-full"),
        ("postgresql:///userdp", {"PGHOSTADDR": "10.0.0.1"}, "verify-full"),
        ("postgresql:///userdp?service=clinic", {}, "verify-full"),
        ("postgresql:///userdp?conninfo=host%3Ddb.example.org%20sslmode%3Ddisable", {}, "verify-full"),
        ("postgresql:///userdp", {"PGSERVICE": "clinic"}, "verify-full"),
    ],
)
def test_which_connections_are_encrypted(address, environment, mode, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert guarded(sql.make_url(address)).query.get("sslmode") == mode


def test_a_password_is_read_from_a_file_and_shown_nowhere(tmp_path, monkeypatch):
    (tmp_path / "password").write_text("s3cret/with@signs\n")
    monkeypatch.setenv(PASSWORD, str(tmp_path / "password"))
    assert guarded(sql.make_url(AWAY)).password == "s3cret/with@signs"
    assert guarded(sql.make_url("postgresql://a:own@db.example.org/b")).password == "own"
    assert "s3cret" not in Accounts(AWAY).url
    monkeypatch.setenv(PASSWORD, str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="cannot be read"):
        Accounts(AWAY)
    assert Path(Accounts(f"sqlite:///{tmp_path / 'own.sqlite'}").file).name == "own.sqlite"


@pytest.mark.slow
def test_a_real_server_is_believed_by_its_certificate_alone(tmp_path):
    make_keys(tmp_path / "ours", 1, serve=True)
    make_keys(tmp_path / "others", 1)
    with own_postgres(tmp_path / "ours/accounts") as address:
        good = f"{address}?sslmode=verify-full&sslrootcert={tmp_path / 'ours/coordinator/ca.crt'}"
        accounts = Accounts(good)
        accounts.create("clinic", Total(8.0, 1e-4))
        spend(accounts, "a")
        with accounts.transaction(reads=True) as connection:
            told = connection.execute(sql.text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).scalar()
        assert told is True
        older_form = sql.text("DROP TABLE userdp_schema")
        with accounts.transaction() as connection:
            connection.execute(older_form)
        spend(accounts, "b")
        assert (version(accounts), tokens(accounts)) == (schema.VERSION, {"a", "b"})
        for bad in (good.replace("ours", "others"), good.replace("localhost", "localhost.localdomain")):
            with pytest.raises(BadInput, match="cannot be used"):
                Accounts(bad).names()
