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
        self.nodes, self.seen, self.busy, self.late, self.asked = {}, set(), False, (), []

    def ask(self, *arguments):
        if self.busy:
            raise RunFailed("flwr supernode failed: busy")
        self.asked.append(arguments[1:3])
        answer = getattr(self, arguments[1])(*arguments[2:])
        if arguments[1] in self.late:
            raise RunFailed("the SuperLink at there did not answer within 60 s")
        return answer

    def ls(self, _):
        return {"nodes": [{"node-id": int(node), "status": "online"} for node in self.nodes]}

    def unregister(self, node, _):
        if node not in self.nodes:
            raise RunFailed("flwr supernode failed: [code: 24] Node ID not found for account.")
        del self.nodes[node]
        return {"success": True}

    def register(self, path, _, __, name):
        key = Path(path).read_bytes()
        if key.startswith(b"no key"):
            raise RunFailed("flwr supernode failed: Could not deserialize key data")
        if key in self.seen:
            raise RunFailed("flwr supernode failed: [code: 23] Public key already in use.")
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


def folder_of(tmp_path, *names):
    for name in names:
        (tmp_path / f"{name}.pub").write_text(f"first of {name}")
    return tmp_path


@pytest.mark.parametrize("lost", [("register",), ("unregister",), ("register", "unregister")])
def test_an_answer_that_came_too_late_holds_up_no_key(tmp_path, lost):
    """The requests took effect although their answers were lost: all nodes are as requested, with their names."""
    registry, names = Registry(), tmp_path / "names.json"
    keyring = superlink.Keyring(registry, folder_of(tmp_path, "a", "b"), names)
    registry.late = lost
    keyring.follow()
    assert sorted(registry.nodes.values()) == ["a", "b"]
    registry.late = ()
    assert keyring.follow()
    registry.late = lost
    (tmp_path / "a.pub").unlink()
    (tmp_path / "c.pub").write_text("first of c")
    keyring.follow()
    registry.late = ()
    assert keyring.follow()
    assert keyring.follow()
    assert sorted(registry.nodes.values()) == ["b", "c"] or (
        lost[0] == "register" and "a" not in registry.nodes.values()
    )
    (tmp_path / "b.pub").unlink()
    assert keyring.follow()
    assert set(registry.nodes.values()) <= {"c"}


def test_the_node_of_one_late_answer_is_found_and_taken_back(tmp_path):
    registry, names = Registry(), tmp_path / "names.json"
    keyring = superlink.Keyring(registry, folder_of(tmp_path, "b"), names)
    assert keyring.follow()
    folder_of(tmp_path, "a")
    registry.late = ("register", "ls")
    assert not keyring.follow()
    registry.late = ("ls",)
    assert keyring.follow()
    assert json.loads(names.read_text()) == {"1": "b"}
    registry.late = ()
    assert keyring.follow()
    assert json.loads(names.read_text()) == {"1": "b", "2": "a"}
    (tmp_path / "a.pub").unlink()
    assert keyring.follow()
    assert registry.nodes == {"1": "b"}


def test_a_key_that_left_before_its_registration_was_answered_is_taken_back(tmp_path):
    registry = Registry()
    keyring = superlink.Keyring(registry, folder_of(tmp_path, "a", "b"))
    registry.late = ("register",)
    assert not keyring.follow()
    (tmp_path / "a.pub").unlink()
    (tmp_path / "b.pub").unlink()
    assert keyring.follow()
    assert registry.nodes == {}


