"""Keys for a deployment: one authority, whose private key is kept only where it is told to be, and parties' folders.

| folder | for | holds |
|---|---|---|
| superlink | the SuperLink | its certificate, the secret of its SuperExec, the silos' public keys |
| gate | the gate before it | its certificate |
| coordinator | ServerApp's SuperExec, the submitter, `userdp serve` | that secret; the page's certificate and token |
| accounts | the database of `userdp serve` | its certificate; its password, which the coordinator has, too |
| node-k | SuperNode k | its identity key, a certificate, the secret of its SuperExec |
| app-k | ClientApp's SuperExec of silo k | that secret; NOT the node's key, because it runs the coordinator's code |

Every folder holds ca.crt, with which its owner verifies the others. The folder of the authority itself belongs to
whoever makes keys, and no service has it.

*Formal guarantees.* *Claim.* `renew` lets one party's certificate last longer and changes nothing else: nobody who
trusts the authority sees another name or key. What it reads and writes is public. *Why.* It signs the public key and
the names of the certificate that is there, once it has seen the authority's own signature on it.
"""

import datetime
import ipaddress
import secrets
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from simulations.records.run_directory import private_folder, write_whole, writing
from userdp.errors import BadInput

DAYS = 30
AUTHORITY_DAYS = 1826  # of an authority that is kept
ACCOUNTS = "accounts"  # host of their database
_RENEW = datetime.timedelta(days=1)
_SECONDS = 5.0  # to wait for a server's certificate
_HOME = ("localhost", "127.0.0.1")
_PEM = serialization.Encoding.PEM


class _Authority:
    """The one that a folder keeps, if it will outlive what it signs; or else another one, which the folder may keep."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        if folder is not None and _signs(folder):
            self._key = _signing((folder / "ca.key").read_bytes())
            self.certificate = (folder / "ca.crt").read_bytes()
            self._name = x509.load_pem_x509_certificate(self.certificate).subject
            return
        self._key = ec.generate_private_key(ec.SECP384R1())
        self._name = _name("userdp authority")
        days = DAYS if folder is None else AUTHORITY_DAYS
        signed = _certificate(self._name, self._name, self._key.public_key(), days)
        signed = signed.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = _pem(signed.sign(self._key, hashes.SHA384()))

    def keep(self) -> None:
        """Write it into its folder, if it has one."""
        if self._folder is not None:
            _write(self._folder / "ca.key", _private(self._key, serialization.PrivateFormat.PKCS8))
            _write(self._folder / "ca.crt", self.certificate)

    def again(self, old: x509.Certificate) -> bytes:
        """Sign a certificate of the authority's own once more: its key, its names, from now on."""
        own = x509.load_pem_x509_certificate(self.certificate)
        old.verify_directly_issued_by(own)
        signed = _certificate(old.subject, self._name, old.public_key())
        for kind in (x509.SubjectAlternativeName, x509.BasicConstraints):
            held = old.extensions.get_extension_for_class(kind)
            signed = signed.add_extension(held.value, critical=held.critical)
        new = signed.sign(self._key, hashes.SHA384())
        new.verify_directly_issued_by(own)  # else its key is another authority's
        return _pem(new)

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


def make_keys(
    folder: Path, silos: int, hosts: Sequence[str] = (), *, serve: bool = False, authority: Path | None = None
) -> bool:
    """Make the keys of every party, unless all exist and are valid for another day; return whether keys were made.

    Only the owner of ``folder`` may read the files. ``hosts`` are further names and addresses of the gate, and of the
    page of `userdp serve`, whose files are made with ``serve``. The folder ``authority`` keeps the authority, for
    `renew`; of keys that lack nothing else, certificates are then renewed.
    """
    signer = _Authority(authority)
    files = _files(signer, silos, hosts, serve)
    paths = [folder / name for name in files]
    if _whole(paths, folder / "superlink", silos, authority):
        short = [path for path in paths if path.suffix == ".crt" and _left(end_of(path)) < _RENEW]
        if not short:
            return False
        if authority is not None and _signs(authority) and all(path.name == "server.crt" for path in short):
            renew(folder, authority, [path.parent.name for path in short])
            return True
    signer.keep()
    for name, content in files.items():
        _write(folder / name, content)
    for path in (folder / "superlink").glob("*.pub"):  # of removed silos
        if f"superlink/{path.name}" not in files:
            path.unlink()
    return True


