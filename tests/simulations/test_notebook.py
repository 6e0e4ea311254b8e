"""The notebook of the documentation: it is well formed, and its cells run as they stand."""

import ast
import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "first-model.ipynb"


@pytest.fixture(scope="module")
def notebook():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def run_cell(source: str, namespace: dict) -> object:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)


@pytest.mark.slow
def test_the_notebook_runs_and_its_model_is_of_use(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    shown = [run_cell("".join(cell["source"]), namespace) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for value in shown:
        assert repr(value)
        assert value._repr_html_()
    model, others = namespace["model"], namespace["others"]
    assert model.guarantee.holds
    assert model.plan.strategy == "auto"
    assert namespace["planned"].as_dict() == model.plan.as_dict()
    measured = model.evaluate(others)
    assert (measured["this model"] < measured["initial model"])["test_loss"]
    assert measured["this model"]["accuracy"] > 0.8
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    table = namespace["compared"].table
    assert len(table) == 4
    assert table["error_private"].isna().all()
    assert table["better_than_initial"].all()
    assert namespace["planned"].guarantee.sentence() in capsys.readouterr().out


def test_the_notebook_has_the_format_4_5_and_stores_no_outputs(notebook):
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["language"] == "python"
    cells = notebook["cells"]
    assert 6 <= len(cells) <= 13
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["metadata"] == {}
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        if cell["cell_type"] == "code":
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
        else:
            assert set(cell) == {"cell_type", "id", "metadata", "source"}
            assert cell["cell_type"] == "markdown"


def test_the_notebook_leaves_clip_rounds_and_step_to_the_default_strategy(notebook):
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert not [name for name in ("clip_norm", "rounds", "learning_rate") if name in code]
    assert "model = train(known, **declared, epsilon=2.0)\n" in code


def test_links_of_the_notebook_exist(notebook):
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    assert not [link for link in links if not (NOTEBOOK.parent / link).exists()]
