"""The GPU of each actor: shares that Ray sets aside, and the message where there is none."""

from unittest.mock import Mock

import numpy as np
import pytest
from examples import changed
from helpers import PATIENCE, final, forgive_ray, local_grid, make, own_ray

import simulations.engines.configured
from simulations.config.run_config import parse_config
from simulations.engines.configured import make_grid
from simulations.engines.grids import shards
from simulations.engines.ray_grid import RayGrid
from simulations.runs.build import load_datasets, make_plan
from simulations.runs.run import run
from strategies import DPFedSGD
from userdp.data import Gaussian, SyntheticFederation
from userdp.errors import BadInput, RunFailed
from userdp.problems import Quadratic

USERS = 200
PROBLEM = Quadratic(3, 5.0, 2.0)
pytestmark = forgive_ray
TORCH = {"problem": {"kind": "torch", "loss": "mse", "has_targets": False, "outputs": 3}}


def population():
    return SyntheticFederation(Gaussian(dimension=3), USERS, 6)


def trained(grid):
    return final(make(DPFedSGD, PROBLEM, USERS, rounds=2).start(grid, roster_timeout=PATIENCE))


@pytest.fixture
def gpus_as_ray_counts_them():
    """A Ray that believes in two GPUs: it shares out what it is told there is."""
    with own_ray(num_cpus=6, num_gpus=2) as ray:
        yield ray


@pytest.mark.slow
def test_actors_share_gpus_by_the_fractions_that_are_asked_for(gpus_as_ray_counts_them):
    blocks, expected = shards(USERS), trained(local_grid(PROBLEM, population()))
    with RayGrid(PROBLEM, population(), blocks, 6, gpus=0.5) as grid:
        np.testing.assert_array_equal(trained(grid), expected)
        assert len(grid._workers) == 4  # two on each GPU: a fifth would wait forever
        assert gpus_as_ray_counts_them.available_resources().get("GPU", 0.0) == 0.0


def test_shares_of_a_gpu_that_ray_does_not_have_are_refused(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    with pytest.raises(RunFailed, match=r"engine\.gpus_per_actor = 0\.25: Ray has no GPU; set 0"):
        RayGrid(PROBLEM, population(), shards(USERS), gpus=0.25)


@pytest.mark.parametrize(("there", "each", "shares"), [(1.0, 0.25, 4), (2.0, 1.0, 2), (1.0, 0.1, 10), (2.0, 0.4, 4)])
def test_a_share_lies_on_one_gpu_as_a_whole(there, each, shares):
    assert RayGrid._shares(None, there, each) == shares


def test_the_configured_share_reaches_the_actors(monkeypatch):
    grid = Mock(side_effect=RunFailed("enough"))
    monkeypatch.setattr(simulations.engines.configured, "RayGrid", grid)
    config = parse_config(changed(engine={"kind": "ray", "workers": 3, "device": "auto", "gpus_per_actor": 0.25}))
    with pytest.raises(RunFailed, match="enough"), make_grid(config, PROBLEM, load_datasets(config)):
        pass
    assert grid.call_args.args[3:] == (3, None, 0.25)


def test_a_run_on_a_gpu_that_is_not_there_stops_before_it_writes_and_its_plan_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = parse_config(changed(**TORCH, engine__device="cuda"))
    assert make_plan(config).rounds == 3
    with pytest.raises(BadInput, match=r"engine\.device = 'cuda': torch finds no GPU"):
        run(config, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_auto_gives_the_processors_model_where_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    strategy = {"kind": "dp_fed_avg", "clip_norm": 1.0, "rounds": 2, "local_epochs": 2, "local_batch": 2}
    configs = {name: parse_config(changed(**TORCH, strategy=strategy, engine__device=name)) for name in ("auto", "cpu")}
    outcomes = [run(config, directory=tmp_path / name, report=False) for name, config in configs.items()]
    np.testing.assert_array_equal(*(outcome.model for outcome in outcomes))
