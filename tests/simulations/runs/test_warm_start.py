"""Training that starts from a public model: where it begins, what is refused, and that everybody is told."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import ASKED, changed, table_section, write_table

from simulations import load_config, load_model, plan, train
from simulations.comparison.config import load_comparison
from simulations.comparison.jobs import compare
from simulations.config.run_config import parse_config
from simulations.runs.build import build_problem, make_plan, starting_problem
from simulations.runs.run import run
from userdp.errors import BadInput

LASSO = {"kind": "private_lasso", "l1_radius": 0.5, "rounds": 3}
CLIPPING = {"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": 4}
MEAN = [0.6, -0.6, 0.6]
PEOPLE = {key: value for key, value in ASKED.items() if key != "problem"}


@pytest.fixture
def trained(tmp_path):
    raw = changed(seed=9, data__mean=MEAN, privacy__epsilon=100.0)
    outcome = run(parse_config(raw), directory=tmp_path / "public", report=False)
    return outcome, str(tmp_path / "public" / "model.npz")


def warm(file, **settings):
    return parse_config(changed(problem__initial_model=str(file), **settings))


def stored(path, x):
    np.savez(path, x=np.asarray(x, dtype=np.float64))
    return path


def test_training_starts_where_the_public_model_is(trained, tmp_path):
    outcome, file = trained
    config = warm(file, data__mean=MEAN)
    again = run(config, directory=tmp_path / "run", report=True)
    np.testing.assert_array_equal(starting_problem(config).initial(), outcome.model)
    np.testing.assert_array_equal(build_problem(config).initial(), np.zeros(3))  # of nodes, who are sent their models
    cold = run(parse_config(changed(data__mean=MEAN)), directory=tmp_path / "cold", report=False)
    start, far = (each.result["reference"]["initial"]["test_loss"] for each in (again, cold))
    assert start < far
    assert not np.array_equal(again.model, cold.model)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "the initial model is public: model.npz was made without these users" in page
    assert "a warm start" in page


def test_the_loss_of_round_0_is_that_of_the_public_model(tmp_path):
    table = write_table(tmp_path / "people.csv")
    sections = {
        "data": table_section(table, users=48, test_fraction=0.2),
        "privacy": {"epsilon": 8.0, "delta": 1e-3},
        "strategy": CLIPPING,
    }
    raw = changed(problem={"kind": "logistic"}, **sections)
    first = run(parse_config(raw), directory=tmp_path / "first", report=False)
    raw["problem"]["initial_model"] = str(tmp_path / "first" / "model.npz")
    second = run(parse_config(raw), directory=tmp_path / "second", report=False)
    assert second.result["reference"]["initial"]["test_loss"] == first.result["metrics"]["test_loss"]
    before, after = (load_model(tmp_path / name).evaluate(table).loc["test_loss"] for name in ("first", "second"))
    assert after["initial model"] == before["this model"]


def test_the_plan_says_that_the_model_is_public_and_predicts_nothing_of_a_start_that_no_bound_knows(trained):
    told = "the initial model is public: model.npz was made without these users' data, or what it cost them is counted"
    planned, cold = make_plan(warm(trained[1])), make_plan(parse_config(changed()))
    assert any(each.startswith(told) for each in planned.guarantee.assumptions)
    assert planned.numbers["initial_model"] == "model.npz"
    assert "warm start" in planned.meanings["initial_model"]
    assert not any("initial model" in each for each in cold.guarantee.assumptions)
    assert "initial_model" not in cold.numbers
    assert (planned.guarantee.epsilon, planned.noise) == (cold.guarantee.epsilon, cold.noise)
    assert cold.forecast.start is not None
    assert (planned.forecast.start, planned.forecast.excess) == (None, None)
    assert warm(trained[1]).run_directory.name == "small-dp_fed_sgd-warm-seed3"
    assert parse_config(changed()).run_directory.name == "small-dp_fed_sgd-seed3"


BAD_FILES = {
    r"absent\.npz': there is no such file": None,
    r"a model of shape \(4,\), but this problem needs \(3,\)": np.zeros(4),
    r"holds numbers that are not finite": [0.0, np.nan, 0.0],
    r"lies outside the domain, \|x_j\| <= 10": [0.0, 16.0, 0.0],
    r"holds no model \((ValueError|UnpicklingError)\)": b"no archive",
    r"holds no model \(KeyError\)": {"weights": np.zeros(3)},
}


@pytest.mark.parametrize(("told", "content"), BAD_FILES.items(), ids=BAD_FILES)
def test_a_file_that_does_not_fit_is_refused_before_anything_is_written(told, content, tmp_path):
    path = tmp_path / "absent.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **(content if isinstance(content, dict) else {"x": np.array(content)}))
    config = warm(path, problem__radius=10.0)
    with pytest.raises(BadInput, match=r"problem\.initial_model = .*" + told):
        make_plan(config)
    with pytest.raises(BadInput, match=told):
        run(config, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_strategy_whose_models_are_of_one_kind_refuses_others_in_its_plan(tmp_path):
    raw = changed(
        problem={"kind": "squared", "intercept": False, "initial_model": str(tmp_path / "start.npz")},
        data=table_section(write_table(tmp_path / "people.csv"), users=48),
        privacy={"epsilon": 8.0, "delta": 1e-3},
        strategy=LASSO,
    )
    columns = build_problem(parse_config(raw)).dimension
    stored(tmp_path / "start.npz", np.full(columns, 1.6 / columns))
    with pytest.raises(BadInput, match=r"initial model of l1 norm 1\.6: must lie in the l1 ball of radius 0\.5"):
        make_plan(parse_config(raw))
    stored(tmp_path / "start.npz", np.full(columns, 0.4 / columns))
    assert make_plan(parse_config(raw)).numbers["initial_model"] == "start.npz"


def test_the_path_is_relative_to_the_configuration(trained, tmp_path, monkeypatch):
    folder = tmp_path / "public"
    text = parse_config(changed()).toml().replace("[problem]", '[problem]\ninitial_model = "model.npz"')
    (folder / "run.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = load_config("public/run.toml")
    assert config.problem.initial_model == str(folder / "model.npz")
    np.testing.assert_array_equal(starting_problem(config).initial(), trained[0].model)


COMPARISON = """
name = "starts"
seeds = 1
strategy = [{kind = "dp_fed_sgd", clip_norm = 1.0, rounds = 2}, {kind = "recentred_clipping", rounds = 2}]
[privacy]
epsilon = 4.0
delta = 1e-5
""" + "".join(
    f"""
