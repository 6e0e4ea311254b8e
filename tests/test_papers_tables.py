"""Behind the papers' pages: tables, a run of each of which gives its number again, pictures, and what is indexed."""

import importlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.comparison.config import combinations, load_comparison, parse_comparison
from simulations.comparison.jobs import compare
from simulations.runs.run import run
from strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[1]
CELL = ("problem", "strategy", "seed")
COMPARED = sorted(
    table for table in ROOT.glob("strategies/**/results/*.csv") if "main_metric" in table.read_text().split("\n", 1)[0]
)
"""Results of comparisons."""


@pytest.fixture(scope="module")
def papers(module_of):
    return module_of("papers")


@pytest.fixture(scope="module")
def reading(module_of):
    return module_of("making.rooms")


@pytest.fixture(scope="module")
def rooms(reading):
    return reading.rooms()


def test_every_table_of_a_room_is_of_a_comparison_or_sweep_of_that_room(papers, rooms):
    wanted = {papers.table_of(name) for name in [*papers.comparisons(), *papers.sweeps()]}
    assert len(wanted) == len(papers.comparisons()) + len(papers.sweeps())
    assert {table for room in rooms for table in (room.folder / "results").iterdir()} == wanted
    assert set(COMPARED) == {papers.table_of(name) for name in papers.comparisons()}
    for room in rooms:
        assert all((room.folder / "results" / f"{name}.csv").is_file() for name in room.tables.values())


def test_every_comparison_that_a_page_shows_has_a_table_with_all_its_runs(papers):
    for name, file in papers.comparisons().items():
        comparison = load_comparison(file)
        rows = pd.read_csv(papers.table_of(name))
        wanted = {(cell.problem, cell.strategy, cell.seed, *cell.grid.values()) for cell in comparison.cells}
        assert set(rows[[*CELL, *comparison.grid_keys]].itertuples(index=False, name=None)) == wanted
        assert len(rows) == len(wanted)


ROW = {"problem": "squared", "strategy": "one", "seed": 0, "main_metric": "excess_risk", "userdp": "1"}
AT_ONE = {"privacy.epsilon": 1.0}
SHOWN = {
    "what is no better than the start is in bold": (
        [
            {"initial": 0.5, "strategy": name, "privacy.epsilon": at, "value": value}
            for name, at, value in [("good", 1.0, 0.25), ("bad", 1.0, 0.5), ("good", 4.0, 0.125)]
        ],
        [
            "| epsilon | start | `good` | `bad` |",
            "|---|---|---|---|",
            "| 1 | 0.5 | 0.25 (0.25 to 0.25) | **0.5** (0.5 to 0.5) |",
            "| 4 | 0.5 | 0.12 (0.12 to 0.12) | not run |",
        ],
    ),
    "a start that differs by seed is what it is a median of": (
        [AT_ONE | {"seed": seed, "initial": start, "value": 0.125} for seed, start in enumerate([0.25, 1.0, 0.5])],
        [
            "| epsilon | start | `one` |",
            "|---|---|---|",
            "| 1 | 0.5 (0.25 to 1) | 0.12 (0.12 to 0.12) |",
        ],
    ),
    "problems and grids have columns of their own": (
        [
            {"problem": "b", "data.parameter_sparsity": 1000, "initial": 0.5, "value": 0.25},
            {"problem": "a", "data.parameter_sparsity": 1000, "initial": 2.0, "value": 0.5},
        ],
        [
            "| problem | parameter sparsity | start | `one` |",
            "|---|---|---|---|",
            "| b | 1,000 | 0.5 | 0.25 (0.25 to 0.25) |",
            "| a | 1,000 | 2 | 0.5 (0.5 to 0.5) |",
        ],
    ),
}


@pytest.mark.parametrize(("rows", "shown"), SHOWN.values(), ids=SHOWN)
def test_a_table_of_runs_is_shown(module_of, rows, shown):
    made = module_of("making.papers").by_cell(pd.DataFrame([ROW | row for row in rows]), "some.toml")
    assert made.splitlines()[2:] == shown


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
@pytest.mark.parametrize("table", COMPARED, ids=lambda table: table.stem)
def test_a_run_of_a_table_gives_its_number_again(table, papers, tmp_path):
    comparison = load_comparison(papers.comparisons()[table.stem])
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


@pytest.mark.long
@pytest.mark.slow
def test_quick_sweeps_give_their_numbers_again(papers):
    for name, sweep in papers.sweeps().items():
        if sweep.quick and sweep.portable:
            rows = pd.read_csv(papers.table_of(name))
            made = sweep.make()
            pd.testing.assert_frame_equal(made, rows[made.columns], rtol=1e-4, check_dtype=False, obj=name)


def test_a_sweep_is_shown_as_it_is(module_of):
    rows = [{"noise": "none", "n": 2000, "bias_of_it": 0.0123456, "userdp": "1"}, {"n": 1e12, "userdp": "1"}]
    assert module_of("making.papers").by_sweep(pd.DataFrame(rows), "some").splitlines()[2:] == [
        "| noise | n | bias of it |",
        "|---|---|---|",
        "| none | 2,000 | 0.0123 |",
        "|  | 1e+12 |  |",
    ]


# Pictures ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(module_of):
    return module_of("making.paper_pictures")


@pytest.fixture(scope="module")
def pictures(rooms):
    """Name -> a picture and the rows of its table."""
    return {picture.name: (picture, room.rows(picture.table)) for room in rooms for picture in room.picture}


