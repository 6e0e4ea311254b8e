"""Certificates that are renewed while their servers run; ``python -m`` this module runs a program of Flower's so.

*Formal guarantees.* *Claim.* A TLS server answers each new connection with the certificate that is in its file by then,
and ends no connection for that. *Why.* Each handshake looks whether the files have changed, and takes them only once
they fit each other: half of a renewal changes nothing. *Assumptions.* The server is uvicorn's, as Flower's all are.
"""

import logging
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import uvicorn.config

from simulations.deployment.keys import end_of

log = logging.getLogger("userdp.certificates")
SOON = timedelta(days=10)


def renewing(make: Callable[[], ssl.SSLContext], certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context that ``make`` reads from these files, whose connections get what it reads later."""
    files = (certificate, key)
    first = newest = make()
    seen, told = _stamps(files), None

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal newest, seen, told
        try:
            if (now := _stamps(files)) != seen:
                newest, seen = make(), now
                log.info("%s was renewed", certificate)
            if told != (today := datetime.now(UTC).date()) and end_of(certificate) < datetime.now(UTC) + SOON:
                end = end_of(certificate)
                log.warning("%s ends at %s: renew it", certificate, end)
                told = today
        except (OSError, ValueError) as error:  # ssl's is one: the other half is still to come
            what = type(error).__name__
            log.warning("%s and %s are not used yet: %s", certificate, key, what)
        connection.context = newest

    first.sni_callback = choose  # is called in every handshake, whether it names a server or not
    return first


def _stamps(files: tuple[Path, ...]) -> list[tuple[int, int]]:
    return [(at.st_mtime_ns, at.st_ino) for at in map(Path.stat, files)]


def main() -> None:
    """Run the program that the first argument names, such as flower-supernode, with the others."""
    made = uvicorn.config.create_ssl_context

    def create(*, certfile: str, keyfile: str, **more: Any) -> ssl.SSLContext:
        return renewing(lambda: made(certfile, keyfile, **more), Path(certfile), Path(keyfile))

    vars(uvicorn.config)["create_ssl_context"] = create
    del sys.argv[0]
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    program.load()()


if __name__ == "__main__":
    main()
