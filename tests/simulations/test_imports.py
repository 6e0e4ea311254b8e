"""What a plan imports: seconds that somebody who only asks for numbers would wait for nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from userdp.accounting.costs import _test_losses

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "ray", "pandas", "matplotlib", "opendp", "dp_accounting", "scipy.stats", "scipy.signal", "mlflow"}
PROGRAM = """
import sys
from simulations.cli import app
app(["plan", sys.argv[1]], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["quickstart", "robust-mean", "insteval"])
def test_a_plan_imports_no_heavy_package_and_no_strategy_but_its_own(name):
    file = ROOT / "simulations" / "configs" / f"{name}.toml"
    done = subprocess.run([sys.executable, "-c", PROGRAM, file], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = set(done.stderr.split())
    assert "flwr" in modules  # they are told
    assert not HEAVY & modules
    assert ("pyarrow" in modules) == (name == "insteval")  # tables need it
    own = {
        "quickstart": "auto.auto",
        "robust-mean": "localized.localized_robust_sgd",
        "insteval": "clipping.dp_fed_sgd",
    }
    assert {one for one in own.values() if f"strategies.{one}" in modules} == {own[name]}


@pytest.mark.parametrize("participations", [1, 2, 7, 40])
def test_the_binomial_law_of_tests_is_that_of_scipy(participations):
    for epsilon in np.geomspace(1e-9, 50, 40):
        _, chances = _test_losses(float(epsilon), participations)
        expected = binom.pmf(np.arange(participations + 1), participations, 1 / (1 + np.exp(-epsilon)))
        np.testing.assert_allclose(chances, expected, rtol=1e-12, atol=0)
