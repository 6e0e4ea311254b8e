"""Files of old runs leave as declared; what accounts, comparisons and later entries need stays."""

import os
import shutil
from datetime import timedelta

import pytest
from helpers_serving import Federation
from test_keeper import NOON, added, keeper_of, kept_to_the_end

from simulations.account.accounts import Accounts
from simulations.account.checking import compared
from simulations.account.entering import VARIABLE
from simulations.records.run_directory import TOKEN
from simulations.serving.keeper import RELEASED, enter_missing
from simulations.serving.retention import NEEDED, Tidying
from userdp.accounting import Total


def address(home):
    return f"sqlite:///{home / 'accounts.sqlite'}"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three runs that are done, of days 2, 1 and 0 before noon; their folder of results and accounts."""
    home = tmp_path_factory.mktemp("three")
    accounts = address(home)
    Accounts(accounts).create("clinic", Total(8.0, 1e-2))
    federation = Federation(home / "silos")
    for day in (2, 1, 0):
        number = added(accounts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, accounts)
            kept_to_the_end(keeper_of(federation, accounts, home), federation)
        (folder,) = (home / "results").glob(f"{number:05d}-*")
        ended = (NOON - timedelta(days=day)).timestamp()
        os.utime(folder / "result.json", (ended, ended))
    return home


@pytest.fixture
def home(three, tmp_path):
    shutil.copytree(three, tmp_path / "home")
    return tmp_path / "home"


def tidied(home, **declared):
    """Take a step, and return the numbers of runs that have their models, and of those with reports for others."""
    made = keeper_of(Federation(home / "silos"), address(home), home)
    Tidying(**vars(made), **declared).step()
    results = home / "results"
    kept = [int(path.parent.name[:5]) for path in results.glob("0*/model.npz")]
    return sorted(kept), sorted(int(path.name[:5]) for path in (results / RELEASED).iterdir())


@pytest.mark.parametrize(
    ("declared", "stay"),
    [
        ({}, [1, 2, 3]),
        ({"keep_runs": 3}, [1, 2, 3]),
        ({"keep_runs": 1}, [3]),
        ({"keep_days": 1.5}, [2, 3]),
        ({"keep_days": 0.5, "keep_runs": 2}, [2, 3]),
        ({"keep_days": 1.5, "keep_runs": 1}, [2, 3]),
        ({"keep_days": 0.0}, []),
    ],
)
def test_what_is_old_and_not_among_the_newest_leaves(home, declared, stay):
    assert tidied(home, **declared) == (stay, stay)


def test_what_the_accounts_need_stays(home):
    results, accounts = home / "results", Accounts(address(home))
    before = {path: path.read_bytes() for path in results.glob("0*/*") if path.name in NEEDED}
    tidied(home, keep_days=0.0)
    assert {path: path.read_bytes() for path in results.glob("0*/*")} == before
    assert compared(accounts, results).runs == 3
    compared(accounts, results).insist()
    lost = Accounts(f"sqlite:///{home / 'anew.sqlite'}")
    lost.create("clinic", Total(8.0, 1e-2))
    assert len(enter_missing(lost, results)) == 3
    spent = [each.read("clinic").spent_epsilon for each in (accounts, lost)]
    assert spent[0] == pytest.approx(spent[1])


def test_a_run_that_somebody_put_into_a_runs_folder_stays_too(home):
    """A comparison of accounts and results looks at folders in folders: what it missed would be missed no more."""
    results, accounts = home / "results", Accounts(address(home))
    (folder,) = results.glob("00001-*")
    shutil.copytree(folder, folder / "copy")
    (folder / "copy" / TOKEN).unlink()
    shutil.copytree(folder, folder / "copies" / "other")
    assert compared(accounts, results).runs == 4
    tidied(home, keep_days=0.0)
    assert compared(accounts, results).runs == 4
    assert not (folder / "copy").exists()


@pytest.mark.parametrize("state", ["failed", "cancelled", "running", "waiting", "refused"])
def test_what_is_not_done_stays_whole(home, state, monkeypatch):
    from sqlalchemy import text

    accounts = Accounts(address(home))
    with accounts.transaction() as connection:
        connection.execute(text("UPDATE userdp_queue SET state = :state WHERE number = 1"), {"state": state})
    monkeypatch.setattr("simulations.serving.keeper.Keeper.step", lambda _: False)
    assert tidied(home, keep_days=0.0)[0] == [1]
