"""Optional dependencies: a run needs none of them, and a missing one is one sentence with the line that installs it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers_flower import patient, run_on_flower

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
PAGE = (ROOT / "docs" / "flower-app.md").read_text(encoding="utf-8")
AVERAGES = "RobustRounds(rounds=3)"
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
    """The names of packages; some are called as their modules are."""
    found = {re.split(r"[\[<>=~ ]", one, maxsplit=1)[0] for one in requirements}
    return {{"scikit-learn": "sklearn", "pycryptodome": "Crypto"}.get(name, name) for name in found}


def test_few_dependencies_are_needed_and_the_extras_are_those_of_the_code():
    extras = PROJECT["optional-dependencies"]
    assert len(names(PROJECT["dependencies"])) <= MOST_NEEDED
    assert {"deploy", "report", "secure", "fast", "datasets", "tables", "trackers", "all"} <= set(extras)
    for extra, modules in MODULES.items():
        assert names(extras[extra]) == {module.replace("_", "-") for module in modules}


def test_a_missing_module_of_an_extra_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp", None)
    with pytest.raises(BadInput, match=r"secure noise needs opendp: pip install 'userdp\[secure\]'"):
        check_extra("secure", "secure noise")
    check_extra("trackers", "no tracker", [])
    with pytest.raises(BadInput, match=r"a tracker needs opendp: pip install 'userdp\[trackers\]'"):
        check_extra("trackers", "a tracker", ["numpy", "opendp"])
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


@pytest.mark.slow
@pytest.mark.long
def test_an_installation_without_extras_runs_on_ray_and_as_a_flower_app(tmp_path):
    """`pip install .` into a fresh environment; the quickstart on Ray, and an app with `dp_fed_avg` on Flower."""
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "-c", "constraints.txt"]
    if subprocess.run([*pip, "torch==2.13.0"], check=False, cwd=ROOT).returncode:
        pytest.skip("no package index that has torch")
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    subprocess.run([*pip, str(source)], check=True, cwd=ROOT)
    installed = subprocess.run([home / "bin" / "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert not {"matplotlib", "opendp", "numba"} & {line.split()[0] for line in installed.splitlines() if line}

    small = ["--set", "data.users=400", "--set", "data.dimension=3", "--anyway", "--output", str(tmp_path / "runs")]
    small += ["--set", "engine.roster_timeout=600"]  # Ray starts its workers with little priority
    quickstart = str(ROOT / "simulations" / "configs" / "quickstart.toml")
    run = [str(home / "bin" / "userdp"), "run", quickstart, "--engine", "ray", *small]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    app = tmp_path / "app"
    app.mkdir()
    python, settings = (
        next(block for block in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
        for language in ("python", "toml")
    )
    code, count = re.subn(
        r"RobustRounds\(\n.*?\n    \)|, noise=\"secure\"",
        lambda found: AVERAGES if "\n" in found[0] else "",
        python,
        flags=re.DOTALL,
    )
    assert count == 2
    (app / "app.py").write_text(patient(code.replace("RobustRounds", "DPFedAvg")), encoding="utf-8")
    (app / "pyproject.toml").write_text(settings, encoding="utf-8")
    run_on_flower(tmp_path / "flower", app, 2, {"output": str(tmp_path)}, home / "bin" / "flwr")
    assert (tmp_path / "model.npz").exists()
