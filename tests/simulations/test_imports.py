"""The imports of a plan and of a run: each needless one costs seconds of waiting."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from userdp.accounting.costs import _test_losses

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "ray", "pandas", "matplotlib", "opendp", "dp_accounting", "scipy.stats", "scipy.signal", "mlflow"}
HEAVY |= {"tensorboard"}
NOT_BY_RUNS = HEAVY - {"pandas", "matplotlib"}
"""Rounds are written as a table, and the report has charts."""
PROGRAM = """
import sys
from simulations.cli import app
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    print("MODULES", *sys.modules, file=sys.stderr)
"""


def imported(*command):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], capture_output=True, text=True, check=True, cwd=ROOT
    )
    (told,) = (line for line in done.stderr.splitlines() if line.startswith("MODULES"))
    return set(told.split()[1:])


def test_help_imports_no_mathematics():
    modules = imported("--help")
    assert "typer" in modules
    assert not {"numpy", "scipy", "flwr", "pydantic", "strategies.core.base", *HEAVY} & modules


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["quickstart", "robust-mean", "insteval"])
def test_a_plan_imports_no_heavy_package_and_no_strategy_but_its_own(name):
    modules = imported("plan", f"simulations/configs/{name}.toml")
    assert "flwr" in modules  # they are told
    assert not HEAVY & modules
    assert ("pyarrow" in modules) == (name == "insteval")  # tables need it
    own = {
        "quickstart": "auto.auto",
        "robust-mean": "baselines.robust.localized_robust_sgd",
        "insteval": "clipping.dp_fed_sgd",
    }
    assert {one for one in own.values() if f"strategies.{one}" in modules} == {own[name]}


@pytest.mark.slow
def test_a_run_and_its_report_import_what_they_use(tmp_path):
    """A synthetic mean, on the local grid: no torch, no Ray, no other strategies, and no tables of people."""
    small = ("--set", "data.users=400", "--set", "data.dimension=3", "--anyway")
    modules = imported("run", "simulations/configs/quickstart.toml", *small, "--output", str(tmp_path))
    assert {"strategies.auto.auto", "matplotlib"} <= modules
    assert not NOT_BY_RUNS & modules
    others = {
        "strategies.robust.robust_rounds",
        "strategies.baselines.sparse_gradients.stopped_sgd",
        "userdp.data.tables.public",
    }
    assert not others & modules
    (directory,) = tmp_path.iterdir()
    modules = imported("report", str(directory))
    assert "matplotlib" in modules
    assert not NOT_BY_RUNS & modules


@pytest.mark.slow
def test_a_process_that_makes_runs_of_a_comparison_imports_no_charts():
    program = "import sys, simulations.comparison.one_cell; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = set(done.stdout.split())
    assert "simulations.runs.run" in modules
    assert not (HEAVY | {"jinja2", "simulations.reports.report"}) & modules


@pytest.mark.parametrize("participations", [1, 2, 7, 40])
def test_the_binomial_law_of_tests_is_that_of_scipy(participations):
    for epsilon in np.geomspace(1e-9, 50, 40):
        _, chances = _test_losses(float(epsilon), participations)
        expected = binom.pmf(np.arange(participations + 1), participations, 1 / (1 + np.exp(-epsilon)))
        np.testing.assert_allclose(chances, expected, rtol=1e-12, atol=0)
