"""The registry of public data sets with real users, read from public_sets.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.tables.sequences import SequenceColumns


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
