"""Clipping tuned by looking at the answers, beside strategies that may be used."""

import copy
import json
import re
import tomllib

import numpy as np
import pandas as pd
import pytest
from examples import COMPARISON, call
from helpers import at_most

from simulations import compare
from simulations.comparison import oracle
from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import Progress
from simulations.comparison.jobs import compare as run_all
from simulations.comparison.oracle import ORACLE, STRATEGIES, Scales, measured_scales, name_of, scales_of
from simulations.comparison.ranking import rankings
from simulations.comparison.report import render_comparison
from simulations.config.run_config import parse_config
from simulations.reports.report import copy_released, render
from simulations.runs.build import load_datasets
from userdp.errors import BadInput

SMALL = COMPARISON | {"strategy": COMPARISON["strategy"][:1], "grid": {}, "against_oracle": True}
SMALL |= {"privacy": {"epsilon": 4.0, "delta": 1e-5}}
SEARCH = {"cost": "free, tuned on public synthetic data", "public_seed": 1000}
ORACLES = [name_of(kind) for kind in STRATEGIES]
NUMBER = {"features": ["a"], "ranges": {"a": [0.0, 1.0]}}


def changed(**settings):
    return copy.deepcopy(SMALL) | settings


def run_config(**settings):
    raw = {key: value for key, value in changed(**settings).items() if key not in ("seeds", "against_oracle", "grid")}
    return parse_config(raw | {"seed": 7, "strategy": {"kind": "dp_fed_sgd"}})


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(oracle, "CLIPS", (0.01, 1.0))
    monkeypatch.setattr(oracle, "STEPS", (1.0,))
    monkeypatch.setattr(oracle, "ROUNDS", (1, 3))


# The file ----------------------------------------------------------------------------------------------------------


def test_its_strategies_stand_beside_those_of_the_file_and_say_what_they_are():
    comparison = parse_comparison(SMALL)
    assert comparison.labels == ("dp_fed_sgd", *ORACLES)
    assert all("NOT-private" in name for name in ORACLES)
    assert [cell.oracle for cell in comparison.cells] == [False] * 2 + [True] * 2 * len(ORACLES)
    assert {cell.config().name for cell in comparison.cells} == {"small", "small-oracle-NOT-private"}
    assert parse_comparison(changed(against_oracle=False)).labels == ("dp_fed_sgd",)


def test_its_seed_is_neither_compared_nor_tuned_on():
    assert parse_comparison(SMALL).oracle_seed == 1000
    assert parse_comparison(changed(seeds=[0, 1000])).oracle_seed == 1001
    tuning = SEARCH | {"repeats": 2, "search": {"dp_fed_sgd": {"clip_norm": [0.1, 1.0]}}}
    comparison = parse_comparison(changed(tuning=tuning))
    assert comparison.oracle_seed == 1002
    assert [bool(comparison.candidates(cell)) for cell in comparison.cells] == [True] * 2 + [False] * 6
    with pytest.raises(BadInput, match="no strategy has this label or kind"):
        parse_comparison(changed(tuning=SEARCH | {"search": {ORACLES[0]: {"clip_norm": [0.1, 1.0]}}}))


# What settings are multiples of ------------------------------------------------------------------------------------


def test_scales_are_the_median_gradient_at_the_start_and_one_over_the_curvature():
    config = run_config()
    federation = load_datasets(config).users
    means = federation.block(np.arange(300)).features.reshape(300, 4, 3).mean(axis=1)
    found = measured_scales(config)
    assert found.length == pytest.approx(np.median(np.linalg.norm(means, axis=1)), rel=5e-3)
    assert found.step == 1.0  # half a squared distance


def test_curvature_is_that_of_the_steepest_direction():
    problem = {"kind": "squared", "radius": 50.0, "target_range": [-10.0, 10.0], "intercept": False}
    data = SMALL["data"] | {"population": "linear_regression", "dimension": 4, "feature_norm": 2.0}
    config = run_config(problem=problem, data=data)
    block = load_datasets(config).users.block(np.arange(300))
    rows = block.features.astype(float)
    steepest = np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1]
    assert measured_scales(config).step == pytest.approx(1 / steepest, rel=3e-2)  # power iteration stops early


def test_where_there_is_no_curvature_a_step_crosses_the_domain():
    found = measured_scales(run_config(problem={"kind": "linear", "bound": 5.0, "radius": 2.0}))
    config = run_config()
    means = load_datasets(config).users.block(np.arange(300)).features.mean(axis=0)
    assert found.step == pytest.approx(4 * np.sqrt(3) / np.linalg.norm(means), rel=1e-2)


def test_settings_are_about_two_dozen_multiples_of_the_scales():
    settings = Scales(2.0, 0.5).settings()
    assert len(settings) == oracle.TRIED == 24
    assert len({json.dumps(one) for one in settings}) == 24
    ten_times = Scales(20.0, 0.5).settings()
    for one, larger in zip(settings, ten_times, strict=True):
        assert larger == one | {"clip_norm": pytest.approx(10 * one["clip_norm"])}


