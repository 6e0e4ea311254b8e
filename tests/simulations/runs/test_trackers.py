import json
import logging
import os
import shutil
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from examples import BASE, broken, changed
from helpers import PATIENCE, Watching

import simulations.runs.trackers
from simulations.config.run_config import parse_config
from simulations.records.evaluation import Evaluation
from simulations.records.released_fields import SHARED, kept
from simulations.runs.run import run
from simulations.runs.trackers import ARTIFACTS, TRACKERS, Tracked
from userdp.accounting.guarantee import Guarantee
from userdp.errors import BadInput, RunFailed

# What MLflow's store does with SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")

ROBUST = {"kind": "robust_rounds", "rounds": 3, "deviation": 1.0, "learning_rate": 0.5}
"""A strategy with a fact that is not released."""
SAME = ("metrics", "guarantee")


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An empty store of MLflow's, made once: making its tables takes seconds."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow)])  # it takes seconds to import
def mlflow(database, tmp_path):
    shutil.copy(database, tmp_path)
    return sys.modules["mlflow"]


@pytest.fixture
def tensorboard():
    return pytest.importorskip("tensorboard", reason="tensorboard is not installed")


def go(folder, *trackers, report=False, directory=None, **settings):
    raw = changed(output={"directory": str(folder), "trackers": list(trackers)}, **settings)
    return run(parse_config(raw), report=report, directory=directory)


def mlflow_runs(mlflow, uri, experiment="small"):
    client = mlflow.MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    return client, client.search_runs([number], order_by=["attributes.start_time DESC"])


def local(folder):
    return f"sqlite:///{folder / 'mlflow.db'}"


def events(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(directory / "tensorboard"))
    read.Reload()
    return read


def opened_and_closed(name, directory):
    """Open and close a tracker as a run does that has no round and writes no end."""
    tracked = Tracked(name, directory)
    tracked.on_start(None)
    tracked.on_end()


def text(read, name):
    return read.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()


def stored(outcome, name):
    return json.loads((outcome.directory / name).read_text())


def steps(client, found):
    return [point.step for point in client.get_metric_history(found.info.run_id, "spent_epsilon")]


def columns(outcome):
    """rounds.parquet as trackers name it: "fact/noise" -> [(round, value)], released and finite."""
    rounds = pd.read_parquet(outcome.directory / "rounds.parquet").set_index("round")
    kept = [name for name in rounds if not name.endswith("_private")]
    return {name.replace(".", "/", 1): list(rounds[name].dropna().items()) for name in kept}


class Noted:
    """A tracker that keeps what it is told; ``broken`` names the calls that raise."""

    def __init__(self, directory, parameters, broken=()):
        self.parameters, self.rounds, self.endings, self.broken = parameters, [], [], broken

    def round(self, number, values):
        self.rounds.append((number, values))
        self._fail("round")

    def finish(self, ending):
        self.endings.append(ending)
        self._fail("finish")

    def _fail(self, call):
        if call in self.broken:
            raise ConnectionError("http://me:password@example.org does not answer")


@contextmanager
def noting(monkeypatch, *broken):
    made = []

    def make(directory, parameters):
        made.append(Noted(directory, parameters, broken))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(simulations.runs.trackers, "TRACKERS", {"mlflow": ("json", make)})
        yield made


# MLflow -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mlflow_holds_every_round_the_parameters_the_plan_the_guarantee_and_the_result(mlflow, tmp_path):
    outcome = go(tmp_path, "mlflow")
    client, (found,) = mlflow_runs(mlflow, local(tmp_path))
    assert found.info.status == "FINISHED"
    assert found.info.run_name == outcome.directory.name
    for name, values in columns(outcome).items():
        history = sorted((one.step, one.value) for one in client.get_metric_history(found.info.run_id, name))
        assert history == values, name
    assert len(columns(outcome)["metric/excess_risk"]) == len(columns(outcome)["spent_epsilon"]) == 3
    result, metrics = outcome.result, found.data.metrics
    assert metrics["final/excess_risk"] == result["metrics"]["excess_risk"]
    assert metrics["initial/test_loss"] == result["reference"]["initial"]["test_loss"]
    assert not [name for name in metrics if "private" in name]
    assert metrics["epsilon"] == result["guarantee"]["epsilon"]
    parameters, plan = found.data.params, stored(outcome, "plan.json")
    assert parameters["strategy.clip_norm"] == "1.0"
    assert (parameters["name"], parameters["privacy.unit"]) == ("small", "user")
    assert json.loads(parameters["output.trackers"]) == ["mlflow"]
    assert float(parameters["plan.noise"]) == plan["noise"]
    assert {f"plan.{name}" for name, value in plan["numbers"].items() if value is not None} <= parameters.keys()
    tags = found.data.tags
    promised = str(Guarantee.from_dict(stored(outcome, "guarantee.json")))
    assert tags["userdp.guarantee"] == tags["mlflow.note.content"] == promised
    assert (tags["userdp.unit"], tags["userdp.holds"]) == ("user", "True")
    assert "userdp.error" not in tags


