"""Public data sets with real users: the registry, read from public_sets.toml, and their files.

A file is fetched once into a cache (or saved there) and checked against its checksum.
"""

import hashlib
import http.client
import os
import tempfile
import tomllib
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.tabular import Table, read_table
from userdp.errors import BadInput

_TIMEOUT_SECONDS = 60.0
_FEATURES = frozenset({"features", "categorical", "dates", "date_parts", "codes", "sequence", "images"})


@dataclass(frozen=True, kw_only=True)
class PublicDataset:
    """A public table.

    Attributes:
        name: its name in configurations.
        file: its name in the cache folder.
        address: its URL; None for a set without a single one.
        sha256: checksum of the file.
        users: distinct users.
        samples: rows, or windows of rows if samples are sequences.
        columns: arguments of `read_table` that make a sensible learning task. Levels and ranges were chosen by
            looking at the published tables, which are public; with private data they must be known beforehand.
        summary: the users and the task.
        license: the terms of use.
        made_from: for a set without an address, its columns and their source.
        test_users: users held out by its own split column.
    """

    name: str
    file: str
    address: str | None = None
    sha256: str
    users: int
    samples: int
    columns: Mapping[str, Any]
    summary: str
    license: str
    made_from: str = ""
    test_users: int = 0

    @property
    def source(self) -> str:
        """The source, for people."""
        return self.address or f"a file of one's own, {self.file}: {self.made_from}"


def _read(name: str, entry: dict[str, Any]) -> PublicDataset:
    columns = entry.pop("columns")
    if "sequence" in columns:
        columns["sequence"] = SequenceColumns(**columns["sequence"])
    return PublicDataset(name=name, columns=columns, **entry)


with Path(__file__).with_name("public_sets.toml").open("rb") as _file:
    PUBLIC_DATASETS = {name: _read(name, entry) for name, entry in tomllib.load(_file).items()}


def load_public(name: str, cache: str | Path | None = None, **options: Any) -> Table:
    """Read a public data set; ``options`` replace its own columns, see `public_columns`; raises as `read_table`."""
    return read_table(public_file(name, cache), **public_columns(name, options))


def public_columns(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `read_table` for a public data set: ``given``, and the set's own; `BadInput` for no such set.

    Any of features, categorical, dates, date_parts, codes, sequence or images replaces the data set's features, and
    ``target`` its target. A sequence with neither predict nor text replaces only the keys that it sets.
    """
    replaced: set[str] = set()
    if given.keys() & _FEATURES:
        replaced |= {*_FEATURES, "ranges", "image_shape"}
    if "target" in given:
        replaced |= {"target", "target_range", "positive", "target_levels"}
    own = public_dataset(name).columns
    columns = {key: value for key, value in own.items() if key not in replaced} | dict(given)
    mine, theirs = given.get("sequence"), own.get("sequence")
    if isinstance(mine, SequenceColumns) and theirs is not None and not mine.predict and not mine.text:
        columns["sequence"] = theirs.model_copy(update=mine.model_dump(exclude_unset=True))
    return columns


def public_dataset(name: str, field: str = "name") -> PublicDataset:
    """Return the registry's entry; raise `BadInput` for an unknown name, the value of ``field``."""
    if name not in PUBLIC_DATASETS:
        hint = did_you_mean(name, PUBLIC_DATASETS)
        raise BadInput(f"{field} = {name!r} is unknown{hint}; there are {', '.join(PUBLIC_DATASETS)}")
    return PUBLIC_DATASETS[name]


def public_file(name: str, cache: str | Path | None = None) -> Path:
    """Return the checked file of a public data set, downloaded if it is not in the ``cache`` folder.

    The default folder is the environment variable USERDP_DATA, or else ~/.cache/userdp. Raises
    `BadInput` for an unknown name, no file and no network, or another checksum.
    """
    entry = public_dataset(name)
    folder = Path(cache or os.environ.get("USERDP_DATA") or Path.home() / ".cache" / "userdp")
    path = folder / entry.file
    if path.is_file():
        _check(entry, path.read_bytes(), f"the cached file {path}")
    else:
        _download(entry, path)
    return path


def _download(entry: PublicDataset, path: Path) -> None:
    """Fetch the file; it gets its name only when complete and checked."""
    if entry.address is None:
        raise BadInput(
            f"the public data set {entry.name} is not in the cache, and has no address: make it and save it as {path} "
            f"({entry.made_from}; SHA-256 {entry.sha256})"
        )
    if not entry.address.startswith("https://"):
        raise BadInput(f"the address of {entry.name} must start with https://, got {entry.address}")
    try:
        with urllib.request.urlopen(entry.address, timeout=_TIMEOUT_SECONDS) as reply:
            content = reply.read()
    except (OSError, http.client.HTTPException) as problem:
        raise BadInput(
            f"the public data set {entry.name} is not in the cache and could not be fetched "
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


def _check(entry: PublicDataset, content: bytes, what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        fault = f"{what} has the SHA-256 checksum {found} instead of {entry.sha256}: it is damaged or another version"
        remedy = f"fetch {entry.address} again and save it as {entry.file}"
        if entry.address is None:
            remedy = "read a file of your own making as data.kind = 'table'"
        raise BadInput(f"{fault}; delete it, and {remedy}")
