"""The programs of docs/bring-a-table.md and docs/plan-and-predict.md, run as written."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import ASKED, call, write_table

from simulations import train

DOCS = Path(__file__).resolve().parents[2] / "docs"


def programs(page: str, language: str = "python") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_commands_that_follow_a_run_work_on_the_run_of_the_page_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people = pd.read_csv(write_table(tmp_path / "others.csv", users=3000)).rename(columns={"who": "person"})
    for name in ("heights.csv", "others.csv"):
        people.to_csv(name, index=False)
    people.to_csv("german.csv", index=False, sep=";", decimal=",")
    (tmp_path / "heights.toml").write_text(programs("train.md", "toml")[0], encoding="utf-8")
    commands = [line for block in programs("plan-and-predict.md", "") for line in block.splitlines()]
    commands = [line for line in commands if re.match("userdp (run|predict|report|export) ", line)]
    assert len(commands) > 5
    for command in ["userdp run heights.toml", *commands]:
        done = call(*shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)


@pytest.mark.slow
def test_a_query_of_duckdb_trains_and_a_frame_of_polars_is_scored(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    columns = {"person": np.repeat(np.arange(2000), 4), "age": rng.uniform(18, 100, 8000)}
    columns |= {"smoker": rng.choice(["yes", "no"], 8000), "year": np.tile([2023, 2024], 4000)}
    costs = 50 * columns["age"] + 2000 * (columns["smoker"] == "yes")
    pd.DataFrame(columns | {"costs": costs}).to_parquet(tmp_path / "visits.parquet")
    monkeypatch.chdir(tmp_path)
    (program,), names = programs("bring-a-table.md"), {}
    exec(program, names)
    assert names["model"].metrics["r2"] > 0.5
    assert len(names["scores"]) == 8000
    assert names["scores"]["prediction"].to_numpy() == pytest.approx(costs, abs=2000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType")
def test_a_model_as_onnx_and_in_mlflow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    others = pd.read_csv(write_table(tmp_path / "people.csv"))
    names = {"model": train(others, **ASKED, progress=False), "others": others}
    as_onnx, in_mlflow = programs("plan-and-predict.md")
    exec(as_onnx, names)
    two = names["model"].predict(pd.DataFrame({"height": [172.0, None], "team": ["red", None]}))
    np.testing.assert_allclose(names["probability"], two["probability"], rtol=1e-6)
    np.testing.assert_array_equal(names["prediction"], two["prediction"])
    exec(in_mlflow, names)
    pd.testing.assert_frame_equal(names["same"], names["model"].predict(others))
    assert (tmp_path / "heights-model" / "MLmodel").is_file()
