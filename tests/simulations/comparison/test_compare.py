import copy
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pandas as pd
import pytest
from examples import COMPARISON, SHIPPED, call
from helpers import PATIENCE, at_most, forgive_ray

import simulations.comparison.jobs
import simulations.comparison.one_cell
from simulations import terminal
from simulations.comparison.config import load_comparison, parse_comparison
from simulations.comparison.jobs import compare, reference_job
from simulations.comparison.one_cell import DONE
from simulations.comparison.plots import dot_chart, sweep_chart
from simulations.comparison.ranking import rankings
from simulations.comparison.report import render_comparison
from simulations.comparison.table import NOT_RUN, SUMMARY
from simulations.reports.explain import percent
from simulations.runs.build import make_plan
from userdp.errors import BadInput

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted(
    path
    for path in SHIPPED.values()
    if isinstance(tomllib.loads(path.read_text(encoding="utf-8")).get("strategy"), list)
)
SEARCH = {"cost": "free, tuned on public synthetic data", "public_seed": 1000}
SEARCH |= {"search": {"dp_fed_sgd": {"clip_norm": [0.001, 1.0]}}}
TUNED = {**COMPARISON, "strategy": COMPARISON["strategy"][:2], "tuning": SEARCH}


def changed(base=COMPARISON, **settings):
    return copy.deepcopy(base) | settings


def go(folder, raw, limit=None, **settings):
    with at_most(limit):
        return compare(parse_comparison(raw), workers=0, directory=folder, **settings)


def table(folder):
    return pd.read_parquet(folder / "results.parquet")


def assert_same(first, second):
    pd.testing.assert_frame_equal(*(table(folder).drop(columns="seconds") for folder in (first, second)))


def refusal(raw):
    with pytest.raises(BadInput) as caught:
        parse_comparison(raw)
    return str(caught.value)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "small"
    return go(folder, COMPARISON)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "tuned"
    return go(folder, TUNED)


# The file ----------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_comparisons_load_expand_and_plan(path):
    comparison = load_comparison(path)
    assert comparison.config.name == path.stem
    assert parse_comparison(tomllib.loads(comparison.toml())).cells == comparison.cells
    first = {cell.group: cell for cell in reversed(comparison.cells)}
    assert len(comparison.cells) == len(first) * len({cell.seed for cell in comparison.cells})
    for cell in first.values():
        options = comparison.candidates(cell) or [{}]
        for config in (cell.config(**options[0]), cell.config(**options[-1])):
            plan = make_plan(config)
            assert plan.guarantee.holds
            assert plan.guarantee.epsilon <= config.privacy.epsilon
            assert plan.guarantee.unit == config.privacy.unit


@pytest.mark.slow
@pytest.mark.parametrize(
    # Neural models take many minutes: research/neural_table.py runs them.
    "path",
    [path for path in CONFIGS if path.stem.startswith("compare-") and path.stem != "compare-neural"],
    ids=lambda path: path.stem,
)
def test_auto_runs_in_every_shipped_comparison(path, tmp_path, request, monkeypatch):
    """At the first point of its grid, with few users and one seed."""
    if path.stem == "compare-real":
        monkeypatch.setenv("USERDP_DATA", str(request.getfixturevalue("public_cache")))
    raw = tomllib.loads(path.read_text(encoding="utf-8")) | {"seeds": 1}
    raw.pop("tuning", None)
    raw["strategy"] = [entry for entry in raw["strategy"] if entry["kind"] == "auto"]
    raw["grid"] = {key: values[:1] for key, values in raw.get("grid", {}).items()}
    if "users" in raw.get("data", {}):
        raw["data"]["users"] = min(2_000, raw["data"]["users"])
    rows = go(tmp_path, raw).rows
    assert rows
    assert all(one["error_private"] is None and one["better_than_initial"] for one in rows)


def test_cells_are_all_combinations_at_one_unit_epsilon_and_delta():
    comparison = parse_comparison(COMPARISON)
    assert len(comparison.cells) == 3 * 2 * 2
    for epsilon in (1.0, 4.0):
        budgets = {cell.config().privacy for cell in comparison.cells if cell.grid["privacy.epsilon"] == epsilon}
        assert [(budget.epsilon, budget.delta, budget.unit) for budget in budgets] == [(epsilon, 1e-5, "user")]
    # References are shared by strategies and budgets: one a seed.
    assert len({reference_job(cell).digest for cell in comparison.cells}) == 2
    # Keys of the grid may be written without quotes, and seeds as a list.
    nested = parse_comparison(changed(grid={"privacy": {"epsilon": [1.0, 4.0]}}, seeds=[0, 1]))
    assert nested.cells == comparison.cells


