"""Runs on tables that lie in a file: the same run as with the table in memory, within memory that could not hold it."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import altered
from helpers import PATIENCE, forgive_ray
from helpers_killed import left

from simulations import train
from simulations.config.run_config import parse_config
from simulations.records.checkpoints import Checkpoints
from simulations.records.evaluation import Evaluation
from simulations.runs.build import load_datasets, starting_problem
from simulations.runs.run import run
from userdp.errors import BadInput
from userdp.snapshots import Snapshot

ROOT = Path(__file__).resolve().parents[3]
ROOM_MIB = 160
"""Memory that a run may take beyond one on a small table: batches, parts and blocks of 16 MiB."""
COLUMNS = 63
READ = """
import pathlib, resource, sys
import pandas, pyarrow.parquet
from userdp.data import read_table
status = dict(line.split(':') for line in open('/proc/self/status') if line.startswith('VmSize'))
limit = (int(status['VmSize'].split()[0]) << 10) + (240 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
path, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
read_table(path, user='who', features=names, ranges={names[0]: [-4, 4]}, memory=0)
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"who": rng.integers(0, 90, 700)} | {name: rng.uniform(-2, 2, 700) for name in "ab"})
    people["y"] = people["a"] + rng.normal(size=700) > 0
    path = tmp_path_factory.mktemp("table") / "people.parquet"
    people.to_parquet(path, index=False)
    return path


def configuration(table, memory=None, **sections):
    data = {"kind": "table", "path": str(table), "user": "who", "features": ["a", "b"], "target": "y", "positive": True}
    data |= {"ranges": {"a": [-1, 1], "b": [-2, 2]}, "max_samples": 8}
    return parse_config(
        {
            "name": "stored",
            "data": data if memory is None else data | {"memory": memory},
            "problem": {"kind": "logistic", "feature_norm": 1.4},
            "privacy": {"epsilon": 4.0, "delta": 1e-3},
            "strategy": {"kind": "dp_fed_sgd", "rounds": 3},
            "output": {"anyway": True},
            **sections,
        }
    )


RAY = {"kind": "ray", "workers": 2, "users_per_node": 30, "roster_timeout": PATIENCE}


@pytest.mark.parametrize("engine", [{"kind": "local"}, pytest.param(RAY, marks=pytest.mark.slow)], ids=["local", "ray"])
@forgive_ray
def test_a_run_leaves_the_same_to_the_last_bit(table, tmp_path, engine):
    """Rounds, metrics, the reference without privacy, and counts of what was clipped."""
    found = {}
    for memory in (None, 0):
        config, directory = configuration(table, memory, engine=engine), tmp_path / f"run-{memory}"
        datasets = load_datasets(config)
        assert all(part.stored == (memory == 0) for part in (datasets.train, datasets.test))
        run(config, directory=directory, datasets=datasets, report=False)
        found[memory] = left(directory) | {"data": (directory / "data.json").read_text()}
    gc.collect()  # what Ray leaves open would be held against the next test
    assert found[None] == found[0]
    assert '"clipped_samples_private": 0' not in found[0]["data"]


@pytest.mark.parametrize("kept", [True, False])
def test_held_out_people_are_clipped_whether_they_are_kept_or_not(table, kept, monkeypatch):
    """Held-out people of a table too large to keep were once measured without clipping."""
    if not kept:
        monkeypatch.setattr("simulations.records.evaluation.MEMORY_BYTES", 0)
    models = np.random.default_rng(1).normal(size=(2, 3))
    whole, stored = (configuration(table, memory) for memory in (None, 0))
    problem = starting_problem(whole)
    for x in models[:, : problem.dimension]:
        of_whole, of_stored = (Evaluation(problem, None, load_datasets(each).test)(x) for each in (whole, stored))
        assert of_whole == of_stored


def test_a_run_goes_on_with_other_memory(table, tmp_path):
    kept = Snapshot({"round": 2}, {})
    Checkpoints(tmp_path, configuration(table)).keep(lambda: kept, must=True)
    assert Checkpoints(tmp_path, configuration(table, memory=0)).read().kept.values == kept.values
    with pytest.raises(BadInput, match=r"data\.max_samples"):
        Checkpoints(tmp_path, altered(configuration(table), data__max_samples=9)).read()


def test_in_python_too(table):
    """A DataFrame is written to a file that is gone when training begins."""
    frame = pd.read_parquet(table)
    settings = {"user": "who", "features": ["a", "b"], "ranges": {"a": [-1, 1], "b": [-2, 2]}, "target": "y"}
    settings |= {"positive": True, "users": 60, "epsilon": 4.0, "delta": 1e-3, "problem": "logistic"}
    made = [train(frame, memory=memory, **settings) for memory in (None, 0)]
    np.testing.assert_array_equal(made[0].model, made[1].model)
    pd.testing.assert_frame_equal(made[0].evaluate(frame), made[1].evaluate(table))


@pytest.fixture
def streaming(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    import streaming

    return streaming


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of an address space is Linux's")
def test_a_file_of_three_times_the_memory_trains_in_batches_alone(streaming, tmp_path):
    """The memory that a process may take beyond a run on a small table is a third of the file."""
    small, large = tmp_path / "small", tmp_path / "large"
    for folder, mib in ((small, 1), (large, 3 * ROOM_MIB)):
        folder.mkdir()
        streaming.write_table(folder, mib, COLUMNS, group_mib=16)
    base = streaming.trained(small, 0, COLUMNS, memory=0)
    assert base["trained"], base["told"]
    limit = base["address_space_mib"] + ROOM_MIB
    batches = streaming.trained(large, limit, COLUMNS, memory=16)
    assert batches["trained"], batches["told"]
    at_once = streaming.trained(large, limit, COLUMNS, memory=1 << 20)
    assert not at_once["trained"]
    assert "does not fit into memory: lower data.memory" in at_once["told"]


@pytest.mark.slow
def test_a_row_group_larger_than_memory_is_read_page_by_page(streaming, tmp_path):
    """All rows in one group: what is read at once is a batch of it."""
    streaming.write_table(tmp_path, 400, COLUMNS, group_mib=401)
    command = [sys.executable, "-c", READ, str(tmp_path / "table.parquet"), f"x_[1-{COLUMNS}]"]
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
