"""The same run on Flower's own simulation engine as in process: same model, same metrics, one seed."""

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from examples import changed, write_table
from helpers import PATIENCE, forgive_ray
from helpers_flower import RUN, FlowerEngine, run_on_flower
from own_model import beside

from simulations.config.run_config import load_config, read_toml
from simulations.runs.run import run

ROOT = Path(__file__).resolve().parents[3]
CONFIG = changed(name="on-flower", seed=5, problem={"kind": "quadratic", "bound": 6.0, "radius": 1.0})
CONFIG |= {"data": CONFIG["data"] | {"dimension": 4, "samples_per_user": 20}}
CONFIG |= {"strategy": {"kind": "dp_fed_sgd", "rounds": 3, "learning_rate": 1.0}}


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
        (8, (*CLASSES, "privacy.evaluate=true", "privacy.epsilon=8")),
        (8, ('privacy.trust="sum"', "privacy.colluding=0.3")),
        (8, ('privacy.trust="sum"', 'strategy={kind="adaptive_clipping", rounds=2}')),
    ],
)
def test_flower_engine_gives_the_model_and_metrics_of_the_local_engine(engine, tmp_path, nodes, overrides):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    write_table(tmp_path / "people.csv", users=500)  # 400 of whom train
    there = tmp_path / "flower"
    path.write_text(tomli_w.dumps(read_toml(path, overrides)))
    engine.run(RUN, nodes, {"config": str(path), "roster_timeout": PATIENCE, "output": str(there)})
    here = run(load_config(path, ["engine.users_per_node=50"]), directory=tmp_path / "local")
    result = json.loads((there / "result.json").read_text())
    model = np.load(there / "model.npz")["x"]
    assert result["engine"] == "flower"
    assert result["guarantee"] == json.loads(json.dumps(here.result["guarantee"]))
    if nodes == 8:  # the same layout
        np.testing.assert_array_equal(model, here.model)
    np.testing.assert_allclose(model, here.model, rtol=1e-9, atol=1e-12)
    assert result.get("held_out") == json.loads(json.dumps(here.result.get("held_out")))
    for name, value in here.result["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, rel=1e-9)


# A recurrent module on a table of sequences: in this process, in Ray's and in Flower's -------------------------------


SMALL = (
    "data.all_users=40",
    "strategy.rounds=2",
    "output.reference=false",
    'problem.precision="double"',  # in single, rounding decides where Adam goes first
)
pytestmark = forgive_ray


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return beside(tmp_path_factory.mktemp("own"), listeners=40, heard=20)


@pytest.fixture(scope="module")
def local(path, tmp_path_factory):
    return run(load_config(path, SMALL), directory=tmp_path_factory.mktemp("local") / "run", report=False)


def agree(found, expected):
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", ["users_per_node=1", "users_per_node=32", 'kind="ray", workers=2', 'kind="ray", workers=1'], ids=str
)
def test_engines_and_layouts_give_the_same_model(path, local, tmp_path, engine):
    patient = f"engine={{{engine}, roster_timeout={PATIENCE}}}"  # actors import torch first
    outcome = run(load_config(path, [*SMALL, patient]), directory=tmp_path / "run", report=False)
    agree(outcome.model, local.model)
    assert outcome.result["computed"] is not None
    for name, value in local.result["metrics"].items():
        assert outcome.result["metrics"][name] == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("execution", ["loop", "grouped"])
def test_ways_of_computing_give_the_same_model(path, local, tmp_path, execution):
    overrides = [*SMALL, f'problem.execution="{execution}"']
    agree(run(load_config(path, overrides), directory=tmp_path / "run", report=False).model, local.model)


@pytest.mark.long
@pytest.mark.slow
def test_flowers_engine_gives_the_same_model(path, local, tmp_path):
    there, own = tmp_path / "run", path.with_name("small.toml")
    own.write_text(tomli_w.dumps(read_toml(path, SMALL)))
    run_on_flower(tmp_path / "home", RUN, 4, {"config": str(own), "roster_timeout": PATIENCE, "output": str(there)})
    result = json.loads((there / "result.json").read_text())
    assert result["engine"] == "flower"
    assert result["computed"] is None  # nodes of other processes measured for themselves
    agree(np.load(there / "model.npz")["x"], local.model)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "rows", ['"found", false_rows=0.4', '"each_round", false_rows=0.4', '"projected", max_rows=20'], ids=str
)
def test_rows_of_embeddings_train_alike_to_the_bit_in_process_on_ray_and_on_flower(path, tmp_path, rows):
    strategy = f'strategy={{kind="dp_fed_sgd", rounds=3, embedding_rows={rows}}}'
    chosen, own = [*SMALL, strategy, 'problem.execution="loop"'], path.with_name("rows.toml")
    engines = "users_per_node=8", f'kind="ray", workers=2, users_per_node=8, roster_timeout={PATIENCE}'
    here, ray = (
        run(load_config(path, [*chosen, f"engine={{{engine}}}"]), directory=tmp_path / engine[:4], report=False).model
        for engine in engines
    )
    own.write_text(tomli_w.dumps(read_toml(path, chosen)))
    there = tmp_path / "flower"
    run_on_flower(tmp_path / "home", RUN, 4, {"config": str(own), "roster_timeout": PATIENCE, "output": str(there)})
    np.testing.assert_array_equal(ray, here)
    np.testing.assert_array_equal(np.load(there / "model.npz")["x"], here)
