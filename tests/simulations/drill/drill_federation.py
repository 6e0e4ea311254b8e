"""The federation of the drill, as its operator and its tester see it."""

import base64
import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from helpers_containers import Containers

HERE = Path(__file__).resolve().parent
ROUND = float(os.environ.get("USERDP_ROUND_SECONDS", "30"))
"""Seconds after which a silo is missing in a round; more on a slow machine."""
USERS, VISITS = 600, 8
OPEN = ("waiting", "running")
RESUMED = "stopped and is resumed"
NAME = "Quillfeather"
"""The family name of everybody in the silos."""
RARE = 133.70317
"""The weight of the first person at the first visit, in kilograms."""
RUN_LOG = """
import subprocess, sys
from pathlib import Path
from simulations.deployment.submit import Link
command, environment = Link("superlink:8000", Path("/keys")).command("log", sys.argv[1], "LINK", "--show")
sys.exit(subprocess.run(command, env=environment).returncode)
"""
ASK = """
import ssl, sys, urllib.request
request = urllib.request.Request("https://localhost:8443" + sys.argv[1])
request.add_header("Authorization", "Bearer " + open("/keys/page.token").read())
with urllib.request.urlopen(request, context=ssl.create_default_context(cafile="/keys/ca.crt")) as reply:
    print(reply.read().decode())
"""
WEIGHT = """
import sys
import numpy as np
silo = np.load("/data/users.npz")
for at in np.flatnonzero(silo["labels"] == sys.argv[1]):
    weight = silo["features"][silo["offsets"][at], 1]
    print(abs(weight), repr(float(abs(weight)))[:9])
"""


def write_people(path: Path) -> None:
    """Write a table of 600 people with eight visits each: pressure makes ill, and one weight is `RARE`."""
    rng, visits = np.random.default_rng(0), USERS * VISITS
    pressure, weight = rng.uniform(90, 190, visits), rng.uniform(45, 140, visits)
    weight[0] = RARE
    people = [f"{NAME}-{user:04d}" for user in range(USERS)]
    ill = (rng.random(visits) < 1 / (1 + np.exp((140 - pressure) / 15))).astype(int)
    columns = {"person": np.repeat(people, VISITS), "pressure": pressure, "weight": weight, "ill": ill}
    pd.DataFrame(columns).to_csv(path, index=False)


