"""Flower's own engine for tests, and a grid of ordinary ClientApps in this process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import tomli_w
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from helpers import PATIENCE

from simulations.engines.grids import InMachineGrid, error_reply

ROOT = Path(__file__).resolve().parent.parent
FLWR = Path(sys.executable).with_name("flwr")


class FlowerEngine:
    """A private SuperLink in a neutral folder, stopped by its pid at the end.

    Apps import the tree under test, or, with the ``flwr`` command of another environment, what is installed there.
    """

    def __init__(self, home: Path, flwr: Path = FLWR) -> None:
        self.home, self._flwr = home, flwr
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": str(ROOT) if flwr == FLWR else "",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{flwr.parent}{os.pathsep}{os.environ['PATH']}",
        }

    def flwr(self, *arguments: str, timeout: float = PATIENCE) -> str:
        done = subprocess.run(
            [str(self._flwr), *arguments],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, nodes: int, settings: Mapping[str, str | int | float], timeout: float = PATIENCE) -> None:
        """Submit the app and wait until it has finished; `--stream` would say success of a failed run."""
        self.wait(self.submit(app, nodes, settings), timeout)

    def submit(self, app: Path, nodes: int, settings: Mapping[str, str | int | float]) -> str:
        run_config = self.home / "run-config.toml"
        run_config.write_text(tomli_w.dumps(settings))
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        options = ["--federation-config", federation, "--run-config", str(run_config), "--format", "json"]
        return str(json.loads(self.flwr("run", str(app), *options))["run-id"])

    def wait(self, number: str, timeout: float = PATIENCE) -> None:
        deadline, status = time.monotonic() + timeout, ""
        while not status.startswith("finished") and time.monotonic() < deadline:
            time.sleep(1)
            status = json.loads(self.flwr("ls", "--run-id", number, "--format", "json"))["runs"][0]["status"]
        assert status == "finished:completed", self.flwr("log", number, "--show")

    def stop(self) -> None:
        for process in psutil.process_iter(["environ", "cmdline"]):
            environ = process.info["environ"] or {}
            if environ.get("FLWR_HOME") == str(self.home) and process.pid != os.getpid():
                process.send_signal(signal.SIGKILL)


class ClientGrid(InMachineGrid):
    """Ordinary ClientApps in this process, one after the other; partition i of the data is with node i + 1."""

    def __init__(self, app: ClientApp, nodes: int, run_config: Mapping[str, str | int | float] | None = None) -> None:
        super().__init__(nodes)
        self._app, self._run_config = app, dict(run_config or {})
        self._states = [RecordDict() for _ in range(nodes)]
        self.sent: list[Message] = []

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        for message in messages:
            self.sent.append(message)
            node = message.metadata.dst_node_id
            partition = {"partition-id": node - 1, "num-partitions": len(self._node_ids)}
            try:
                yield self._app(message, Context(1, node, partition, self._states[node - 1], dict(self._run_config)))
            except Exception as error:
                yield error_reply(message, error)
