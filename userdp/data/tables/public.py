"""Four public data sets with real users, fetched once into a cache and checked against their checksums."""

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.tabular import Table, read_table
from userdp.errors import BadInput

_COLLECTION = "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets/master/parquet"
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class PublicDataset:
    """A public table.

    Attributes:
        name: what configurations call it.
        file: its name in the cache folder.
        address: where it is fetched from.
        sha256: checksum of the file.
        users: distinct users.
        samples: rows.
        columns: arguments of `read_table` that make a sensible learning task. Levels and ranges were chosen by
            looking at the published tables, which are public; with private data they must be known beforehand.
        summary: who the users are and what the task is.
        license: under which terms it may be used.
    """

    name: str
    file: str
    address: str
    sha256: str
    users: int
    samples: int
    columns: Mapping[str, Any]
    summary: str
    license: str


def _dataset(name: str, package: str, stem: str, **rest: Any) -> PublicDataset:
    return PublicDataset(name, f"{stem}.parquet", f"{_COLLECTION}/{package}/{stem}.parquet", **rest)


_GENRES = (
    "Drama",
    "Comedy",
    "Comedy|Romance",
    "Drama|Romance",
    "Comedy|Drama",
    "Comedy|Drama|Romance",
    "Crime|Drama",
    "Action|Adventure|Sci-Fi",
    "Action|Adventure|Sci-Fi|Thriller",
    "Action|Crime|Thriller",
    "Action|Adventure|Thriller",
    "Drama|Thriller",
)

PUBLIC_DATASETS: dict[str, PublicDataset] = {
    entry.name: entry
    for entry in (
        _dataset(
            "insteval",
            "lme4",
            "InstEval",
            sha256="f99751c13b3de2a9ec9a2f2015731753f6897486682abecb6f21d6bb045467b9",
            users=2972,
            samples=73421,
            columns={
                "user": "s",
                "features": ("studage", "lectage", "service"),
                "ranges": {"studage": (2, 8), "lectage": (1, 6), "service": (0, 1)},
                "categorical": {"dept": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15)},
                "target": "y",
                "target_range": (1, 5),
            },
            summary="students of ETH Zurich rate lectures from 1 to 5",
            license="R package lme4, GPL-2 or later; collection Rdatasets, GPL-3",
        ),
        _dataset(
            "chem97",
            "mlmRev",
            "Chem97",
            sha256="da1319defa26e289db0351549cd302eb516190eb675f30d5f2f819dfb0bf1c69",
            users=2410,
            samples=31022,
            columns={
                "user": "school",
                "features": ("gcsescore", "age"),
                "ranges": {"gcsescore": (4, 8), "age": (-6, 6)},
                "categorical": {"gender": ("F", "M")},
                "target": "score",
                "target_range": (0, 10),
            },
            summary="schools of England and Wales; A-level chemistry points of their pupils in 1997",
            license="R package mlmRev, GPL-2 or later; collection Rdatasets, GPL-3",
        ),
        _dataset(
            "males",
            "plm",
            "Males",
            sha256="1fd4d4f96dc44e00fe473a99c99babe2b5de2130892bff49f99e3e94144d5f46",
            users=545,
            samples=4360,
            columns={
                "user": "nr",
                "features": ("school", "exper", "wage"),
                "ranges": {"school": (4, 18), "exper": (0, 20), "wage": (0, 3)},
                "categorical": {"ethn": ("black", "hisp", "other")},
                "target": "union",
                "positive": "yes",
            },
            summary="young men in the United States, 1980 to 1987; is the wage set by a union?",
            license="R package plm, GPL-2 or later; collection Rdatasets, GPL-3",
        ),
        _dataset(
            "movielens",
            "dslabs",
            "movielens",
            sha256="f5fc4a3aea2215498d218932fc1e230ef05347e22fd4fd03b0415c67433984e1",
            users=671,
            samples=100004,
            columns={
                "user": "userId",
                "categorical": {"genres": _GENRES},
                "target": "rating",
                "target_range": (0.5, 5),
            },
            summary="people rate films from 0.5 to 5; the number of ratings a user is heavy-tailed",
            license="GroupLens MovieLens terms (no commercial use without permission); R package dslabs, Artistic-2.0",
        ),
    )
}
"""The public data sets there are, by name."""


def load_public(name: str, cache: str | Path | None = None, **options: Any) -> Table:
    """Read a public data set with its own columns; ``options`` of `read_table` take precedence.

    Naming any of features, categorical or codes replaces the data set's feature columns, naming ``target`` its target.

    Raises:
        BadInput: unknown name, a file that cannot be had, or what `read_table` refuses.
        PopulationTooSmall: see `read_table`.
    """
    return read_table(public_file(name, cache), **public_columns(name, options))


def public_columns(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `read_table` for a public data set: ``given``, and the set's own columns beside them.

    Raises:
        BadInput: unknown name.
    """
    replaced: set[str] = set()
    if given.keys() & {"features", "categorical", "codes"}:
        replaced |= {"features", "ranges", "categorical"}
    if "target" in given:
        replaced |= {"target", "target_range", "positive"}
    own = public_dataset(name).columns
    return {key: value for key, value in own.items() if key not in replaced} | dict(given)


def public_dataset(name: str) -> PublicDataset:
    """The registry's entry.

    Raises:
        BadInput: unknown name.
    """
    if name not in PUBLIC_DATASETS:
        hint = did_you_mean(name, PUBLIC_DATASETS) or f"; there are {', '.join(PUBLIC_DATASETS)}"
        raise BadInput(f"there is no public data set {name!r}{hint}")
    return PUBLIC_DATASETS[name]


def public_file(name: str, cache: str | Path | None = None) -> Path:
    """The checked file of a public data set, downloaded when the cache does not hold it.

    Args:
        name: a key of `PUBLIC_DATASETS`.
        cache: folder; by default the environment variable USERDP_DATA, else ~/.cache/userdp.

    Raises:
        BadInput: unknown name, no file and no network, or a checksum that differs.
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
    """Fetch the file; it appears under its name only when complete and checked."""
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
        raise BadInput(
            f"{what} has the SHA-256 checksum {found} instead of {entry.sha256}: it is damaged or another version; "
            f"delete it, fetch {entry.address} again and save it as {entry.file}"
        )