def test_problems_replace_the_base_sections():
    raw = by_problem({}, {})
    for entry, kind in zip(raw["problems"], ("linear", "huber"), strict=True):
        entry["problem"] = {"kind": kind, "bound": 5.0}
    cells = parse_comparison(raw).cells
    assert [cell.config().problem.kind for cell in cells[:: len(cells) // 2]] == ["linear", "huber"]


def by_problem(*settings, **changes):
    base = changed(**changes)
    same = {"problem": base.pop("problem"), "data": base.pop("data")}
    return base | {"problems": [same | {"label": f"p{at}", "strategy": own} for at, own in enumerate(settings)]}


def test_a_problem_sets_strategies_by_kind_and_by_label_and_others_stay():
    strategies = [
        {"kind": "dp_fed_sgd", "rounds": 9, "clip_norm": 0.5},
        {"kind": "dp_fed_sgd", "label": "other", "rounds": 8, "learning_rate": 0.2},
        {"kind": "dp_ftrl"},
    ]
    first = {"dp_fed_sgd": {"rounds": 3, "clip_norm": 2.0}, "other": {"rounds": 4}}
    comparison = parse_comparison(
        by_problem(first, {}, strategy=strategies, seeds=[0], grid={"privacy.epsilon": [1.0]})
    )
    found = {(cell.problem, cell.strategy): cell.config().strategy for cell in comparison.cells}
    assert (found["p0", "dp_fed_sgd"].rounds, found["p0", "dp_fed_sgd"].clip_norm) == (3, 2.0)
    other = found["p0", "other"]
    assert (other.rounds, other.clip_norm, other.learning_rate) == (4, 2.0, 0.2)
    assert (found["p1", "dp_fed_sgd"].rounds, found["p1", "other"].rounds) == (9, 8)
    assert found["p0", "dp_ftrl"] == found["p1", "dp_ftrl"]
    assert parse_comparison(tomllib.loads(comparison.toml())).cells == comparison.cells


def test_a_report_shows_what_was_set_by_problem(tmp_path, done):
    raw = by_problem({"dp_fed_sgd": {"rounds": 3, "clip_norm": 2.5}}, {}, seeds=[0], grid={"privacy.epsilon": [1.0]})
    go(tmp_path, raw | {"strategy": [{"kind": "dp_fed_sgd"}]}, limit=1)
    markdown, page = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    assert "| p0 | dp_fed_sgd | rounds = 3, clip_norm = 2.5 |" in markdown
    assert "<td>rounds = 3, clip_norm = 2.5</td>" in page
    for name in ("report.md", "report.html"):
        assert "Settings by problem" not in (done.directory / name).read_text()


def searching(**settings):
    return TUNED | {"tuning": SEARCH | settings}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (by_problem({"dp_fedsgd": {}}), "problems.strategy.dp_fedsgd (problem 'p0'): no strategy has this label or"),
        (by_problem({"dp_fed_sgd": {}}), "give the strategy's own keys"),
        (by_problem({"dp_fed_sgd": {"kind": "dp_ftrl"}}), "give the strategy's own keys"),
        (by_problem({"poisson": {"clip_nrm": 3}}), "'poisson' for problem 'p0': unknown key strategy.clip_nrm"),
        (by_problem({"dp_fed_sgd": {"rounds": 0}}), "strategy 'dp_fed_sgd' for problem 'p0': strategy.rounds = 0"),
        (by_problem({"dp_fed_sgd": 3}), "problems.0.strategy.dp_fed_sgd = 3: must be a section"),
        (changed(strategy={"kind": "dp_fed_sgd"}), "[[strategy]]"),
        (changed(strategy=[]), "strategy"),
        (changed(strategy=[{"kind": "dp_ftrl", "clip_nrm": 1}]), "strategy 'dp_ftrl': unknown key strategy.clip_nrm"),
        (changed(strategy=[{"kind": "dp_fedsgd"}]), "did you mean 'dp_fed_sgd'"),
        (changed(strategy=[{"kind": "dp_ftrl"}, {"kind": "dp_ftrl"}]), "'dp_ftrl' stands for two entries"),
        (changed(seeds=0), "seeds = 0"),
        (changed(seeds=[1, 1]), "seeds = [1, 1]"),
        (changed(nam="x"), "unknown key nam"),
        (changed(engine={"kind": "spark"}), "engine.kind = 'spark'"),
        (changed(problem=None), "no problem"),
        (changed(grid={"strategy.rounds": [1]}), "'strategy.rounds': the grid varies keys of problem, data, privacy"),
        (changed(grid={"privacy.unit": ["user", "sample"]}), "compared at one unit"),
        (changed(grid={"privacy.epsilon": 1.0}), "must be a list of different values"),
        (changed(grid={"privacy.epsilon": [-1.0]}), "privacy.epsilon = -1.0"),
        (changed(privacy={"epsilon": [1.0]}), "privacy.epsilon = [1.0]: put lists of values under [grid]"),
        (searching(public_seed=1), "seed 1 is also compared on"),
        (searching(cost="none"), "tuning.cost"),
        (searching(search={"dp_ftrl": {"rounds": [1]}}), "no strategy has this label or kind"),
        (searching(search={"dp_fed_sgd": {"kind": ["dp_ftrl"]}}), "the strategy's own keys"),
        (searching(search={"dp_fed_sgd": {"rounds": []}}), "tuning.search.dp_fed_sgd.rounds"),
        (searching(search={"dp_fed_sgd": {"rounds": [0]}}), "strategy.rounds = 0"),
    ],
)
def test_bad_comparisons_are_refused_in_a_sentence(raw, words):
    assert words in refusal({key: value for key, value in raw.items() if value is not None})


