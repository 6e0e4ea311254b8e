"""The tables behind the papers' pages: a run of each gives its number again."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from simulations.comparison.cells import combinations
from simulations.comparison.config import load_comparison, parse_comparison
from simulations.comparison.jobs import compare
from simulations.runs.run import run

ROOT = Path(__file__).resolve().parents[1]
CELL = ("problem", "strategy", "seed")
TABLES = sorted((ROOT / "benchmarks" / "results" / "papers").glob("*.csv"))


@pytest.fixture
def papers(monkeypatch):
    """(the command, the section of the pages)."""
    for folder in ("benchmarks", "docs"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import papers
    from making import papers as pages

    yield papers, pages
    sys.modules.pop("papers")


def test_every_comparison_that_a_page_shows_has_a_table_with_all_its_runs(papers):
    command, _ = papers
    assert {table.stem for table in TABLES} == set(command.NAMES)
    for table in TABLES:
        comparison = load_comparison(command.CONFIGURATIONS / f"{table.stem}.toml")
        rows = pd.read_csv(table)
        wanted = {(cell.problem, cell.strategy, cell.seed, *cell.grid.values()) for cell in comparison.cells}
        assert set(rows[[*CELL, *comparison.grid_keys]].itertuples(index=False, name=None)) == wanted
        assert len(rows) == len(wanted)


def test_what_is_no_better_than_the_start_is_in_bold(papers, monkeypatch, tmp_path):
    _, pages = papers
    row = {"problem": "squared", "seed": 0, "main_metric": "excess_risk", "initial": 0.5, "userdp": "1"}
    cells = [("good", 1.0, 0.25), ("bad", 1.0, 0.5), ("good", 4.0, 0.125)]
    frame = pd.DataFrame([row | {"strategy": name, "privacy.epsilon": at, "value": value} for name, at, value in cells])
    frame.to_csv(tmp_path / "some.csv", index=False)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert pages.by_cell("some").splitlines()[2:] == [
        "| epsilon | start | `good` | `bad` |",
        "|---|---|---|---|",
        "| 1 | 0.5 | 0.25 (0.25 to 0.25) | **0.5** (0.5 to 0.5) |",
        "| 4 | 0.5 | 0.12 (0.12 to 0.12) | not run |",
    ]


def test_a_start_that_differs_by_seed_is_shown_as_what_it_is_a_median_of(papers, monkeypatch, tmp_path):
    _, pages = papers
    row = {"problem": "squared", "strategy": "one", "main_metric": "excess_risk", "userdp": "1", "privacy.epsilon": 1.0}
    starts = [0.25, 1.0, 0.5]
    rows = [row | {"seed": seed, "initial": start, "value": 0.125} for seed, start in enumerate(starts)]
    pd.DataFrame(rows).to_csv(tmp_path / "some.csv", index=False)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert pages.by_cell("some").splitlines()[-1] == "| 1 | 0.5 (0.25 to 1) | 0.12 (0.12 to 0.12) |"


def test_problems_and_grids_have_columns_of_their_own(papers, monkeypatch, tmp_path):
    _, pages = papers
    row = {"strategy": "one", "seed": 0, "main_metric": "excess_risk", "userdp": "1"}
    cells = [("b", 1000, 0.5, 0.25), ("a", 1000, 2.0, 0.5)]
    names = ("problem", "data.parameter_sparsity", "initial", "value")
    pd.DataFrame([row | dict(zip(names, cell, strict=True)) for cell in cells]).to_csv(tmp_path / "some.csv")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert pages.by_cell("some").splitlines()[2:] == [
        "| problem | parameter sparsity | start | `one` |",
        "|---|---|---|---|",
        "| b | 1,000 | 0.5 | 0.25 (0.25 to 0.25) |",
        "| a | 1,000 | 2 | 0.5 (0.5 to 0.5) |",
    ]


def alone(comparison, row):
    """The comparison of that row's cell, its search included."""
    raw = dict(comparison.raw) | {"seeds": [int(row["seed"])]}
    raw["grid"] = {key: [row[key].item()] for key in comparison.grid_keys}
    raw["strategy"] = [one for one in raw["strategy"] if one.get("label", one["kind"]) == row["strategy"]]
    raw["tuning"] = raw["tuning"] | {"search": {row["strategy"]: raw["tuning"]["search"][row["strategy"]]}}
    if "problems" in raw:
        raw["problems"] = [one for one in raw["problems"] if one["label"] == row["problem"]]
    return parse_comparison(raw)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_a_run_of_a_table_gives_its_number_again(table, papers, tmp_path):
    command, _ = papers
    comparison = load_comparison(command.CONFIGURATIONS / f"{table.stem}.toml")
    rows = pd.read_csv(table)
    search = {} if comparison.config.tuning is None else comparison.config.tuning.search
    rows = rows[rows["value"] > 0]
    settled = rows[~rows["strategy"].isin(search)]
    if settled.empty:
        row = rows[rows["strategy"] == min(search, key=lambda name: len(list(combinations(search[name]))))].iloc[0]
        outcome = compare(alone(comparison, row), workers=0, directory=tmp_path / "compared")
        assert outcome.rows[0]["value"] == pytest.approx(row["value"], rel=1e-6)
        return
    row = settled.iloc[len(settled) // 2]
    named = {key: row[key] for key in (*CELL, *comparison.grid_keys)}
    (cell,) = (one for one in comparison.cells if {key: getattr(one, key) for key in CELL} | one.grid == named)
    found = run(cell.config(), directory=tmp_path / "run").result["metrics"][row["main_metric"]]
    assert found == pytest.approx(row["value"], rel=1e-6)


# --- Sweeps on arrays ------------------------------------------------------------------------------------------------


@pytest.fixture
def sweeps(monkeypatch):
    """The command."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    import paper_sweeps

    yield paper_sweeps
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"paper_sweeps", "sweeps"}:
            sys.modules.pop(name)


def test_every_sweep_has_a_table(sweeps):
    assert {table.stem for table in sweeps.RESULTS.glob("*.csv")} == set(sweeps.SWEEPS)


@pytest.mark.long
@pytest.mark.slow
def test_quick_sweeps_give_their_numbers_again(sweeps):
    for name, sweep in sweeps.SWEEPS.items():
        if sweep.quick and sweep.portable:
            rows = pd.read_csv(sweeps.RESULTS / f"{name}.csv")
            made = sweep.make()
            pd.testing.assert_frame_equal(made, rows[made.columns], rtol=1e-4, check_dtype=False, obj=name)


def test_a_sweep_is_shown_as_it_is(papers, monkeypatch, tmp_path):
    _, pages = papers
    (tmp_path / "sweeps").mkdir()
    rows = [{"noise": "none", "n": 2000, "bias_of_it": 0.0123456, "userdp": "1"}, {"n": 1e12, "userdp": "1"}]
    pd.DataFrame(rows).to_csv(tmp_path / "sweeps" / "some.csv", index=False)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert pages.by_sweep("some").splitlines()[2:] == [
        "| noise | n | bias of it |",
        "|---|---|---|",
        "| none | 2,000 | 0.0123 |",
        "|  | 1e+12 |  |",
    ]
