"""Copies of the database of accounts, and their return.

*Formal guarantees.* *Claim.* A copy is the database as it was between two transactions, whoever writes meanwhile. One
that lacks an entry of a run in the folder of results does not return, nor does any over a database that is there.
*Why.* SQLite copies under its own lock, and starts again if somebody wrote. A restored copy is compared
(`simulations.account.checking`) before it gets its name. *Assumptions.* Those of `compared`: of a run whose folder is
gone nobody knows whether the copy has its entry.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from simulations.account.accounts import Accounts
from simulations.account.checking import compared
from simulations.records.run_directory import private_folder, write_whole, writing
from userdp.errors import BadInput

_BESIDE = ("-journal", "-wal")  # of a database that was killed: SQLite would write its pages into the copy


def back_up(accounts: Accounts, target: Path) -> None:
    """Copy a database to a new file; `BadInput` if there is one, or the database is PostgreSQL's."""
    source = _file(accounts, "pg_dump --format=custom --file=FILE DATABASE")
    if not source.exists():
        raise BadInput(f"there are no accounts in {accounts.url}, so there is nothing to copy: name them")
    if target.exists():
        raise BadInput(f"FILE = {target} is there already, and an older copy may be needed: choose another name")
    with writing(f"FILE = {target}"):
        write_whole(target, lambda partial: _copy(source, partial))


def restore(accounts: Accounts, copy: Path, results: Path) -> int:
    """Put a copy where the accounts are not any more, and return how many runs of a folder have their entries in it.

    Raises `BadInput`: the copy is no database, or lacks one of them; or there is a database.
    """
    place = _file(accounts, "pg_restore --dbname=DATABASE FILE, and then userdp account check RESULTS")
    for there in (place, *(place.with_name(place.name + ending) for ending in _BESIDE)):
        if os.path.lexists(there):
            raise BadInput(f"{there} is there: stop userdp serve and all runs, move the file away, and restore again")
    if not results.is_dir():
        raise BadInput(f"RESULTS = {results}: there is no such folder, so nothing was compared; correct the path")
    runs = 0

    def write(partial: Path) -> None:
        nonlocal runs
        try:
            _copy(copy, partial)
            found = replace(compared(Accounts(f"sqlite:///{partial.resolve()}"), results), url=str(copy))
            found.insist()
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        runs = found.runs

    with writing(f"accounts: {place}"):
        private_folder(place.parent)
        write_whole(place, write)
    return runs


def _file(accounts: Accounts, instead: str) -> Path:
    if accounts.file is None:
        raise BadInput(f"{accounts.url} is PostgreSQL's, which has its own tools: {instead}")
    return accounts.file


def _copy(source: Path, target: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as there,
            closing(sqlite3.connect(target)) as here,
        ):
            there.backup(here)
            (state,) = here.execute("PRAGMA integrity_check").fetchone()
            entries = here.execute("SELECT count(*) FROM sqlite_master WHERE name = 'userdp_entries'").fetchone()
    except sqlite3.Error as error:
        raise BadInput(f"{source} cannot be copied ({error}): it is no database, or its disk fails") from None
    if state != "ok" or entries != (1,):
        raise BadInput(f"{source} is no whole database of accounts ({state}): take another copy")