def renew(folder: Path, authority: Path, parties: Sequence[str]) -> None:
    """Sign the certificates of these parties' folders once more, and put them there as a whole; keys and names stay.

    Raises `BadInput`: there is no such certificate, or the folder ``authority`` does not keep whoever signed it.
    """
    if not _signs(authority):
        raise BadInput(f"--authority {authority} keeps no authority that outlives a certificate: make all keys anew")
    signer = _Authority(authority)
    for party in parties:
        path = folder / party / "server.crt"
        try:
            content = signer.again(x509.load_pem_x509_certificate(path.read_bytes()))
        except (OSError, ValueError, InvalidSignature) as error:
            raise BadInput(
                f"--renew {party}: {path} is no certificate of the authority in {authority} ({type(error).__name__}): "
                "put it there, as its party has it, or make all keys anew"
            ) from None
        _write(path, content)


def certificate_ends(folder: Path, servers: Sequence[str] = ()) -> dict[str, datetime.datetime]:
    """Return when each certificate in a folder ends, and those that servers at host:port show: what fails is left out.

    Nothing is believed of what a server shows.
    """
    found = {}
    for path in sorted(folder.rglob("*.crt")):
        name = str(path.relative_to(folder))
        with suppress(OSError, ValueError):
            if not name.startswith(".."):  # where Kubernetes keeps, under a new name each time, what others link to
                found[name] = end_of(path)
    for server in servers:
        host, _, port = server.rpartition(":")
        with suppress(OSError, ValueError):
            shown = ssl.get_server_certificate((host, int(port)), timeout=_SECONDS)
            found[server] = x509.load_pem_x509_certificate(shown.encode()).not_valid_after_utc
    return found


def end_of(path: Path) -> datetime.datetime:
    """Return when a certificate's file ends; OSError or ValueError if there is none."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def _signs(authority: Path) -> bool:
    """Return whether a folder keeps an authority that outlives what it signs now."""
    if not all((authority / name).is_file() for name in ("ca.key", "ca.crt")):  # one alone: `keep` was interrupted
        return False
    return _left(end_of(authority / "ca.crt")).days >= DAYS


def _left(end: datetime.datetime) -> datetime.timedelta:
    return end - datetime.datetime.now(datetime.UTC)


def _signing(text: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(text, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput("--authority: ca.key is not the key that was made: put it back")
    return key


def _write(path: Path, content: bytes) -> None:
    with writing(str(path)):
        private_folder(path.parent)
        write_whole(path, lambda partial: partial.write_bytes(content))


def _files(authority: _Authority, silos: int, hosts: Sequence[str], serve: bool) -> Mapping[str, bytes]:
    coordinator = secrets.token_hex(32).encode()
    parties = {
        "superlink": authority.server(["superlink"]) | {"superexec.secret": coordinator},
        "gate": authority.server(["gate", *hosts]),
        "coordinator": {"superexec.secret": coordinator},
    }
    if serve:
        password, token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        parties["accounts"] = authority.server([ACCOUNTS]) | {"password": password.encode()}
        parties["coordinator"] |= {"accounts.password": password.encode(), "page.token": token.encode()}
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


def _whole(paths: Sequence[Path], link: Path, silos: int, authority: Path | None) -> bool:
    """Return whether all files exist, for this number of silos, from one authority: the one that is kept, if one is."""
    if not all(path.is_file() for path in paths) or len(list(link.glob("*.pub"))) != silos:
        return False
    kept = [authority / "ca.crt"] if authority is not None else []
    if not all(path.is_file() for path in kept):
        return False
    return len({path.read_bytes() for path in (*kept, *paths) if path.name == "ca.crt"}) == 1


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, days: int | None = None
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS if days is None else days))
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