@pytest.mark.slow
def test_mlflow_keeps_the_files_of_the_run_but_no_model_and_no_private_fact(mlflow, tmp_path):
    outcome = go(tmp_path, "mlflow", report=True, strategy=ROBUST, data__users=3000)
    client, (found,) = mlflow_runs(mlflow, local(tmp_path))
    files = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert files == {*ARTIFACTS, "result.json", "report.html"}
    told, promised, report = (
        Path(client.download_artifacts(found.info.run_id, name, str(tmp_path))).read_text()
        for name in ("result.json", "guarantee.json", "report.html")
    )
    assert json.loads(told) == kept("result.json", outcome.result, SHARED)
    assert "_private" not in told
    assert promised == (outcome.directory / "guarantee.json").read_text()
    assert (tmp_path / "mlruns").is_dir()
    assert "before the test's noise" in (outcome.directory / "report.html").read_text()
    assert "before the test's noise" not in report
    assert "<h2>Progress by round</h2>" in report
    assert "fact.score_private" in pd.read_parquet(outcome.directory / "rounds.parquet")
    assert not [name for name in found.data.metrics if "private" in name]
    assert found.data.metrics["fact/threshold"] > 0


@pytest.mark.slow
def test_mlflow_goes_where_the_environment_says_and_nowhere_else(mlflow, tmp_path, monkeypatch):
    uri = local(tmp_path)
    mlflow.MlflowClient(tracking_uri=uri).create_experiment("small", (tmp_path / "artifacts").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    go(tmp_path / "runs", "mlflow")
    _, runs = mlflow_runs(mlflow, uri)
    assert [one.info.status for one in runs] == ["FINISHED"]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"small-dp_fed_sgd-seed3"}


@pytest.mark.slow
def test_runs_that_start_side_by_side_share_a_new_store(mlflow, tmp_path):
    (tmp_path / "mlflow.db").unlink()
    code = "import json, sys; from simulations.config.run_config import parse_config; "
    code += "from simulations.runs.run import run; "
    code += "run(parse_config(json.loads(sys.argv[1])))"
    output = {"directory": str(tmp_path), "trackers": ["mlflow"], "reference": False}
    started = [
        subprocess.Popen([sys.executable, "-c", code, json.dumps(changed(output=output, seed=seed))]) for seed in (0, 1)
    ]
    assert [process.wait(timeout=PATIENCE) for process in started] == [0, 0]
    _, runs = mlflow_runs(mlflow, local(tmp_path))
    assert [one.info.status for one in runs] == ["FINISHED"] * 2


@pytest.mark.slow
def test_an_experiment_that_another_run_makes_meanwhile_is_shared(mlflow, tmp_path, monkeypatch):
    original, answers = mlflow.MlflowClient.get_experiment_by_name, [None]
    go(tmp_path, "mlflow")

    def get(self, name):
        return answers.pop() if answers else original(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "get_experiment_by_name", get)
        go(tmp_path, "mlflow", seed=4)
    client, runs = mlflow_runs(mlflow, local(tmp_path))
    assert {one.info.run_name for one in runs} == {"small-dp_fed_sgd-seed3", "small-dp_fed_sgd-seed4"}
    assert [steps(client, one) for one in runs] == [[1, 2, 3]] * 2


def test_a_store_that_refuses_is_told_before_anything_is_run(mlflow, tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow.MlflowClient, "create_experiment", lambda *_: 1 / 0)
    with pytest.raises(BadInput, match=r"output\.trackers: mlflow cannot be opened \(ZeroDivisionError\)"):
        go(tmp_path, "mlflow")


def test_a_run_that_fails_is_a_failed_run_of_mlflow_with_its_rounds_and_its_reason(mlflow, tmp_path, monkeypatch):
    with pytest.raises(RunFailed):
        _stopped(tmp_path, monkeypatch, "mlflow")
    client, (found,) = mlflow_runs(mlflow, local(tmp_path))
    assert found.info.status == "FAILED"
    reason = json.loads((tmp_path / "small-dp_fed_sgd-seed3" / "result.json").read_text())["error"]
    assert found.data.tags["userdp.error"] == reason
    assert steps(client, found) == [1]
    assert {item.path for item in client.list_artifacts(found.info.run_id)} == {*ARTIFACTS, "result.json"}


