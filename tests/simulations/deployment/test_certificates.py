"""Certificates are renewed one by one, by the authority that was kept, while real servers of TLS go on."""

import asyncio
import datetime
import importlib.metadata
import os
import socket
import ssl
import sys

import httpx
import pytest
import uvicorn
from cryptography import x509
from test_gate_limits import PATH, PATIENCE, served, signed
from typer.testing import CliRunner

from simulations.account.accounts import Accounts
from simulations.deployment import certificates
from simulations.deployment import keys as module
from simulations.deployment.__main__ import app
from simulations.deployment.door import Door
from simulations.deployment.keys import certificate_ends, make_keys, renew
from simulations.serving.health import Pulse, Watch
from simulations.serving.overview import overview
from simulations.serving.page import page
from simulations.serving.queue import Queue
from userdp.errors import BadInput


@pytest.fixture
def made(tmp_path):
    """Keys whose authority is kept; folder and authority."""
    folder, authority = tmp_path / "keys", tmp_path / "authority"
    make_keys(folder, 2, ("gate.example.org",), authority=authority)
    return folder, authority


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def shown(port, folder):
    """The certificate that a new connection sees, which has to be good for who trusts the folder's authority."""
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with (
        socket.create_connection(("localhost", port), timeout=PATIENCE) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True))


def test_a_renewed_certificate_has_the_same_key_names_and_authority_and_lasts_longer(made, monkeypatch):
    folder, authority = made
    monkeypatch.setattr(module, "DAYS", 33)
    others = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "gate"}
    before = read(folder / "gate/server.crt")
    renew(folder, authority, ["gate"])
    after = read(folder / "gate/server.crt")
    after.verify_directly_issued_by(read(folder / "node-1/ca.crt"))
    assert after.public_key() == before.public_key()
    assert after.serial_number != before.serial_number
    for kind in (x509.SubjectAlternativeName, x509.BasicConstraints):
        held = [each.extensions.get_extension_for_class(kind) for each in (before, after)]
        assert (held[0].value, held[0].critical) == (held[1].value, held[1].critical)
    assert after.not_valid_after_utc - before.not_valid_after_utc > datetime.timedelta(days=2)
    assert all(path.read_bytes() == content for path, content in others.items())
    assert (folder / "gate/server.crt").stat().st_mode & 0o777 == 0o600


