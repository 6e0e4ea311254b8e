"""The total cost of all runs of a comparison to the same people, shown wherever the comparison is shown."""

import json

import pytest
from examples import table_section, write_table

from simulations import compare
from simulations.comparison.config import parse_comparison
from simulations.comparison.ranking import rankings
from simulations.comparison.table import row, sentences, together
from userdp.accounting import add_or_remove_to_replace_one


def raw(path, **sections):
    return {
        "name": "clinic",
        "seeds": 1,
        "problem": {"kind": "logistic", "radius": 2.0},
        "data": table_section(path, users=40, max_samples=4, samples=160),
        "privacy": {"delta": 1e-3},
        "strategy": [
            {"kind": "dp_fed_sgd", "rounds": 2},
            {"kind": "dp_fed_sgd", "label": "half", "rounds": 2, "cohort": 20},
            {"kind": "non_private", "rounds": 3, "tolerance": 0.1},
        ],
        "grid": {"privacy.epsilon": [1.0, 4.0]},
    } | sections


def promise(epsilon, unit="user", holds=True, delta=1e-6):
    """A row of results.parquet, as far as it is looked at."""
    return {"unit": unit, "holds": holds, "replace_one_epsilon": epsilon, "replace_one_delta": delta, "users": 40}


def cells_of(path, count, **sections):
    return parse_comparison(raw(path, **sections)).cells[:count]


@pytest.mark.slow
def test_text_page_and_print_say_what_all_runs_on_the_same_people_cost_together(tmp_path):
    compared = compare(raw(write_table(tmp_path / "clinic.csv")), directory=tmp_path / "out")
    rows = compared.table[compared.table["holds"].eq(other=True)]
    (one,) = json.loads((compared.directory / "comparison.json").read_text())["together"]
    assert (one["runs"], one["others"], one["unit"], one["source"]) == (4, 2, "user", "clinic.csv")
    assert one["epsilon"] == pytest.approx(rows["spent_epsilon"].sum())
    assert one["epsilon"] == pytest.approx(2 * (1.0 + 4.0), rel=1e-2)
    assert one["delta"] == pytest.approx(4 * 1e-3)
    (line,) = compared.together
    assert line.startswith(
        "4 runs on the same users (clinic.csv): with independent noise their total cost is at most epsilon = "
    )
    assert line.endswith(
        "; 2 more runs promise nothing; further runs on these users add to it (simulation: nothing was released)"
    )
    assert compared.report() == compared.directory / "report.html"
    assert line in repr(compared)
    assert line in compared._repr_html_()
    assert line in compared.page
    assert line in rankings(compared.directory)
    assert line in (compared.directory / "report.md").read_text(encoding="utf-8")


def test_a_promise_for_adding_or_removing_counts_with_what_it_means_for_replacing(tmp_path):
    relations = ("replace_one", "add_or_remove")
    guarantees = [{"relation": one, "holds": True, "epsilon": 1.0, "delta": 1e-6} for one in relations]
    cells = cells_of(write_table(tmp_path / "clinic.csv"), 2)
    records = [{"result": {"guarantee": guarantee, "users": 40}} for guarantee in guarantees]
    rows = [row(cell, record, None, None, None) for cell, record in zip(cells, records, strict=True)]
    (one,) = together(cells, rows)
    epsilon, delta = add_or_remove_to_replace_one(1.0, 1e-6)
    assert (one["epsilon"], one["delta"]) == (1.0 + epsilon, 1e-6 + delta)


def test_where_the_deltas_together_are_worth_nothing_no_epsilon_is_told(tmp_path):
    cells = cells_of(write_table(tmp_path / "clinic.csv"), 2)
    (line,) = sentences({"together": together(cells, [promise(1.0, delta=0.02)] * 2)})
    assert "their total cost is none at this delta, for replacing" in line
    (line,) = sentences({"together": together(cells, [promise(1.0, delta=0.01)] * 2)})
    assert "their total cost is at most epsilon = 2, delta = 0.02, for replacing" in line


def test_one_run_alone_and_made_up_people_cost_nothing_together(tmp_path):
    path = write_table(tmp_path / "clinic.csv")
    assert together(cells_of(path, 2), [promise(1.0), promise(0.0, holds=False)]) == []
    synthetic = {"kind": "synthetic", "population": "logistic_regression", "dimension": 2, "users": 400}
    assert together(cells_of(path, 2, data=synthetic), [promise(1.0), promise(1.0)]) == []


def test_a_run_without_a_result_is_not_counted_and_one_for_samples_makes_the_promise_one_for_samples(tmp_path):
    cells = cells_of(write_table(tmp_path / "clinic.csv"), 3)
    (one,) = together(cells, [promise(1.0), promise(2.0, unit="sample"), promise(9.0) | {"holds": None}])
    assert (one["runs"], one["epsilon"], one["unit"], one["others"]) == (2, 3.0, "sample", 0)


def test_people_of_different_files_are_different_people(tmp_path):
    paths = [write_table(tmp_path / f"{name}.csv") for name in ("north", "south")]
    cells = [cell for path in paths for cell in cells_of(path, 2)]
    found = together(cells, [promise(1.0), promise(2.0), promise(3.0), promise(4.0)])
    assert [(one["source"], one["epsilon"]) for one in found] == [("north.csv", 3.0), ("south.csv", 7.0)]
