"""A line a minute where standard error is no terminal. Every test has a clock of its own."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from examples import changed, write_table

import simulations.api.training
from simulations import train
from simulations.api.comparing import compare
from simulations.audit.many_runs import audit
from simulations.audit.one_run import _REHEARSALS, audit_one_run
from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import live
from simulations.config.run_config import parse_config
from simulations.reports.progress import (
    EVERY,
    FIRST,
    HowFar,
    Rounds,
    audit_bar,
    counting_bar,
    progress_bar,
    time_left,
)
from simulations.runs.advice import advise
from strategies.core.results import RoundRecord

RAW = changed(strategy={"kind": "dp_fed_sgd", "rounds": 12}, output={"reference": False}, seed=None)


ROUNDS = 14
"""One that finds the clip, and twelve."""


class Clock:
    def __init__(self, step=0.0):
        self.now, self.step = 100.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_the_first_line_waits_and_others_come_once_a_minute(capsys):
    clock, said = Clock(), []
    told = HowFar(clock)
    for done in range(200):
        told.tell(done, 200, lambda done=done: said.append(done) or f"{done} done", str)
        clock.now += 1.0
    written = lines(capsys)
    assert said == [FIRST, FIRST + EVERY, FIRST + 2 * EVERY, FIRST + 3 * EVERY]
    assert written[0] == "userdp: 10 done, about 3 minutes left"
    assert written[-1] == "userdp: 190 done, about 10 seconds left"


def test_what_was_done_before_says_nothing_about_the_time_left(capsys):
    clock = Clock()
    told = HowFar(clock)
    clock.now += 20.0
    told.count_from(50)
    told.tell(50, 100, lambda: "50 of 100", str)
    clock.now += 60.0
    told.tell(52, 100, lambda: "52 of 100", str)
    assert lines(capsys) == ["userdp: 50 of 100", "userdp: 52 of 100, about 24 minutes left"]


def test_a_bar_moves_once_with_its_words():
    bar = Mock(**{"add_task.return_value": 7})
    told = HowFar(Clock(), bar)
    told.begin()
    told.tell(3, 9, str, lambda: "cells")
    bar.update.assert_called_once_with(7, completed=3, total=9, beside="cells")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "10 seconds"), (54, "50 seconds"), (55, "1 minute"), (5900, "98 minutes"), (9000, "2 hours")],
)
def test_time_left_is_no_more_exact_than_it_is(seconds, told):
    assert time_left(seconds) == f"about {told} left"


# Runs -----------------------------------------------------------------------------------------------------------------


def record(number, seconds=1.0, spent=1.32):
    return RoundRecord(number, seconds, 0, 0, None if spent is None else lambda: spent, {}, {})


PLANNED = SimpleNamespace(rounds=100, guarantee=SimpleNamespace(holds=True, epsilon=4.0))


def rounds_of(clock):
    told = Rounds(HowFar(clock))
    told.on_start(PLANNED)
    return told


def test_rounds_are_told_with_what_is_spent_of_how_much(capsys):
    clock = Clock()
    told = rounds_of(clock)
    for number in range(1, 35):
        clock.now += 3.0
        told.on_round(record(number, seconds=2.5))
    assert lines(capsys) == [
        "userdp: round 4 of 100, epsilon spent 1.32 of 4, about 5 minutes left",
        "userdp: round 24 of 100, epsilon spent 1.32 of 4, about 4 minutes left",
    ]


def test_what_the_first_round_pays_for_all_rounds_is_no_overrun(capsys):
    clock = Clock()
    told = rounds_of(clock)
    for number in (1, 100):
        clock.now += 70.0
        told.on_round(record(number, seconds=50.0, spent=3.9999999))
    first, last = lines(capsys)
    assert first.startswith("userdp: round 1 of 100, epsilon spent 4, which pays for all rounds, about")
    assert last == "userdp: round 100 of 100, epsilon spent 4 of 4"


def test_what_was_spent_is_asked_for_only_where_it_is_told():
    """An accountant may take seconds for it."""
    rounds_of(Clock()).on_round(RoundRecord(1, 1.0, 0, 0, lambda: pytest.fail("asked"), {}, {}))


def test_rounds_of_a_killed_process_do_not_hurry_the_guess(capsys):
    clock = Clock()
    told = rounds_of(clock)
    clock.now += 20.0
    for number in range(1, 91):
        told.on_round(record(number, seconds=6.0, spent=None))
    for number in range(91, 101):
        clock.now += 6.0
        told.on_round(record(number, seconds=6.0, spent=None))
    first, second = lines(capsys)
    assert first.endswith("no privacy, about 10 minutes left")
    assert second == "userdp: round 100 of 100, no privacy"


@pytest.mark.parametrize(("progress", "step", "tells"), [(True, 9.0, True), (True, 0.0, False), (False, 9.0, False)])
def test_train_tells_of_a_long_run_unless_it_is_asked_not_to(progress, step, tells, capsys, monkeypatch):
    monkeypatch.setattr(simulations.api.training, "progress_bar", lambda wanted: progress_bar(wanted, Clock(step)))
    train(RAW, progress=progress)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("userdp: round ") == (f" of {ROUNDS}, epsilon spent " in told.err) == tells
    assert bool(told.err) == tells


# Comparisons, plans and audits ----------------------------------------------------------------------------------------


@pytest.fixture
def comparison():
    return parse_comparison(RAW | {"strategy": [{"kind": "dp_fed_sgd", "rounds": 2}], "seeds": 4, "output": {}})


def test_cells_are_told_with_the_time_left_of_those_made_now(comparison, capsys):
    clock = Clock()
    with live(comparison, clock) as watch:
        cell, other = SimpleNamespace(stage="cells", label="a"), SimpleNamespace(stage="reference", label="b")
        clock.now += 50.0
        watch(other, {}, True)
        watch(cell, {}, False)
        for _ in range(3):
            clock.now += 60.0
            watch(cell, {}, True)
    after = "after 1 run of searches and references"
    assert lines(capsys) == [
        f"userdp: 0 of 4 cells done {after}",
        f"userdp: 2 of 4 cells done {after}, about 2 minutes left",
        f"userdp: 3 of 4 cells done {after}, about 1 minute left",
        f"userdp: 4 of 4 cells done {after}",
    ]


@pytest.mark.parametrize("progress", [True, False])
def test_compare_in_python_tells_unless_it_is_asked_not_to(progress, comparison, capsys, monkeypatch):
    monkeypatch.setattr("simulations.api.comparing.live", lambda one: live(one, Clock(step=9.0)))
    compare(comparison, progress=progress)
    assert ("of 4 cells done" in capsys.readouterr().err) == progress


def test_plans_are_told(tmp_path, capsys):
    table = {"kind": "table", "path": str(write_table(tmp_path / "people.csv")), "user": "who", "users": 500}
    table |= {"features": ["height"], "ranges": {"height": [150, 200]}, "target": "count", "target_range": [0, 9]}
    with counting_bar("planning", "{done} of {of} strategies planned", Clock(step=5.0)) as progress:
        found = advise(parse_config(RAW | {"problem": {"kind": "squared"}, "data": table}), progress)
    told = lines(capsys)
    assert f"of {len(found)} strategies planned" in told[0]
    assert " left" in told[-1]


def test_audits_are_told_each_with_its_own_time_left(capsys):
    clock = Clock()
    with audit_bar(clock) as told:
        first = told("auto", "runs")
        clock.now += 10.0
        first(100, 1000)
        second = told("dp_fed_sgd", "rounds")
        clock.now += 60.0
        second(10, 30)
    assert lines(capsys) == [
        "userdp: audit of auto: 100 of 1000 runs done, about 2 minutes left",
        "userdp: audit of dp_fed_sgd: 10 of 30 rounds done, about 2 minutes left",
    ]


@pytest.mark.parametrize(
    ("audited", "counted"),
    [
        pytest.param(partial(audit, runs=200, workers=0), None, marks=pytest.mark.slow),
        (audit_one_run, ROUNDS * (1 + _REHEARSALS)),
    ],
    ids=["many runs", "one run"],
)
def test_an_audit_counts_all_its_runs_and_one_of_one_run_the_rounds_of_rehearsals_too(audited, counted):
    seen = []
    audited(parse_config(RAW), progress=lambda done, of: seen.append((done, of)))
    assert (seen[0][0], seen[-1][0]) == (0, seen[-1][1])
    assert counted in (None, seen[0][1])
    assert sorted(seen) == seen