[[problems]]
label = "{label}"
problem = {{kind = "quadratic", bound = 5.0{start}}}
data = {{kind = "synthetic", population = "gaussian", dimension = 3, mean = {MEAN}, users = 400, test_users = 9}}
"""
    for label, start in (("cold", ""), ("warm", ', initial_model = "public/model.npz"'))
)


@pytest.mark.slow
def test_a_comparison_runs_cold_and_warm_starts_side_by_side(trained, tmp_path):
    (tmp_path / "compare.toml").write_text(COMPARISON, encoding="utf-8")
    found = compare(load_comparison(tmp_path / "compare.toml"), workers=0, directory=tmp_path / "found")
    table = pd.DataFrame(found.rows)
    assert table["error_private"].isna().all()
    initial = table.groupby("problem")["initial"].unique()
    assert initial["warm"].item() < initial["cold"].item()
    assert len(list((tmp_path / "found" / "cells").iterdir())) == 4


def test_python_takes_the_file_beside_the_problem(tmp_path, monkeypatch):
    table, other = write_table(tmp_path / "people.csv"), Path("start.npz")
    monkeypatch.chdir(tmp_path)
    raw = changed(problem={"kind": "logistic"}, data=table_section(table, users=48))
    stored(other, np.full(build_problem(parse_config(raw)).dimension, 0.25))
    model = train(table, problem="logistic", initial_model=other, progress=False, **PEOPLE)
    assert model.config.problem.initial_model == str(tmp_path / "start.npz")
    assert any("the initial model is public: start.npz" in each for each in model.guarantee.assumptions)
    with pytest.raises(BadInput, match="initial_model is given without problem"):
        plan(initial_model=other, **PEOPLE)


def test_a_silo_needs_no_file_of_the_model_that_others_start_from(tmp_path):
    raw = changed(problem__initial_model=str(tmp_path / "on-the-server-alone.npz"))
    assert json.dumps(parse_config(raw).model_dump())
    assert build_problem(parse_config(raw)).dimension == 3
