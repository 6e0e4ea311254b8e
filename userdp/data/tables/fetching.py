"""Public files, each fetched once into a cache (or saved there) and checked against its checksum."""

import hashlib
import http.client
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from userdp.errors import BadInput

_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    """A public file.

    Attributes:
        name: its name for people, and in configurations.
        file: its name in the cache folder.
        address: its URL; None for a file without a single one.
        sha256: checksum of the file.
        license: the terms of use.
        made_from: for a file without an address, its columns and their source.
    """

    kind: ClassVar[str] = "the public data set"
    name: str
    file: str
    address: str | None = None
    sha256: str
    license: str
    made_from: str = ""

    @property
    def source(self) -> str:
        """The source, for people."""
        return self.address or f"a file of one's own, {self.file}: {self.made_from}"


def fetched(entry: PublicFile, cache: str | Path | None = None) -> Path:
    """Return the checked file, downloaded if it is not in the ``cache`` folder.

    The default folder is the environment variable USERDP_DATA, or else ~/.cache/userdp. Raises `BadInput` for no file
    and no network, or another checksum.
    """
    folder = Path(cache or os.environ.get("USERDP_DATA") or Path.home() / ".cache" / "userdp")
    path = folder / entry.file
    if path.is_file():
        _check(entry, path.read_bytes(), f"the cached file {path}")
    else:
        _download(entry, path)
    return path


def _download(entry: PublicFile, path: Path) -> None:
    """Fetch the file; it gets its name only when complete and checked."""
    if entry.address is None:
        raise BadInput(
            f"{entry.kind} {entry.name} is not in the cache, and has no address: make it and save it as {path} "
            f"({entry.made_from}; SHA-256 {entry.sha256})"
        )
    if not entry.address.startswith("https://"):
        raise BadInput(f"the address of {entry.name} must start with https://, got {entry.address}")
    try:
        with urllib.request.urlopen(entry.address, timeout=_TIMEOUT_SECONDS) as reply:
            content = reply.read()
    except (OSError, http.client.HTTPException) as problem:
        raise BadInput(
            f"{entry.kind} {entry.name} is not in the cache and could not be fetched "
            f"({type(problem).__name__}): download {entry.address} by hand and save it as {path}"
        ) from None
    _check(entry, content, f"the download from {entry.address}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            partial.write(content)
        Path(partial.name).replace(path)
    except OSError as problem:
        raise BadInput(
            f"the cache folder {path.parent} cannot be written ({type(problem).__name__}); set USERDP_DATA to another"
        ) from None


def _check(entry: PublicFile, content: bytes, what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        fault = f"{what} has the SHA-256 checksum {found} instead of {entry.sha256}: it is damaged or another version"
        remedy = f"fetch {entry.address} again and save it as {entry.file}"
        if entry.address is None:
            remedy = "read a file of your own making as data.kind = 'table'"
        raise BadInput(f"{fault}; delete it, and {remedy}")
