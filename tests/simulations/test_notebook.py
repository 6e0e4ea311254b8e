"""The notebooks of the documentation: well formed, small, and their cells run as they stand and give what is stored."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOKS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.ipynb"))}
each = pytest.mark.parametrize("name", NOTEBOOKS)


@pytest.fixture(scope="module")
def notebooks(module_of):
    return module_of("making.notebooks")


@pytest.fixture
def ran(notebooks, tmp_path, monkeypatch):
    """Runs a notebook where nothing else is; (its names, its cells' values), if it gives what it stores."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> tuple[dict, list[object]]:
        text, names, values = notebooks.executed(NOTEBOOKS[name])
        now, stored = ([*map(notebooks.words, notebooks.outputs(one))] for one in (text, NOTEBOOKS[name]))
        assert now == stored, f"{name}.ipynb is stale; run: python docs/make.py --notebooks"
        return names, values

    return run


def cells(name: str, kind: str) -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOKS[name])["cells"] if cell["cell_type"] == kind]


def code(name: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in cells(name, "code"))


@pytest.mark.slow
def test_the_first_model_is_of_use(ran, tmp_path):
    names, values = ran("first-model")
    assert all(value._repr_html_() for value in values)
    model, others = names["model"], names["others"]
    assert model.guarantee.holds
    assert model.plan.strategy == "auto"
    assert names["planned"].as_dict() == model.plan.as_dict()
    measured = model.evaluate(others)
    assert (measured["this model"] < measured["initial model"])["test_loss"]
    assert measured["this model"]["accuracy"] > 0.8
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    table = names["compared"].table
    assert len(table) == 4
    assert table["error_private"].isna().all()
    assert table["better_than_initial"].all()


@pytest.mark.slow
def test_answers_hold_the_truth_and_intervals_widen_with_less_budget(ran):
    names, values = ran("ask")
    people, more = names["people"], names["more"].table
    assert names["asked"].guarantee.holds
    mean = names["mean"].iloc[0]
    assert mean["low"] < people.groupby("person")["km"].mean().mean() < mean["high"]
    there = people[(people["way"] == "bicycle") & (people["km"] >= 10)]["person"].nunique()
    (counted,) = more.query("statistic == 'count'").to_dict("records")
    assert counted["low"] < there < counted["high"]
    assert values[-1].is_monotonic_decreasing


@pytest.mark.slow
def test_user_level_gains_by_more_samples_and_sample_level_does_not(ran):
    names, _ = ran("compare")
    table: pd.DataFrame = names["errors"]
    assert set(names["kinds"]) < set(table.index)
    assert (table.loc[names["kinds"], 100] < 0.5 * table.loc[names["kinds"], 1]).all()
    assert table.loc["sample_clipped_sgd", 100] > 0.5 * table.loc["sample_clipped_sgd", 1]
    assert names["compared"].together == ()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of Flower's simulation engine and of Ray
def test_nodes_of_the_simulation_engine_train_a_model_of_use(ran):
    names, values = ran("federate")
    assert names["result"].guarantee.holds
    loss = values[-1]
    assert loss["initial"] - loss["model"] > 0.8 * (loss["initial"] - loss["truth"]) > 0.01


@each
def test_a_notebook_has_the_format_4_5_and_stores_little(name, notebooks):
    notebook = json.loads(NOTEBOOKS[name])
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["language"] == "python"
    assert 8 <= len(notebook["cells"]) <= 15
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["metadata"] == {}
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        if cell["cell_type"] == "code":
            assert cell["execution_count"] is None
        else:
            assert set(cell) == {"cell_type", "id", "metadata", "source"}
    shown = notebooks.outputs(NOTEBOOKS[name])
    assert len(shown) >= 3
    assert sum(map(len, shown)) <= notebooks.MOST
    assert all(
        set(output.get("data", {})) <= {"text/plain"} for cell in cells(name, "code") for output in cell["outputs"]
    )


def test_there_is_a_notebook_to_ask_train_compare_and_federate():
    called = {name: set(re.findall(r"\b(query|train|compare|run_simulation)\(", code(name))) for name in NOTEBOOKS}
    assert called == {
        "ask": {"query"},
        "first-model": {"train", "compare"},
        "compare": {"compare"},
        "federate": {"run_simulation"},
    }


def test_the_first_model_leaves_clip_rounds_and_step_to_the_default_strategy():
    assert not [name for name in ("clip_norm", "rounds", "learning_rate") if name in code("first-model")]
    assert "model = train(known, **declared, epsilon=2.0)\n" in code("first-model")


@each
def test_links_of_a_notebook_exist(name):
    links = re.findall(r"\]\(([^)\s]+)\)", "".join("".join(cell["source"]) for cell in cells(name, "markdown")))
    assert links
    assert not [link for link in links if not (DOCS / link).exists()]


@each
def test_the_page_of_a_notebook_has_its_text_its_code_and_its_outputs(name, notebooks):
    page = notebooks.page(NOTEBOOKS[name], f"{name}.ipynb")
    assert page.startswith("# ")
    assert f'<a href="{name}.ipynb" download>' in page
    assert re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) == [
        "".join(cell["source"]) + "\n" for cell in cells(name, "code")
    ]
    assert re.findall(r"^```text\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE) == [
        output.rstrip() for output in notebooks.outputs(NOTEBOOKS[name])
    ]


def test_stored_outputs_are_compared_by_their_words(notebooks):
    assert notebooks.words("loss  1.25e-3\n 7 users") == notebooks.words("loss 0.5 12 users") == "loss # # users"
    assert notebooks.words("better") != notebooks.words("worse")