def test_the_authority_is_where_it_was_told_to_be_and_nowhere_else(made, tmp_path):
    folder, authority = made
    assert sorted(path.name for path in authority.iterdir()) == ["ca.crt", "ca.key"]
    assert {path.stat().st_mode & 0o777 for path in authority.iterdir()} == {0o600}
    private = (authority / "ca.key").read_bytes()
    assert all(private not in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    make_keys(tmp_path / "thrown", 1)
    assert not list((tmp_path / "thrown").rglob("ca.key"))
    lasts = {path: read(path / "superlink/ca.crt").not_valid_after_utc for path in (folder, tmp_path / "thrown")}
    assert lasts[folder] - lasts[tmp_path / "thrown"] > datetime.timedelta(days=5 * 365 - 31)


def test_half_an_authority_is_none(made):
    """Its other file was still to be written: `keys` would else end with an error whenever it starts again."""
    folder, authority = made
    (authority / "ca.crt").unlink()
    with pytest.raises(BadInput, match="keeps no authority"):
        renew(folder, authority, ["gate"])
    assert make_keys(folder, 2, authority=authority)
    read(folder / "gate/server.crt").verify_directly_issued_by(read(authority / "ca.crt"))
    renew(folder, authority, ["gate"])


def test_nobody_else_renews(made, tmp_path):
    folder, authority = made
    make_keys(tmp_path / "others", 1, authority=tmp_path / "other")
    for keys, kept, party, told in (
        (folder, tmp_path / "other", "gate", "InvalidSignature"),
        (folder, tmp_path / "nowhere", "gate", "keeps no authority"),
        (folder, authority, "app-1", "FileNotFoundError"),
    ):
        before = (folder / "gate/server.crt").read_bytes()
        with pytest.raises(BadInput, match=told):
            renew(keys, kept, [party])
        assert (folder / "gate/server.crt").read_bytes() == before
    done = CliRunner().invoke(app, ["keys", "--output", str(folder), "--renew", "gate"])
    assert isinstance(done.exception, BadInput)


def test_the_key_of_another_authority_renews_nothing(made, tmp_path):
    """It would sign what nobody trusts, and servers take a new certificate at once."""
    folder, authority = made
    make_keys(tmp_path / "others", 1, authority=tmp_path / "other")
    (authority / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    before = (folder / "gate/server.crt").read_bytes()
    with pytest.raises(BadInput, match="InvalidSignature"):
        renew(folder, authority, ["gate"])
    assert (folder / "gate/server.crt").read_bytes() == before


def test_keys_that_lack_nothing_but_time_are_renewed_and_all_others_made_anew(made, monkeypatch):
    folder, authority = made
    assert not make_keys(folder, 2, authority=authority)
    identity, first = (folder / "node-1/node.key").read_bytes(), read(folder / "gate/server.crt")
    monkeypatch.setattr(module, "_RENEW", datetime.timedelta(days=module.DAYS + 1))
    assert make_keys(folder, 2, authority=authority)
    assert (folder / "node-1/node.key").read_bytes() == identity
    assert read(folder / "gate/server.crt").serial_number != first.serial_number
    ca = (folder / "gate/ca.crt").read_bytes()
    assert make_keys(folder, 3, authority=authority)
    assert (folder / "node-1/node.key").read_bytes() != identity
    assert (folder / "gate/ca.crt").read_bytes() == ca
    monkeypatch.setattr(module, "DAYS", module.AUTHORITY_DAYS + 1)  # more than the authority has left
    with pytest.raises(BadInput, match="outlives"):
        renew(folder, authority, ["gate"])
    assert make_keys(folder, 3, authority=authority)
    assert (folder / "gate/ca.crt").read_bytes() != ca


def test_a_server_shows_a_renewed_certificate_to_new_connections_and_keeps_the_others(made):
    folder, authority = made
    keys = folder / "gate"
    trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    with (
        served(Door(), keys=keys) as port,
        httpx.Client(verify=trust, timeout=PATIENCE, trust_env=False) as silo,
    ):
        address = f"https://localhost:{port}{PATH}"
        assert silo.post(address, headers=signed()).status_code == 200
        before = shown(port, keys)
        assert before == read(keys / "server.crt")
        renew(folder, authority, ["gate"])
        after = shown(port, keys)
        assert after == read(keys / "server.crt") != before
        stream = silo.post(address, headers=signed()).extensions["network_stream"]  # the connection that it had
        assert x509.load_der_x509_certificate(stream.get_extra_info("ssl_object").getpeercert(True)) == before


def test_a_server_whose_certificate_has_ended_is_well_once_that_is_renewed(made, monkeypatch, caplog):
    folder, authority = made
    monkeypatch.setattr(module, "DAYS", 0)
    renew(folder, authority, ["gate"])
    monkeypatch.undo()
    with served(Door(), keys=folder / "gate") as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            shown(port, folder / "gate")
        assert "server.crt ends at" in caplog.text
        renew(folder, authority, ["gate"])
        assert shown(port, folder / "gate") == read(folder / "gate/server.crt")
        assert certificate_ends(folder / "gate", [f"localhost:{port}", "localhost:1", "nonsense"]) == {
            "ca.crt": read(authority / "ca.crt").not_valid_after_utc,
            "server.crt": (end := read(folder / "gate/server.crt").not_valid_after_utc),
            f"localhost:{port}": end,
        }


@pytest.mark.parametrize("spoil", ["key", "certificate", "gone"])
def test_half_a_renewal_changes_nothing(made, spoil, caplog):
    folder, _ = made
    keys, other = folder / "gate", folder / "node-1"
    name = "server.key" if spoil == "key" else "server.crt"
    with served(Door(), keys=keys) as port:
        before, held = shown(port, keys), (keys / name).read_bytes()
        if spoil == "gone":
            (keys / name).unlink()
        else:
            (keys / name).write_bytes((other / name).read_bytes())
        assert shown(port, keys) == before
        assert "are not used yet" in caplog.text
        (keys / name).write_bytes(held)
        assert shown(port, keys) == before
        for both in ("server.crt", "server.key"):
            (keys / both).write_bytes((other / both).read_bytes())
        assert shown(port, keys) == read(other / "server.crt")


def test_flowers_programs_read_renewed_certificates_too(made, monkeypatch):
    folder, _ = made
    files = {"ssl_certfile": str(folder / "node-1/server.crt"), "ssl_keyfile": str(folder / "node-1/server.key")}
    created, seen = uvicorn.config.create_ssl_context, []

    class Program:
        @staticmethod
        def load():
            def run():
                config = uvicorn.Config(lambda: None, ws="none", **files)
                config.load()
                seen.append((list(sys.argv), config.ssl.sni_callback))

            return run

    monkeypatch.setattr(certificates, "entry_points", lambda group, name: [Program] if name == "flower-x" else [])
    monkeypatch.setattr(sys, "argv", ["certificates", "flower-x", "--port", "1"])
    try:
        certificates.main()
    finally:
        uvicorn.config.create_ssl_context = created
    ((words, callback),) = seen
    assert words == ["flower-x", "--port", "1"]
    assert callback.__qualname__.startswith("renewing.")
    for name in ("flower-superlink", "flower-supernode"):
        assert len(importlib.metadata.entry_points(group="console_scripts", name=name)) == 1


def test_the_certificates_of_a_folder_that_cannot_be_read_are_left_out(made):
    folder, _ = made
    (folder / "gate/server.crt").write_bytes(b"no certificate")
    os.symlink(folder / "nowhere", folder / "gate/lost.crt")
    found = certificate_ends(folder)
    assert "gate/server.crt" not in found
    assert set(found) >= {"gate/ca.crt", "node-2/server.crt"}


def test_a_certificate_that_kubernetes_mounts_is_told_once_under_one_name(made, tmp_path):
    real, mounted = tmp_path / "mounted" / "..2026_11_29", tmp_path / "mounted"
    real.mkdir(parents=True)
    (mounted / "..data").symlink_to(real.name)
    for name in ("ca.crt", "server.crt"):
        (real / name).write_bytes((made[0] / "gate" / name).read_bytes())
        (mounted / name).symlink_to(f"..data/{name}")
    assert list(certificate_ends(mounted)) == ["ca.crt", "server.crt"]


def test_ends_of_certificates_are_on_the_page_and_in_the_metrics(made, tmp_path, accounts):
    folder, _ = made
    with served(Door(), keys=folder / "gate") as port:
        seen = overview(Queue(Accounts(accounts)), tmp_path, folder / "superlink", [f"localhost:{port}"])
    gate, own = (read(folder / name / "server.crt").not_valid_after_utc for name in ("gate", "superlink"))
    assert seen.certificates == {
        "ca.crt": read(folder / "superlink/ca.crt").not_valid_after_utc,
        "server.crt": own,
        f"localhost:{port}": gate,
    }
    watch = Watch(lambda: seen, lambda: {}, Pulse())
    watch.look()

    async def asked(path):
        transport = httpx.ASGITransport(page(watch, tmp_path, "t" * 32))
        async with httpx.AsyncClient(transport=transport, base_url="https://serve") as client:
            return (await client.get(path, headers={"Authorization": f"Bearer {'t' * 32}"})).text

    lines = asyncio.run(asked("/metrics")).splitlines()
    told = {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("userdp_certificate_end_")}
    assert told == {file: end.timestamp() for file, end in seen.certificates.items()}
    assert f"server.crt {own:%Y-%m-%d}" in asyncio.run(asked("/"))