def test_a_search_on_anything_but_synthetic_data_is_refused():
    raw = changed(TUNED, data={"kind": "public", "name": "males"}, problem={"kind": "logistic"})
    assert "only on public synthetic data" in refusal(raw)


# Running -----------------------------------------------------------------------------------------------------------


def test_every_cell_is_a_row_and_failures_are_rows_with_their_reason(done):
    rows = table(done.directory)
    assert len(rows) == len(done.rows) == 12
    failed, good = rows[rows["strategy"] == "too-few"], rows[rows["strategy"] != "too-few"]
    assert failed["error_private"].notna().all()
    assert failed["value"].isna().all()
    assert good["error_private"].isna().all()
    assert (good["value"] >= 0).all()
    assert (good["spent_epsilon"] <= good["epsilon"]).all()
    assert (good["better_than_initial"] == (good["value"] < good["initial"])).all()
    assert (good["reference_private"] < good["initial"]).all()


@pytest.mark.slow
def test_a_stopped_comparison_continues_and_ends_with_the_same_table(tmp_path, monkeypatch):
    raw = changed(strategy=COMPARISON["strategy"][:2])
    calls, original = [], simulations.comparison.one_cell.run

    def counting(config, **settings):
        calls.append(config)
        return original(config, **settings)

    monkeypatch.setattr(simulations.comparison.one_cell, "run", counting)
    whole = go(tmp_path / "whole", raw)
    assert len(calls) == whole.ran == 8 + 2
    calls.clear()
    first = go(tmp_path / "parts", raw, limit=6)
    assert first.ran == 6
    assert sum(one["error_private"] == NOT_RUN for one in first.rows) == 4
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob(DONE)}
    second = go(tmp_path / "parts", raw)
    assert second.ran == 4
    assert len(calls) == 10
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert_same(tmp_path / "whole", tmp_path / "parts")
    monkeypatch.setattr(simulations.comparison.jobs, "build_problem", Mock(side_effect=AssertionError("built again")))
    assert go(tmp_path / "parts", raw).ran == 0
    with pytest.raises(AssertionError, match="built again"):
        go(tmp_path / "parts", changed(raw, seeds=3))


@pytest.mark.slow
def test_a_cell_is_run_again_when_its_configuration_changes_or_it_failed(done, tmp_path):
    raw = changed(strategy=COMPARISON["strategy"][1:], seeds=1)
    assert go(tmp_path, raw).ran == 1 + 4
    assert go(tmp_path, raw).ran == 2  # what failed
    other = changed(raw, privacy={"delta": 1e-6})
    assert go(tmp_path, other).ran == 4
    (broken,) = (path for path in (tmp_path / "reference").rglob(DONE))
    broken.write_text("{")
    assert go(tmp_path, other).ran == 2 + 1


