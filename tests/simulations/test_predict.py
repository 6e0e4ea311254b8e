"""Scoring tables: predictions of a trained model, and the metrics that its run reported."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from examples import call, changed, table_section, write_table
from scipy.special import expit

from simulations import load_config, load_model
from simulations.config.run_config import parse_config
from simulations.records.released_fields import field_of
from simulations.reports.report import copy_released
from simulations.runs.run import run
from userdp.data import public_file, split
from userdp.errors import BadInput, MissingColumn
from userdp.problems import Quadratic, TorchProblem

CONFIGS = Path(__file__).resolve().parents[2] / "simulations" / "configs"
CODES = {"features": None, "ranges": None, "categorical": None}
NUMBERS = {"target": "count", "positive": None}
SHARES = [f"probability.{k}" for k in range(10)]
LEVELS = ["red", "blue", "none of these"]
CLASSES = {"positive": None, "target_levels": LEVELS}
NAMED = [f"probability of {level}" for level in LEVELS]
KINDS = {
    "logistic": ({}, {}, ["prediction", "probability"]),
    "squared": ({}, {**NUMBERS, "target_range": [0.0, 8.0]}, ["prediction"]),
    "huber_regression": ({"target_range": [0.0, 9.0]}, NUMBERS, ["prediction"]),
    "biweight_regression": ({"target_range": [0.0, 9.0]}, NUMBERS, ["prediction"]),
    "lp_regression": ({}, {**NUMBERS, "target_range": [0.0, 8.0], "scale": "unit"}, ["prediction"]),
    "poisson": ({"count_bound": 9.0}, NUMBERS, ["prediction"]),
    "one_hot_logistic": ({}, {**CODES, "codes": "team", "levels": ["red", "blue"]}, ["prediction", "probability"]),
    "one_hot_squared": ({}, {**CODES, **NUMBERS, "codes": "team", "levels": ["red", "green", "blue"]}, ["prediction"]),
    "sparse_logistic": ({}, {**CODES, "codes": ["team", "height"], "buckets": 64}, ["prediction", "probability"]),
    "softmax": ({}, {"target": "team", **CLASSES, "categorical": None}, ["prediction", *NAMED]),
    "torch": ({"loss": "cross_entropy", "outputs": 10, "hidden": [4]}, NUMBERS, ["prediction", *SHARES]),
}
"""Problem -> (its settings, settings of the table, columns of its predictions)."""
KINDS["one_hot_squared"][1]["target_range"] = [0.0, 9.0]


def configuration(path, kind="logistic", **settings):
    problem, table, _ = KINDS[kind]
    precision = {"precision": "double"} if kind == "torch" else {}
    raw = changed(
        problem={"kind": kind, **problem, **precision},
        data=table_section(path, test_fraction=0.3, **{**table, **settings}),
        privacy={"epsilon": 8.0, "delta": 1e-3},
        output={"reference": False},
    )
    return parse_config(raw)


def made(folder, kind="logistic"):
    config = configuration(write_table(folder / "people.csv"), kind)
    run(config, directory=folder / "run", report=False)
    return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    made(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of a folder of a table, people.csv, and of a run on it, run."""
    return shutil.copytree(whole, tmp_path, dirs_exist_ok=True)


def write_held_out(config, table, path):
    labels = config.data.table(config.seed).labels
    numbers = SimpleNamespace(users=len(labels), select=lambda users: users)
    _, held_out = split(numbers, test_fraction=config.data.test_fraction, seed=config.seed)
    text = {"dtype": str, "keep_default_na": False}
    frame = pd.read_csv(table, **text) if table.suffix == ".csv" else pd.read_parquet(table)
    mine = frame[frame[config.data.declarations["user"]].astype(str).isin(labels[held_out])]
    assert 0 < len(mine) < len(frame)
    mine.to_csv(path, index=False)


@pytest.fixture
def table(tmp_path):
    path = write_table(tmp_path / "people.csv")
    frame = pd.read_csv(path, dtype=str)
    frame.loc[::17, "height"] = "tall"
    frame.loc[::13, "team"] = ""
    frame.loc[5, "height"] = "1e9"
    frame.to_csv(path, index=False)
    return path


