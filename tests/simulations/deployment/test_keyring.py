"""Silos' keys while the SuperLink runs: new ones, changed ones, and those that are taken back."""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import PATIENCE
from helpers_flower import FLWR, free_port

from simulations.deployment import superlink
from simulations.deployment.keys import make_keys
from simulations.deployment.submit import Link
from userdp.errors import RunFailed


class Registry:
    """A `Link` whose SuperLink refuses a key that it has or had, as Flower's does."""

    def __init__(self):
        self.nodes, self.seen, self.busy = {}, set(), False

    def ask(self, *arguments):
        if self.busy:
            raise RunFailed("flwr supernode failed: busy")
        if arguments[1] == "unregister":
            del self.nodes[arguments[2]]
            return {"success": True}
        _, _, path, _, _, name = arguments
        key = Path(path).read_bytes()
        assert key not in self.seen, "public key already in use"
        self.seen.add(key)
        self.nodes[str(len(self.seen))] = name
        return {"node-id": str(len(self.seen))}


def test_keys_are_taken_back_replaced_and_added_while_the_superlink_runs(tmp_path, caplog):
    registry, names = Registry(), tmp_path / "names.json"
    for name in ("a", "b"):
        (tmp_path / f"{name}.pub").write_text(f"first of {name}")
    keyring = superlink.Keyring(registry, tmp_path, names)
    assert keyring.follow()
    assert keyring.follow()
    assert registry.nodes == json.loads(names.read_text()) == {"1": "a", "2": "b"}
    (tmp_path / "a.pub").unlink()
    (tmp_path / "b.pub").write_text("second of b")
    registry.busy = True
    assert not keyring.follow()
    registry.busy = False
    assert keyring.follow()
    assert registry.nodes == json.loads(names.read_text()) == {"3": "b"}
    (tmp_path / "a.pub").write_text("first of a")
    assert keyring.follow()
    assert keyring.follow()
    assert caplog.text.count("the key of a was taken back before: put a new one there") == 1
    (tmp_path / "a.pub").write_text("second of a")
    assert keyring.follow()
    assert registry.nodes == {"3": "b", "4": "a"}


@pytest.mark.slow
@pytest.mark.long
def test_a_silo_whose_key_is_taken_back_is_refused_at_once_and_comes_back_with_a_new_one(tmp_path, monkeypatch):
    """On Flower itself: a SuperLink, two SuperNodes, and another one with a new key."""
    make_keys(tmp_path / "keys", 4)
    keys, spare = tmp_path / "keys" / "superlink", tmp_path / "node-3.pub"
    (keys / "node-3.pub").rename(spare)
    (tmp_path / "home").mkdir()
    with deployed(tmp_path / "home", keys, monkeypatch) as deployment:
        link = Link(f"127.0.0.1:{superlink.PORT}", keys)
        keyring = superlink.Keyring(link, keys)
        deployment.until(keyring.follow)
        (keys / "node-4.pub").unlink()  # which never connected
        assert keyring.follow()
        deployment.node(tmp_path / "keys" / "node-1")
        deployment.node(tmp_path / "keys" / "node-2")
        deployment.node(tmp_path / "keys" / "node-4")
        deployment.until(lambda: online(link) == 2)
        (keys / "node-1.pub").unlink()
        assert keyring.follow()
        assert online(link) == 1
        spare.rename(keys / "node-1.pub")
        deployment.until(keyring.follow)
        deployment.node(tmp_path / "keys" / "node-3")
        deployment.until(lambda: online(link) == 2)


def online(link):
    return [node["status"] for node in link.ask("supernode", "ls", "LINK")["nodes"]].count("online")


@contextmanager
def deployed(home, keys, monkeypatch):
    """The programs of a deployment with keys, on a free port, stopped at the end."""
    monkeypatch.setattr(superlink, "PORT", free_port())
    monkeypatch.setenv("PATH", f"{FLWR.parent}{os.pathsep}{os.environ['PATH']}")
    begun, environment = [], os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}

    def begin(*command):
        with (home / f"{len(begun)}.log").open("w") as log:
            begun.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=home))

    def node(folder):
        begin(
            *("flower-supernode", "--superlink", f"127.0.0.1:{superlink.PORT}", "--port", str(free_port())),
            *("--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "node.key")),
            *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "superexec.secret")),
            *("--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")),
            *("--ssl-keyfile", str(folder / "server.key")),
        )

    def until(condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, [path.read_text() for path in home.glob("*.log")]
            time.sleep(0.2)

    try:
        begin(*superlink.command(keys))
        yield SimpleNamespace(node=node, until=until)
    finally:
        for process in begun:
            process.kill()
            process.wait()
