"""Runs of the queue: charged once, run once, refused before anybody is asked, wherever the keeper is killed."""

import json
import os
import shutil
import stat
import sys
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from errno import ENOSPC
from importlib import import_module
from itertools import count
from unittest.mock import Mock

import pandas as pd
import pytest
from examples import call
from helpers_serving import Federation, nobody, queue_of, report_of, text

from simulations.account import entering
from simulations.account.accounts import Accounts, AccountsUnavailable
from simulations.flower import configuration_of
from simulations.records.run_directory import ASKED, CHECKPOINT, TOKEN
from simulations.serving import keeper as keeper_module
from simulations.serving.announcing import Alarm
from simulations.serving.keeper import ATTEMPTS, PAUSE, Keeper, identity
from simulations.serving.overview import overview
from simulations.serving.queue import Queue, _update
from simulations.terminal import BAD_INPUT
from strategies.core.base import UserLevelStrategy
from userdp.accounting import Total
from userdp.errors import BadInput, RunFailed

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


class Killed(BaseException):
    """The keeper's process ends here."""


@pytest.fixture
def clinic(accounts, tmp_path):
    """A federation with an account of (1.2, 1e-3), in which one run of (1, 1e-3) fits."""
    Accounts(accounts).create("clinic", Total(1.2, 1e-3))
    return Federation(home=tmp_path / "home")


def keeper_of(federation, accounts, tmp_path, *, now=NOON, alarm=None, **more):
    return Keeper(
        queue_of(accounts),
        federation,
        tmp_path,
        tmp_path / "results",
        "me",
        alarm or Alarm(),
        now=lambda: now,
        **more,
    )


def kept_to_the_end(keeper, federation):
    while keeper.step():
        federation.advance()


def added(accounts, configuration=None, **more):
    configuration = configuration or text()
    return queue_of(accounts).add("monthly", configuration, "clinic", NOON, **more)


# From the queue to a report -------------------------------------------------------------------------------------------


def test_the_folder_of_a_run_is_for_its_owner_alone(clinic, accounts, tmp_path):
    added(accounts)
    before = os.umask(0)
    try:
        keeper_of(clinic, accounts, tmp_path).step()
    finally:
        os.umask(before)
    (folder,) = (tmp_path / "results").iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_run_that_is_due_is_entered_submitted_followed_and_published(clinic, accounts, tmp_path):
    number = added(accounts)
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=NOON - timedelta(hours=1)), clinic)
    assert clinic.runs == {}
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    (run,) = queue_of(accounts).runs()
    assert (run.number, run.state, run.attempts, run.silos) == (number, "done", 1, {"11": True, "12": True})
    folder = tmp_path / "results" / "00001-monthly"
    (entry,) = Accounts(accounts).read("clinic").entries
    assert (entry.token, entry.place, entry.what) == (run.token, str(folder), "monthly: dp_fed_sgd")
    assert report_of(folder)["rounds"] == 2
    copy = tmp_path / "results" / "released" / folder.name
    assert (copy / "report.html").is_file()
    assert not any(name.endswith("_private") for name in report_of(copy))


def test_a_run_that_does_not_fit_is_refused_before_anybody_is_asked(clinic, accounts, tmp_path, caplog):
    added(accounts)
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    second = added(accounts, every="monthly")
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    (run,) = [one for one in queue_of(accounts).runs() if one.number == second]
    assert run.state == "refused"
    assert "exceeds what is left" in run.reason
    assert "run 2, monthly, is refused" in caplog.text
    assert len(clinic.runs) == len(Accounts(accounts).read("clinic").entries) == 1
    assert len(queue_of(accounts).runs()) == 2  # nothing is given back, so no repetition would fit


def test_a_configuration_that_cannot_run_is_refused_for_its_reason(clinic, accounts, tmp_path):
    added(accounts, text(account="nobodys"))
    added(accounts, text() + "\n[nothing]\n")
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    reasons = [run.reason for run in queue_of(accounts).runs()]
    assert "there is no account 'nobodys'" in reasons[0]
    assert "nothing" in reasons[1]
    assert clinic.runs == {}


