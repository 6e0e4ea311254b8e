"""`userdp serve` as a command: one keeper, TLS for the page, and an end."""

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from types import SimpleNamespace

import pytest
from examples import call
from helpers import PATIENCE
from helpers_flower import ROOT, free_port

from simulations.deployment.keys import make_keys
from simulations.serving.command import _keep_and_show
from simulations.serving.keeper import identity
from simulations.terminal import BAD_INPUT
from userdp.errors import BadInput


@pytest.mark.usefixtures("accounts")
def test_what_cannot_be_served_is_one_sentence(tmp_path):
    (tmp_path / "keys").mkdir()
    words = ("serve", "start", "--results", tmp_path / "results", "--keys", tmp_path / "keys", "--port", free_port())
    words += ("--token-file", tmp_path / "token")
    done = call(*words, "--host", "0.0.0.0")
    assert done.exit_code == BAD_INPUT
    assert "--host 0.0.0.0: the token would travel without TLS" in " ".join(done.stderr.split())
    with identity(tmp_path / "results"):
        done = call(*words)
    assert done.exit_code == BAD_INPUT
    assert "belongs to another userdp serve" in " ".join(done.stderr.split())


@pytest.mark.usefixtures("accounts")
def test_with_nothing_due_once_ends(tmp_path):
    words = ("serve", "start", "--once", "--insecure", "--results", tmp_path / "results", "--pause", "0")
    assert call(*words).exit_code == 0


@pytest.mark.parametrize("folder", ["coordinator", "without", None])
def test_whoever_has_a_certificate_serves_the_page_with_it_and_beyond_this_machine_nobody_else(
    tmp_path, monkeypatch, folder
):
    """The token and the page travel by TLS; without keys it is a closed test bench's."""
    (tmp_path / "without").mkdir()
    make_keys(tmp_path, 1, serve=True)
    keys, made = tmp_path / folder if folder else None, {}

    class Made(Exception):
        pass

    def server(app, door, host, port, keys):
        made.update(host=host, keys=keys)
        raise Made

    monkeypatch.setattr("simulations.deployment.door.Server", server)
    for host in ("0.0.0.0", "127.0.0.1"):
        made.clear()
        with pytest.raises(BadInput if folder == "without" and host == "0.0.0.0" else Made):
            _keep_and_show(
                SimpleNamespace(queue=None, results=tmp_path, pulse=None), host, 1, tmp_path / "token", keys, 1.0
            )
        assert made.get("keys") == (keys if folder == "coordinator" else None)


@pytest.mark.slow
def test_a_page_beyond_this_machine_has_tls_and_ends_with_its_process(accounts, tmp_path):
    make_keys(tmp_path / "keys", 1, serve=True)
    port, keys = free_port(), tmp_path / "keys" / "coordinator"
    program = [sys.executable, "-c", "from simulations.cli import main; main()", "serve", "start", "--keys", str(keys)]
    program += ["--results", str(tmp_path / "results"), "--token-file", str(keys / "page.token")]
    program += ["--host", "0.0.0.0", "--port", str(port), "--pause", "0.1", "--log", "json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "USERDP_ACCOUNTS": accounts}
    process = subprocess.Popen(program, env=environment)
    try:
        trusted = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        token = {"Authorization": f"Bearer {(keys / 'page.token').read_text()}"}
        deadline = time.monotonic() + PATIENCE
        shown = b""
        while not shown:
            assert time.monotonic() < deadline
            assert process.poll() is None
            with suppress(urllib.error.URLError):
                request = urllib.request.Request(f"https://localhost:{port}/", headers=token)
                with urllib.request.urlopen(request, context=trusted, timeout=60) as reply:
                    shown = reply.read()
            time.sleep(0.2)
        assert b"The queue is empty" in shown
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
