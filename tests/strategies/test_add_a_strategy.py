"""A new strategy, one file and one line: that of docs/extend.md."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from any_strategy import options_of, problem_of
from helpers import make
from typer.testing import CliRunner

from simulations.api.console import show_plan
from simulations.cli import app
from simulations.listings import strategies
from simulations.records.run_directory import plain
from strategies import registry
from strategies.core.public_facts import PublicFacts
from strategies.core.recipe import meanings_of
from userdp.accounting import Privacy
from userdp.errors import BadInput
from userdp.problems import Quadratic
from userdp.testing import check_strategy

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
TEXT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
LINE = '        "sign_descent": "strategies.sign_descent:SignDescent",\n'
ON_TOP = {"runs", "comparisons", "out"}  # what runs leave behind; packages have folders of these names
EVERYWHERE = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "*.egg-info")


def left_out(folder, names):
    """Return the names in a folder that are not part of the project."""
    return {*EVERYWHERE(folder, names), *(ON_TOP if Path(folder) == ROOT else ())}


def class_of(text):
    """The class of that text, as a module would hold it."""
    module = ModuleType("strategies.sign_descent")
    exec(compile(text, "sign_descent", "exec"), module.__dict__)
    return module.SignDescent


def test_a_new_strategy_keeps_to_the_contract():
    check_strategy(class_of(TEXT))


def test_a_new_strategy_is_short_and_says_what_its_numbers_mean():
    kind = class_of(TEXT)
    method = make(kind, Quadratic(2, 1.0, 2.0), 400, delta=1e-4, **kind.about.example)
    assert set(method.plan.numbers) <= set(meanings_of(kind))
    assert len(TEXT.splitlines()) <= 64


def printed(plan, capsys):
    """Name of a number -> its value, as ``userdp plan`` shows them."""
    show_plan(plan, plain(plan.as_dict()), {})
    return dict(re.findall(r"^│ (\w+) +│ (.*?) +│", capsys.readouterr().out, flags=re.MULTILINE))


def test_a_plan_that_states_no_noise_does_not_print_that_there_is_none(capsys):
    text, count = re.subn(r", noise=noise, signal=clip", "", TEXT)
    assert count == 1
    stated, silent = (make(class_of(one), Quadratic(2, 1.0, 2.0), 400) for one in (TEXT, text))
    deviation = stated.scheme.mechanism.standard_deviation
    assert stated.plan.noise == pytest.approx(deviation * 2**0.5)
    assert stated.plan.signal == stated.recipe.clip_norm
    assert (silent.plan.noise, silent.plan.signal, silent.plan.drowned) == (None, None, False)
    shown = printed(silent.plan, capsys)
    assert (shown["noise"], shown["signal"]) == ("not stated", "not stated")
    reference = printed(make(registry.STRATEGIES["non_private"], Quadratic(2, 1.0, 2.0), 400).plan, capsys)
    assert (reference["noise"], reference["signal"]) == ("0", "no limit")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", registry.STRATEGIES)
def test_every_strategy_states_its_noise(name):
    """Its plan is made with the example that it declares."""
    strategy = registry.STRATEGIES[name]
    privacy = Privacy(20.0, 1e-5, strategy.about.units[0])
    public = PublicFacts(4000, max_samples=1, samples=4000)
    plan = strategy(**options_of(name)).strategy(problem_of(name), public, privacy, seed=0).plan
    assert plan.noise is not None
    assert plan.signal is not None


def test_a_line_in_the_registry_is_enough_to_be_listed(monkeypatch):
    module = ModuleType("strategies.sign_descent")
    module.SignDescent = class_of(TEXT)
    monkeypatch.setitem(sys.modules, "strategies.sign_descent", module)
    monkeypatch.setitem(registry.STRATEGIES.places, "sign_descent", "strategies.sign_descent:SignDescent")
    entry = next(entry for entry in strategies() if entry["name"] == "sign_descent")
    assert "replacing a user moves the mean by at most 2C/n" in entry["guarantee"]
    assert LINE in PAGE


@pytest.mark.parametrize("missing", ["name", "summary_line", "family", "paper", "cost"])
def test_a_class_that_leaves_a_declaration_out_is_refused_when_it_is_made(missing):
    text, count = re.subn(rf"^        {missing}=.*\n", "", TEXT, flags=re.MULTILINE)
    assert count == 1
    told = rf"of SignDescent \(line \d+ of sign_descent\) does not say {missing}: add {missing}="
    with pytest.raises(BadInput, match=told):
        class_of(text)


def listed_with(monkeypatch, place):
    """Return the result of ``userdp list strategies --json`` with one line more in the registry."""
    monkeypatch.setitem(registry.STRATEGIES.places, "new", place)
    return CliRunner().invoke(app, ["list", "strategies", "--json"])


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            "strategies.clipping.dp_fed_sgd:DPFedSDG",
            'the registry\'s line "new": "strategies.clipping.dp_fed_sgd:DPFedSDG" names DPFedSDG, which '
            "strategies.clipping.dp_fed_sgd does not define; did you mean DPFedSGD",
        ),
        ("strategies.cliping.new:New", "names the module strategies.cliping, which does not exist: correct it"),
        ("strategies.clipping.new", "names no class: write it as package.module:Class"),
    ],
)
def test_a_misspelt_line_of_the_registry_says_so_and_the_others_are_listed(monkeypatch, place, said):
    before = [entry["name"] for entry in strategies()]
    done = listed_with(monkeypatch, place)
    assert done.exit_code == 0
    assert [entry["name"] for entry in json.loads(done.stdout)] == before
    assert said in done.stderr
    assert "defect" not in done.stderr
    one = CliRunner().invoke(app, ["list", "strategies", "new"])
    assert one.exit_code == 2
    assert said in one.stderr


def test_a_line_of_the_registry_without_a_class_does_not_take_the_package_down():
    program = """
from strategies.registry import STRATEGIES
STRATEGIES.places["new"] = "strategies.clipping.new"
import importlib, strategies
importlib.reload(strategies)
print(strategies.Auto.about.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "auto"


def test_what_a_module_of_the_registry_cannot_import_is_not_called_misspelt(monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import not_installed_here\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.STRATEGIES.places, "new", "needs_more:New")
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        registry.STRATEGIES["new"]


def with_it_in_place(folder: Path) -> Path:
    """A copy of the project with one file and one line more, after the one command."""
    copy = folder / "project"
    shutil.copytree(ROOT, copy, ignore=left_out)
    lines = copy / "strategies" / "registry.py"
    text = lines.read_text(encoding="utf-8")
    (copy / "strategies" / "sign_descent.py").write_text(TEXT, encoding="utf-8")
    lines.write_text(text.replace('        "non_private":', LINE + '        "non_private":'), encoding="utf-8")
    stale = inside(copy, "docs/make.py", "--check")
    assert stale.returncode == 1
    assert stale.stderr.strip().endswith("run: python docs/make.py")
    made = inside(copy, "docs/make.py")
    assert made.returncode == 0, made.stderr
    return copy


def inside(copy: Path, *command: str) -> subprocess.CompletedProcess:
    """Python on the copy's own packages."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    return subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif("sign_descent" in registry.STRATEGIES, reason="it is in place, in the copy of this test")
def test_pages_and_every_fast_test_over_the_registry_take_in_a_new_strategy(tmp_path):
    copy = with_it_in_place(tmp_path)
    fast = ("-m", "not slow and not containers", "-k", "page_that_is_made or sign_descent")
    done = inside(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *fast)
    assert done.returncode == 0, done.stdout[-10000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 30