def test_many_and_long_parameters_reach_mlflow(mlflow, tmp_path):
    (tmp_path / "run").mkdir()
    table = ", ".join(f'"column {i}" = [0, {i}]' for i in range(1000))
    settings = "\n".join(f"option{i} = {i}" for i in range(250))
    (tmp_path / "run" / "config.toml").write_text(
        f'name = "wide"\n[strategy]\n{settings}\n[data]\nranges = {{{table}}}'
    )
    (tmp_path / "run" / "plan.json").write_text('{"numbers": {}, "warnings": [], "guarantee": {}}')
    opened_and_closed("mlflow", tmp_path / "run")
    _, (found,) = mlflow_runs(mlflow, local(tmp_path), "wide")
    assert found.data.params["strategy.option249"] == "249"
    assert found.data.params["data.ranges"].startswith('{"column 0": [0, 0]')
    assert found.info.status == "FAILED"  # it left no result


# TensorBoard --------------------------------------------------------------------------------------------------------


def test_tensorboard_holds_every_round_the_parameters_the_guarantee_and_the_result(tensorboard, tmp_path):
    outcome = go(tmp_path, "tensorboard", strategy=ROBUST, data__users=3000)
    read = events(outcome.directory)
    for name, values in columns(outcome).items():
        assert [one.step for one in read.Scalars(name)] == [number for number, _ in values]
        # Events hold single precision.
        assert [one.value for one in read.Scalars(name)] == pytest.approx([value for _, value in values], rel=1e-6)
    scalars = read.Tags()["scalars"]
    assert {"metric/excess_risk", "fact/threshold", "spent_epsilon", "final/excess_risk", "epsilon"} <= set(scalars)
    assert not [name for name in scalars if "private" in name]
    assert read.Scalars("final/test_loss")[0].value == pytest.approx(outcome.result["metrics"]["test_loss"])
    assert text(read, "guarantee") == str(Guarantee.from_dict(stored(outcome, "guarantee.json")))
    assert text(read, "unit") == "user"
    assert "| strategy.deviation | 1.0 |" in text(read, "parameters")
    assert f"| plan.noise | {stored(outcome, 'plan.json')['noise']} |" in text(read, "parameters")
    assert "_hparams_/session_start_info" in read.summary_metadata


@pytest.mark.slow
def test_tensorboard_can_be_watched_while_the_run_goes(tensorboard, tmp_path):
    seen = []

    def look(record, plan):
        seen.append([one.step for one in events(tmp_path / "run").Scalars("metric/test_loss")])

    raw = changed(output={"trackers": ["tensorboard"], "reference": False})
    run(parse_config(raw), directory=tmp_path / "run", observers=[Watching(look)])
    assert seen == [[1], [1, 2], [1, 2, 3]]


def test_another_run_in_the_same_directory_replaces_the_events_and_leaves_other_files(tensorboard, tmp_path):
    outcome = go(tmp_path, "tensorboard")
    other = outcome.directory / "tensorboard" / "notes.txt"
    other.write_text("mine")
    go(tmp_path, "tensorboard", directory=outcome.directory)
    assert [one.step for one in events(outcome.directory).Scalars("spent_epsilon")] == [1, 2, 3]
    go(tmp_path, directory=outcome.directory)
    assert list((outcome.directory / "tensorboard").iterdir()) == [other]


def test_a_run_that_fails_leaves_its_events_and_its_reason(tensorboard, tmp_path, monkeypatch):
    with pytest.raises(RunFailed):
        _stopped(tmp_path, monkeypatch, "tensorboard")
    read = events(tmp_path / "small-dp_fed_sgd-seed3")
    assert [one.step for one in read.Scalars("spent_epsilon")] == [1]
    assert text(read, "error").startswith("too many users of a cohort did not answer")


def test_a_run_that_cannot_write_its_end_still_closes_its_events(tensorboard, tmp_path):
    (tmp_path / "config.toml").write_text(parse_config(BASE).toml())
    (tmp_path / "plan.json").write_text('{"numbers": {}, "warnings": [], "guarantee": {}}')
    opened_and_closed("tensorboard", tmp_path)
    assert "| name | small |" in text(events(tmp_path), "parameters")


def _stopped(folder, monkeypatch, *trackers):
    broken(monkeypatch, lambda node, x: np.abs(x).max() > 0)
    return go(folder, *trackers)


# Both, and neither --------------------------------------------------------------------------------------------------