@pytest.mark.sweep(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_held_out_table_gives_the_metrics_that_the_run_reported(tmp_path, table, kind):
    config = configuration(table, kind)
    reported = run(config, directory=tmp_path / "run", report=False).result["metrics"]
    write_held_out(config, table, tmp_path / "held-out.csv")
    measured = load_model(tmp_path / "run").evaluate(tmp_path / "held-out.csv")["this model"].to_dict()
    assert measured.keys() == reported.keys()
    assert measured == pytest.approx(reported, rel=1e-12, abs=0)
    # The shell tells the same numbers, and what it writes is in the list of what leaves.
    done = predict(tmp_path / "run", tmp_path / "held-out.csv", "--json", "--output", tmp_path / "p.csv")
    told, columns = json.loads(done.stdout), list(pd.read_csv(tmp_path / "p.csv"))
    assert told["metrics"] == measured
    assert columns == KINDS[kind][2]
    assert {field_of("predict: FILE", column).kind for column in columns} == {"held-out"}
    assert all(field_of("predict: --json", name) for name in told)


def test_a_public_data_set_is_scored_by_its_own_columns(tmp_path, public_cache, monkeypatch):
    monkeypatch.setenv("USERDP_DATA", str(public_cache))
    config = load_config(CONFIGS / "males.toml", ["strategy.rounds=2", "output.reference=false"])
    reported = run(config, directory=tmp_path / "run", report=False).result["metrics"]
    path = public_file("males")
    write_held_out(config, path, tmp_path / "men.csv")
    found = load_model(tmp_path / "run").evaluate(tmp_path / "men.csv")["this model"].to_dict()
    assert found == pytest.approx(reported, rel=1e-12, abs=0)
    assert len(load_model(tmp_path / "run").predict(path)) == 4360


def test_people_who_are_scored_need_no_column_that_says_who_is_held_out(tmp_path):
    path = write_table(tmp_path / "people.csv")
    frame = pd.read_csv(path)
    frame.assign(part=pd.factorize(frame["who"])[0] % 3).to_csv(path, index=False)
    raw = configuration(path).model_dump(exclude_none=True)
    del raw["data"]["test_fraction"]
    config = parse_config({**raw, "data": {**raw["data"], "split_column": "part", "split_test": 0}})
    run(config, directory=tmp_path / "run", report=False)
    assert load_model(tmp_path / "run").evaluate(frame)[["this model", "initial model"]].notna().all(axis=None)


def predict(*words):
    done = call("predict", *words)
    assert done.exit_code in (0, 2), done.output
    return done


def by_user(values, frame):
    return values.groupby(frame["who"]).mean().mean()


@pytest.mark.parametrize("kind", ["logistic", "squared", "one_hot_squared", "torch"])
def test_predictions_are_those_that_the_metrics_are_about(tmp_path, kind):
    config = made(tmp_path, kind)
    saved, frame = load_model(tmp_path / "run"), pd.read_csv(tmp_path / "people.csv")
    found, metrics = saved.predict(frame), saved.evaluate(frame)["this model"]
    if kind == "logistic":
        right = found["prediction"] == (frame["passed"] == "yes")
        assert by_user(right, frame) == pytest.approx(metrics["accuracy"], rel=1e-12)
        truth = np.where(frame["passed"] == "yes", found["probability"], 1 - found["probability"])
        assert by_user(pd.Series(-np.log(truth)), frame) == pytest.approx(metrics["log_loss"], rel=1e-9)
    elif kind == "torch":
        assert by_user(found["prediction"] == frame["count"], frame) == pytest.approx(metrics["accuracy"], rel=1e-12)
        assert found[SHARES].sum(axis=1).to_numpy() == pytest.approx(1.0)
    else:
        low, high = config.data.target_range
        errors = (found["prediction"] - frame["count"].clip(low, high)) / ((high - low) / 2)
        assert by_user(errors**2, frame) == pytest.approx(metrics["squared_error"], rel=1e-6)  # targets are float32
        root = saved.in_target_units(saved.evaluate(frame)).loc["root mean squared error, in units of count"]
        assert root["this model"] == pytest.approx((high - low) / 2 * metrics["squared_error"] ** 0.5)


def test_a_logistic_prediction_by_hand(folder):
    saved = load_model(folder / "run")
    people = pd.DataFrame({"team": ["green", "pink"], "height": [175, 260.0]}, index=[7, 3])
    found = saved.predict(people, on_unknown="reference")
    assert list(found.index) == [7, 3]
    # A bound on ||a||_1 of 2 and an intercept: nothing is scaled down. 175 is the middle, 260 is clipped to the end.
    scores = np.array([saved.model[2] + saved.model[4], saved.model[[0, 1, 4]].sum()])
    assert found["probability"].to_numpy() == pytest.approx(expit(scores), rel=1e-6)
    assert found["prediction"].tolist() == (scores > 0).astype(float).tolist()


def test_a_row_that_the_model_cannot_use_has_no_prediction_and_changes_no_other(tmp_path, table):
    config = configuration(table)
    run(config, directory=tmp_path / "run", report=False)
    saved, frame = load_model(tmp_path / "run"), pd.read_csv(table)
    found = saved.predict(table)
    tall, teamless = frame["height"] == "tall", frame["team"].isna()
    unusable = tall | teamless
    assert found["prediction"].isna().equals(unusable)
    assert found["probability"].isna().equals(unusable)
    pd.testing.assert_frame_equal(
        found[~unusable].reset_index(drop=True), saved.predict(frame[~unusable]).reset_index(drop=True)
    )
    done = predict(tmp_path / "run", table, "--output", tmp_path / "p.parquet")
    assert f"{unusable.sum()} of {len(frame)} rows get no prediction (NaN)" in done.stderr
    assert f"'height' in {tall.sum()}, 'team' in {teamless.sum()} of them" in done.stderr
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "p.parquet"), found)


