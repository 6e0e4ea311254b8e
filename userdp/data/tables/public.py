"""Public data sets with real users: the registry, read from public_sets.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.fetching import PublicFile, fetched
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.tabular import Table, read_table
from userdp.errors import BadInput

_FEATURES = frozenset({"features", "categorical", "dates", "date_parts", "codes", "sequence", "images"})


@dataclass(frozen=True, kw_only=True)
class PublicDataset(PublicFile):
    """A public table.

    Attributes:
        users: distinct users.
        samples: rows, or windows of rows if samples are sequences.
        columns: arguments of `read_table` that make a sensible learning task. Levels and ranges were chosen by
            looking at the published tables, which are public; with private data they must be known beforehand.
        summary: the users and the task.
        test_users: users held out by its own split column.
    """

    users: int
    samples: int
    columns: Mapping[str, Any]
    summary: str
    test_users: int = 0


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
        own_text = {} if mine.tokenizer is None else {"alphabet": None}
        columns["sequence"] = theirs.model_copy(update=own_text | mine.model_dump(exclude_unset=True))
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
    return fetched(public_dataset(name), cache)