def test_a_tracker_is_told_only_what_the_run_directory_holds(monkeypatch, tmp_path):
    with noting(monkeypatch) as made:
        outcome = go(tmp_path, "mlflow", report=True, strategy=ROBUST, data__users=3000)
    (told,) = made
    rows = {
        name: [(number, values[name]) for number, values in told.rounds if name in values] for name in columns(outcome)
    }
    assert rows == columns(outcome)
    assert set().union(*(values for _, values in told.rounds)) == set(rows)
    everything = "".join((outcome.directory / name).read_text() for name in (*ARTIFACTS, "result.json"))
    (ending,) = told.endings
    for value in [*ending.metrics.values(), told.parameters["seed"]]:
        assert str(value) in everything
    assert all(line.removeprefix("  assuming: ") in everything for line in ending.texts["guarantee"].splitlines())
    assert all(part in everything for part in ending.texts["assumptions"].split("; "))


def test_without_a_guarantee_no_epsilon_is_tracked(monkeypatch, tmp_path):
    with noting(monkeypatch) as made:
        go(tmp_path, "mlflow", strategy={"kind": "non_private", "rounds": 2})
    told = made[0]
    assert [number for number, _ in told.rounds] == [1, 2]
    assert not [name for _, values in told.rounds for name in values if "epsilon" in name]
    assert not {"epsilon", "delta"} & told.endings[0].metrics.keys()
    assert told.endings[0].texts["holds"] == "False"


def test_values_that_are_not_finite_are_left_out(monkeypatch, tmp_path):
    metrics = {"test_loss": 1.0, "overflown": float("inf"), "undefined": float("nan")}
    monkeypatch.setattr(Evaluation, "__call__", lambda self, x: metrics)
    monkeypatch.setattr(Evaluation, "details", lambda self, x, metrics: {"auc": float("nan")})
    with noting(monkeypatch) as made:
        go(tmp_path, "mlflow")
    told = made[0]
    assert [{name for name in values if "metric" in name} for _, values in told.rounds] == [{"metric/test_loss"}] * 3
    assert {name for name in told.endings[0].metrics if name.startswith("final/")} == {"final/test_loss"}


@pytest.mark.parametrize("broken", [["round"], ["finish"], ["round", "finish"]])
def test_a_tracker_that_fails_does_not_stop_the_run_and_is_told_of_once(monkeypatch, tmp_path, caplog, broken):
    with noting(monkeypatch, *broken) as made:
        outcome = go(tmp_path, "mlflow")
    assert outcome.result["rounds"] == 3
    assert "error" not in outcome.result
    (warning,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert warning.startswith("mlflow failed (ConnectionError)")
    assert "password" not in warning
    assert [number for number, _ in made[0].rounds] == ([1] if "round" in broken else [1, 2, 3])
    assert len(made[0].endings) == 1


def test_an_interrupt_stops_the_run_and_the_tracker_is_told(monkeypatch, tmp_path):
    config, stop = parse_config(changed(output={"trackers": ["mlflow"]})), Mock(side_effect=KeyboardInterrupt)
    with noting(monkeypatch) as made, pytest.raises(KeyboardInterrupt):
        run(config, directory=tmp_path / "run", observers=[Watching(stop)])
    (told,) = made
    assert [number for number, _ in told.rounds] == [1]
    assert (told.endings[0].error, [*told.endings[0].files]) == ("interrupted", ["result.json"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_told_before_the_directory_is_touched(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, TRACKERS[name][0], None)
    with pytest.raises(BadInput, match=rf"output\.trackers = \['{name}'\].*pip install 'userdp\[trackers\]'"):
        go(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_tracker_that_cannot_be_opened_is_told_without_its_address(monkeypatch, tmp_path):
    first = Noted(tmp_path, {})
    refuse = Noted(tmp_path, {}, ("round",)).round
    fakes = {"mlflow": ("json", lambda *_: first), "tensorboard": ("json", refuse)}
    monkeypatch.setattr(simulations.runs.trackers, "TRACKERS", fakes)
    with pytest.raises(BadInput, match=r"output\.trackers: tensorboard cannot be opened \(ConnectionError\)") as caught:
        go(tmp_path, "mlflow", "tensorboard")
    assert "password" not in str(caught.value)
    assert first.endings == [None]
    assert not first.rounds


def test_trackers_do_not_change_the_run_and_one_named_twice_is_opened_once(monkeypatch, tmp_path):
    plain = go(tmp_path / "plain")
    with noting(monkeypatch) as made:
        tracked = go(tmp_path / "tracked", "mlflow", "mlflow")
    (told,) = made
    assert len(told.rounds) == 3
    np.testing.assert_array_equal(plain.model, tracked.model)
    assert [plain.result[name] for name in SAME] == [tracked.result[name] for name in SAME]