def test_a_repetition_is_scheduled_when_its_run_has_ended_and_not_for_what_was_missed(clinic, accounts, tmp_path):
    added(accounts, text(epsilon=0.1), every="monthly")
    late = NOON + timedelta(days=80)
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=late), clinic)
    first, second = queue_of(accounts).runs()
    assert (first.state, second.state) == ("done", "waiting")
    assert second.earliest == datetime(2027, 3, 1, 12, tzinfo=UTC)
    assert first.token != second.token
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=second.earliest), clinic)
    assert [run.state for run in queue_of(accounts).runs()] == ["done", "done", "waiting"]
    assert len(Accounts(accounts).read("clinic").entries) == 2


# Killed at every moment -------------------------------------------------------------------------------------------


class Killer:
    """Kills the keeper's process at its so-manieth look at database, files or SuperLink; the run's process lives on."""

    def __init__(self, moment, monkeypatch):
        self.left, self.there = moment, True
        transaction, write_text = Accounts.transaction, entering.write_text

        @contextmanager
        def watched(accounts, **how):
            self()
            with transaction(accounts, **how) as connection:
                yield connection
            self()

        def whole(path, content):
            self()
            write_text(path, content)
            self()

        monkeypatch.setattr(Accounts, "transaction", watched)
        monkeypatch.setattr(entering, "write_text", whole)

    def __call__(self):
        if self.there:
            self.left -= 1
            if not self.left:
                raise Killed


def killed_once(moment, federation, accounts, tmp_path, monkeypatch):
    """Keep the queue until the keeper is killed; return whether it was, and not done before."""
    with monkeypatch.context() as patch:
        federation.moment = killer = Killer(moment, patch)
        keeper = keeper_of(federation, accounts, tmp_path)
        try:
            while keeper.step():
                killer.there = False
                federation.advance()
                killer.there = True
        except Killed:
            return True
        finally:
            federation.moment = nobody
    return False


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("advance", [True, False], ids=["runs on", "waits"])
def test_a_keeper_killed_at_any_moment_charges_once_and_runs_once(accounts, tmp_path, monkeypatch, advance):
    for moment in count(1):
        name = f"clinic-{moment}"
        Accounts(accounts).create(name, Total(1.5, 2e-3))
        folder = tmp_path / name
        federation = Federation(home=tmp_path / f"{name}-home")
        added(accounts, text(account=name))
        folder.mkdir()
        killed = killed_once(moment, federation, accounts, folder, monkeypatch)
        if advance:
            federation.advance()
        kept_to_the_end(keeper_of(federation, accounts, folder), federation)
        run = queue_of(accounts).runs()[-1]
        assert (run.state, len(federation.trained)) == ("done", 1), moment
        (entry,) = Accounts(accounts).read(name).entries
        assert entry.token == run.token
        if not killed:
            break
    assert moment > 15


def test_a_run_that_was_submitted_twice_runs_once(clinic, accounts, tmp_path, monkeypatch):
    """The keeper was killed before it wrote down the first number."""
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Queue, "begun", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            keeper.step()
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    assert [run["status"].partition(" ")[0] for run in clinic.runs.values()] == [
        "finished:completed",
        "finished:failed",
    ]
    assert "it was submitted twice, and is not run again" in clinic.runs["2"]["status"]
    assert len(Accounts(accounts).read("clinic").entries) == 1


def test_a_run_whose_process_works_is_waited_for_whatever_flower_says(clinic, accounts, tmp_path, monkeypatch):
    number = added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    assert keeper.step()
    clinic.forget()
    with monkeypatch.context() as patch:
        patch.setattr(keeper_module, "in_use", lambda folder: True)
        assert keeper.step()
    assert queue_of(accounts).runs()[0].state == "running"
    assert keeper.step()
    (run,) = queue_of(accounts).runs()
    assert (run.number, run.state, run.earliest) == (number, "waiting", NOON + PAUSE)
    assert run.reason == "lost: the SuperLink has restarted"


def test_a_run_that_stopped_is_resumed_under_the_same_entry_and_given_up_in_the_end(
    clinic, accounts, tmp_path, monkeypatch, caplog
):
    added(accounts)
    train, now = UserLevelStrategy.start, NOON
    monkeypatch.setattr(UserLevelStrategy, "start", Mock(side_effect=RunFailed("a silo left")))
    for attempt in range(ATTEMPTS):
        kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=now), clinic)
        now += PAUSE
        (run,) = queue_of(accounts).runs()
        assert run.attempts == attempt + 1
        assert run.reason == "a silo left"
    assert run.state == "failed"
    assert "run 1, monthly, failed 3 times: a silo left" in caplog.text
    added(accounts, text(epsilon=0.2))
    for attempt in range(2):
        if attempt:
            monkeypatch.setattr(UserLevelStrategy, "start", train)
        kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=now), clinic)
        now += PAUSE
    assert [run.state for run in queue_of(accounts).runs()] == ["failed", "done"]
    assert len(Accounts(accounts).read("clinic").entries) == 2