@pytest.mark.slow
def test_unexpected_errors_of_one_cell_leave_the_others(tmp_path, monkeypatch):
    original = simulations.comparison.one_cell.run

    def failing(config, **settings):
        if config.seed == 1 and config.strategy.kind == "dp_fed_sgd":
            raise ZeroDivisionError("with data in it")
        return original(config, **settings)

    monkeypatch.setattr(simulations.comparison.one_cell, "run", failing)
    rows = go(tmp_path, changed(strategy=COMPARISON["strategy"][:1])).rows
    assert [one["error_private"] for one in rows] == [None, "unexpected ZeroDivisionError"] * 2


def test_an_interrupted_comparison_leaves_its_table(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, COMPARISON, watch=Mock(side_effect=KeyboardInterrupt))
    assert (table(tmp_path)["error_private"] == NOT_RUN).all()


@pytest.mark.slow
def test_a_killed_comparison_repeats_no_finished_cell(tmp_path):
    file = tmp_path / "many.toml"
    file.write_text(parse_comparison(changed(name="many", strategy=COMPARISON["strategy"][:1], seeds=60)).toml())
    code = "from simulations.cli import app; app()"
    arguments = ["compare", str(file), "--workers", "0", "--output", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while len(before := list((tmp_path / "many").rglob(DONE))) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = list((tmp_path / "many").rglob(DONE)) or before
    assert 5 <= len(before) < 180
    comparison = load_comparison(file)
    with at_most(3):
        outcome = compare(comparison, workers=0, directory=tmp_path / "many")
    stamps = [path.stat().st_mtime_ns for path in before]
    assert outcome.ran == 3
    assert max(stamps) <= min(p.stat().st_mtime_ns for p in (tmp_path / "many").rglob(DONE) if p not in before)


@pytest.mark.slow
@forgive_ray
def test_ray_processes_give_the_same_table(done, tmp_path):
    outcome = compare(parse_comparison(COMPARISON), workers=2, directory=tmp_path / "ray")
    gc.collect()  # here, where the warnings about Ray's handles are expected
    assert_same(done.directory, outcome.directory)


# Tuning ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_sees_public_seeds_only_and_its_choice_is_used_and_recorded(tuned):
    rows = table(tuned.directory)
    assert set(rows["tuned"]) == {'{"clip_norm": 1.0}'}  # a clip of 0.001 does not get anywhere
    assert rows["directory"].nunique() == 8
    for one in rows["directory"]:
        assert tomllib.loads((tuned.directory / one / "config.toml").read_text())["strategy"]["clip_norm"] == 1.0
    searched = [tomllib.loads(path.read_text()) for path in (tuned.directory / "tuning").rglob("config.toml")]
    assert {one["seed"] for one in searched} == {1000}
    assert len(searched) == 2 * 2 * 2
    summary = json.loads((tuned.directory / "comparison.json").read_text())
    assert summary["tuning"]["cost"] == "free, tuned on public synthetic data"
    assert len(summary["tuning"]["chosen"]) == 4
    assert "free, tuned on public synthetic data" in (tuned.directory / "report.html").read_text()


@pytest.mark.slow
def test_cells_wait_for_their_search_and_a_report_of_nothing_but_failures_says_so(tmp_path):
    outcome = go(tmp_path, TUNED, limit=3)
    assert {(one["error_private"], one["directory"]) for one in outcome.rows} == {(NOT_RUN, None)}
    page = (outcome.directory / "report.html").read_text()
    assert "No private strategy has a result" in page
    assert "not run yet" in page


# Reports -----------------------------------------------------------------------------------------------------------


def test_the_page_is_complete_in_itself_and_ranks_by_the_median(done):
    page, rows = (done.directory / "report.html").read_text(), table(done.directory)
    for chart in re.findall("<svg.*?</svg>", page, flags=re.DOTALL):
        assert all(text in chart for text in ("initial model", "without privacy", "dp_fed_sgd", "poisson"))
    assert "<script" not in page
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?[^"'#]|url\(["']?[^"'#]|@import""", page)
    assert page.count("<svg") == page.count("</svg>") == 1 + 2  # by epsilon; by round at each
    markdown = (done.directory / "report.md").read_text()
    section = markdown.partition("### quadratic, epsilon = 4")[2].partition("\n## ")[0]
    names = re.findall(r"^\| ([\w-]+) \|", section, flags=re.MULTILINE)
    good = rows[(rows["privacy.epsilon"] == 4.0) & rows["value"].notna()].groupby("strategy")["value"].median()
    assert [name for name in names if name in good.index] == good.sort_values().index.tolist()
    assert names[-1] == "too-few"


@pytest.mark.slow
def test_charts_show_exact_optima_on_the_edge_of_a_logarithmic_axis():
    lines = [
        {"strategy": name, "median": value, "low": value, "high": value, "worse": False}
        for name, value in (("exact", 0.0), ("close", 1e-5), ("far", 0.5))
    ]
    point = {"metric": "excess risk", "index": "at 1", "ranking": lines}
    point |= {"initial": 1.0, "constant": None, "non_private": 0.0}
    points = [point | {"values": {"data.users": users}} for users in (10, 1000)]
    sweep = sweep_chart(points, "data.users", "users", ["exact", "close", "far"], "a <title>")
    for chart in (dot_chart(point), sweep):
        assert "10^{-5}" in chart
    unmeasured = point | {"ranking": [lines[0] | {"median": None}]}
    assert dot_chart(unmeasured) == ""
    assert sweep_chart([unmeasured | {"values": {"n": 1}}], "n", "n", ["exact"], "") == ""


@pytest.mark.slow
def test_strategies_worse_than_doing_nothing_are_marked_and_failures_told(done, tmp_path):
    shutil.copytree(done.directory, tmp_path, dirs_exist_ok=True)
    rows = table(tmp_path)
    rows.loc[rows["strategy"] == "poisson", "value"] = 100.0
    rows.to_parquet(tmp_path / "results.parquet")
    assert (tmp_path / SUMMARY).is_file()
    page = render_comparison(tmp_path).read_text()
    assert page.count('<span class="tag">no better than the initial model</span>') == 2
    assert "Failed runs" in page
    assert "no better than the initial model" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_without_a_numeric_grid_each_problem_has_a_plot_and_no_privacy_is_told(tmp_path):
    raw = changed(privacy={"epsilon": 1.0, "delta": 1e-5}, grid={}, seeds=1)
    raw["strategy"] = [{"kind": "dp_fed_sgd", "rounds": 2}, {"kind": "non_private"}, {"kind": "sample_clipped_sgd"}]
    outcome = go(tmp_path, raw)
    page = (outcome.directory / "report.html").read_text()
    assert page.count("<svg") == 1 + 1
    assert '<span class="tag">no privacy</span>' in page
    assert "as a group of 4" in page
    grouped = table(tmp_path).set_index("strategy").loc["sample_clipped_sgd"]
    assert (grouped["group"], grouped["epsilon"]) == (4, 1.0)
    assert grouped["sample_level_epsilon"] < 0.3


@pytest.fixture
def listed(tmp_path):
    values = {"good": [0.25, 0.5, 0.75], "same": [1.0] * 3, "hair": [1.0000004] * 3, "none": [None] * 3}
    fixed = {"problem": "quadratic", "privacy.epsilon": 1.0, "epsilon": 1.0, "delta": 1e-6, "unit": "user"}
    fixed |= {"relation": "replace_one", "main_metric": "test_loss", "initial": 1.0, "reference_private": 0.0}
    fixed |= {"group": None, "sample_level_epsilon": None}
    cells = []
    for name, found in values.items():
        for seed, value in enumerate(found):
            own = {"holds": name != "same", "error_private": None}
            own = {"holds": None, "error_private": "too few users"} if value is None else own
            cells.append(fixed | own | {"strategy": name, "seed": seed, "value": value})
    pd.DataFrame(cells).to_parquet(tmp_path / "results.parquet")
    summary = {"grid": ["privacy.epsilon"], "labels": list(values)}
    (tmp_path / "comparison.json").write_text(json.dumps(summary))
    for name in ("rounds.parquet", "comparison.toml"):
        (tmp_path / name).touch()
    return tmp_path


def test_the_plain_ranking_has_medians_spreads_and_verdicts_that_their_numbers_show(listed):
    title, head, *lines = rankings(listed).splitlines()
    assert title == "quadratic: test loss, median over 3 seeds, smaller is better"
    assert [re.split(r"  +", line.strip()) for line in lines] == [
        ["good", "0.5", "0.25 to 0.75", "better", "50 %"],
        ["same (no privacy)", "1", "1 to 1", "equal, no better", "0 %"],
        ["hair", "1.0000004", "1 to 1", "WORSE", "-0 %"],
        ["none", "-", "-", "no result: 3 failed", "-"],
        ["initial model", "1", "0 %"],
        ["without privacy (private)", "0", "100 %"],
    ]
    assert all(line[head.index("median")] != " " for line in lines)


def test_the_ranking_is_printed_where_standard_output_is_no_terminal(listed, file, monkeypatch):
    outcome = SimpleNamespace(directory=listed, rows=[{"error_private": None}], ran=1)
    monkeypatch.setattr(simulations.comparison.jobs, "compare", lambda *_, **__: outcome)
    assert call("compare", file).stdout.startswith(f"{rankings(listed)}\n1 cells, 0 without a result")


def test_shares_have_digits_where_they_tell_apart():
    told = {0.123: "12 %", 0.9987: "99.87 %", 1.0: "100 %", -0.4: "-40 %", 12.0: "1,200 %"}
    assert {share: percent(share) for share in told} == told


# The command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "log_warnings", lambda: None)
    path = tmp_path / "small.toml"
    path.write_text(parse_comparison(changed(strategy=COMPARISON["strategy"][:1])).toml())
    return path


@pytest.mark.slow
def test_compare_prints_rows_as_json_and_report_renders_again(file, tmp_path):
    arguments = ["compare", file, "--workers", 0, "--seeds", 1, "--output", tmp_path / "out"]
    arguments += ["--set", "privacy.delta=1e-6"]
    outcome = call(*arguments, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert [(one["privacy.epsilon"], one["delta"], one["seed"]) for one in rows] == [(1.0, 1e-6, 0), (4.0, 1e-6, 0)]
    again = call(*arguments)
    assert "2 cells, 0 without a result; 0 runs were made now" in again.stdout
    assert again.stdout.count("median over 1 seed, smaller is better") == 2
    page = tmp_path / "out" / "small" / "report.html"
    page.unlink()
    assert call("report", page.parent).stdout.strip() == str(page)
    assert page.is_file()


NOTHING = {
    "no cell works": (["--set", 'strategy=[{kind="localized_robust_sgd", batch=5000}]'], 1, "no cell has a result"),
    "no module": (["--set", 'problem={kind="torch", module="nowhere.py:make", loss="cross_entropy"}'], 2, "nowhere.py"),
    "no head": (["--set", 'engine={kind="ray", address="127.0.0.1:1"}'], 1, "--workers 0 run without it"),
}


@pytest.mark.parametrize(("wrong", "code", "words"), NOTHING.values(), ids=NOTHING)
def test_a_comparison_that_comes_to_nothing_says_why_and_fails(file, tmp_path, wrong, code, words):
    started = time.monotonic()
    workers = ["--workers", 0] if words != "--workers 0 run without it" else []
    outcome = call("compare", file, *workers, "--seeds", 1, "--output", tmp_path / "out", *wrong)
    assert (outcome.exit_code, words in outcome.stderr) == (code, True), outcome.stderr
    assert list((tmp_path / "out").rglob(DONE)) if words == "no cell has a result" else time.monotonic() < started + 20
    assert words == "no cell has a result" or not list((tmp_path / "out").rglob(DONE))


# The shipped comparisons -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_no_strategy_of_the_quick_comparison_ends_worse_than_it_starts_at_its_default_settings(epsilon, tmp_path):
    raw = load_comparison(next(path for path in CONFIGS if path.stem == "compare-quick")).raw
    plain = [{"kind": entry["kind"]} for entry in raw["strategy"]]
    raw = {key: value for key, value in raw.items() if key != "tuning"}
    raw |= {"seeds": 5, "strategy": plain, "grid": {"privacy.epsilon": [epsilon]}}
    rows = compare(parse_comparison(raw), workers=0, directory=tmp_path).rows
    assert len(rows) == 5 * len(plain)
    worse = [(row["strategy"], row["seed"], row["value"]) for row in rows if not row["value"] < row["initial"]]
    assert not worse


@forgive_ray
def test_cells_on_ray_give_what_cells_in_this_process_give(tmp_path):
    raw = changed(TUNED, seeds=1)
    local = compare(parse_comparison(raw), workers=0, directory=tmp_path / "local").rows
    engine = {"kind": "ray", "workers": 2, "users_per_node": 100}
    on_ray = compare(parse_comparison(raw | {"engine": engine}), directory=tmp_path / "ray").rows
    assert [row["value"] for row in on_ray] == pytest.approx([row["value"] for row in local], rel=1e-12)
    engines = {json.loads(path.read_text())["engine"] for path in (tmp_path / "ray" / "cells").rglob("result.json")}
    assert engines == {"ray"}
    searched = list((tmp_path / "ray" / "tuning").rglob("result.json"))
    assert searched
    assert {json.loads(path.read_text())["engine"] for path in searched} == {"local"}
