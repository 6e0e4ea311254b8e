"""Optional dependencies: a run needs none of them, and a missing one is one sentence with the line that installs it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from userdp.errors import BadInput
from userdp.extras import MODULES, check_extra, missing_extra

ROOT = Path(__file__).resolve().parents[2]
MOST_NEEDED = 12
"""Dependencies that every installation has, at most."""
WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from simulations.cli import app
app()
"""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def command(without, *arguments):
    """Run the command in a process in which these modules cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(without), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def names(requirements):
    return {re.split(r"[\[<>=~ ]", one, maxsplit=1)[0] for one in requirements}


def test_few_dependencies_are_needed_and_the_extras_are_those_of_the_code():
    extras = PROJECT["optional-dependencies"]
    assert len(PROJECT["dependencies"]) <= MOST_NEEDED
    assert {"deploy", "report", "secure", "fast", "tables", "trackers", "all"} <= set(extras)
    for extra, modules in MODULES.items():
        assert names(extras[extra]) == set(modules)


def test_a_missing_module_of_an_extra_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp", None)
    with pytest.raises(BadInput, match=r"secure noise needs opendp: pip install 'userdp\[secure\]'"):
        check_extra("secure", "secure noise")
    assert "pip install 'userdp[report]'" in str(missing_extra(ModuleNotFoundError(name="matplotlib.figure")))
    assert missing_extra(ModuleNotFoundError(name="numpy")) is None


@pytest.mark.slow
def test_a_run_without_any_extra_ends_well_and_says_how_to_get_its_report(tmp_path):
    everything = [module for modules in MODULES.values() for module in modules if module not in MODULES["deploy"]]
    small = ("--set", "data.users=400", "--set", "data.dimension=3", "--anyway", "--output", tmp_path)
    done = command(everything, "run", "simulations/configs/quickstart.toml", *small)
    assert done.returncode == 0, done.stderr
    (directory,) = tmp_path.iterdir()
    assert {"result.json", "model.npz"} <= {path.name for path in directory.iterdir()}
    assert not (directory / "report.html").exists()
    assert "pip install 'userdp[report]'" in " ".join(done.stderr.split())
    again = command(["matplotlib"], "report", directory)
    assert again.returncode == 2
    assert "pip install 'userdp[report]'" in again.stderr
    secure = command(
        ["opendp"],
        "run",
        "simulations/configs/quickstart.toml",
        *small,
        "--set",
        "privacy.noise=secure",
        "--set",
        "output.reference=false",
    )
    assert secure.returncode == 2
    assert "pip install 'userdp[secure]'" in secure.stderr