def test_scales_are_measured_once_and_kept_under_a_private_name(tmp_path, monkeypatch):
    found = scales_of(run_config(), tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("scales_private-")
    monkeypatch.setattr(oracle, "measured_scales", None)
    assert scales_of(run_config(), tmp_path) == found


# Running -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_oracle_takes_the_best_setting_of_another_seed_and_promises_nothing(tmp_path, few):
    outcome = run_all(parse_comparison(SMALL), workers=0, directory=tmp_path)
    assert outcome.ran == 2 + 2 + 3 * (4 + 2)
    rows = pd.read_parquet(tmp_path / "results.parquet")
    private, looked = rows[~rows["oracle"]], rows[rows["oracle"]]
    assert set(private["strategy"]) == {"dp_fed_sgd"}
    assert set(looked["strategy"]) == set(ORACLES)
    assert not looked["holds"].any()
    assert looked[["spent_epsilon", "replace_one_epsilon", "tuned"]].isna().all(axis=None)
    assert private["holds"].all()
    assert private["oracle_private"].isna().all()

    for kind in STRATEGIES:
        tried = {}
        for path in (tmp_path / "oracle").glob(f"{name_of(kind)}-*/result.json"):
            config = tomllib.loads((path.parent / "config.toml").read_text())
            assert config["seed"] == 1000
            setting = {name: config["strategy"][name] for name in ("clip_norm", "learning_rate", "rounds")}
            tried[json.dumps(setting)] = json.loads(path.read_text())["metrics"]["excess_risk"]
        assert len(tried) == 4
        (chosen,) = set(looked.loc[looked["kind"] == kind, "oracle_private"])
        assert chosen == min(tried, key=tried.get)

    for directory in looked["directory"]:
        folder = tmp_path / directory
        for name in ("plan.json", "result.json"):
            assert json.loads((folder / name).read_text())["guarantee"]["holds"] is False
        assert json.loads((folder / "guarantee.json").read_text())["sentence"] == ORACLE
        assert pd.read_parquet(folder / "rounds.parquet")["spent_epsilon"].isna().all()
        page = render(folder).read_text()
        assert "No privacy is promised" in page
        assert "outcome would become more" not in page
        with pytest.raises(BadInput, match="promises no privacy"):
            copy_released(folder, tmp_path / "handed-on")
    kept = (tmp_path / private["directory"].iloc[0] / "guarantee.json").read_text()
    assert json.loads(kept)["holds"] is True

    assert run_all(parse_comparison(SMALL), workers=0, directory=tmp_path).ran == 0


@pytest.mark.slow
def test_it_is_labelled_everywhere_and_never_the_best(tmp_path, few):
    run_all(parse_comparison(SMALL), workers=0, directory=tmp_path)
    rows = pd.read_parquet(tmp_path / "results.parquet")
    rows.loc[rows["oracle"], "value"] = 0.0  # ahead of all others
    rows.to_parquet(tmp_path / "results.parquet")
    page = render_comparison(tmp_path).read_text()
    verdict = re.search(r'<div class="verdict.*?</div>', page, flags=re.DOTALL).group()
    assert "dp_fed_sgd" in verdict
    assert "oracle" not in verdict
    assert page.count(f'<span class="tag">{ORACLE}</span>') == 2 * len(ORACLES)  # over all settings, and in the ranking
    assert "<h2>The oracle</h2>" in page
    markdown = (tmp_path / "report.md").read_text()
    overall = markdown.partition("## Over all settings")[2].partition("\n## ")[0]
    for name in ORACLES:
        assert f"| {name} ({ORACLE}) | - |" in overall
    assert "| dp_fed_sgd | 1 |" in overall
    assert "user level, replace one" not in "".join(line for line in markdown.splitlines() if "oracle" in line)
    told = rankings(tmp_path)
    lines = [line for line in told.splitlines() if line.strip() and not line.strip().startswith("assuming: ")]
    assert lines[-1].strip() == ORACLE
    assert told.index(ORACLES[0]) < told.index("\n  dp_fed_sgd")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "limit", "told"),
    [
        ({}, 2, ""),  # the references alone are run
        ({"data": {"kind": "table", "path": "nowhere.parquet", "user": "u"} | NUMBER}, None, "nowhere.parquet"),
    ],
    ids=["not run", "data that cannot be looked at"],
)
def test_an_oracle_without_a_result_is_no_private_strategy_and_no_crash(tmp_path, few, settings, limit, told):
    with at_most(limit):
        outcome = run_all(parse_comparison(changed(**settings)), workers=0, directory=tmp_path)
    assert all(one["error_private"] and told in one["error_private"] for one in outcome.rows)
    overall = (tmp_path / "report.md").read_text().partition("## Over all settings")[2].partition("\n## ")[0]
    for name in ORACLES:
        assert f"| {name} ({ORACLE}) | - |" in overall


@pytest.mark.slow
def test_the_command_and_python_take_it_as_the_file_does(tmp_path, few):
    file = tmp_path / "small.toml"
    file.write_text(parse_comparison(changed(against_oracle=False)).toml())
    told = call("compare", file, "--against-oracle", "--workers", 0, "--output", tmp_path, "--json")
    assert told.exit_code == 0
    assert {one["strategy"] for one in json.loads(told.stdout) if one["oracle"]} == set(ORACLES)
    assert tomllib.loads((tmp_path / "small" / "comparison.toml").read_text())["against_oracle"] is True
    frame = pd.DataFrame({"u": np.repeat(np.arange(60), 2), "a": np.linspace(0, 1, 120)})
    asked = {"problem": {"kind": "quadratic", "bound": 1.0}, "strategy": ["dp_fed_sgd"], "epsilon": 4.0, "delta": 1e-4}
    found = compare(frame, user="u", **NUMBER, **asked, seeds=1, against_oracle=True)
    assert set(found.table.loc[found.table["oracle"], "strategy"]) == set(ORACLES)


def test_the_live_table_counts_what_the_oracle_has_looked_at():
    assert "0 of 72 runs of the oracle" in Progress(parse_comparison(SMALL)).table().title