@dataclass
class Federation:
    """Three silos, a database and `userdp serve` in containers, which share the folder ``home`` with the drill."""

    home: Path
    containers: Containers
    run_logs: dict[str, str] = field(default_factory=dict)
    """Flower's number of a run -> its log, as far as it was read before the SuperLink was killed."""

    @classmethod
    def made(cls, home: Path) -> "Federation":
        for name in ("source", "clocks", "lies", "out"):
            (home / name).mkdir()
            (home / name).chmod(0o777)
        write_people(home / "source" / "people.csv")
        (home / "source" / "drill.toml").write_text((HERE / "drill.toml").read_text())
        for clock in ("silo", "coordinator"):
            (home / "clocks" / clock).write_text("0")
        files = ("docker-compose.serve.yml", "tests/lying_silo/docker-compose.yml", str(HERE / "docker-compose.yml"))
        places = {"DRILL": str(home), "SOURCE": str(home / "source"), "LIES": str(home / "lies")}
        return cls(home, Containers(home / "out", *files, environment=places | {"CONFIG": "/source/drill.toml"}))

    @contextmanager
    def up(self) -> Iterator[None]:
        """Start all services, and follow their logs until they are removed."""
        compose = self.containers
        compose.call("down", "--volumes", "--timeout", "2")
        compose.call("build", "keys", timeout=1500)
        compose.call("build", "serve", timeout=600)
        try:
            compose.call("up", "--no-build", "--detach", "--wait", timeout=900)
            with self._log.open("wb") as file:
                command = [*compose.compose, "--ansi", "never", "logs", "--follow", "--no-color"]
                with subprocess.Popen(command, env=compose.environment, stdout=file, stderr=file) as follower:
                    try:
                        yield
                    finally:
                        follower.kill()
        finally:
            compose.call("down", "--volumes", "--timeout", "2")

    def engine(self, verb: str, *services: str) -> None:
        """Kill, start or restart services."""
        self.containers.engine(*verb.split(), *map(self.containers.container, services))

    def inside(self, *words: str, service: str = "serve", check: bool = True) -> str:
        command = ["docker", "exec", self.containers.container(service), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, path: str, *, check: bool = True) -> str:
        return self.inside("python", "-c", ASK, path, check=check)

    def add(self, *settings: str, at: str) -> None:
        told = [word for setting in (*settings, f"engine.timeout={ROUND}") for word in ("--set", setting)]
        self.inside("userdp", "serve", "add", "/source/drill.toml", "--at", at, *told)

    def allow(self, runs: int) -> None:
        """Let the policies of all silos, which hold one run, hold so many."""
        policy = f"[run]\nepsilon = 1.0\ndelta = 1e-6\n[total]\nepsilon = {runs}.0\ndelta = {runs}e-6\n"
        write = "import sys; open('/data/policy.toml', 'w').write(sys.argv[1])"
        for app in ("app-1", "app-2", "app-3"):
            self.inside("python", "-c", write, policy, service=app)

    # The queue and the accounts, read from the database and not by the commands of userdp -----------------------------

    def rows(self, table: str) -> list[dict[str, Any]]:
        said = self.sql(f"select coalesce(json_agg(t), '[]') from {table} t")
        return sorted(json.loads(said), key=lambda row: row.get("number", 0))

    def sql(self, text: str, *, check: bool = True) -> str:
        return self.inside("psql", "-U", "userdp", "--no-psqlrc", "-tAqc", text, service="accounts", check=check)

    def hasten(self) -> bool:
        """Let the ten minutes before a run is resumed be over; return whether the database answers."""
        over = "update userdp_queue set earliest = first where state = 'waiting' and attempts > 0; select 'over'"
        return "over" in self.sql(over, check=False)

    def under_way(self) -> dict[str, Any]:
        """Wait until a run trains, and return its row."""
        known, asked = None, 0
        while True:
            rows = self.rows("userdp_queue")
            assert any(row["state"] in OPEN for row in rows), "no run is left to disturb"
            running = next((row for row in rows if row["state"] == "running" and row["run"]), None)
            if running is None or running["run"] != known:
                known, asked = running and running["run"], self.rounds("node-1")
                self.hasten()
            elif self.rounds("node-1") > asked:
                return running
            time.sleep(2)

    def ended(self) -> bool:
        self.hasten()
        return not any(row["state"] in OPEN for row in self.rows("userdp_queue"))

    # What goes on -----------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self.home / "log"

    def log(self, service: str = "") -> str:
        """The log of all services, or of one."""
        text, mark = self._log.read_text(encoding="utf-8", errors="replace"), f"{service}-1 " if service else ""
        return "\n".join(line for line in text.splitlines() if mark in line.partition("|")[0])

    def rounds(self, node: str) -> int:
        """The number of train messages that a SuperNode has received."""
        return self.log(node).count("Receiving: train")

    def answers(self, node: str) -> int:
        """The number of train messages that a SuperNode has answered."""
        _, *sent = self.log(node).split("Sending: train")
        return sum("Sent successfully" in after for after in sent)

    def resumed(self) -> int:
        """The number of times that runs were stopped, to be resumed."""
        return sum(RESUMED in line for line in self.log("serve").splitlines())

    def wait(self, condition: Callable[[], bool], told: str, seconds: float = 20 * ROUND) -> float:
        """Wait until something is so, and return how many seconds that took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + seconds, f"{told}: not within {seconds:.0f} s\n{self.log()[-20000:]}"
            time.sleep(2)
        return time.monotonic() - began

    # What is left at the end ------------------------------------------------------------------------------------------

    def keep_run_logs(self) -> None:
        """Read the logs of all runs, which the SuperLink holds in memory alone."""
        for number in {row["run"] for row in self.rows("userdp_queue") if row["run"]} | set(self.run_logs):
            said = self.inside("python", "-c", RUN_LOG, number, check=False)
            self.run_logs[number] = max(said, self.run_logs.get(number, ""), key=len)

    def results(self, target: Path) -> Path:
        """Copy the folder of results here."""
        packed = self.inside("sh", "-c", "cd /results && tar cz . | base64")
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as files:
            files.extractall(target, filter="data")
        return target

    def marks(self) -> Sequence[str]:
        """Everybody's name, and the rare value, in the table and as a silo holds it, in single and double precision."""
        apps = ("app-1", "app-2", "app-3")
        held = " ".join(self.inside("python", "-c", WEIGHT, f"{NAME}-0000", service=app) for app in apps).split()
        assert len(held) == 2, f"one person is in one silo: {held}"
        return NAME, str(RARE), *held
