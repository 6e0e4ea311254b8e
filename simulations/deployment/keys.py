"""Throw-away keys for a deployment: one authority, whose private key is never written, and a folder for each party.

| folder | for | holds |
|---|---|---|
| superlink | the SuperLink | its certificate, the secret of its SuperExec, the silos' public keys |
| gate | the gate before it | its certificate |
| coordinator | ServerApp's SuperExec, the submitter, `userdp serve` | that secret; the page's certificate and token |
| accounts | the database of the accounts, beside `userdp serve` | its password, which the coordinator has, too |
| node-k | SuperNode k | its identity key, a certificate, the secret of its SuperExec |
| app-k | ClientApp's SuperExec of silo k | that secret; NOT the node's key, because it runs the coordinator's code |

Every folder holds ca.crt, with which its owner verifies the others.
"""

import datetime
import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from simulations.records.run_directory import private_file, private_folder, writing
from userdp.errors import BadInput

DAYS = 30
ACCOUNTS, USER = "accounts", "userdp"  # host of the database of the accounts, and who reads it
_RENEW = datetime.timedelta(days=1)
_HOME = ("localhost", "127.0.0.1")
_PEM = serialization.Encoding.PEM


class _Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP384R1())
        self._name = _name("userdp throw-away authority")
        signed = _certificate(self._name, self._name, self._key.public_key())
        signed = signed.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = _pem(signed.sign(self._key, hashes.SHA384()))

    def server(self, hosts: Sequence[str]) -> dict[str, bytes]:
        """Make a key and certificate for a server of these names and addresses."""
        key = ec.generate_private_key(ec.SECP384R1())
        signed = _certificate(_name(hosts[0]), self._name, key.public_key())
        names = x509.SubjectAlternativeName([_host(host) for host in (*hosts, *_HOME)])
        signed = signed.add_extension(names, critical=False)
        signed = signed.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        return {
            "server.crt": _pem(signed.sign(self._key, hashes.SHA384())),
            "server.key": _private(key, serialization.PrivateFormat.PKCS8),
        }


def make_keys(folder: Path, silos: int, hosts: Sequence[str] = (), *, serve: bool = False) -> bool:
    """Make the keys of every party, unless all exist and are valid for another day; return whether keys were made.

    Only the owner of ``folder`` may read the files. ``hosts`` are further names and addresses of the gate, and of the
    page of `userdp serve`, whose files are made with ``serve``.
    """
    files = _files(silos, hosts, serve)
    if _good([folder / name for name in files], folder / "superlink" / "ca.crt", silos):
        return False
    for name, content in files.items():
        path = folder / name
        with writing(str(path)):
            private_folder(path.parent)
            private_file(path)
            path.write_bytes(content)
    for path in (folder / "superlink").glob("*.pub"):  # of removed silos
        if f"superlink/{path.name}" not in files:
            path.unlink()
    return True


def _files(silos: int, hosts: Sequence[str], serve: bool) -> Mapping[str, bytes]:
    authority, coordinator = _Authority(), secrets.token_hex(32).encode()
    parties = {
        "superlink": authority.server(["superlink"]) | {"superexec.secret": coordinator},
        "gate": authority.server(["gate", *hosts]),
        "coordinator": {"superexec.secret": coordinator},
    }
    if serve:
        password, token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        login = f"{ACCOUNTS}:*:*:{USER}:{password}\n"  # a file of passwords, as PostgreSQL's clients read it
        parties["accounts"] = {"password": password.encode()}
        parties["coordinator"] |= {"pgpass": login.encode(), "page.token": token.encode()}
        parties["coordinator"] |= authority.server(["serve", *hosts])
    for number in range(1, silos + 1):
        key, secret = ec.generate_private_key(ec.SECP384R1()), secrets.token_hex(32).encode()
        parties["superlink"][f"node-{number}.pub"] = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        own = {"node.key": _private(key, serialization.PrivateFormat.OpenSSH), "superexec.secret": secret}
        parties[f"node-{number}"] = authority.server([f"node-{number}"]) | own
        parties[f"app-{number}"] = {"superexec.secret": secret}
    return {
        f"{party}/{name}": content
        for party, contents in parties.items()
        for name, content in (contents | {"ca.crt": authority.certificate}).items()
    }


def _good(paths: Sequence[Path], certificate: Path, silos: int) -> bool:
    """Return whether all files exist, for this number of silos, from one authority valid for another day."""
    if not all(path.is_file() for path in paths) or len(list(certificate.parent.glob("*.pub"))) != silos:
        return False
    if len({path.read_bytes() for path in paths if path.name == "ca.crt"}) != 1:
        return False
    until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return until > datetime.datetime.now(datetime.UTC) + _RENEW


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    with suppress(ValueError):
        return x509.DNSName(host)
    raise BadInput(f"host {host!r} is neither a name nor an address")


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(_PEM)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(_PEM, form, serialization.NoEncryption())
