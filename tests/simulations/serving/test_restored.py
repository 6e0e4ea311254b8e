"""A database that was restored or replaced beside results: nothing is done twice, nothing forgotten."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from examples import call
from helpers_accounts import own_postgres
from helpers_serving import Federation, queue_of, report_of, text
from test_keeper import NOON, keeper_of, kept_to_the_end

from simulations.account.accounts import Accounts
from simulations.account.checking import compared
from simulations.account.entering import VARIABLE
from simulations.records.run_directory import TOKEN
from simulations.serving.overview import overview
from simulations.terminal import BAD_INPUT
from userdp.accounting import Total
from userdp.errors import BadInput


def database(tmp_path, name, epsilon=4.0):
    url = f"sqlite:///{tmp_path / name}.sqlite"
    Accounts(url).create("clinic", Total(epsilon, 1e-2))
    return url


def trained(url, tmp_path, monkeypatch, *budgets, account="clinic"):
    """Run these, each with its epsilon, to the end; return the state of the last one."""
    monkeypatch.setenv(VARIABLE, url)
    federation = Federation(home=tmp_path / "home")
    for epsilon in budgets:
        privacy = {"epsilon": epsilon, **({"account": account} if account else {})}
        configuration = text(**privacy) if account else text(**privacy).replace('account = "clinic"\n', "")
        queue_of(url).add("monthly", configuration, account, NOON)
    kept_to_the_end(keeper_of(federation, url, tmp_path), federation)
    return queue_of(url).runs()[-1]


def serve(tmp_path, *more):
    words = ("serve", "start", "--once", "--insecure", "--results", tmp_path / "results", "--pause", "0", *more)
    done = call(*words)
    return done.exit_code, " ".join(done.stderr.split())


def check(tmp_path, *more):
    done = call("account", "check", tmp_path / "results", *more)
    return done.exit_code, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("account", ["clinic", None])
def test_a_run_of_a_replaced_database_is_never_done_with_the_model_of_another_one(account, tmp_path, monkeypatch):
    """Number and name are those of a run that has ended; .5 is asked, and the model there was promised 1.0."""
    first = trained(database(tmp_path, "first"), tmp_path, monkeypatch, 1.0, account=account)
    assert first.state == "done"
    second = trained(database(tmp_path, "second"), tmp_path, monkeypatch, 0.5, account=account)
    assert (second.number, second.state) == (first.number, "refused")
    assert "00001-monthly holds another run, of a database that was replaced or restored" in second.reason
    assert report_of(tmp_path / "results" / "00001-monthly")["guarantee"]["epsilon"] == pytest.approx(1.0)
    (shown,) = overview(queue_of(f"sqlite:///{tmp_path}/second.sqlite"), tmp_path / "results").runs
    assert (shown.report, shown.epsilon, shown.rounds) == (None, None, None)


def test_what_another_run_published_is_never_the_copy_of_a_new_one(tmp_path, monkeypatch):
    """Its folder was moved away, and number and name are the same in the new database."""
    trained(database(tmp_path, "first"), tmp_path, monkeypatch, 1.0)
    shutil.move(tmp_path / "results" / "00001-monthly", tmp_path / "elsewhere")
    second = trained(database(tmp_path, "second"), tmp_path, monkeypatch, 0.5)
    assert second.state == "refused"
    assert "holds another run" in second.reason
    assert Accounts(f"sqlite:///{tmp_path}/second.sqlite").read("clinic").entries == ()


@pytest.mark.parametrize("left", ["account.json", "result.json", "checkpoint.npz", "nothing that is read"])
def test_a_folder_with_anything_of_another_run_is_not_touched(left, tmp_path, monkeypatch):
    folder = tmp_path / "results" / "00001-monthly"
    folder.mkdir(parents=True)
    content = json.dumps({"account": "clinic", "token": "another"}) if left == TOKEN else "{}"
    (folder / left).write_text(content)
    run = trained(database(tmp_path, "first"), tmp_path, monkeypatch, 1.0)
    assert run.state == "refused"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {left: content}
    assert Accounts(f"sqlite:///{tmp_path}/first.sqlite").read("clinic").entries == ()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_an_older_database_is_noticed_and_what_it_lacks_is_entered(kind, tmp_path, monkeypatch):
    """The copy of the database was made before the second run, and lacks what that run released."""
    with own_postgres() if kind == "postgresql" else nullcontext() as other:
        url = other or f"sqlite:///{tmp_path / 'now'}.sqlite"
        if other is None:
            database(tmp_path, "now", 1.2)
            trained(url, tmp_path, monkeypatch, 0.5)
            shutil.copy(tmp_path / "now.sqlite", tmp_path / "older.sqlite")
            trained(url, tmp_path, monkeypatch, 0.6)
            shutil.copy(tmp_path / "older.sqlite", tmp_path / "now.sqlite")
        else:  # another database, which has nothing of either
            trained(database(tmp_path, "now", 1.2), tmp_path, monkeypatch, 0.5, 0.6)
            Accounts(url).create("clinic", Total(1.2, 1e-2))
            queue_of(url)
            monkeypatch.setenv(VARIABLE, url)
        for code, said in (serve(tmp_path), check(tmp_path)):
            assert code == BAD_INPUT
            assert "without an entry" in said
            assert "00002-monthly" in said
            assert "Restore the newer database; if it is lost, enter them with userdp serve enter" in said
        before = Accounts(url).read("clinic").spent_epsilon
        assert "00002-monthly" in call("serve", "enter", tmp_path / "results").stdout
        account = Accounts(url).read("clinic")
        assert len(account.entries) == 2
        assert account.spent_epsilon > before
        assert call("serve", "enter", tmp_path / "results").stdout == ""  # once
        assert serve(tmp_path)[0] == 0
        assert check(tmp_path)[0] == 0
        assert len(Accounts(url).read("clinic").entries) == 2


@pytest.mark.parametrize("settings", ["of another version", None])
def test_what_any_version_ran_is_entered_where_the_operator_says(settings, tmp_path, monkeypatch):
    """Into the database of --accounts, under its own token, which pays for what it was entered with."""
    trained(database(tmp_path, "first"), tmp_path, monkeypatch, 1.0)
    file = tmp_path / "results" / "00001-monthly" / TOKEN
    kept = json.loads(file.read_text()) | {"settings": settings}
    file.write_text(json.dumps(kept))
    url = database(tmp_path, "second")
    assert "00001-monthly" in call("serve", "enter", tmp_path / "results", "--accounts", url).stdout
    (entry,) = Accounts(url).read("clinic").entries
    assert (entry.token, entry.place) == (kept["token"], str(file.parent))
    assert entry.price == Accounts(f"sqlite:///{tmp_path}/first.sqlite").read("clinic").entries[0].price
    assert json.loads(file.read_text()) == kept
    assert check(tmp_path, "--accounts", url)[0] == 0
    file.write_text("{")
    done = call("serve", "enter", tmp_path / "results", "--accounts", url)
    assert done.exit_code == BAD_INPUT
    assert "cannot be read: put it back" in " ".join(done.stderr.split())


def test_while_the_database_lacks_an_entry_nothing_begins(tmp_path, monkeypatch, caplog):
    """It was restored beside a keeper that goes on."""
    url = database(tmp_path, "now")
    shutil.copy(tmp_path / "now.sqlite", tmp_path / "older.sqlite")
    trained(url, tmp_path, monkeypatch, 1.0)
    shutil.copy(tmp_path / "now.sqlite", tmp_path / "newer.sqlite")
    shutil.copy(tmp_path / "older.sqlite", tmp_path / "now.sqlite")
    federation = Federation(home=tmp_path / "home")
    keeper = keeper_of(federation, url, tmp_path)
    queue_of(url).add("another", text(epsilon=0.5), "clinic", NOON)
    assert keeper.step()
    assert "nothing moves" in caplog.text
    assert "00001-monthly" in caplog.text
    assert federation.runs == {}
    shutil.copy(tmp_path / "newer.sqlite", tmp_path / "now.sqlite")
    queue_of(url).add("another", text(epsilon=0.5), "clinic", NOON)
    kept_to_the_end(keeper, federation)
    assert [run.state for run in queue_of(url).runs()] == ["done", "done"]


def test_swapped_databases_are_noticed_both_ways(tmp_path, monkeypatch):
    sites = {}
    for name in "ab":
        (tmp_path / name).mkdir()
        sites[name] = database(tmp_path / name, "accounts")
        trained(sites[name], tmp_path / name, monkeypatch, 1.0)
        assert check(tmp_path / name)[0] == 0
        assert serve(tmp_path / name)[0] == 0
    for name, other in ("ab", "ba"):
        monkeypatch.setenv(VARIABLE, sites[other])
        assert serve(tmp_path / name)[0] == BAD_INPUT
        code, said = check(tmp_path / name)
        assert code == BAD_INPUT
        assert "1 runs without an entry" in said


def test_a_folder_that_is_not_there_is_no_proof(tmp_path, accounts):
    code, said = check(tmp_path)
    assert code == BAD_INPUT
    assert "there is no such folder" in said


def test_a_run_behind_a_link_is_compared_too(tmp_path, monkeypatch):
    trained(database(tmp_path, "now"), tmp_path, monkeypatch, 1.0)
    folder = tmp_path / "results" / "00001-monthly"
    shutil.move(folder, tmp_path / "disk")
    folder.symlink_to(tmp_path / "disk")
    assert check(tmp_path)[0] == 0
    monkeypatch.setenv(VARIABLE, database(tmp_path, "older"))
    assert check(tmp_path)[0] == serve(tmp_path)[0] == BAD_INPUT


def test_an_entry_whose_folder_is_gone_is_told_and_nothing_more(tmp_path, monkeypatch):
    trained(database(tmp_path, "now"), tmp_path, monkeypatch, 1.0)
    folder = tmp_path / "results" / "00001-monthly"
    shutil.rmtree(folder)
    code, said = check(tmp_path)
    assert code == 0
    assert f"information: account clinic has an entry for {folder}, which holds no such run" in said
    assert serve(tmp_path)[0] == 0


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"token": 7}', "\x00", "[" * 100_000], ids=len)
def test_a_token_that_cannot_be_read_has_no_entry(content, tmp_path):
    url = database(tmp_path, "now")
    folder = tmp_path / "results" / "deep" / "inside"
    folder.mkdir(parents=True)
    (folder / TOKEN).write_text(content)
    with pytest.raises(BadInput, match="deep/inside"):
        compared(Accounts(url), tmp_path / "results").insist()
    assert compared(Accounts(url), tmp_path / "nowhere").runs == 0
    assert len(compared(Accounts(f"sqlite:///{Path(tmp_path)}/none.sqlite"), tmp_path / "results").missing) == 1


def test_the_keeper_and_its_queue_use_one_database(tmp_path, monkeypatch):
    """``--accounts`` instead of the environment: runs are entered where the queue is, and what is lacking too."""
    url = database(tmp_path, "named")
    monkeypatch.setenv(VARIABLE, f"sqlite:///{tmp_path / 'other'}.sqlite")
    federation = Federation(home=tmp_path / "home")
    queue_of(url).add("monthly", text(epsilon=0.5), "clinic", NOON)
    keeper = keeper_of(federation, url, tmp_path)
    keeper.step()
    (entry,) = Accounts(url).read("clinic").entries
    assert not (tmp_path / "other.sqlite").exists()
    monkeypatch.setenv(VARIABLE, url)
    kept_to_the_end(keeper, federation)
    assert (queue_of(url).runs()[-1].state, Accounts(url).read("clinic").entries) == ("done", (entry,))
    lost = database(tmp_path, "lost")
    monkeypatch.setenv(VARIABLE, f"sqlite:///{tmp_path / 'other'}.sqlite")
    assert "00001-monthly" in call("serve", "enter", tmp_path / "results", "--accounts", lost).stdout
    assert Accounts(lost).read("clinic").spent == Accounts(url).read("clinic").spent
