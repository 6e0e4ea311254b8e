"""The same run on Flower's own simulation engine as in process: same model, same metrics, one seed."""

import json
from pathlib import Path

import numpy as np
import pytest
from examples import write_table
from helpers_flower import FlowerEngine

from simulations.config.run_config import load_config
from simulations.runs.run import run

ROOT = Path(__file__).resolve().parents[3]
CONFIG = """
name = "on-flower"
seed = 5
[problem]
kind = "quadratic"
bound = 6.0
radius = 1.0
[data]
kind = "synthetic"
population = "gaussian"
dimension = 4
users = 400
test_users = 50
samples_per_user = 20
[privacy]
epsilon = 4.0
delta = 1e-5
[strategy]
kind = "dp_fed_sgd"
rounds = 3
learning_rate = 1.0
"""


REGRESSION = (
    'problem={kind="squared", target_range=[-3.0, 3.0]}',
    'data={kind="synthetic", population="linear_regression", dimension=4, users=400, test_users=50}',
)


CLASSES = (
    'problem={kind="softmax"}',
    'data={kind="table", path="people.csv", user="who", features=["height"], ranges={height=[150.0, 200.0]}, '
    'target="team", target_levels=["red", "green", "blue"]}',
    'strategy={kind="auto"}',
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = FlowerEngine(tmp_path_factory.mktemp("flower"))
    yield engine
    engine.stop()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "overrides"),
    [
        (8, ()),
        (4, ('strategy={kind="localized_robust_sgd", deviation=1.0}', "seed=6")),
        (8, ('strategy={kind="dp_fed_avg", rounds=2}', "preparation=learn", *REGRESSION)),
        (8, CLASSES),
        (8, ('privacy.trust="sum"', "privacy.colluding=0.3")),
        (8, ('privacy.trust="sum"', 'strategy={kind="adaptive_clipping", rounds=2}')),
    ],
)
def test_flower_engine_gives_the_model_and_metrics_of_the_local_engine(engine, tmp_path, nodes, overrides):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    write_table(tmp_path / "people.csv", users=500)  # 400 of whom train
    there = tmp_path / "flower"
    engine.run(ROOT, nodes, {"config": str(path), "overrides": "; ".join(overrides), "output": str(there)})
    here = run(load_config(path, (*overrides, "engine.users_per_node=50")), directory=tmp_path / "local")
    result = json.loads((there / "result.json").read_text())
    model = np.load(there / "model.npz")["x"]
    assert result["engine"] == "flower"
    assert result["guarantee"] == json.loads(json.dumps(here.result["guarantee"]))
    if nodes == 8:  # the same layout
        np.testing.assert_array_equal(model, here.model)
    np.testing.assert_allclose(model, here.model, rtol=1e-9, atol=1e-12)
    for name, value in here.result["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, rel=1e-9)
