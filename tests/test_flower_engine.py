"""The same run on Flower's own simulation engine as in process: same model, same metrics, one seed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tomli_w

from simulations.config import load_config
from simulations.run import run

ROOT = Path(__file__).resolve().parent.parent
FLWR = Path(sys.executable).with_name("flwr")
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


class FlowerEngine:
    """A private SuperLink in a neutral folder, stopped by its pid at the end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{FLWR.parent}{os.pathsep}{os.environ['PATH']}",
        }

    def flwr(self, *arguments: str, timeout: float = 120) -> str:
        done = subprocess.run(
            [str(FLWR), *arguments],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, nodes: int, settings: dict[str, str], timeout: float = 240) -> None:
        """Submit the app and wait until it has finished; `--stream` would say success of a failed run."""
        run_config = self.home / "run-config.toml"
        run_config.write_text(tomli_w.dumps(settings))
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        options = ["--federation-config", federation, "--run-config", str(run_config), "--format", "json"]
        submitted = json.loads(self.flwr("run", str(ROOT), *options))
        number = str(submitted["run-id"])
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            status = json.loads(self.flwr("ls", "--run-id", number, "--format", "json"))["runs"][0]["status"]
            if status.startswith("finished"):
                assert status == "finished:completed", self.flwr("log", number, "--show")
                return
            time.sleep(1)
        pytest.fail(f"the Flower run did not finish in {timeout} s:\n{self.flwr('log', number, '--show')}")

    def stop(self) -> None:
        for process in psutil.process_iter(["environ", "cmdline"]):
            environ = process.info["environ"] or {}
            if environ.get("FLWR_HOME") == str(self.home) and process.pid != os.getpid():
                process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = FlowerEngine(tmp_path_factory.mktemp("flower"))
    yield engine
    engine.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "overrides"),
    [(8, ()), (4, ('strategy={kind="localized_robust_sgd", deviation=1.0}', "seed=6"))],
)
def test_flower_engine_gives_the_model_and_metrics_of_the_local_engine(engine, tmp_path, nodes, overrides):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    there = tmp_path / "flower"
    engine.run(nodes, {"config": str(path), "overrides": "; ".join(overrides), "output": str(there)})
    here = run(load_config(path, overrides), directory=tmp_path / "local")
    result = json.loads((there / "result.json").read_text())
    model = np.load(there / "model.npz")["x"]
    assert result["engine"] == "flower"
    assert result["guarantee"] == json.loads(json.dumps(here.result["guarantee"]))
    if nodes == 8:  # the default layout of every engine
        np.testing.assert_array_equal(model, here.model)
    np.testing.assert_allclose(model, here.model, rtol=1e-9, atol=1e-12)
    for name, value in here.result["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, rel=1e-9)