def test_a_key_under_two_names_is_the_first_ones_and_takes_no_other_node_with_it(tmp_path, caplog):
    registry, names = Registry(), tmp_path / "names.json"
    (tmp_path / "b.pub").write_text("first of a")
    keyring = superlink.Keyring(registry, folder_of(tmp_path, "a"), names)
    assert keyring.follow()
    assert keyring.follow()
    assert registry.nodes == json.loads(names.read_text()) == {"1": "a"}
    assert caplog.text.count("the key of b is that of a") == 1
    folder_of(tmp_path, "c")
    registry.late = ("register",)
    keyring.follow()
    registry.late = ("ls",)  # nobody knows yet which node is c's
    keyring.follow()
    registry.late = ()
    (tmp_path / "b.pub").unlink()
    assert keyring.follow()
    assert registry.nodes == {"1": "a", "2": "c"}
    (tmp_path / "b.pub").write_text("first of a")
    assert keyring.follow()
    (tmp_path / "a.pub").unlink()
    assert keyring.follow()
    assert keyring.follow()
    assert registry.nodes == {"2": "c"}
    assert caplog.text.count("the key of b was taken back before") == 1


@pytest.mark.parametrize("fault", ["a folder", "a broken link", "a pipe", "without end", "large", "no key"])
def test_one_key_that_cannot_be_used_stops_no_other_one(tmp_path, fault, caplog):
    registry = Registry()
    keyring = superlink.Keyring(registry, folder_of(tmp_path, "b", "c"))
    assert keyring.follow()
    bad = tmp_path / "a.pub"
    if fault == "a folder":
        bad.mkdir()
    elif fault == "a broken link":
        bad.symlink_to(tmp_path / "nowhere")
    elif fault == "a pipe":
        os.mkfifo(bad)
    elif fault == "without end":
        bad.symlink_to("/dev/zero")
    elif fault == "large":
        bad.write_bytes(b"-" * 2**17)
    else:
        bad.write_bytes(b"no key \xff")
    (tmp_path / "b.pub").unlink()
    (tmp_path / "c.pub").write_text("second of c")
    folder_of(tmp_path, "d")
    assert not keyring.follow()
    assert sorted(registry.nodes.values()) == ["c", "d"]
    assert "the key of a is not registered or taken back yet" in caplog.text
    assert not keyring.follow()
    assert keyring.follow()  # the others need not wait for it
    asked = len(registry.asked)
    assert keyring.follow()
    assert len(registry.asked) == asked  # it is not tried without end
    bad.rmdir() if bad.is_dir() else bad.unlink()
    folder_of(tmp_path, "a")
    assert keyring.follow()
    assert sorted(registry.nodes.values()) == ["a", "c", "d"]


def test_a_known_key_whose_file_cannot_be_read_stays_until_it_can(tmp_path):
    registry = Registry()
    keyring = superlink.Keyring(registry, folder_of(tmp_path, "a", "b"))
    assert keyring.follow()
    (tmp_path / "a.pub").unlink()
    (tmp_path / "a.pub").mkdir()
    assert not keyring.follow()
    assert sorted(registry.nodes.values()) == ["a", "b"]


def test_a_folder_of_keys_that_is_away_takes_no_key_back(tmp_path, caplog):
    """A key that was taken back stays refused, so all silos would need new ones."""
    registry, keys = Registry(), tmp_path / "keys"
    keys.mkdir()
    keyring = superlink.Keyring(registry, folder_of(keys, "a", "b"))
    assert keyring.follow()
    keys.rename(tmp_path / "away")
    assert not keyring.follow()
    assert "no key is registered or taken back yet" in caplog.text
    assert sorted(registry.nodes.values()) == ["a", "b"]
    (tmp_path / "away").rename(keys)
    (keys / "a.pub").unlink()
    assert keyring.follow()
    assert list(registry.nodes.values()) == ["b"]


def test_names_that_cannot_be_written_hold_up_no_key(tmp_path, caplog):
    registry = Registry()
    keyring = superlink.Keyring(registry, folder_of(tmp_path, "a", "everybody"), tmp_path / "nowhere" / "names.json")
    assert not keyring.follow()
    assert list(registry.nodes.values()) == ["a", "everybody"]
    assert not keyring.follow()
    assert keyring.follow()  # and are not waited for without end
    assert "the file of names is not written yet" in caplog.text
    assert "the key of" not in caplog.text


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
