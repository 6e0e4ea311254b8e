"""A newcomer's module, table and configuration, from the page to a trained model."""

import ast
import inspect
import json
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import call
from own_model import CONFIGS, SONGS, beside
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simulations import terminal
from userdp.torch import PrivateGradients

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-model.md").read_text(encoding="utf-8")
SMALL = ("data.all_users=40", "strategy.rounds=2", "output.reference=false", 'problem.execution="loop"')


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr(terminal, "log_warnings", lambda: None)


def beside_with(folder, *change):
    path, module = beside(folder, listeners=40, heard=10), folder / "own_model.py"
    if change:
        module.write_text(module.read_text().replace(*change))
    return path


def small(folder, *more, change=()):
    overrides = [part for override in (*SMALL, *more) for part in ("--set", override)]
    return call("run", beside_with(folder, *change), "--json", "--output", folder / "runs", *overrides)


@pytest.mark.parametrize(("language", "file"), [("python", "own_model.py"), ("toml", "own-model.toml")])
def test_the_page_shows_the_files_that_are_there(language, file):
    shown, *_ = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    text = (CONFIGS / file).read_text(encoding="utf-8")
    assert shown == text
    if language == "toml":
        assert len(text.splitlines()) <= 25
        assert tomllib.loads(text)["data"]["sequence"]["levels"] == SONGS


def opacus() -> tuple[str, str]:
    """The code before and after."""
    section = PAGE.partition("for those who know Opacus\n")[2].partition("\n## ")[0]
    before, after = re.findall(r"^```python\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    return before, after


def test_a_loop_of_opacus_and_ours_are_ten_lines_each(capsys):
    before, after = opacus()
    ast.parse(before)
    lines = [len([line for line in code.splitlines() if line]) for code in (before, after)]
    assert lines[1] <= lines[0] <= 10
    torch.manual_seed(0)
    module, rng = nn.Linear(8, 2), np.random.default_rng(0)
    inputs = torch.tensor(rng.normal(size=(600, 5, 8)), dtype=torch.float32)
    targets = (inputs[:, :, 0] > 0).long()
    names = {"module": module, "optimiser": torch.optim.Adam(module.parameters(), 0.1)}
    exec(after, names | {"inputs": inputs, "targets": targets})
    assert "one whole user" in capsys.readouterr().out
    assert (module(inputs).argmax(-1) == targets).float().mean() > 0.85


@pytest.mark.skipif(not find_spec("opacus"), reason="needs Opacus")
def test_the_code_before_runs_with_opacus():
    module = nn.Linear(8, 2)
    data = TensorDataset(torch.randn(200, 8), torch.zeros(200).long())
    names = {"module": module, "optimiser": torch.optim.Adam(module.parameters()), "loader": DataLoader(data, 20)}
    exec(opacus()[0], names | {"cross_entropy": nn.functional.cross_entropy})


def test_what_the_page_says_of_opacus_is_there():
    section = PAGE.partition("for those who know Opacus\n")[2]
    ours = {*inspect.signature(PrivateGradients).parameters, *dir(PrivateGradients), "guarantee", "epsilon", "delta"}
    right = [row.split("|")[2] for row in section.splitlines() if row.startswith("|")][2:9]
    for name in re.findall(r"`(\w+)`", "".join(right)):
        assert name in ours | {"grad"}, name


def test_ones_own_module_learns_from_ones_own_table(tmp_path):
    outcome = small(tmp_path)
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout)
    assert result["dimension"] == 22 * 16 + 3 * 32 * (16 + 32 + 2) + 33 * 21
    assert result["users"] == 32
    assert {"test_loss", "bits", "accuracy"} <= result["metrics"].keys()
    assert result["computed"] == {"grouped": False, "samples": 512, "own_layers": False}
    assert result["guarantee"]["holds"]
    (report,) = tmp_path.glob("runs/*/report.html")
    assert "one user after the other,\nlayers by torch." in report.read_text()


@pytest.mark.long
@pytest.mark.slow
def test_the_page_keeps_its_promise(tmp_path):
    outcome = call("run", beside(tmp_path), "--json", "--output", tmp_path, "--set", "output.reference=false")
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout)
    assert 0.65 < result["metrics"]["accuracy"] < 0.8
    assert result["reference"]["initial"]["accuracy"] < 0.1
    assert result["guarantee"]["epsilon"] <= 8
    assert result["computed"]["seconds_a_sample"] > 0


FAULTS = {
    "scores": (("SONGS + 1)", "SONGS)"), r"problem\.module does not fit .* cross_entropy: IndexError"),
    "codes": (("SONGS + 2", "SONGS"), r"problem\.module does not fit .* cross_entropy: IndexError"),
    "names": (("def make", "def made"), r"problem\.module = '.*own_model\.py:make' cannot be imported"),
    "direction": (("batch_first=True", "batch_first=False"), r"problem\.module looks ahead"),
}


@pytest.mark.parametrize(("change", "told"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_in_ones_own_module_is_told_in_one_sentence(tmp_path, change, told):
    outcome = call("plan", beside_with(tmp_path, *change))
    assert outcome.exit_code == 2
    assert re.search(told, outcome.stderr.replace("\n", " "))
    assert len(outcome.stderr.strip().splitlines()) == 1


def test_what_fails_on_somebodys_data_alone_is_told_without_its_text(tmp_path, caplog):
    broken = "        if (codes == 8).any():\n            raise ValueError('song seven is too loud')\n        return"
    outcome = small(
        tmp_path, "data.test_fraction=0", "output.compare_with_initial=false", change=("        return", broken, 1)
    )
    assert outcome.exit_code == 0, outcome.output
    assert "the loss fails on users' data (ValueError in " in caplog.text
    assert "song seven" not in caplog.text