@pytest.fixture(scope="module")
def of_runs(pictures):
    """Pictures of comparisons, with the rows of their problem."""
    return {
        name: (picture, rows if picture.problem is None else rows[rows["problem"] == picture.problem])
        for name, (picture, rows) in pictures.items()
        if picture.of
    }


def test_a_picture_has_errors_of_who_its_theory_is_about(of_runs):
    for name, (picture, rows) in of_runs.items():
        assert rows["problem"].nunique() == 1, name
        assert rows[rows["strategy"] == picture.of]["value"].notna().any(), name
        along = rows[picture.along].unique()
        assert len(along) > 1, name
        assert all(picture.grows(float(each)) > 0 for each in along), name


def test_a_picture_of_a_sweep_has_one_error_a_point_of_each_of_its_lines(pictures):
    for name, (picture, rows) in pictures.items():
        if not picture.by:
            continue
        found = rows.dropna(subset=["error"])
        lines = [set(own[picture.along]) for _, own in found.groupby(picture.by)]
        assert len(lines[0]) > 1, name
        assert all(line == lines[0] for line in lines), name
        assert not found.duplicated([picture.by, picture.along]).any(), name
        assert (found["least"] <= found["error"]).all(), name
        assert (found["error"] <= found["most"]).all(), name
        assert picture.power != "0" or {f"{value:g}" for value in found[picture.by].unique()} == set(picture.powers)


def test_a_picture_of_a_sweep_draws_its_errors_and_theory_from_the_first_of_them(drawn, pictures):
    rows = [(2, 10, 1.0), (2, 1000, 0.2), (4, 10, 3.0), (4, 1000, 0.1)]
    frame = pd.DataFrame(rows, columns=["p", "samples", "error"]).assign(least=0.05, most=4.0)
    picture, _ = pictures["paper-heavy-tailed-samples"]
    figure = drawn._drawn_sweep(replace(picture, powers={"2": "-1/2", "4": "-1/4"}), frame)
    found = [line.get_ydata() for line in figure.axes[0].lines]
    np.testing.assert_allclose(found, [[1, 0.2], [1, 0.1], [3, 0.1], [3, 3 / 100**0.25]])


def lines_of(figure):
    """Label -> the heights at which a line is drawn."""
    return {line.get_label(): np.asarray(line.get_ydata(), dtype=float) for line in figure.axes[0].lines}


def test_every_median_of_a_picture_is_drawn_where_the_table_has_it(drawn, of_runs):
    for name, (picture, rows) in of_runs.items():
        figure = drawn._drawn(picture, rows)
        lines, (lowest, highest) = lines_of(figure), figure.axes[0].get_ylim()
        for strategy, own in rows.groupby("strategy"):
            medians = own.groupby(picture.along)["value"].median()
            heights = lines[strategy]
            np.testing.assert_array_equal(heights, medians, err_msg=f"{name}: {strategy}")
            assert (lowest <= heights).all(), name
            assert (heights <= highest).all(), name


def test_a_picture_of_columns_has_each_beside_the_start_and_the_bound(drawn, pictures):
    picture, rows = pictures["paper-core-hard-instance"]
    lines = lines_of(drawn._drawn_columns(picture, rows))
    wanted = {name: name for name in picture.columns} | {"the start": "start", picture.told: picture.bound}
    assert set(lines) == set(wanted)
    assert all((lines[label] == rows[column]).all() for label, column in wanted.items())


def test_a_start_that_is_a_median_says_so_in_the_picture(drawn, of_runs):
    several, one = of_runs["paper-core-as-written"], of_runs["paper-high-dimension"]
    assert "the start, median of 5 seeds" in lines_of(drawn._drawn(*several))
    assert "the start" in lines_of(drawn._drawn(*one))


# The index -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(module_of):
    return module_of("making.papers_index")


def test_every_module_configuration_test_and_page_that_it_names_is_there(reading, rooms):
    for paper in rooms:
        assert (ROOT / paper.page).exists()
        for entry in paper.entry:
            for code in set(entry.code) - set(STRATEGIES):
                module, _, name = code.partition(":")
                found = importlib.import_module(module)
                assert not name or hasattr(found, name), code
            files = [*map(reading.configuration, entry.configurations), *(ROOT / test for test in entry.tests)]
            assert not [file for file in files if not file.exists()]


def test_what_was_changed_or_left_out_has_its_reason_and_what_is_here_has_code_and_tests(index, rooms):
    for entry in (entry for paper in rooms for entry in paper.entry):
        assert entry.how in index.HOW
        assert entry.why or entry.how == "as printed", entry.what
        if entry.how != "left out":
            assert entry.code, entry.what
            assert entry.tests, entry.what


def test_every_strategy_that_comes_from_a_paper_is_in_the_index_of_that_paper(rooms):
    for paper in rooms:
        named = {code for entry in paper.entry for code in entry.code}
        assert not {name for name, one in STRATEGIES.items() if paper.cited in one.about.paper} - named


def test_a_configuration_runs_the_strategy_that_it_is_named_for(reading, rooms):
    for entry in (entry for paper in rooms for entry in paper.entry):
        strategies = set(entry.code) & set(STRATEGIES)
        for name in entry.configurations if strategies else []:
            text = reading.configuration(name).read_text(encoding="utf-8")
            assert strategies & set(re.findall(r'^kind = "(\w+)"', text, re.MULTILINE)), (entry.what, name)


def test_every_page_of_a_paper_is_listed_and_the_page_shows_every_entry(index, rooms):
    assert {*ROOT.glob("strategies/**/README.md")} == {ROOT / paper.page for paper in rooms}
    (text,) = index.pages().values()
    assert all(index.item(entry) in text for paper in rooms for entry in paper.entry)
