"""The command itself, killed from outside at random moments on every engine, goes on to the end it would have had."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from examples import changed
from helpers import PATIENCE
from helpers_flower import RUN, FlowerEngine
from helpers_killed import QUIET, left

from simulations.records.run_directory import CHECKPOINT

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-c", "from simulations.cli import main; main()", "run"]
CONFIG = changed(name="killed", problem={"kind": "quadratic", "bound": 6.0, "radius": 1.0}, output={"reference": False})
CONFIG |= {"data": CONFIG["data"] | {"dimension": 4}}
CONFIG |= {"strategy": {"kind": "dp_ftrl", "rounds": 40, "learning_rate": 0.01, "factorisation": "buffered"}}
NODES = 8
"""On every engine: the last bits of a sum are those of the blocks it was added up in."""
pytestmark = pytest.mark.slow


def prepared(folder, **engine):
    path = folder / "killed.toml"
    patient = {"timeout": PATIENCE, "roster_timeout": PATIENCE}  # whoever starts slowly is not missing
    nodes = {"users_per_node": CONFIG["data"]["users"] // NODES}
    path.write_text(tomli_w.dumps(CONFIG | {"engine": {**nodes, **patient, **engine}}))
    return path


def command(folder, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def killed(process, directory, delay):
    """Kill it so many seconds after its first checkpoint; whether it was still running."""
    deadline = time.monotonic() + PATIENCE
    while not (directory / CHECKPOINT).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(QUIET)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def without_engine(directory):
    found = left(directory, lengths=False)
    found["result"].pop("engine")
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    process = command(folder, str(prepared(folder, kind="local")))
    assert process.wait(PATIENCE) == 0, process.stderr.read()
    process.communicate()
    return without_engine(folder / "runs" / "killed-dp_ftrl-seed3")


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "seed"), [*(("local", seed) for seed in range(12)), *(("ray", seed) for seed in range(5))]
)
def test_a_killed_command_goes_on_to_the_bit(tmp_path, whole, engine, seed):
    directory, draw = tmp_path / "runs" / "killed-dp_ftrl-seed3", random.Random(seed)
    workers = {"workers": 2} if engine == "ray" else {}
    process = command(tmp_path, str(prepared(tmp_path, kind=engine, **workers)))
    kills = int(killed(process, directory, draw.uniform(0, 0.6)))
    while (directory / CHECKPOINT).exists():
        process = command(tmp_path, "--resume", str(directory))
        if kills < 2:
            kills += killed(process, directory, draw.uniform(1, 4))
        else:
            assert process.wait(PATIENCE) == 0, process.stderr.read()
            process.communicate()
    assert without_engine(directory) == whole


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_flower_run_goes_on_to_the_bit(tmp_path, whole, seed):
    """SuperLink, ServerApp and nodes all die, and others are started."""
    directory, draw = tmp_path / "out", random.Random(seed)
    settings = {"config": str(prepared(tmp_path)), "output": str(directory)}
    for home in ("home", "home-2"):
        (tmp_path / home).mkdir()
    engine = FlowerEngine(tmp_path / "home")
    try:
        engine.submit(RUN, NODES, settings)
        deadline = time.monotonic() + PATIENCE
        while not (directory / CHECKPOINT).exists() and time.monotonic() < deadline:
            time.sleep(QUIET)
        time.sleep(draw.uniform(0, 3))
        engine.stop()
        engine = FlowerEngine(tmp_path / "home-2")
        engine.run(RUN, NODES, settings)
    finally:
        engine.stop()
    assert without_engine(directory) == whole
