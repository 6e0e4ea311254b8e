"""Clipping tuned by looking at the answers, the yardstick of research/zero_tuning.py."""

import copy
import json

import numpy as np
import pytest
from examples import COMPARISON

from simulations.config.run_config import parse_config
from simulations.runs.build import load_datasets


@pytest.fixture
def oracle(module_of):
    return module_of("oracle")


def run_config(**settings):
    raw = copy.deepcopy(COMPARISON) | {"privacy": {"epsilon": 4.0, "delta": 1e-5}} | settings
    raw = {key: value for key, value in raw.items() if key not in ("seeds", "grid")}
    return parse_config(raw | {"seed": 7, "strategy": {"kind": "dp_fed_sgd"}})


def test_scales_are_the_median_gradient_at_the_start_and_one_over_the_curvature(oracle):
    config = run_config()
    means = load_datasets(config).users.block(np.arange(300)).features.reshape(300, 4, 3).mean(axis=1)
    found = oracle.measured_scales(config)
    assert found.length == pytest.approx(np.median(np.linalg.norm(means, axis=1)), rel=5e-3)
    assert found.step == 1.0  # half a squared distance


def test_curvature_is_that_of_the_steepest_direction(oracle):
    problem = {"kind": "squared", "radius": 50.0, "target_range": [-10.0, 10.0], "intercept": False}
    data = COMPARISON["data"] | {"population": "linear_regression", "dimension": 4, "feature_norm": 2.0}
    config = run_config(problem=problem, data=data)
    rows = load_datasets(config).users.block(np.arange(300)).features.astype(float)
    steepest = np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1]
    assert oracle.measured_scales(config).step == pytest.approx(1 / steepest, rel=3e-2)  # power iteration stops early


def test_where_there_is_no_curvature_a_step_crosses_the_domain(oracle):
    found = oracle.measured_scales(run_config(problem={"kind": "linear", "bound": 5.0, "radius": 2.0}))
    means = load_datasets(run_config()).users.block(np.arange(300)).features.mean(axis=0)
    assert found.step == pytest.approx(4 * np.sqrt(3) / np.linalg.norm(means), rel=1e-2)


@pytest.mark.slow
def test_the_best_setting_of_another_seed_is_used_under_a_name_that_says_what_it_is(oracle, tmp_path, monkeypatch):
    monkeypatch.setattr(oracle, "CLIPS", (0.01, 1.0))
    monkeypatch.setattr(oracle, "STEPS", (1.0,))
    monkeypatch.setattr(oracle, "ROUNDS", (1, 3))
    raw = {key: COMPARISON[key] for key in ("name", "problem", "data")} | {"privacy": {"delta": 1e-5}, "seeds": [0]}
    rows = list(oracle.oracle_rows(raw, [4.0], tmp_path))
    assert [one["strategy"] for one in rows] == [oracle.name_of(kind) for kind in oracle.STRATEGIES]
    results = [json.loads(path.read_text()) for path in tmp_path.glob("cells/dp_fed_sgd-*-seed1000-*/result.json")]
    assert len(results) == 4
    best = min(tmp_path.glob("cells/dp_fed_sgd-*-seed1000-*"), key=_risk)
    chosen = json.loads(rows[0]["settings"])
    assert _risk(tmp_path / rows[0]["directory"]) == rows[0]["value"]
    plan = json.loads((best / "plan.json").read_text())
    assert (plan["numbers"]["clip_norm"], plan["rounds"]) == (chosen["clip_norm"], chosen["rounds"])


def _risk(folder):
    return json.loads((folder / "result.json").read_text())["metrics"]["excess_risk"]
