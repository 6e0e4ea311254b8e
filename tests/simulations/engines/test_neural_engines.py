"""A recurrent module on a table of sequences gives the same model in this process, in Ray's and in Flower's."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import PATIENCE
from helpers_flower import FlowerEngine
from own_model import beside

from simulations.config.run_config import load_config
from simulations.runs.run import run

ROOT = Path(__file__).resolve().parents[3]
SMALL = (
    "data.all_users=40",
    "strategy.rounds=2",
    "output.reference=false",
    'problem.precision="double"',  # in single, rounding decides where Adam goes first
)
pytestmark = [
    # Ray leaves the pipes and handles of its processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
    (tmp_path / "home").mkdir()
    engine, there = FlowerEngine(tmp_path / "home"), tmp_path / "run"
    overrides = "; ".join([*SMALL, f"engine.roster_timeout={PATIENCE}"])
    try:
        engine.run(ROOT, 4, {"config": str(path), "overrides": overrides, "output": str(there)})
    finally:
        engine.stop()
    result = json.loads((there / "result.json").read_text())
    assert result["engine"] == "flower"
    assert result["computed"] is None  # nodes of other processes measured for themselves
    agree(np.load(there / "model.npz")["x"], local.model)
