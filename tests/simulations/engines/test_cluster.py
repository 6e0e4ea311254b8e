"""A cluster of two machines, both on this one, of which one is lost amid a round."""

import gc
import itertools
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers import MARK, PATIENCE, FaultyQuadratic, federation_of, final, forgive_ray, local_grid, make

from simulations import load_config
from simulations.engines.grids import shards
from simulations.engines.ray_grid import RayGrid
from strategies import DPFedSGD
from strategies.core import base
from userdp.data import Gaussian, SyntheticFederation
from userdp.problems import Quadratic

USERS, PER_NODE = 100, 10
ROOT = Path(__file__).resolve().parents[3]
CLUSTER = ROOT / "docs" / "cluster"


@pytest.fixture
def cluster(monkeypatch):
    """Two machines of one CPU each; actors import `helpers` from this folder.

    In a folder of their own, where no other test beside this one finds their address and joins them. Its name is
    short, for sockets lie in it.
    """
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    here = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parent)]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    machines.add_node(num_cpus=1)
    machines.wait_for_nodes(PATIENCE)
    yield machines
    ray.shutdown()
    machines.shutdown()
    gc.collect()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@forgive_ray
def test_a_machine_lost_amid_a_round_changes_no_bit(cluster, tmp_path, caplog):
    """Every user is marked, so that whichever actor is on the second machine takes it down, in its first round."""
    data = np.full((USERS, 2), 0.5)
    data[:, 0] = MARK
    federation, once = federation_of(data), tmp_path / "happened"
    problem = FaultyQuadratic(2, "machine", once, spared=cluster.head_node.node_id)

    def started(grid):
        with grid:
            method = make(DPFedSGD, problem, USERS, 10.0, 1e-3, rounds=3)
            return method.start(grid, timeout=PATIENCE, roster_timeout=PATIENCE)

    result = started(RayGrid(problem, federation, shards(USERS, PER_NODE), address=cluster.address))
    assert once.exists()
    assert "an actor died" in caplog.text
    assert result.missing_users == 0
    np.testing.assert_array_equal(final(result), final(started(local_grid(problem, federation, PER_NODE))))


@pytest.mark.slow
@forgive_ray
@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_several_machines_give_the_bits_of_one_process(cluster, noise, monkeypatch):
    """Secure noise cannot be drawn again, so the first sums of nodes' answers are compared."""
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes(PATIENCE)
    federation = SyntheticFederation(Gaussian(dimension=5), USERS, seed=2, samples_per_user=3, samples_tail=1.5)
    problem, sums = Quadratic(5, 4.0, 2.0), []
    gathered = base.gather
    monkeypatch.setattr(base, "gather", lambda *given: sums.append(gathered(*given)) or sums[-1])

    def trained(grid):
        with grid:
            method = make(DPFedSGD, problem, USERS, 10.0, 1e-3, rounds=3, noise=noise)
            return method.start(grid, timeout=PATIENCE, roster_timeout=PATIENCE)

    grid = RayGrid(problem, federation, shards(USERS, PER_NODE), address=cluster.address)
    assert len(grid._workers) == 3  # a machine has room for one
    spread, together = trained(grid), trained(local_grid(problem, federation, PER_NODE))
    if noise == "seeded":
        np.testing.assert_array_equal(final(spread), final(together))
    np.testing.assert_array_equal(sums[0].values, sums[3].values)


# --- The page ---------------------------------------------------------------------------------------------------------


def test_the_manifest_is_a_job_whose_parts_fit_each_other_and_the_pins():
    claim, job = yaml.safe_load_all((CLUSTER / "rayjob.yaml").read_text(encoding="utf-8"))
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["shutdownAfterJobFinishes"] is True
    cluster = spec["rayClusterSpec"]
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    pods = [group["template"]["spec"] for group in (head, workers)]
    assert len({container["image"] for pod in pods for container in pod["containers"]}) == 1
    (container,) = pods[0]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pods[0]["volumes"]}
    names = {volume["name"]: volume for volume in pods[0]["volumes"]}
    assert names["runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert all(any(word.split("=")[-1].startswith(path) for word in spec["entrypoint"].split()) for path in paths)


def test_the_manifests_command_is_one_that_there_is():
    _, job = yaml.safe_load_all((CLUSTER / "rayjob.yaml").read_text(encoding="utf-8"))
    words = job["spec"]["entrypoint"].split()
    assert words[:3] == ["userdp", "run", "/config/my.toml"]
    overrides = [word for flag, word in itertools.pairwise(words) if flag == "--set"]
    assert words[3:] == ["--engine", "ray", *(part for each in overrides for part in ("--set", each))]
    own = ROOT / "simulations" / "configs" / "quickstart.toml"
    config = load_config(own, [*overrides, "engine.kind=ray"])
    assert (config.engine.kind, config.engine.address, config.engine.users_per_node) == ("ray", "auto", 500)
    assert str(config.output.directory) == "/runs"


def test_the_image_has_the_pinned_ray_and_all_packages():
    text = (CLUSTER / "Dockerfile").read_text(encoding="utf-8")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert all(f"{tool}=={version}" in pins for tool, version in re.findall(r"(ray|torch)(?::|==)([\d.]+\d)", text))
    for package in ("userdp", "strategies", "simulations"):
        assert f"{package} /home/ray/userdp/{package}" in text
