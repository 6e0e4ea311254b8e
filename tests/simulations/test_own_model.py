"""A newcomer's module, table and configuration, from the page to a trained model."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from examples import call
from own_model import CONFIGS, SONGS, beside

from simulations import terminal

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
    (shown,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    text = (CONFIGS / file).read_text(encoding="utf-8")
    assert shown == text
    if language == "toml":
        assert len(text.splitlines()) <= 25
        assert tomllib.loads(text)["data"]["sequence"]["levels"] == SONGS


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
