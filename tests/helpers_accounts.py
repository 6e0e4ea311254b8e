"""Databases for accounts: a file of SQLite, and a PostgreSQL that a test starts for itself."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import PATIENCE
from helpers_flower import free_port

from userdp.accounting import Guarantee
from userdp.accounting.guarantee import ONE_GAUSSIAN

_PLACES = os.pathsep.join([os.environ["PATH"], *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))])


def promise(epsilon: float = 1.0, delta: float = 1e-6, *, gaussian: bool = True) -> Guarantee:
    accountant = ONE_GAUSSIAN if gaussian else "something else"
    return Guarantee("user", "replace_one", epsilon, delta, accountant, "anybody", (), True)


@contextmanager
def own_postgres(keys: Path | None = None) -> Iterator[str]:
    """Start a server that nobody else reaches; skip the test where there is none, or no driver.

    With server.crt and server.key of the folder ``keys`` it speaks TLS, at a port of this machine.
    """
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    tools = [shutil.which(name, path=_PLACES) for name in ("initdb", "postgres")]
    if None in tools or sys.platform == "win32":
        pytest.skip("there is no PostgreSQL on this machine")
    initdb, postgres = map(str, tools)
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        as_user = {}
        if os.getuid() == 0:  # it refuses to run as root
            shutil.chown(folder, "postgres")
            as_user = {"user": "postgres", "group": "postgres"}
        listens = ["-c", "listen_addresses="]
        if keys is not None:
            for name in ("server.crt", "server.key"):
                shutil.copyfile(keys / name, f"{folder}/{name}")
                os.chmod(f"{folder}/{name}", 0o600)
                if as_user:
                    shutil.chown(f"{folder}/{name}", "postgres")
            listens = ["-c", "listen_addresses=localhost", "-p", str(free_port()), "-c", "ssl=on"]
            listens += ["-c", f"ssl_cert_file={folder}/server.crt", "-c", f"ssl_key_file={folder}/server.key"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/", **as_user}
        data = f"{folder}/data"
        subprocess.run([initdb, "-D", data, "-U", "owner", "-A", "trust", "-N"], check=True, **quiet)
        server = subprocess.Popen([postgres, "-D", data, "-k", folder, *listens], **quiet)
        try:
            for _ in range(int(PATIENCE / 0.1)):
                try:
                    port = listens[3] if keys is not None else "5432"
                    psycopg.connect(host=folder, port=port, user="owner", dbname="postgres").close()
                    break
                except psycopg.OperationalError:  # it is starting
                    time.sleep(0.1)
            yield (
                f"postgresql://owner@/postgres?host={folder}"
                if keys is None
                else f"postgresql://owner@localhost:{port}/postgres"
            )
        finally:
            server.terminate()
            server.wait()
