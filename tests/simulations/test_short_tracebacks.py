"""Errors in Python as a caller sees them: a sentence below the caller's own line. The command has ``--debug``."""

import inspect
import traceback

import pandas as pd
import pytest
from examples import call, changed, table_section, write_table

import simulations
import userdp
from simulations import load_config, load_model, render
from simulations.api.comparing import ComparisonResult
from simulations.api.prediction import SavedModel
from simulations.api.training import TrainedModel
from simulations.config.run_config import parse_config
from simulations.runs.run import run
from strategies import DPFedSGD, DropInFedAvg, PublicFacts
from userdp import Privacy, Quadratic
from userdp.errors import BadInput, UserdpError
from userdp.tracebacks import DEBUG

DECLARED = {"user": "who", "features": ["height"], "ranges": {"height": [150, 200]}, "target": "count", "delta": 1e-3}
ASKED = DECLARED | {"problem": "squared", "target_range": [0, 9], "epsilon": 8.0, "users": 48}
UNKNOWN = parse_config(changed(problem={"kind": "torch", "module": "absent_module:make", "loss": "mse"}))
HUGE = parse_config(changed(strategy={"kind": "dp_fed_sgd", "sampling": "fixed_size", "cohort": 5000}))


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    monkeypatch.delenv(DEBUG, raising=False)


@pytest.fixture
def path(tmp_path):
    return write_table(tmp_path / "people.csv")


def raised(call):
    with pytest.raises(UserdpError) as caught:
        call()
    return caught.value


def files(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]


CALLS = {
    "train": lambda path: userdp.train(path, **ASKED | {"epsilon": -1}),
    "train (no such column)": lambda path: userdp.train(pd.read_csv(path), **ASKED | {"user": "whom"}, progress=False),
    "plan": lambda path: userdp.plan(**ASKED | {"users": 0}),
    "compare": lambda path: userdp.compare(path, **ASKED | {"epsilon": [1, -4]}, strategies=["auto"]),
    "load_model": lambda path: userdp.load_model(path.parent),
    "read_table": lambda path: userdp.read_table(path, user="whom"),
    "enter": lambda path: userdp.enter(DropInFedAvg(users=200, epsilon=1.0, delta=1e-6), "nobody's"),
    "find": lambda path: userdp.find(path, user="whom", all_users=60, epsilon=1.0, delta=1e-3),
    "query": lambda path: simulations.query(path, user="whom", users=60, epsilon=1.0, delta=1e-3),
    "load_config": load_config,
    "render": lambda path: render(path.parent),
    "build_problem": lambda path: simulations.build_problem(UNKNOWN),
    "load_datasets": lambda path: simulations.load_datasets(
        parse_config(changed(problem={"kind": "logistic"}, data=table_section(path, user="whom")))
    ),
    "make_strategy": lambda path: simulations.make_strategy(
        HUGE, simulations.build_problem(HUGE), PublicFacts(users=10)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_ends_at_the_line_that_called(path, name, monkeypatch):
    error = raised(lambda: CALLS[name](path))
    assert len(files(error)) == 1, files(error)
    assert "The above exception" not in "".join(traceback.format_exception(error))
    monkeypatch.setenv(DEBUG, "1")
    again = raised(lambda: CALLS[name](path))
    assert len(files(again)) > 1
    assert (type(again), str(again)) == (type(error), str(error))


def test_what_is_done_with_a_model_ends_there_too(path, tmp_path):
    raw = changed(problem={"kind": "logistic"}, data=table_section(path), output={"reference": False})
    run(parse_config(raw), directory=tmp_path / "run", report=False)
    saved = load_model(tmp_path / "run")
    unusable = SavedModel(UNKNOWN, saved.model, saved.guarantee)
    compared = ComparisonResult(pd.DataFrame({"main_metric": []}), "", None)
    for done in (
        lambda: saved.predict(pd.DataFrame({"nothing": [1]})),
        lambda: saved.evaluate(pd.DataFrame({"nothing": [1]})),
        lambda: saved.save(tmp_path / "run"),
        lambda: unusable.problem,
        compared.report,
    ):
        assert len(files(raised(done))) == 1


def test_every_public_function_of_the_package_is_shortened():
    """The list above is complete: no function is added without it."""
    functions = [getattr(simulations, name) for name in simulations.__all__]
    assert {one.__name__ for one in functions if inspect.isfunction(one)} == {name.split()[0] for name in CALLS} - {
        "read_table"
    }
    assert hasattr(TrainedModel.report, "__wrapped__")


def test_signatures_are_those_that_were_written():
    assert list(inspect.signature(userdp.train).parameters) == ["data", "directory", "progress", "settings"]
    assert userdp.train.__doc__.startswith("Train a model with privacy")
    assert list(inspect.signature(SavedModel.predict).parameters) == ["self", "data", "on_unknown", "csv"]


def test_the_command_shows_what_lies_below_public_functions_if_asked(tmp_path, monkeypatch):
    asked = ["predict", tmp_path, tmp_path / "table.csv"]
    told, whole = call(*asked), call("--debug", *asked)
    assert (told.exit_code, whole.exit_code, "Traceback" in told.stderr) == (2, 2, False)
    assert "in load_model" in whole.stderr  # which is called by what the command calls
    monkeypatch.setenv(DEBUG, "1")
    assert "in load_model" in call(*asked).stderr


def test_a_strategys_own_options_are_refused_without_those_of_pydantic():
    with pytest.raises(BadInput, match=r"strategy\.rounds = -1") as refused:
        DPFedSGD(rounds=-1).strategy(Quadratic(2, 1.0, 1.0), PublicFacts(users=100), Privacy(epsilon=1.0, delta=1e-6))
    assert "ValidationError" not in "".join(traceback.format_exception(refused.value))