def test_users_and_target_are_not_needed_for_predictions(folder, monkeypatch):
    monkeypatch.chdir(folder)
    pd.read_csv("people.csv")[["team", "height"]].to_csv("others.csv", index=False)
    done = predict("run", "others.csv")
    assert done.exit_code == 0
    assert "Not measured: the data file others.csv has no column 'who'" in " ".join(done.stdout.split())
    found = pd.read_csv("others-predictions.csv")
    assert found["probability"].to_numpy() == pytest.approx(load_model("run").predict("people.csv")["probability"])
    with pytest.raises(MissingColumn, match="has no column 'height'"):
        load_model("run").predict(pd.DataFrame({"team": ["red"]}))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("logistic", ["(8, 0.001)-differential privacy for replacing one whole user"]),
        ("squared", ["root mean squared error, in units of count", "calibration error, in units of count"]),
    ],
)
def test_the_command_says_what_the_guarantee_covers_and_errors_in_the_targets_units(tmp_path, monkeypatch, kind, words):
    monkeypatch.setenv("COLUMNS", "200")
    made(tmp_path, kind)
    done = predict(tmp_path / "run", tmp_path / "people.csv", "--output", tmp_path / "p.csv")
    told = " ".join(done.stdout.split())
    saved = load_model(tmp_path / "run")
    units = saved.in_target_units(saved.evaluate(tmp_path / "people.csv"))
    words += ["No guarantee covers the people of this table", "initial model", str(tmp_path / "p.csv")]
    words += [f"{value:.4g}" for name, value in units["this model"].items() if name.startswith("root mean")]
    assert [one for one in words if one not in told] == []


def test_a_copy_for_others_predicts_the_same(tmp_path):
    path = write_table(tmp_path / "people.csv")
    raw = configuration(path).model_dump(exclude_none=True)
    raw["privacy"] |= {"noise": "secure"}
    run(parse_config(raw), directory=tmp_path / "run")
    copied = copy_released(tmp_path / "run", tmp_path / "copy").parent
    found = [load_model(directory).predict(path) for directory in (tmp_path / "run", copied)]
    pd.testing.assert_frame_equal(*found)


# Refusals ----------------------------------------------------------------------------------------------------------


def test_what_predicts_nothing_is_refused(tmp_path):
    path = write_table(tmp_path / "people.csv")
    data = table_section(path, target=None, positive=None)
    run(parse_config(changed(data=data, privacy__delta=1e-3)), directory=tmp_path / "run", report=False)
    done = predict(tmp_path / "run", path, "--output", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert "problem.kind = 'quadratic' makes no predictions" in done.stderr
    assert not (tmp_path / "p.csv").exists()
    # It can be measured all the same.
    assert load_model(tmp_path / "run").evaluate(path).loc["test_loss", "this model"] > 0


def test_a_reconstruction_predicts_nothing():
    from torch import nn

    problem = TorchProblem(lambda: nn.Linear(2, 2), "mse", 2, has_targets=False)
    with pytest.raises(BadInput, match="'torch' makes no predictions"):
        problem.predict(problem.initial(), None)
    with pytest.raises(BadInput, match="'quadratic' makes no predictions"):
        Quadratic(2, 1.0, 1.0).predict(np.zeros(2), None)


@pytest.mark.slow
def test_a_run_on_simulated_users_is_refused(tmp_path):
    run(parse_config(changed()), directory=tmp_path / "run", report=False)
    done = predict(tmp_path / "run", write_table(tmp_path / "people.csv"))
    assert done.exit_code == 2
    assert "data.kind = 'synthetic': samples have no named columns" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("empty", "people.csv"), "holds no config.toml: give the directory of a run"),
        (("run", "absent.csv"), "does not exist"),
        (("run", "people.csv", "--output", "p.txt"), "must end with .csv or .parquet"),
        (("run", "people.csv", "--output", "people.csv"), "is the table itself"),
        (("run", "people.csv", "--output", "no/p.csv"), "cannot be written"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(folder, monkeypatch, arguments, told):
    monkeypatch.chdir(folder)
    before = (folder / "people.csv").read_bytes()
    done = predict(*arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert (folder / "people.csv").read_bytes() == before


@pytest.mark.parametrize("name", ["config.toml", "guarantee.json", "model.npz"])
def test_a_damaged_file_is_refused(folder, name):
    path = folder / "run" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\xff")
    with pytest.raises(BadInput, match="holds a damaged file"):
        load_model(folder / "run")


def test_a_model_of_another_run_is_refused(folder):
    np.savez(folder / "run" / "model.npz", x=np.zeros(4))
    with pytest.raises(BadInput, match=r"holds a model of shape \(4,\), but config.toml beside it needs \(5,\)"):
        load_model(folder / "run")