def test_while_the_superlink_or_the_database_is_away_nothing_is_lost_refused_or_counted(
    clinic, accounts, tmp_path, monkeypatch
):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    clinic.away = True
    for _ in range(2 * ATTEMPTS):
        assert keeper.step()
    clinic.away = False
    (tmp_path / "results" / "00001-monthly" / TOKEN).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(keeper_module, "enter_run", Mock(side_effect=AccountsUnavailable("the disk is full")))
        assert keeper.step()
    assert queue_of(accounts).runs()[0].state == "running"
    kept_to_the_end(keeper, clinic)
    assert queue_of(accounts).runs()[0].state == "done"
    assert len(Accounts(accounts).read("clinic").entries) == 1


@pytest.mark.parametrize(("module", "name"), [(entering, "write_text"), (keeper_module, "copy_released")])
def test_while_the_disk_is_full_nothing_is_lost_refused_or_counted(
    module, name, clinic, accounts, tmp_path, monkeypatch
):
    """When a run begins, and when what others may see of it is copied."""
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, Mock(side_effect=OSError(ENOSPC, "No space left on device")))
        for _ in range(2 * ATTEMPTS):
            assert keeper.step()
            clinic.advance()
    assert queue_of(accounts).runs()[0].state == "running"
    kept_to_the_end(keeper, clinic)
    (run,) = queue_of(accounts).runs()
    assert (run.state, run.attempts) == ("done", 1)
    assert (tmp_path / "results" / "released" / "00001-monthly" / "report.html").is_file()
    assert len(Accounts(accounts).read("clinic").entries) == 1


# One bad row, a kill at the end, going on, cancelling --------------------------------------------------------------


def rewritten(accounts, **values):
    """Change a row as no command would."""
    import sqlalchemy as sql

    with Accounts(accounts).transaction() as connection:
        for name, value in values.items():
            connection.execute(sql.text(f"UPDATE userdp_queue SET {name} = :value WHERE number = 1"), {"value": value})


@pytest.mark.parametrize(
    ("column", "value", "state"),
    [
        ("name", "x" * 10_000, "done"),
        ("folder", "x" * 10_000, "failed"),
        ("folder", "a\0b", "failed"),
        ("folder", "file/inside", "failed"),
        ("folder", "file", "failed"),
        ("configuration", "name = " + "[" * 10_000, "failed"),
        ("configuration", text().replace("monthly", "x" * 10_000), "refused"),
        ("configuration", "", "refused"),
        ("configuration", "epsilon = " + "9" * 5000, "failed"),
        ("name", "a\0b", "failed"),
        ("folder", "..", "failed"),
        ("folder", "released", "failed"),
        ("folder", "/tmp/elsewhere", "failed"),
        ("attempts", "many", "failed"),
        ("state", "nobody knows", "nobody knows"),
        ("first", "9999-99-99", "done"),
        ("first", 7, "done"),
        ("silos", "{", "done"),
        ("silos", "[1]", "done"),
        ("earliest", "x", "waiting"),
        ("earliest", "2026-11-01", "done"),
    ],
)
def test_a_row_in_which_anything_is_wrong_fails_alone(column, value, state, clinic, accounts, tmp_path):
    added(accounts)
    rewritten(accounts, **{column: value})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "file").touch()
    added(accounts, text(epsilon=0.1))
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    first, second = queue_of(accounts).runs()
    assert (first.state, second.state) == (state, "done")
    assert len(overview(queue_of(accounts), tmp_path / "results").runs) == 2


def test_two_rows_under_way_follow_one_another(clinic, accounts, tmp_path):
    for _ in range(2):
        added(accounts, text(epsilon=0.1))
    with Accounts(accounts).transaction() as connection:
        connection.exec_driver_sql("UPDATE userdp_queue SET state = 'running', keeper = 'me', folder = 'run' || number")
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    assert [run.state for run in queue_of(accounts).runs()] == ["done", "done"]


