"""A strategy of somebody else's: a class in a file, and one that another package registers as an entry point."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from examples import changed
from helpers import Watching
from typer.testing import CliRunner

from simulations import cli, compare, load_model, terminal, train
from simulations.config.run_config import load_config, parse_config
from simulations.runs.build import make_plan
from simulations.runs.run import run
from strategies import STRATEGIES
from userdp.errors import BadInput
from userdp.kinds import Kinds

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(encoding="utf-8"), re.DOTALL)[0]
"""It imports public names alone, as outside of the project."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a strategy's file and a configuration that names it."""
    monkeypatch.setattr(terminal, "log_warnings", lambda: None)  # it would take the log from other tests
    (tmp_path / "mine.py").write_text(TEXT, encoding="utf-8")
    raw = changed(strategy={"kind": "mine.py:SignDescent", "rounds": 4})
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(cli.app, [*map(str, arguments)])


# --- A file ----------------------------------------------------------------------------------------------------------


def test_a_class_in_a_file_is_planned_run_and_named_as_it_names_itself(folder):
    planned = call("plan", folder / "run.toml", "--json")
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["strategy"] == "sign_descent"
    done = call("run", folder / "run.toml", "--output", folder / "runs", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["strategy"] == "sign_descent"
    assert result["guarantee"]["holds"]
    assert list(result["code"]) == ["strategy.kind"]
    assert [path.name for path in (folder / "runs").iterdir()] == ["small-sign_descent-seed3"]


def test_its_settings_are_checked_by_name_as_those_of_any_other(folder):
    refused = call("run", folder / "run.toml", "--set", "strategy.lerning_rate=1")
    assert refused.exit_code == 2
    assert "strategy.lerning_rate" in refused.stderr
    assert "learning_rate" in refused.stderr


def test_it_is_shown_by_its_place(folder):
    shown = call("list", "strategies", f"{folder / 'mine.py'}:SignDescent", "--json")
    assert shown.exit_code == 0, shown.output
    (one,) = json.loads(shown.stdout)
    assert one["name"] == "sign_descent"
    assert "clip_norm" in one["settings"]


def test_it_stands_in_a_comparison_and_in_python_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    raw = {key: value for key, value in changed().items() if key in ("name", "problem", "data", "privacy")}
    entries = [{"kind": f"{folder / 'mine.py'}:SignDescent"}, {"kind": "dp_fed_sgd", "rounds": 2}]
    found = compare({**raw, "seeds": 1, "strategy": entries}, directory=folder / "out", progress=False)
    assert set(found.table["strategy"]) == {"sign_descent", "dp_fed_sgd"}
    assert found.table["value"].notna().all()
    trained = train({**changed(), "strategy": {"kind": f"{folder / 'mine.py'}:SignDescent"}}, progress=False)
    assert trained.plan.strategy == "sign_descent"


def test_it_goes_on_after_a_stop_with_the_same_code_and_with_no_other(folder):
    config = load_config(folder / "run.toml")

    class Stopped(Exception):
        pass

    def stop(record, plan):
        if record.round == 2:
            raise Stopped

    directory = folder / "run"
    with pytest.raises(Exception, match="Stopped"):
        run(config, directory=directory, observers=[Watching(stop)], checkpoint=True, report=False)
    whole = run(config, directory=folder / "whole", report=False)
    again = run(config, directory=directory, resume=True, report=False)
    assert (again.model == whole.model).all()
    (folder / "mine.py").write_text(TEXT + "# another\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"code\.strategy"):
        run(load_config(folder / "run.toml"), directory=_stopped(folder, config, stop), resume=True, report=False)


def _stopped(folder, config, stop):
    """A directory of a run of the former file's that was stopped."""
    (folder / "mine.py").write_text(TEXT, encoding="utf-8")
    with pytest.raises(Exception, match="Stopped"):
        run(config, directory=folder / "second", observers=[Watching(stop)], checkpoint=True, report=False)
    (folder / "mine.py").write_text(TEXT + "# another\n", encoding="utf-8")
    return folder / "second"


def test_a_changed_file_is_read_again(folder):
    before = make_plan(load_config(folder / "run.toml"))
    (folder / "mine.py").write_text(TEXT.replace('"sign_descent"', '"signs"'), encoding="utf-8")
    assert (before.strategy, make_plan(load_config(folder / "run.toml")).strategy) == ("sign_descent", "signs")


def test_code_of_a_strangers_run_runs_only_when_trusted(folder):
    (folder / "mine.py").write_text(
        f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n{TEXT}", encoding="utf-8"
    )
    done = call("run", folder / "run.toml", "--output", folder / "runs")
    assert done.exit_code == 0, done.output
    (directory,) = (folder / "runs").iterdir()
    (folder / "ran").unlink()
    (folder / "mine.py").write_text(f"# sent\n{(folder / 'mine.py').read_text()}", encoding="utf-8")
    with pytest.raises(BadInput, match=r"strategy\.kind = .*trust_code=True"):
        load_model(directory)
    resumed = call("run", "--resume", directory)
    assert resumed.exit_code == 2
    assert "add --trust-code" in " ".join(resumed.output.split())
    with pytest.raises(BadInput, match="is not what the run had"):
        load_model(directory, trust_code=True)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        (TEXT, "mine.py:SignDecent", r"has no attribute 'SignDecent'"),
        (TEXT, "other.py:SignDescent", r"there is no file .*other\.py"),
        (TEXT, "mine.py:Signs", r"names Signs, which is no class below Recipe"),
        (
            TEXT.replace("def scheme", "def schemes"),
            "mine.py:SignDescent",
            r"does not define scheme: is schemes meant for it\?",
        ),
        (TEXT.replace("paper=", "papers="), "mine.py:SignDescent", r"SignDescent \(line \d+ of .*mine\.py\) .* paper"),
        (TEXT.replace("paper=", "meaning={}, paper="), "mine.py:SignDescent", r"is meanings meant\?"),
        (TEXT.replace("paper=", "example={'round': 1}, paper="), "mine.py:SignDescent", r"with round, wh"),
        (re.sub(r"About\(\n(.*\n)*?    \)", "3", TEXT, count=1), "mine.py:SignDescent", r"make it an About"),
        (TEXT.replace("*Assumptions.*", "Assumed."), "mine.py:SignDescent", r"states no guarantee"),
        (TEXT.replace("*Claim.*", "Claimed."), "mine.py:SignDescent", r"states no guarantee"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(folder, text, place, told):
    (folder / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=told) as refused:
        parse_config(changed(strategy={"kind": f"{folder / place}"}))
    assert len(str(refused.value).split("\n")) == 1


# --- A package -------------------------------------------------------------------------------------------------------


def package(folder, line):
    """A folder as pip leaves it, with a package of one strategy that it registers by that line."""
    (folder / "signs").mkdir()
    (folder / "signs" / "__init__.py").write_text(TEXT, encoding="utf-8")
    about = folder / "signs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: signs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[userdp.strategies]\n{line}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def userdp(environment, *arguments):
    command = [sys.executable, "-c", "from simulations.cli import app; app()", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_an_installed_package_adds_a_strategy(tmp_path):
    environment = package(tmp_path, "sign_descent = signs:SignDescent")
    listed = json.loads(userdp(environment, "list", "strategies", "--json").stdout)
    assert sorted(one["name"] for one in listed) == sorted([*STRATEGIES, "sign_descent"])
    (tmp_path / "run.toml").write_text(tomli_w.dumps(changed(strategy={"kind": "sign_descent"})), encoding="utf-8")
    done = userdp(environment, "run", tmp_path / "run.toml", "--output", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["strategy"] == "sign_descent"
    assert "code" not in json.loads(done.stdout)  # what is installed is trusted as any package is


def test_a_package_with_a_fault_harms_no_other_strategy(tmp_path):
    environment = package(tmp_path, "sign_descent = signs:SignDecent\nauto = signs:SignDescent")
    listed = userdp(environment, "list", "strategies", "--json")
    assert [one["name"] for one in json.loads(listed.stdout)] == [*STRATEGIES]
    assert 'the entry point "sign_descent = signs:SignDecent" of userdp.strategies names SignDecent' in " ".join(
        listed.stderr.split()
    )
    assert "did you mean SignDescent" in " ".join(listed.stderr.split())
    file = ROOT / "simulations" / "configs" / "quickstart.toml"
    misspelt = userdp(environment, "plan", file, "--set", "strategy.kind=dp_fed")
    assert misspelt.returncode == 2
    assert "dp_fed_sgd" in misspelt.stderr


def test_a_registry_without_files_takes_no_place():
    assert "mine.py:Mine" not in Kinds({"one": "userdp.errors:BadInput"})
    with pytest.raises(KeyError):
        Kinds({"one": "userdp.errors:BadInput"})["two"]


@pytest.mark.slow
def test_a_package_that_pip_installs_adds_a_strategy_and_keeps_to_the_contract(tmp_path):
    pytest.importorskip("setuptools", reason="builds the package")
    home = tmp_path / "signs"
    (home / "signs").mkdir(parents=True)
    (home / "signs" / "__init__.py").write_text(TEXT, encoding="utf-8")
    (home / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "signs"\nversion = "1.0"\n'
        '[project.entry-points."userdp.strategies"]\nsign_descent = "signs:SignDescent"\n',
        encoding="utf-8",
    )
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(site), str(home)], check=True, timeout=300)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    assert "sign_descent" in userdp(environment, "list", "strategies").stdout
    for engine in ("local", "ray"):
        (tmp_path / "run.toml").write_text(tomli_w.dumps(changed(strategy={"kind": "sign_descent"})), encoding="utf-8")
        done = userdp(environment, "run", tmp_path / "run.toml", "--engine", engine, "--output", tmp_path / engine)
        assert done.returncode == 0, done.stderr
    audited = userdp(environment, "audit", tmp_path / "run.toml", "--runs", "200", "--output", tmp_path / "audit")
    assert audited.returncode == 0, audited.stderr
    checked = "from signs import SignDescent; from userdp.testing import check_strategy; check_strategy(SignDescent)"
    subprocess.run([sys.executable, "-c", checked], env=environment, check=True, timeout=300)
