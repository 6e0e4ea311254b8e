"""The tables behind the papers' pages: a run of each gives its number again."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from simulations.comparison.config import load_comparison
from simulations.runs.run import run

ROOT = Path(__file__).resolve().parents[1]
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
        wanted = {(cell.strategy, cell.seed, *cell.grid.values()) for cell in comparison.cells}
        assert set(rows[["strategy", "seed", *comparison.grid_keys]].itertuples(index=False, name=None)) == wanted
        assert len(rows) == len(wanted)


def test_what_is_no_better_than_the_start_is_in_bold(papers, monkeypatch, tmp_path):
    _, pages = papers
    row = {"problem": "", "seed": 0, "main_metric": "excess_risk", "initial": 0.5, "userdp": "1"}
    cells = [("good", 1.0, 0.25), ("bad", 1.0, 0.5), ("good", 4.0, 0.125)]
    frame = pd.DataFrame([row | {"strategy": name, pages.EPSILON: at, "value": value} for name, at, value in cells])
    frame.to_csv(tmp_path / "some.csv", index=False)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert pages.by_epsilon("some").splitlines()[2:] == [
        "| epsilon | `good` | `bad` |",
        "|---|---|---|",
        "| 1 | 0.25 (0.25 to 0.25) | **0.5** (0.5 to 0.5) |",
        "| 4 | 0.12 (0.12 to 0.12) | not run |",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_a_run_of_a_table_gives_its_number_again(table, papers, tmp_path):
    command, _ = papers
    comparison = load_comparison(command.CONFIGURATIONS / f"{table.stem}.toml")
    rows = pd.read_csv(table)
    tuning = comparison.config.tuning
    rows = rows[(rows["value"] > 0) & ~rows["strategy"].isin({} if tuning is None else tuning.search)]
    row = rows.iloc[len(rows) // 2]
    named = {"strategy": row["strategy"], "seed": row["seed"], **{key: row[key] for key in comparison.grid_keys}}
    (cell,) = (one for one in comparison.cells if {"strategy": one.strategy, "seed": one.seed, **one.grid} == named)
    found = run(cell.config(), directory=tmp_path / "run").result["metrics"][row["main_metric"]]
    assert found == pytest.approx(row["value"], rel=1e-6)
