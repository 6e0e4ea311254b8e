"""Flower's own engine for tests, and a grid of ordinary ClientApps in this process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import tomli_w
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from helpers import PATIENCE

from simulations.engines.grids import InMachineGrid, error_reply

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "apps" / "userdp-run"
FLWR = Path(sys.executable).with_name("flwr")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def patient(code: str) -> str:
    """Return an app of a page that waits longer for its nodes: whoever is slow on a busy machine is not missing."""
    assert code.count(".start(grid)") == 1
    return code.replace(".start(grid)", f".start(grid, roster_timeout={PATIENCE})")


class FlowerEngine:
    """A private SuperLink in a neutral folder, with simulated nodes, stopped by its pid at the end.

    It is begun here, because one that `flwr run` begins is given up after 15 s, too little on a busy machine. Apps
    import the tree under test, or, with the ``flwr`` command of another environment, what is installed there.
    """

    def __init__(self, home: Path, flwr: Path = FLWR) -> None:
        self.home, self._flwr = home, flwr
        self._begun: list[subprocess.Popen[bytes]] = []
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
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
        if not self._begun:
            self._begin_simulation()
        run_config = self.home / "run-config.toml"
        run_config.write_text(tomli_w.dumps(settings))
        options = [*self._federation(nodes), "--run-config", str(run_config), "--format", "json"]
        answer = json.loads(self.flwr("run", str(app), *options))
        assert "run-id" in answer, answer
        return str(answer["run-id"])

    def _begin_simulation(self) -> None:
        address = f"127.0.0.1:{free_port()}"
        self._configure(address, {"insecure": True})
        kept = ["--database", str(self.home / "state.db")]
        self._begin("flower-superlink", "--insecure", "--simulation", "--port", address.partition(":")[2], *kept)
        self._await(address)

    def _configure(self, address: str, connection: Mapping[str, object]) -> None:
        found = {"default": "deploy", "deploy": {"address": address, **connection}}
        (self.home / "config.toml").write_text(tomli_w.dumps({"superlink": found}))

    def _begin(self, program: str, *options: str) -> None:
        with (self.home / f"{program}.log").open("a") as log:
            command = [str(self._flwr.with_name(program)), *options]
            self._begun.append(subprocess.Popen(command, cwd=self.home, env=self.environment, stdout=log, stderr=log))

    def _await(self, address: str) -> None:
        host, _, port = address.partition(":")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
                return
            time.sleep(0.5)
        raise TimeoutError((self.home / "flower-superlink.log").read_text())

    def _federation(self, nodes: int) -> list[str]:
        return ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]

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
        for begun in self._begun:
            begun.wait(PATIENCE)


def run_on_flower(
    home: Path, app: Path, nodes: int, settings: Mapping[str, str | int | float], flwr: Path = FLWR
) -> None:
    """Run the app on a SuperLink of its own, in a folder that is made for it."""
    home.mkdir()
    engine = FlowerEngine(home, flwr)
    try:
        engine.run(app, nodes, settings)
    finally:
        engine.stop()


class FlowerDeployment(FlowerEngine):
    """A SuperLink and one SuperNode for each node-config, with TLS if ``keys`` is a folder that `make_keys` made."""

    def __init__(self, home: Path, node_configs: Sequence[str], keys: Path | None = None) -> None:
        super().__init__(home)
        address, insecure = f"127.0.0.1:{free_port()}", ["--insecure"]
        link, node, connection = insecure, insecure, {"insecure": True}
        if keys is not None:
            authority, files = str(keys / "ca.crt"), {"certfile": "server.crt", "keyfile": "server.key"}
            link = ["--ssl-ca-certfile", authority]
            link += [word for name, file in files.items() for word in (f"--ssl-{name}", str(keys / file))]
            node, connection = ["--root-certificates", authority], {"root-certificates": authority}
        self._configure(address, connection)
        self._begin("flower-superlink", *link, "--port", address.partition(":")[2])
        for config in node_configs:
            options = ["--superlink", address, "--port", str(free_port()), "--node-config", config]
            self._begin("flower-supernode", *node, *options)
        self._await(address)

    def renew(self, number: int) -> None:
        """Kill the SuperNode of a node-config, counted from 0, with all that it started, and start another in place."""
        old = self._begun[1 + number]
        for process in (*psutil.Process(old.pid).children(recursive=True), old):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        old.wait(PATIENCE)
        program, *options = map(str, old.args)
        self._begin(Path(program).name, *options)

    def _federation(self, nodes: int) -> list[str]:
        return []


class ClientGrid(InMachineGrid):
    """Flower's ClientApps in this process, one after the other; partition i of the data is with node i + 1.

    A node is loaded anew for every message and keeps its state, as in Flower.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        run_config: Mapping[str, str | int | float] | None = None,
        node_configs: Sequence[Mapping[str, str | int | float]] = (),
    ) -> None:
        super().__init__(nodes)
        simulated = [{"partition-id": node, "num-partitions": nodes} for node in range(nodes)]
        self._node_configs = node_configs or simulated
        self._app, self._run_config = app, dict(run_config or {})
        self._states = {node: RecordDict() for node in self._node_ids}
        self.sent: list[Message] = []

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        for message in messages:
            self.sent.append(message)
            try:
                yield self._app(message, self._context(message.metadata.dst_node_id))
            except Exception as error:
                yield error_reply(message, error)

    def _context(self, node: int) -> Context:
        node_config = self._node_configs[node - 1]
        return Context(1, node, dict(node_config), self._states[node], dict(self._run_config))
