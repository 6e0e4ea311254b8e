"""``survival`` in [data], from a table to coefficients, predictions, runs and the report; and beside lifelines."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import call
from helpers import forgive_ray
from helpers_killed import killed_at, left
from rich.console import Console

import simulations.records.checkpoints
from simulations import train
from simulations.config.run_config import parse_config
from simulations.reports.coefficients import coefficient_cells, show_coefficients
from simulations.reports.report import copy_released
from simulations.runs.run import run
from userdp.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "hazards.md").read_text(encoding="utf-8")
YEARS = [365 * year for year in range(13)]
TABLES = {
    "nafld1": {
        "user": "id",
        "features": ["age"],
        "ranges": {"age": [18, 98]},
        "categorical": {"male": [0, 1]},
        "survival": {"time": "futime", "event": "status", "periods": [730 * place for place in range(9)]},
    },
    "flchain": {
        "user": "rownames",
        "features": ["age", "kappa", "lambda"],
        "ranges": {"age": [50, 101], "kappa": [0, 6], "lambda": [0, 6]},
        "categorical": {"sex": ["F", "M"]},
        "survival": {"time": "futime", "event": "death", "periods": YEARS},
    },
    "rotterdam": {
        "user": "pid",
        "features": ["age", "nodes"],
        "ranges": {"age": [24, 90], "nodes": [0, 8]},
        "categorical": {"hormon": [0, 1], "chemo": [0, 1]},
        "survival": {"time": "dtime", "event": "death", "periods": [500 * place for place in range(9)]},
    },
}
# Facts by lifelines 0.30.3 about the public tables of the R package survival: CoxPHFitter on days, whose numbers are
# clipped into the ranges above.
COX = {
    "nafld1": {"age": 0.0990, "male=1": 0.3729},
    "flchain": {"age": 0.1015, "kappa": 0.1825, "lambda": 0.2454, "sex=M": 0.3099},
    "rotterdam": {"age": 0.0138, "nodes": 0.2069, "hormon=1": -0.2461, "chemo=1": -0.0891},
}


def public_table(name):
    for folder in (os.environ.get("USERDP_DATA"), ROOT.parent / "shared" / "data"):
        if folder and (Path(folder) / f"{name}.parquet").is_file():
            return Path(folder) / f"{name}.parquet"
    pytest.skip(f"{name}.parquet is not in USERDP_DATA: it is in the collection that docs/hazards.md names")


@pytest.mark.parametrize("name", TABLES)
def test_ratios_are_those_of_a_cox_model_without_privacy(name):
    """All intervals of one seed that are given, four of five at least, hold the estimate without privacy."""
    model = train(
        public_table(name),
        problem="cloglog",
        strategy={"kind": "auto", "coefficients": 0.5},
        epsilon=4.0,
        delta=1e-6,
        seed=1,
        test_fraction=0.0,
        **TABLES[name],
    )
    found = model.coefficients().loc[list(COX[name])].assign(cox=COX[name])
    given = found[found["low"].notna()]
    assert len(given) >= 0.8 * len(found)
    assert ((given["low"] <= given["cox"]) & (given["cox"] <= given["high"])).all(), found.to_string()


def people(count=400):
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, count)
    ends = rng.exponential(30 * np.exp(-(age - 50) / 30))
    frame = pd.DataFrame({"who": np.arange(count), "age": age, "end": np.minimum(ends, 12.0), "died": ends < 12})
    return frame.assign(died=frame["died"].map({True: "yes", False: "no"}))


COLUMNS = {
    "user": "who",
    "features": ["age"],
    "ranges": {"age": [20, 80]},
    "survival": {"time": "end", "event": "died", "happened": "yes", "periods": [0, 3, 6, 12]},
}
STRATEGY = {"kind": "auto", "coefficients": 0.5}


def trained(problem="cloglog", **more):
    options = {**COLUMNS, "epsilon": 50.0, "delta": 1e-5, "strategy": STRATEGY}
    return train(people(), problem=problem, **options | more)


@pytest.mark.parametrize(("problem", "ratio"), [("cloglog", "hazard ratio"), ("logistic", "odds ratio")])
def test_print_and_report_say_which_ratio_a_coefficient_is(problem, ratio, capsys):
    model = trained(problem)
    names = ["age", "period 0 to 3", "period 3 to 6", "period 6 to 12"]
    assert list(model.coefficients().index) == names
    assert model.coefficients().loc["age", "unit"] == f"log {ratio} per 1 of age"
    first, *levels = coefficient_cells(model.coefficient_rows)
    low, high = model.coefficients().loc["age", ["low", "high"]]
    assert f"({ratio} 1.0" in first[2]
    assert f"({np.exp(low):.3g} to {np.exp(high):.3g})" in first[4]
    assert not any("(" in cell for level in levels for cell in level)
    show_coefficients(model.coefficient_rows, Console(width=200))
    assert ratio in capsys.readouterr().out


def test_a_ratio_that_is_no_number_in_the_columns_unit_is_left_out():
    row = {"coefficient": "x", "unit": "log hazard ratio per 1 of x", "standard_error": 1.0}
    near, far = ({**row, "estimate": at, "interval": [at - 2, at + 2]} for at in (0.0, 1e6))
    cells = coefficient_cells([near, far])
    assert (cells[0][2], cells[0][4]) == ("0 (hazard ratio 1)", "-2 to 2 (0.135 to 7.39)")
    assert not any("(" in cell for cell in cells[1])


def test_a_row_gets_the_probability_of_an_event_by_the_end_of_the_last_period():
    model = trained()
    asked = pd.DataFrame({"age": [25.0, 75.0]})
    told = model.predict(asked.assign(end=np.nan, died=""))
    chances = 1 - np.exp(-12 / (30 * np.exp(-(asked["age"] - 50) / 30)))
    np.testing.assert_allclose(told["probability"], chances, atol=0.12)
    assert told["prediction"].tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(model.predict(asked)["probability"], told["probability"])
    lacking = model.predict(pd.DataFrame({"age": [25.0, np.nan, 75.0]}))["probability"]
    np.testing.assert_array_equal(lacking, [told["probability"][0], np.nan, told["probability"][1]])


def test_there_is_no_form_in_onnx_and_no_other_loss(tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(BadInput, match=r"data\.survival predicts from all periods together"):
        trained().to_onnx(tmp_path / "model.onnx")
    with pytest.raises(BadInput, match="has no hazards: use cloglog or logistic"):
        trained({"kind": "poisson", "count_bound": 1.0})


@pytest.fixture
def config(tmp_path):
    """Makes a run's configuration, with other privacy settings, strategy or engine."""
    people().to_csv(tmp_path / "people.csv", index=False)
    data = {"kind": "table", "path": str(tmp_path / "people.csv"), "users": 400, "test_fraction": 0.0, **COLUMNS}

    def made(strategy=STRATEGY, engine=None, **privacy):
        raw = {"name": "follow-up", "data": data, "problem": {"kind": "cloglog"}, "strategy": strategy}
        raw |= {"privacy": {"epsilon": 50.0, "delta": 1e-5, **privacy}, "output": {"reference": False, "anyway": True}}
        return parse_config(raw | {"engine": {"users_per_node": 100, **(engine or {})}})

    return made


