"""The queue and its command: times and repetitions, what may run, and what cannot be done."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from examples import call
from helpers_accounts import own_postgres
from helpers_serving import queue_of, text
from hypothesis import given
from hypothesis import strategies as st

from simulations.account.accounts import Accounts
from simulations.serving.queue import OPEN, STATES, Queue, moment, next_time
from simulations.terminal import BAD_INPUT
from userdp.accounting import Total
from userdp.errors import BadInput

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


# Times --------------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["daily", "weekly", "monthly", "every 1 hour", "every 36 hours"]),
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400)),
)
def test_the_next_time_is_the_first_of_its_period_that_is_still_to_come(every, passed):
    now = NOON + passed
    then = next_time(NOON, every, now)
    assert now < then
    longest = {"monthly": 31, "weekly": 7, "every 36 hours": 1.5}.get(every, 1)
    assert then - now <= timedelta(days=longest)
    assert every != "monthly" or (then.hour, then.day) == (12, min(31, _last_day(then)))


def _last_day(day):
    return ((day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)).day


@pytest.mark.parametrize("every", ["yearly", "every 0 hours", "every hour", "", "0 3 * * *", "every 100000 hours"])
def test_other_periods_are_refused(every):
    with pytest.raises(BadInput, match="write daily, weekly, monthly"):
        next_time(NOON, every, NOON)


def test_times_are_in_utc_unless_they_say_otherwise():
    assert moment("2027-01-31 12:00") == moment("2027-01-31T13:00+01:00") == NOON
    for at in ("9999-12-31T23:59-14:00", "0001-01-01T00:00+14:00", "9999-99-99", "tomorrow", ""):
        with pytest.raises(BadInput, match=f"--at '{re.escape(at)}': write a time such as"):
            moment(at)


# States -------------------------------------------------------------------------------------------------------------


def test_runs_are_taken_in_the_order_of_their_times_and_one_at_a_time(accounts):
    queue = queue_of(accounts)
    later, sooner, last = (queue.add("a", "", None, NOON + timedelta(hours=hours)) for hours in (1, 0, 9))
    taken = []
    while (run := queue.take(NOON + timedelta(hours=2), "me")) is not None:
        assert queue.take(NOON + timedelta(hours=20), "me").number == run.number
        taken.append(run.number)
        queue.finish(run.number, "done", None, NOON)
    assert taken == [sooner, later]
    assert [run.state for run in queue.runs()] == ["done", "done", "waiting"]
    assert len({run.token for run in queue.runs()}) == 3
    assert queue.cancel(last).state == "waiting"
    with pytest.raises(BadInput, match=f"run {last} is cancelled already"):
        queue.cancel(last)
    with pytest.raises(BadInput, match="there is no run 77 in the queue"):
        queue.cancel(77)
    assert set(OPEN) < set(STATES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_many_at_once_end_each_run_once_and_repeat_it_once(kind, tmp_path):
    with own_postgres() if kind == "postgresql" else nullcontext(f"sqlite:///{tmp_path / 'accounts.sqlite'}") as url:
        queue = Queue(Accounts(url))
        last = max(queue.add("a", "", None, NOON, "daily") for _ in range(8))

        def keep(_):
            while (run := queue.take(NOON, "me")) is not None:
                queue.finish(run.number, "done", None, NOON)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(keep, range(4)))
        runs = queue.runs()
        assert [run.state for run in runs if run.number <= last] == ["done"] * 8
        assert [run.state for run in runs if run.number > last] == ["waiting"] * 8


# The command --------------------------------------------------------------------------------------------------------


def test_runs_are_added_listed_and_cancelled_by_the_command(accounts, tmp_path):
    Accounts(accounts).create("clinic", Total(2.0, 1e-2))
    (tmp_path / "run.toml").write_text(text())
    words = ("serve", "add", tmp_path / "run.toml")
    done = call(*words, "--at", "2027-01-31 12:00", "--every", "monthly")
    assert done.stdout == "run 1: monthly, due 2027-01-31 12:00 UTC, monthly\n"
    assert json.loads(call(*words, "--set", "privacy.epsilon=0.5", "--json").stdout) == {"number": 2}
    listed = json.loads(call("serve", "list", "--json").stdout)
    assert [(run["state"], run["every"], run["account"]) for run in listed] == [
        ("waiting", "monthly", "clinic"),
        ("waiting", None, "clinic"),
    ]
    assert "token" not in listed[0]
    assert "epsilon = 0.5" in queue_of(accounts).runs()[1].configuration
    assert call("serve", "cancel", 1).stdout == "run 1, monthly, is cancelled\n"
    assert "cancelled" in call("serve", "list").stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--every", "yearly"), "--every 'yearly'"),
        (("--at", "noon"), "--at 'noon'"),
        (("--set", "output.reference=true"), "a deployment must not also train without privacy"),
        (("--set", "strategy.kind=nothing"), "strategy.kind"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_added(accounts, tmp_path, words, reason):
    (tmp_path / "run.toml").write_text(text())
    done = call("serve", "add", tmp_path / "run.toml", *words)
    assert done.exit_code == BAD_INPUT
    assert reason in " ".join(done.stderr.split())
    assert queue_of(accounts).runs() == []
