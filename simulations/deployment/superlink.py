"""Flower's SuperLink, which knows the silos whose public keys are in its folder, and ready once it knows all of them.

Its state, which holds every message and so every user's vector, stays in memory. Keys are registered at every start, so
that a restarted SuperLink finds its silos again; `Keyring` follows the folder from then on.
"""

import logging
import signal
import ssl
import time
import urllib.request
from pathlib import Path
from subprocess import Popen

from simulations.deployment.submit import Link
from simulations.records.run_directory import as_json, write_whole
from userdp.errors import RunFailed

log = logging.getLogger("userdp.superlink")
PORT = 8000
READY = Path("/tmp/ready")
_POLL_SECONDS = 2.0


def command(keys: Path | None) -> list[str]:
    """Return the command of the SuperLink; ``keys`` is its folder, or None for no TLS and unknown SuperNodes."""
    started = ["flower-superlink", "--isolation", "process", "--host", "0.0.0.0", "--port", str(PORT)]
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


class Keyring:
    """Registers the keys of a folder's ``NAME.pub`` with a SuperLink, and takes back those that leave or change.

    Flower refuses a node whose key was taken back from its next request on, for it looks up the key of each. A key that
    was taken back stays refused until the SuperLink restarts: a silo that returns brings a new one.

    Args:
        link: the SuperLink.
        keys: its folder; None if it takes anybody.
        names: a file that gets the name of each node's key in JSON, for people.
    """

    def __init__(self, link: Link, keys: Path | None, names: Path | None = None) -> None:
        self._link, self._keys, self._names = link, keys, names
        self._known: dict[str, tuple[bytes, str]] = {}  # name -> its key, and the node that has it
        self._refused: set[bytes] = set()

    def follow(self) -> bool:
        """Bring the SuperLink's keys up to the folder's; return whether that is done, and say what was and was not."""
        before = dict(self._known)
        try:
            paths = [] if self._keys is None else sorted(self._keys.glob("*.pub"))
            wanted = {path.stem: (path, path.read_bytes()) for path in paths}
            for name, (key, node) in before.items():
                if name not in wanted or wanted[name][1] != key:
                    self._take_back(name, key, node)
            for name, (path, key) in wanted.items():
                if name not in self._known:
                    self._known[name] = key, self._registered(name, path, key)
        except (RunFailed, OSError) as error:
            log.warning("the silos' keys are not all registered or taken back yet: %s", error)
            return False
        finally:
            if self._names is not None and self._known != before:
                names = {node: name for name, (_, node) in self._known.items() if node}
                write_whole(self._names, lambda partial: partial.write_text(as_json(names), encoding="utf-8"))
        return True

    def _take_back(self, name: str, key: bytes, node: str) -> None:
        if node:
            self._link.ask("supernode", "unregister", node, "LINK")
        del self._known[name]
        self._refused.add(key)
        log.warning("the key of %s is taken back: node %s is refused from now on", name, node)

    def _registered(self, name: str, path: Path, key: bytes) -> str:
        """Register a key and return its node; "" for one that was taken back, which Flower refuses."""
        if key in self._refused:
            log.warning("the key of %s was taken back before: put a new one there, or restart the SuperLink", name)
            return ""
        node = str(self._link.ask("supernode", "register", str(path), "LINK", "--name", name)["node-id"])
        log.info("the key of %s is registered: node %s", name, node)
        return node


def serve(keys: Path | None, names: Path | None = None) -> int:
    """Run the SuperLink until it ends or gets SIGTERM, and return its exit code; see `Keyring` for ``names``."""
    READY.unlink(missing_ok=True)
    process = Popen(command(keys))
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