@pytest.mark.parametrize("moment", [20, 45])
def test_a_killed_run_goes_on_to_the_bit(config, tmp_path, moment, monkeypatch):
    monkeypatch.setattr(simulations.records.checkpoints, "SPARING", -1e9)
    run(config(), directory=tmp_path / "whole", checkpoint=True, report=False)
    assert killed_at(config(), tmp_path / "run", moment)
    run(config(), directory=tmp_path / "run", resume=True, report=False)
    assert left(tmp_path / "run") == left(tmp_path / "whole")


@forgive_ray
@pytest.mark.slow
def test_ray_finds_the_ratios_of_the_local_engine(config, tmp_path):
    here, there = (
        run(config(engine={"kind": kind}), directory=tmp_path / kind, report=False) for kind in ("local", "ray")
    )
    np.testing.assert_array_equal(there.model, here.model)
    assert there.result["coefficients"] == here.result["coefficients"]


@pytest.mark.usefixtures("accounts")
def test_secure_noise_an_account_a_copy_for_others_and_a_card(config, tmp_path):
    assert call("account", "create", "clinic", "--epsilon", 60, "--delta", 1e-5).exit_code == 0
    done = run(config(noise="secure", account="clinic"), directory=tmp_path / "run")
    shown = json.loads(call("account", "show", "clinic", "--json").stdout)
    assert [one["what"] for one in shown["entries"]] == ["follow-up: auto"]
    assert 49 < shown["spent_epsilon"] <= 50
    with pytest.raises(BadInput, match="clinic"):
        run(config(noise="secure", account="clinic"), directory=tmp_path / "again", report=False)
    copy_released(done.directory, tmp_path / "copy")
    copied = json.loads((tmp_path / "copy" / "result.json").read_text())
    assert copied["coefficients"] == done.result["coefficients"]
    assert call("report", done.directory, "--card").exit_code == 0
    card = json.loads((done.directory / "card.json").read_text())
    assert (card["strategy"], card["holds"]) == ("auto", True)


def test_masked_sums_train_hazards_where_auto_refuses_them(config, tmp_path):
    with pytest.raises(BadInput, match="trust"):
        run(config(trust="sum"), directory=tmp_path / "auto", report=False)
    steps = {"kind": "dp_fed_sgd", "rounds": 20, "learning_rate": 2.0}
    masked, plain = (
        run(config(steps, trust=trust), directory=tmp_path / trust, report=False) for trust in ("sum", "server")
    )
    assert np.isfinite(masked.model).all()
    np.testing.assert_allclose(masked.model, plain.model, atol=0.5)