@pytest.mark.parametrize("where", ["checked", "conclude", "enter_run"])
@pytest.mark.parametrize(
    "error", [RecursionError(), MemoryError(), ValueError("x"), KeyError("x"), OverflowError()], ids=repr
)
def test_an_error_that_nobody_foresaw_ends_its_run_alone(where, error, clinic, accounts, tmp_path, monkeypatch):
    added(accounts, every="every 1 hour")
    with monkeypatch.context() as patch:
        patch.setattr(keeper_module, where, Mock(side_effect=error))
        kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    run = queue_of(accounts).runs()[0]
    assert (run.state, run.reason) == ("failed", f"unexpected {type(error).__name__}")


def test_a_run_that_flower_does_not_take_is_given_up_and_the_next_one_begins(clinic, accounts, tmp_path, monkeypatch):
    added(accounts)
    added(accounts, text(epsilon=0.1))
    now, begin = NOON, keeper_module.start
    for _ in range(ATTEMPTS):
        with monkeypatch.context() as patch:
            patch.setattr(keeper_module, "start", lambda *given: fail() if "00001" in str(given) else begin(*given))
            kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=now), clinic)
        now += PAUSE
    assert [run.state for run in queue_of(accounts).runs()] == ["failed", "done"]


def test_names_have_at_most_100_letters(accounts):
    with pytest.raises(BadInput, match="at most 100"):
        queue_of(accounts).add("x" * 101, text(), None, NOON)
    with pytest.raises(BadInput, match="at most 100"):
        queue_of(accounts).add("../x", text(), None, NOON)
    assert queue_of(accounts).add("x" * 100, text(), None, NOON) == 1
    with pytest.raises(BadInput, match="name"):
        configuration_of(text().replace("monthly", "x" * 101))
    assert configuration_of(text().replace("monthly", "x" * 100)).name == "x" * 100


def test_a_repetition_beyond_the_calendar_ends_the_repetitions_alone(clinic, accounts, tmp_path):
    added(accounts, every="every 99999 hours")
    rewritten(accounts, first="9999-12-01T00:00:00+00:00")
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    assert [run.state for run in queue_of(accounts).runs()] == ["done"]


@pytest.mark.parametrize("followed", ["kept", "submitted again"])
def test_a_run_killed_after_its_result_ends_with_its_report_and_without_checkpoints(
    followed, clinic, accounts, tmp_path, monkeypatch
):
    """At each moment between result.json and the end."""
    folder = tmp_path / "results" / "00001-monthly"
    for module, name in (
        ("runs.folder", "_render"),
        ("reports.report", "render"),
        ("records.checkpoints", "partial_of"),
    ):
        added(accounts, text(epsilon=0.1))
        folder = tmp_path / "results" / f"{queue_of(accounts).runs()[-1].number:05d}-monthly"
        with monkeypatch.context() as patch:
            keeper = keeper_of(clinic, accounts, tmp_path)
            assert keeper.step()
            there = import_module(f"simulations.{module}")
            real = getattr(there, name)

            def killing(path, *more, real=real):
                if (path.parent / "result.json").is_file() or (path / "result.json").is_file():
                    raise Killed
                return real(path, *more)

            patch.setattr(there, name, killing)
            with pytest.raises(Killed):
                clinic.advance()
        assert (folder / CHECKPOINT).is_file()
        assert (folder / "result.json").is_file()
        number = list(clinic.runs)[-1]
        if followed == "submitted again":
            clinic.advance()
            assert clinic.runs[number]["status"] == "finished:completed"
            assert not (folder / CHECKPOINT).exists()
        clinic.runs[number]["status"] = "finished:failed"
        kept_to_the_end(keeper, clinic)
        assert queue_of(accounts).runs()[-1].state == "done"
        assert (folder / "report.html").is_file()
        assert not {CHECKPOINT, ASKED} & {path.name for path in folder.iterdir()}


def test_a_run_that_failed_goes_on_under_its_entry_once(clinic, accounts, tmp_path, monkeypatch):
    added(accounts, every="every 1 hour")
    now = NOON
    with monkeypatch.context() as patch:
        patch.setattr(UserLevelStrategy, "start", Mock(side_effect=RunFailed("a silo claims foreign numbers")))
        for _ in range(ATTEMPTS):
            kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=now), clinic)
            now += PAUSE
    queue = queue_of(accounts)
    failed = queue.runs()[0]
    assert failed.state == "failed"
    assert "waits again" in call("serve", "retry", 1).stdout
    assert "only failed runs go on" in " ".join(call("serve", "retry", 1).stderr.split())
    queue.cancel(2)  # its repetition
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=datetime.now(UTC) + PAUSE), clinic)
    assert [run.state for run in queue.runs()] == ["done", "cancelled"]  # and no further repetition
    (entry,) = Accounts(accounts).read("clinic").entries
    assert entry.token == failed.token == queue.runs()[0].token
    assert call("serve", "retry", 1).exit_code == BAD_INPUT


