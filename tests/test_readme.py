"""Examples of the README and the first pages, run as written."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from helpers_flower import patient, run_on_flower
from typer.testing import CliRunner

from simulations.cli import app
from simulations.config.run_config import parse_config
from simulations.engines.grids import LocalGrid
from strategies import STRATEGIES
from userdp.data import LogisticRegression, SyntheticFederation
from userdp.streams import SECURE_ASSUMPTIONS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 700


def blocks(language: str, page: str = "README.md") -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [code for kind, code in found if kind == language]


def app_code() -> str:
    (code,) = (block for block in blocks("python", "docs/flower-app.md") if "ServerApp()" in block)
    return code


def context(node_config: dict | None = None, run_config: dict | None = None) -> Context:
    return Context(1, 0, node_config=node_config or {}, state=RecordDict(), run_config=run_config or {})


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme") / "app.py"
    path.write_text(app_code())
    spec = importlib.util.spec_from_file_location("readme_app", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_app"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["readme_app"]


def check(example, x: np.ndarray) -> None:
    """The model beats the initial one on users who took no part, by most of what there is to gain."""
    truth = np.array([2.0, -1.0, 0.5])
    population = LogisticRegression(dimension=3, parameter=truth.tolist())
    others = SyntheticFederation(population, 2000, seed=9, samples_per_user=50).block(np.arange(2000))
    loss = {
        name: example.problem.metrics(at, others)["test_loss"].mean()
        for name, at in (("initial", np.zeros(3)), ("model", x), ("truth", truth))
    }
    assert loss["model"] - loss["truth"] < 0.2 * (loss["initial"] - loss["truth"])


def test_the_example_app_runs_as_written_and_learns(example, tmp_path, capsys):
    nodes = [example.load(context({"partition-id": index, "num-partitions": 4})) for index in range(4)]
    with LocalGrid(nodes) as grid:
        example.server(grid, context(run_config={"output": str(tmp_path)}))
    check(example, np.load(tmp_path / "model.npz")["x"])
    printed = capsys.readouterr().out
    assert printed.startswith("(2, 1e-06)-differential privacy for replacing one whole user")
    assert all(f"assuming: {one}" in printed for one in SECURE_ASSUMPTIONS["user"])


@pytest.fixture
def people(tmp_path, monkeypatch) -> pd.DataFrame:
    """The table of the first pages, in the folder where their lines run."""
    rng = np.random.default_rng(0)
    ages = rng.uniform(18, 100, 12_000).round()
    answers = np.where(rng.random(12_000) < 1 / (1 + np.exp(-(ages - 60) / 8)), "yes", "no")
    table = pd.DataFrame({"person": np.repeat(np.arange(3000), 4), "age": ages, "answer": answers})
    table.to_csv(tmp_path / "people.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return table


def right(predictions: pd.DataFrame, people: pd.DataFrame) -> float:
    return ((predictions["prediction"] == 1) == (people["answer"] == "yes")).mean()


def test_to_ask_and_to_train_as_the_readme_says(people, capsys):
    found: dict = {}
    for task in blocks("python")[:3]:
        exec(compile(task, "README.md", "exec"), found)
    promise = "Guarantee: (1, 1e-06)-differential privacy for replacing one whole user"
    assert capsys.readouterr().out.count(promise) == 2
    quartiles = found["asked"].table.query("statistic == 'quantiles'")
    assert (quartiles["low"] <= np.quantile(people["age"], [0.25, 0.5, 0.75])).all()
    assert (quartiles["high"] >= np.quantile(people["age"], [0.25, 0.5, 0.75])).all()
    assert right(found["model"].predict(people), people) > 0.8
    plan, _, listed = checks()
    assert "differential privacy for replacing one whole user" in " ".join(called(plan).split())
    assert all(name in called(listed) for name in STRATEGIES)


@pytest.mark.slow
def test_to_compare_and_to_check_as_the_readme_says(people):
    declare, _, train, compare = blocks("python")
    found: dict = {}
    exec(compile(declare + train + compare, "README.md", "exec"), found)
    assert found["compared"].table["better_than_initial"].all()
    assert Path("compared.html").is_file()
    _, audit, _ = checks()
    assert "stands" in called([*audit, "--runs", "200", "--workers", "0"])  # a thousand runs take a minute


def checks() -> list[list[str]]:
    """The words of the README's commands of userdp."""
    (block,) = (block for block in blocks("") if block.startswith("userdp"))
    return [line.partition("#")[0].split()[1:] for line in block.splitlines()]


def called(command: list[str]) -> str:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_example_of_the_page_on_training_runs_as_written(people, capsys):
    (code,) = blocks("python", "docs/train.md")
    found: dict = {}
    exec(compile(code, "docs/train.md", "exec"), found)
    assert "Guarantee: (1, 1e-06)-differential privacy for replacing one whole user" in capsys.readouterr().out
    assert found["model"].result["better_than_initial"]
    assert right(found["predictions"], people) > 0.8
    assert Path("report.html").is_file()


def test_the_readmes_make_targets_exist_and_it_installs_the_tested_torch():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line.partition("#")[0].split() for block in blocks("") for line in block.splitlines()]
    assert [line[1] for line in lines if line[0] == "make" and f"\n{line[1]}:" not in makefile] == []
    (torch,) = (word for line in lines for word in line if word.startswith("torch=="))
    assert f"\n{torch}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_example_app_runs_on_flower_with_the_pyproject_of_the_page(example, tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "app.py").write_text(patient(app_code()))
    (app / "pyproject.toml").write_text(
        next(block for block in blocks("toml", "docs/flower-app.md") if "tool.flwr.app" in block)
    )
    run_on_flower(tmp_path / "flower", app, 4, {"output": str(tmp_path)})
    check(example, np.load(tmp_path / "model.npz")["x"])


def test_the_configuration_of_the_first_page_is_valid():
    (text,) = (block for block in blocks("toml", "docs/train.md") if "[problem]" in block)
    config = parse_config(tomllib.loads(text))
    assert config.data.columns.names == ["person", "height", "team", "passed"]


def test_the_readme_fits_a_screen_and_a_half():
    assert len(README.split()) <= MOST_WORDS


def test_a_strategy_is_below_another_from_where_its_medians_cross_once_and_ranges_end_apart(module_of):
    crossings = module_of("making.user_level").crossings
    at = (1.0, 10.0, 100.0)
    flat = [(x, 1.0, 0.9, 1.1) for x in at]
    falls = [(x, 10.0 / x, 9.0 / x, 11.0 / x) for x in at]
    wide = [(x, 10.0 / x, 0.0, 2.0) for x in at]
    swings = [(x, value, value, value) for x, value in zip(at, (2.0, 0.5, 2.0), strict=True)]
    (one,) = crossings({"flat": flat, "falls": falls, "never": [(x, 99.0, 99.0, 99.0) for x in at]})
    assert one == (pytest.approx(10.0), "falls", "flat")
    assert crossings({"flat": flat, "wide": wide}) == crossings({"flat": flat, "swings": swings}) == []
