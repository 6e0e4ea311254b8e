"""Flower's SuperLink, ready once it knows the silos' keys.

Its state, which holds every message and so every user's vector, stays in memory. Keys are registered at every start, so
that a restarted SuperLink finds its silos again.
"""

import logging
import signal
import ssl
import time
import urllib.request
from pathlib import Path
from subprocess import Popen

from simulations.deployment.submit import Link
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


def serve(keys: Path | None) -> int:
    """Run the SuperLink until it ends or gets SIGTERM, and return its exit code."""
    READY.unlink(missing_ok=True)
    process = Popen(command(keys))
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    link, registered = Link(f"127.0.0.1:{PORT}", keys), False
    while process.poll() is None:
        healthy = _healthy(keys)
        if healthy and not registered:
            registered = _register(link, keys)
        if healthy and registered:
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


def _register(link: Link, keys: Path | None) -> bool:
    for path in [] if keys is None else sorted(keys.glob("*.pub")):
        try:
            link.ask("supernode", "register", str(path), "LINK")
        except RunFailed as error:
            log.warning("the key of %s cannot be registered yet: %s", path.stem, error)
            return False
        log.info("the key of %s is registered", path.stem)
    return True
