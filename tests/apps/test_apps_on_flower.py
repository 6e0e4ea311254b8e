"""Copies of the apps on Flower's engines: simulated, and on a SuperLink with two SuperNodes."""

import json
import shutil

import pytest
from app_results import APPS, defaults, part
from helpers import PATIENCE
from helpers_flower import FlowerDeployment, FlowerEngine

from simulations.deployment.keys import make_keys
from userdp.accounting import Guarantee

SETTINGS = {"delta": 1e-3, "epsilon": 2.0, "roster_timeout": PATIENCE}
pytestmark = [pytest.mark.slow, pytest.mark.long]


def ends_well(engine, app, folder, nodes, changes):
    """Run a copy of the app to its end, and check what it prints and writes."""
    shutil.copytree(APPS[app], folder / app, ignore=shutil.ignore_patterns("__pycache__"))
    settings = SETTINGS | changes | ({"num-server-rounds": 2} if "num-server-rounds" in defaults(app) else {})
    number = engine.submit(folder / app, nodes, settings | {"output": str(folder / "results")})
    engine.wait(number)
    guarantee = Guarantee.from_dict(json.loads((folder / "results" / "guarantee.json").read_text()))
    assert guarantee.holds
    assert (guarantee.unit, guarantee.epsilon) == ("user", pytest.approx(2.0, rel=1e-3))
    assert guarantee.sentence() in engine.flwr("log", number, "--show")
    assert (folder / "results" / "model.npz").is_file()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = FlowerEngine(tmp_path_factory.mktemp("flower"))
    yield engine
    engine.stop()


@pytest.mark.parametrize(
    ("app", "nodes", "changes"),
    [
        ("userdp-query", 3, {"num-users": 60}),
        ("userdp-quickstart", 3, {"num-users": 60}),
        ("userdp-torch", 4, {"num-users": 4, "strategy": "adaptive_clipping"}),
        ("userdp-silos", 3, {"num-users": 60}),
    ],
)
def test_an_app_runs_in_a_simulation(engine, tmp_path, app, nodes, changes):
    ends_well(engine, app, tmp_path, nodes, changes)


@pytest.mark.parametrize(
    ("app", "data", "changes"),
    [
        ("userdp-query", (2, 60), {"num-users": 60}),
        ("userdp-quickstart", (2, 60), {"num-users": 60}),
        ("userdp-torch", (2,), {"num-users": 2}),
        ("userdp-silos", (2, 60), {"num-users": 60}),
    ],
)
def test_an_app_runs_on_a_superlink_with_two_supernodes(tmp_path, app, data, changes):
    home, keys = tmp_path / "flower", tmp_path / "keys"
    home.mkdir()
    if app in ("userdp-query", "userdp-silos"):
        make_keys(keys, 2)
    deployment = FlowerDeployment(
        home, part(app, "demo").write(tmp_path / "data", *data), keys / "superlink" if keys.exists() else None
    )
    try:
        ends_well(deployment, app, tmp_path, 2, changes)
    finally:
        deployment.stop()
