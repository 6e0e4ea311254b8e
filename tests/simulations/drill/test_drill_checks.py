"""The checks at the end of the drill notice what they are there for."""

import json
import math

import drill_checks as checks
import pytest

from userdp.accounting import Total
from userdp.accounting.filter import Price

ACCOUNT = {"name": "clinic", "epsilon": 2.0, "delta": 1e-5}
PROMISE = {"epsilon": 1.0, "delta": 1e-6}


def entry(number, promise=PROMISE):
    place = f"/results/{number:05d}-drill"
    return {"account": "clinic", "token": f"t{number}", "promises": json.dumps([promise]), "place": place}


def row(number, state="done", reason=None):
    return {
        "number": number,
        "state": state,
        "reason": reason,
        "folder": f"{number:05d}-drill",
        "token": f"t{number}",
    }


@pytest.fixture
def results(tmp_path):
    """Run 1 is done, and run 2 was refused."""
    folder, copy = tmp_path / "00001-drill", tmp_path / "released" / "00001-drill"
    for place in (folder, copy, tmp_path / "00002-drill"):
        place.mkdir(parents=True)
    for path in (folder / "model.npz", folder / "report.html", copy / "report.html"):
        path.write_text("")
    (folder / "guarantee.json").write_text(json.dumps(PROMISE | {"holds": True}))
    (folder / "result.json").write_text(json.dumps({"rounds": 6, "missing_users_private": 200}))
    return tmp_path


def test_the_drills_own_sum_of_gaussians_is_the_accounts():
    """The drill's formulas accept the most runs that fit, and refuse one more."""
    total = Total(ACCOUNT["epsilon"], ACCOUNT["delta"])
    price = Price(mu_squared=checks.distance_of(**PROMISE) ** 2)
    fit = math.floor(total.limits.mu_squared / price.mu_squared)
    assert fit >= 2
    checks.no_account_is_overdrawn([ACCOUNT], [entry(number) for number in range(fit)])
    with pytest.raises(AssertionError, match="clinic is overdrawn"):
        checks.no_account_is_overdrawn([ACCOUNT], [entry(number) for number in range(fit + 1)])


@pytest.mark.parametrize(
    ("queue", "complaint"),
    [
        ([row(1)], "missing"),
        ([row(1), row(3, "refused", "too much")], "missing"),
        ([row(1), row(2, "waiting", "stopped")], "run 2 is waiting"),
        ([row(1), row(2, "refused")], "nothing says why"),
        ([row(1, "refused", "too much"), row(2, "refused", "too much")], "the wrong runs"),
        ([row(1), row(2)], "the wrong runs"),
    ],
)
def test_a_run_that_is_lost_stuck_or_wrongly_refused_is_noticed(queue, complaint):
    checks.every_run_has_ended([row(1), row(2, "refused", "too much")], 2, {2})
    with pytest.raises(AssertionError, match=complaint):
        checks.every_run_has_ended(queue, 2, {2})


def _left(results, entries):
    checks.each_run_left_what_it_promised([row(1), row(2, "refused", "too much")], entries, results, 6)


def test_runs_that_keep_their_promises_pass(results):
    _left(results, [entry(1)])
    checks.silos_were_missing(results, 1, 200)
    with pytest.raises(AssertionError, match="the faults cost 200"):
        checks.silos_were_missing(results, 2, 200)


def _unlinked(name):
    return lambda results: (results / "00001-drill" / name).unlink()


def _promised(**change):
    content = json.dumps(PROMISE | {"holds": True} | change)
    return lambda results: (results / "00001-drill/guarantee.json").write_text(content)


@pytest.mark.parametrize(
    ("spoil", "entries", "complaint"),
    [
        (_unlinked("model.npz"), [1], "run 1 left no"),
        (_unlinked("report.html"), [1], "run 1 left no"),
        (_unlinked("../released/00001-drill/report.html"), [1], "run 1: no report for others"),
        (_promised(holds=False), [1], "without a guarantee"),
        (_promised(epsilon=1.1), [1], "spent more than its entry"),
        (_promised(delta=2e-6), [1], "a larger delta than its entry"),
        (lambda results: (results / "00002-drill/model.npz").touch(), [1], "left a release"),
        (lambda results: None, [1, 2], "refused and charged"),
        (lambda results: None, [1, 3], "no run of the queue"),
    ],
)
def test_a_run_that_left_something_else_than_it_promised_is_noticed(results, spoil, entries, complaint):
    spoil(results)
    with pytest.raises(AssertionError, match=complaint):
        _left(results, [entry(number) for number in entries])


@pytest.mark.parametrize("said", ["a silo of Quillfeather-0001", "x = 0.22003", '"missing_users_private": 3'])
def test_a_mark_or_a_private_field_is_found_wherever_it_stands(said):
    marks, texts = ["Quillfeather", "0.22003"], {"the page": "nothing"}
    checks.nothing_private_is_in(texts, marks)
    with pytest.raises(AssertionError, match="the logs shows"):
        checks.nothing_private_is_in(texts | {"the logs": f"one line\n{said}"}, marks)