def released_once(clinic, monkeypatch):
    """Let a run release one round, and fail in the next."""
    with monkeypatch.context() as patch:
        asked = UserLevelStrategy.request_of
        patch.setattr(UserLevelStrategy, "request_of", lambda self, index: asked(self, index) if index < 2 else fail())
        clinic.advance()


def test_a_run_that_failed_after_a_release_goes_on_from_it_and_releases_nothing_twice(
    clinic, accounts, tmp_path, monkeypatch
):
    added(accounts, text(noise="secure"))
    keeper, folder = keeper_of(clinic, accounts, tmp_path), tmp_path / "results" / "00001-monthly"
    assert keeper.step()
    released_once(clinic, monkeypatch)
    before = pd.read_parquet(folder / "rounds.parquet")
    assert len(before) == 1
    queue_of(accounts).finish(1, "failed", "a silo left", NOON)
    queue_of(accounts).retry(1, NOON)
    kept_to_the_end(keeper, clinic)
    (run,) = queue_of(accounts).runs()
    after = pd.read_parquet(folder / "rounds.parquet")
    assert (run.state, len(after)) == ("done", 2)
    assert after["seconds"][0] == before["seconds"][0]
    assert len(Accounts(accounts).read("clinic").entries) == 1


@pytest.mark.parametrize("follows", ["it is resumed", "it failed, and is queued again", "it failed thrice"])
def test_a_run_whose_folder_is_lost_does_not_begin_again_under_its_entry(
    follows, clinic, accounts, tmp_path, monkeypatch
):
    """It may have released something, and drawing its noise again would be a second release for one entry."""
    added(accounts, text(noise="secure"))
    keeper, folder = keeper_of(clinic, accounts, tmp_path), tmp_path / "results" / "00001-monthly"
    assert keeper.step()
    released_once(clinic, monkeypatch)
    assert len(pd.read_parquet(folder / "rounds.parquet")) == 1
    if follows != "it is resumed":
        queue_of(accounts).finish(1, "failed", "a silo left", NOON)
        queue_of(accounts).retry(1, NOON)
    if follows == "it failed thrice":
        rewritten(accounts, attempts=ATTEMPTS, state="failed")
        queue_of(accounts).retry(1, NOON)
    elif follows == "it is resumed":
        assert keeper.step()
    shutil.rmtree(folder)
    for later in range(2):
        kept_to_the_end(keeper_of(clinic, accounts, tmp_path, now=NOON + (later + 1) * PAUSE), clinic)
        (run,) = queue_of(accounts).runs()
        assert run.state == "failed"
        assert "beginning again would be a second release" in run.reason
        queue_of(accounts).retry(1, NOON)
    assert clinic.trained == []
    assert len(Accounts(accounts).read("clinic").entries) == 1


def test_a_run_that_failed_before_it_was_submitted_begins_under_its_entry(clinic, accounts, tmp_path, monkeypatch):
    added(accounts)
    with monkeypatch.context() as patch:
        patch.setattr(entering, "write_text", Mock(side_effect=RecursionError()))
        kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    assert queue_of(accounts).retry(1, NOON).state == "failed"
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path), clinic)
    assert [run.state for run in queue_of(accounts).runs()] == ["done"]
    assert len(Accounts(accounts).read("clinic").entries) == 1


def fail():
    raise RunFailed("a silo left")


def test_a_run_that_is_cancelled_under_way_is_stopped_at_flower(clinic, accounts, tmp_path):
    number = added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    assert keeper.step()
    assert "flwr" not in call("serve", "cancel", number).stdout
    clinic.away = True
    keeper.step()
    clinic.away = False
    assert not keeper.step()
    assert clinic.runs["1"]["status"] == "finished:stopped"
    asked = Mock(side_effect=clinic.ask)
    clinic.ask = asked
    assert not keeper.step()
    asked.assert_not_called()


