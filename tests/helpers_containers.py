"""The compose file of this checkout under test: a project of its own, and runs submitted to it."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "userdp-test"
NODES = ("node-1", "node-2", "node-3")


def engine_answers() -> bool:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False)
        compose = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and compose.returncode == 0


class Containers:
    """A compose project whose runs leave their files in ``output``; later ``files`` override earlier ones."""

    def __init__(self, output: Path, *files: str, environment: Mapping[str, str] | None = None) -> None:
        self.output = output
        self.compose = ["docker", "compose", "-p", PROJECT]
        for file in ("docker-compose.yml", *files):
            self.compose += ["-f", str(ROOT / file)]
        self.environment = os.environ | {"OUTPUT": str(output)} | dict(environment or {})

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.compose, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *arguments: str, timeout: float = 300, check: bool = True) -> str:
        process = self.start(*arguments)
        try:
            said, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        assert not check or process.returncode == 0, said
        return said

    def submit(self, overrides: str, resume: str = "") -> "Run":
        """Submit a run to the services that are up; or go on with one whose files are in the folder ``resume``."""
        variables = ["-e", f"OVERRIDES={overrides}", "-e", f"RESUME={resume}"]
        before = {node: self.rounds(node) for node in NODES}
        answered = {node: self.answers(node) for node in NODES}
        return Run(self, self.start("run", "--rm", "--no-deps", "-T", *variables, "run"), before, answered)

    def rounds(self, node: str) -> int:
        """The number of train messages that a SuperNode has received since it was made."""
        return self.call("logs", "--no-color", node).count("Receiving: train")

    def answers(self, node: str) -> int:
        """The number of train messages that a SuperNode has answered since it was made; its log outlives a kill."""
        _, *sent = self.call("logs", "--no-color", node).split("Sending: train")
        return sum("Sent successfully" in after for after in sent)

    def wait_for(self, text: str, *services: str, timeout: float = 300) -> None:
        deadline = time.monotonic() + timeout
        for service in services:
            while text not in self.call("logs", "--no-color", service):
                assert time.monotonic() < deadline, f"{service} never said {text!r}"
                time.sleep(1)

    def engine(self, *arguments: str) -> str:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def container(self, service: str) -> str:
        return f"{PROJECT}-{service}-1"


class Run:
    """A submitted run; ``before`` and ``answered`` count the train messages of each SuperNode before it."""

    def __init__(
        self,
        containers: Containers,
        process: subprocess.Popen[str],
        before: Mapping[str, int],
        answered: Mapping[str, int],
    ) -> None:
        self._containers, self._process, self._before, self._answered = containers, process, before, answered

    def wait_for_round(self, number: int, timeout: float = 300) -> None:
        deadline = time.monotonic() + timeout
        while self._received("node-1") < number:
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < deadline, f"round {number} did not begin"
            time.sleep(1)

    def wait_for_a_whole_round(self) -> int:
        """Return once a round has ended of which nothing had reached any node before; its number."""
        whole = max(map(self._received, NODES)) + 1
        self.wait_for_round(whole + 1)
        return whole

    def answered(self, node: str) -> int:
        return self._containers.answers(node) - self._answered[node]

    def _received(self, node: str) -> int:
        return self._containers.rounds(node) - self._before[node]

    def end(self, timeout: float = 500) -> tuple[int, str, dict, dict]:
        """Exit code, what was shown, result.json, guarantee.json."""
        try:
            said, _ = self._process.communicate(timeout=timeout)
        finally:
            self._process.kill()
        files = [self._containers.output / name for name in ("result.json", "guarantee.json")]
        result, guarantee = (json.loads(path.read_text()) if path.is_file() else {} for path in files)
        return self._process.returncode, said, result, guarantee
