"""`userdp serve` beside Flower's own SuperLink and SuperNodes, killed while a run is under way."""

import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from helpers import PATIENCE
from helpers_flower import RUN, FlowerDeployment, free_port
from helpers_serving import queue_of, report_of, text

from simulations.account.accounts import Accounts
from simulations.flower import configuration_of
from simulations.runs.silos import split
from userdp.accounting import Total


@pytest.mark.slow
@pytest.mark.long
def test_a_federation_is_kept_although_its_keeper_is_killed(accounts, tmp_path):
    """Two runs are due: one is resumed by the next keeper, the other one exceeds the budget."""
    Accounts(accounts).create("clinic", Total(1.2, 1e-3))
    silos, results, home = [tmp_path / "silo-1", tmp_path / "silo-2"], tmp_path / "results", tmp_path / "home"
    split(configuration_of(text()), silos)
    home.mkdir()
    deployment = FlowerDeployment(home, [f'silo="{silo}"' for silo in silos])
    try:
        queue, port = queue_of(accounts), free_port()
        for epsilon in (1.0, 1.1):
            queue.add("monthly", text(epsilon=epsilon, roster_timeout=PATIENCE), "clinic", datetime.now(UTC))
        with serving(deployment, results, "--port", str(port), "--token-file", str(tmp_path / "token")):
            until(lambda: queue.runs()[0].run is not None)
            assert status(port) == 401
            assert status(port, (tmp_path / "token").read_text().strip()) == 200
        # Killed: SIGKILL, by `serving`.
        assert queue.runs()[0].state == "running"
        with serving(deployment, results, "--once") as process:
            assert process.wait(PATIENCE) == 0
        done, refused = queue.runs()
        assert (done.state, refused.state) == ("done", "refused")
        assert list(done.silos.values()) == [True, True]
        assert len(Accounts(accounts).read("clinic").entries) == 1
        assert report_of(results / done.folder)["engine"] == "flower"
        assert (results / "released" / done.folder / "report.html").is_file()
    finally:
        deployment.stop()


@contextmanager
def serving(deployment, results, *options):
    address = tomllib.loads((deployment.home / "config.toml").read_text())["superlink"]["deploy"]["address"]
    program = [sys.executable, "-c", "from simulations.cli import main; main()", "serve", "start", "--insecure"]
    program += ["--superlink", address, "--app", str(RUN), "--results", str(results), "--pause", "0.5", *options]
    process = subprocess.Popen(program, env=deployment.environment, cwd=deployment.home)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def status(port, token=""):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