def test_a_run_that_fails_here_while_it_is_under_way_at_flower_is_stopped_there(clinic, accounts, tmp_path):
    """A newer userdp may not know its settings any more; the next run would else begin beside it."""
    added(accounts)
    added(accounts, text(epsilon=0.1))
    keeper = keeper_of(clinic, accounts, tmp_path)
    assert keeper.step()
    with queue_of(accounts)._table() as connection:
        _update(connection, 1, configuration="of another version")
    assert keeper.step()
    assert [run.state for run in queue_of(accounts).runs()] == ["failed", "waiting"]
    assert keeper.step()
    assert [run["status"] for run in clinic.runs.values()] == ["finished:stopped", "pending"]


def test_a_run_that_was_cancelled_is_stopped_by_its_own_keeper_alone(clinic, accounts, tmp_path):
    """Another SuperLink knows no run of that number, which would then count as stopped."""
    number = added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    assert keeper.step()
    queue_of(accounts).cancel(number)
    replace(keeper, identity="somebody else", link=Federation(home=tmp_path / "other")).step()
    assert queue_of(accounts).runs()[0].run == "1"
    keeper.step()
    assert clinic.runs["1"]["status"] == "finished:stopped"


def test_a_run_that_was_cancelled_waits_for_nothing(clinic, accounts, tmp_path):
    number = added(accounts)
    keeper_of(clinic, accounts, tmp_path).step()
    queue_of(accounts).cancel(number)
    queue_of(accounts).put_back(number, NOON, "it stopped")
    assert queue_of(accounts).runs()[0].state == "cancelled"
    assert queue_of(accounts).take(NOON, "me") is None


def test_a_run_that_ends_while_the_keeper_looks_is_not_made_again(clinic, accounts, tmp_path, monkeypatch):
    """Its process holds the folder at the first look, and has ended at the second."""
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    keeper.step()
    clinic.advance()
    clinic.runs["1"]["status"] = "finished:completed"
    used = iter([True, False, False])
    monkeypatch.setattr(keeper_module, "in_use", lambda folder: next(used))
    assert keeper.step()
    assert [(run.state, run.attempts) for run in queue_of(accounts).runs()] == [("running", 1)]
    keeper.step()
    assert queue_of(accounts).runs()[0].state == "done"


# Who keeps, who is missing ------------------------------------------------------------------------------------------


def test_a_folder_of_results_has_one_keeper_and_keeps_its_identity(tmp_path):
    with (
        identity(tmp_path) as mine,
        pytest.raises(BadInput, match="belongs to another userdp serve"),
        identity(tmp_path),
    ):
        pass
    with identity(tmp_path) as again:
        assert again == mine
    with identity(tmp_path / "other") as other:
        assert other != mine


def test_a_run_under_way_belongs_to_its_keeper(clinic, accounts, tmp_path):
    number = added(accounts)
    keeper_of(clinic, accounts, tmp_path).step()
    with pytest.raises(BadInput, match="run 1 is under way at a userdp serve with other --results"):
        queue_of(accounts).take(NOON, "somebody else")
    assert queue_of(accounts).cancel(number).state == "running"
    assert queue_of(accounts).take(NOON, "somebody else") is None
    queue_of(accounts).finish(number, "done", None, NOON)
    assert queue_of(accounts).runs()[0].state == "cancelled"


def test_silos_that_always_miss_are_told_by_name_and_to_the_operators_command(clinic, accounts, tmp_path, caplog):
    told, names = tmp_path / "told", tmp_path / "names.json"
    names.write_text('{"11": "node-1", "12": "node-2"}')
    alarm = Alarm(f"{sys.executable} -c \"import sys; open('{told}', 'a').write(sys.stdin.read())\"")
    clinic.nodes |= {"12": "registered", "13": "unregistered"}
    for _ in range(3):
        assert "not connected" not in caplog.text
        added(accounts, text(epsilon=0.1))
        kept_to_the_end(keeper_of(clinic, accounts, tmp_path, alarm=alarm, names=names), clinic)
    assert "not connected at the start of the last runs: node-2" in caplog.text
    assert json.loads(told.read_text()) == {
        "alert": "missing",
        "message": "not connected at the start of the last runs: node-2",
        "run": 3,
    }
    clinic.nodes["14"] = "registered"  # a new one, which nobody missed before
    clinic.nodes["12"] = "online"
    caplog.clear()
    added(accounts, text(epsilon=0.1))
    kept_to_the_end(keeper_of(clinic, accounts, tmp_path, alarm=Alarm("false"), names=names), clinic)
    assert "not connected" not in caplog.text
    Alarm("false")("failed", "something")
    assert "the command for alerts failed (CalledProcessError)" in caplog.text
