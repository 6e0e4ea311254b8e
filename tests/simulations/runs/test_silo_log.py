"""The log for a silo's officer: what was asked, what each run promised, and what the policy said."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from flwr.app import Message, MessageType, RecordDict
from typer.testing import CliRunner

from simulations.deployment.__main__ import app
from simulations.runs import policy as module
from simulations.runs.policy import POLICY, REFUSALS, RUNS, PolicyDoor, asked
from strategies.wire.claims import Claim, Refused
from strategies.wire.protocol import roster_question
from userdp.nodes.computations import Computation

CLAIM = Claim("dp_fed_sgd", "secure", "server", "user", "replace_one", 1.0, 1e-3, "d", "a" * 32)
pytestmark = pytest.mark.usefixtures("flower_identity")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / POLICY).write_text("[run]\nepsilon = 1.0\ndelta = 1e-3\n[total]\nepsilon = 2.0\ndelta = 1e-2\n")
    return tmp_path


def ask(folder, claim, number=1):
    content = roster_question(b"s" * 16, counts=True, claim=claim) if claim else RecordDict()
    message = Message(content, 1, MessageType.QUERY)
    message.metadata.__dict__["_run_id"] = number
    PolicyDoor(folder, "d").enter(message)


def refused(folder, claim, number=1):
    with pytest.raises(Refused) as error:
        ask(folder, claim, number)
    return str(error.value)


def test_admitted_and_refused_runs_are_told_with_the_reason_and_what_is_spent(folder):
    ask(folder, CLAIM)
    why = refused(folder, replace(CLAIM, run="b", noise="seeded"))
    loud = refused(folder, replace(CLAIM, run="c", epsilon=float("inf")))
    none = refused(folder, replace(CLAIM, run="e", epsilon=float("nan")))
    ask(folder, replace(CLAIM, run="d", epsilon=0.5))
    found = asked(folder)
    told = {run["run"]: (run["policy"], run["why"]) for run in found["runs"]}
    assert told == {"a" * 32: ("admitted", ""), "d": ("admitted", "")} | {
        run: ("refused", said) for run, said in (("b", why), ("c", loud), ("e", none))
    }
    assert found["spent"] == {"epsilon": 1.5, "delta": 2e-3}
    assert found["total"] == {"epsilon": 2.0, "delta": 1e-2}
    assert all(run["when"] for run in found["runs"])
    done = CliRunner().invoke(app, ["log", "--data", str(folder), "--json"])
    assert json.loads(done.output, parse_constant=pytest.fail) == found
    shown = CliRunner().invoke(app, ["log", "--data", str(folder)], env={"COLUMNS": "200"}).output
    assert shown.count(" server ") == 5
    assert "seeded" in shown
    assert "admitted so far: 1.5, 0.002 of epsilon, delta = 2, 0.01" in shown


def test_what_has_no_claim_and_what_a_run_may_not_ask_is_told_too(folder):
    refused(folder, None, 7)
    door = PolicyDoor(folder, "d")
    door.claims[1] = CLAIM
    message = SimpleNamespace(metadata=SimpleNamespace(run_id=1), content=RecordDict())
    with pytest.raises(Refused, match="seeded noise"):
        door.check(message, Computation("user_gradient", "sum", 1.0))
    nameless, question = asked(folder)["runs"]
    assert "does not say what its run promises" in nameless["why"]
    assert "seeded noise" in question["why"]
    assert question["run"] == CLAIM.run
    assert CliRunner().invoke(app, ["log", "--data", str(folder)]).exit_code == 0


def test_refusals_are_told_once_and_never_fill_the_disk(folder, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 4000)
    for _ in range(3):
        refused(folder, replace(CLAIM, run="same", noise="none"))
    assert len(asked(folder)["runs"]) == 1
    for number in range(60):
        refused(folder, replace(CLAIM, run=f"r{number}", noise="none"))
        assert (folder / REFUSALS).stat().st_size <= 4100
    names = [run["run"] for run in asked(folder)["runs"]]
    assert names[-1] == "r59"
    assert names == [f"r{number}" for number in range(60 - len(names), 60)]
    assert (folder / REFUSALS).stat().st_mode & 0o777 == 0o600


def test_a_refusal_that_cannot_be_written_is_a_refusal(folder):
    (folder / REFUSALS).mkdir()
    assert "people's data need 'secure'" in refused(folder, replace(CLAIM, noise="none"))
    assert not (folder / RUNS).exists()


def test_a_broken_record_is_no_empty_one(folder):
    (folder / RUNS).write_text("nonsense\n")
    with pytest.raises(Refused, match="a line that is no run"):
        asked(folder)
    (folder / RUNS).unlink()
    (folder / REFUSALS).write_text('nonsense\n[1]\n"a"\n')
    assert asked(folder)["runs"] == []
    (folder / POLICY).unlink()
    with pytest.raises(Refused):
        asked(folder)
