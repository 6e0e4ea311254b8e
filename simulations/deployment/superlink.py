"""Flower's SuperLink, which knows the silos whose public keys are in its folder, and ready once it knows all of them.

Its state, which holds every message and so every user's vector, stays in memory. Keys are registered at every start, so
that a restarted SuperLink finds its silos again; `Keyring` follows the folder from then on.
"""

import logging
import os
import signal
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen

from simulations.deployment.submit import QUIET, Link
from simulations.records.run_directory import as_json, write_text
from userdp.errors import RunFailed

log = logging.getLogger("userdp.superlink")
PORT = 8000
READY = Path("/tmp/ready")
_POLL_SECONDS = 2.0
_TRIES, _LATER_SECONDS = 3, 60.0
_NAMES = "/"  # the fault of the file of names, as no key is called
_LARGEST = 1 << 16  # bytes of a key's file
_ASKED, _SOME, _REFUSED, _TWICE = "asked for", "some node", "none: it was taken back before", "another name's"
_NOWHERE = (_ASKED, _SOME, _REFUSED, _TWICE)


def command(keys: Path | None) -> list[str]:
    """Return the command of the SuperLink; ``keys`` is its folder, or None for no TLS and unknown SuperNodes."""
    started = [
        sys.executable,
        "-m",
        "simulations.deployment.certificates",
        "flower-superlink",
        "--isolation",
        "process",
        "--host",
        "0.0.0.0",
        "--port",
        str(PORT),
    ]
    started += ["--disable-runtime-dependency-installation"]
    if keys is None:
        return [*started, "--insecure"]
    return [
        *started,
        *("--ssl-ca-certfile", str(keys / "ca.crt")),
        *("--ssl-certfile", str(keys / "server.crt")),
        *("--ssl-keyfile", str(keys / "server.key")),
        *("--superexec-auth-secret-file", str(keys / "superexec.secret")),
        "--enable-supernode-auth",
    ]


@dataclass
class _Key:
    content: bytes
    node: str = _ASKED  # that has it, or one of the four above


@dataclass(frozen=True)
class _Fault:
    stamp: int | None  # of the file that has it; None if there is none any more
    times: int
    again: float  # when it is tried again


class Keyring:
    """Registers the keys of a folder's ``NAME.pub`` with a SuperLink, and takes back those that leave or change.

    Each key is brought up to its file by itself, so that the fault of one holds up no other. A command whose answer
    came too late is repeated: that a key is registered, or its node gone, already is what was asked. A key that fails
    three times is tried once a minute, or when its file changes, and no longer counts as to be waited for.

    Flower refuses a node whose key was taken back from its next request on, for it looks up the key of each. A key that
    was taken back stays refused until the SuperLink restarts: a silo that returns brings a new one. A key under two
    names is the first one's, and leaves with it.

    Args:
        link: the SuperLink.
        keys: its folder; None if it takes anybody.
        names: a file that gets the name of each node's key in JSON, for people.
    """

    def __init__(self, link: Link, keys: Path | None, names: Path | None = None) -> None:
        self._link, self._keys, self._names = link, keys, names
        self._known: dict[str, _Key] = {}
        self._faults: dict[str, _Fault] = {}
        self._refused: set[bytes] = set()
        self._written: dict[str, str] = {}

    def follow(self) -> bool:
        """Bring the SuperLink's keys up to the folder's, and say what was done and what was not.

        Returns:
            Whether nothing is left to wait for.
        """
        try:
            found = [] if self._keys is None else sorted(self._keys.iterdir())
        except OSError as fault:  # a volume that is away: no key was taken out of it
            what, error = "no key is registered or taken back", type(fault).__name__
            log.warning("%s yet: %s", what, error)
            return False
        paths = {path.stem: path for path in found if path.suffix == ".pub"}
        for name in [name for name in self._known if name not in paths]:
            self._tried(name, None, partial(self._take_back, name))
        for name, path in paths.items():
            self._tried(name, _stamp(path), partial(self._bring, name, path))
        kept = (*paths, *self._known, _NAMES)
        self._faults = {name: fault for name, fault in self._faults.items() if name in kept}
        names = {key.node: name for name, key in self._known.items() if key.node not in _NOWHERE}
        if self._names is not None and names != self._written:
            self._tried(_NAMES, None, partial(self._write, self._names, names))
        return all(fault.times >= _TRIES for fault in self._faults.values())

    def _tried(self, name: str, stamp: int | None, bring: Callable[[], None]) -> None:
        fault = self._faults.get(name)
        if fault is None or fault.stamp != stamp:
            fault = _Fault(stamp, 0, 0.0)
        if time.monotonic() < fault.again:
            return
        try:
            bring()
        except (RunFailed, OSError, LookupError) as error:
            wait = _LATER_SECONDS if fault.times + 1 >= _TRIES else 0.0
            self._faults[name] = _Fault(stamp, fault.times + 1, time.monotonic() + wait)
            what = (
                "the file of names is not written"
                if name == _NAMES
                else f"the key of {name} is not registered or taken back"
            )
            log.warning("%s yet: %s", what, error)
        else:
            self._faults.pop(name, None)

    def _bring(self, name: str, path: Path) -> None:
        """Make a name's key that of its file."""
        content = _content(path)
        if name in self._known and self._known[name].content != content:
            self._take_back(name)
        key = self._known.setdefault(name, _Key(content))
        first = next(other for other, one in self._known.items() if one.content == content)
        if first != name:
            if key.node != _TWICE:
                log.warning(
                    "the key of %s is that of %s, and counts as that one's alone: put another one there", name, first
                )
            key.node = _TWICE
            return
        if key.node == _TWICE:  # it was the name of one that left
            key.node = _ASKED
        if key.node == _ASKED and content in self._refused:
            log.warning("the key of %s was taken back before: put a new one there, or restart the SuperLink", name)
            key.node = _REFUSED
        elif key.node == _ASKED:
            try:
                key.node = str(self._link.ask("supernode", "register", str(path), "LINK", "--name", name)["node-id"])
            except RunFailed as error:
                if "already in use" not in str(error):
                    raise
                key.node = _SOME
            log.info("the key of %s is registered: node %s", name, key.node)
        if key.node == _SOME and [one.node for one in self._known.values()].count(_SOME) == 1:
            with suppress(RunFailed, LookupError):  # it is looked up again when it is needed
                strays = self._strays()
                key.node = strays[0] if len(strays) == 1 else _SOME

    def _take_back(self, name: str) -> None:
        """Take a key back; if nobody knows its node, all nodes whose keys are not known."""
        key = self._known[name]
        nodes = self._strays() if key.node in (_ASKED, _SOME) else [] if key.node in (_REFUSED, _TWICE) else [key.node]
        for node in nodes:
            try:
                self._link.ask("supernode", "unregister", node, "LINK")
            except RunFailed as error:
                if "not found" not in str(error):
                    raise
            log.warning("the key of %s is taken back: node %s is refused from now on", name, node)
        if nodes:
            self._refused.add(key.content)
        del self._known[name]

    def _strays(self) -> list[str]:
        """Return the nodes that are registered, and of which nobody knows for which key."""
        known = {key.node for key in self._known.values()}
        nodes = self._link.ask("supernode", "ls", "LINK")["nodes"]
        present = [str(node["node-id"]) for node in nodes if node["status"] != "unregistered"]
        return [node for node in present if node not in known]

    def _write(self, file: Path, names: dict[str, str]) -> None:
        write_text(file, as_json(names))
        self._written = names


def _content(path: Path) -> bytes:
    """Return a key; OSError for what is no file, such as a pipe, from which one could read for ever, or a large one."""
    if not path.is_file():
        raise OSError(f"{path} is no file")
    if path.stat().st_size > _LARGEST:
        raise OSError(f"{path} is larger than any key")
    return path.read_bytes()


def _stamp(path: Path) -> int:
    """Return when a file changed; 0 if that cannot be read."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def serve(keys: Path | None, names: Path | None = None) -> int:
    """Run the SuperLink until it ends or gets SIGTERM, and return its exit code; see `Keyring` for ``names``."""
    READY.unlink(missing_ok=True)
    process = Popen(command(keys), env=QUIET | os.environ)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    keyring = Keyring(Link(f"127.0.0.1:{PORT}", keys), keys, names)
    while process.poll() is None:
        if _healthy(keys) and keyring.follow():
            READY.touch()
        else:
            READY.unlink(missing_ok=True)
        time.sleep(_POLL_SECONDS)
    READY.unlink(missing_ok=True)
    return process.returncode


def _healthy(keys: Path | None) -> bool:
    context = None if keys is None else ssl.create_default_context(cafile=str(keys / "ca.crt"))
    address = f"{'http' if keys is None else 'https'}://127.0.0.1:{PORT}/health"
    try:
        with urllib.request.urlopen(address, timeout=5, context=context) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
