"""Every field that leaves a run, with its kind: who may see it.

released_fields.toml lists the fields; the class of a strategy lists what its rounds record
(`strategies.core.recipe.Fact`). A field that is not listed counts as private, so that it stays at home; a test finds
it. `kept` filters what trackers and copies for others get, and ``python docs/make.py`` writes docs/what-leaves.md.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from strategies.core.recipe import notes_of
from strategies.registry import STRATEGIES

Kind = Literal["public", "noised", "held-out", "private", "environment"]
KINDS: Mapping[Kind, str] = {
    "public": "a function of the configuration, declarations and public randomness alone: no user's data enters",
    "noised": "a function of released values, which the guarantee covers, and of public numbers. "
    "If `holds` is false there is no guarantee, and the value is exact",
    "held-out": "a function of the released model and of held-out users, exact about them; no guarantee covers them. "
    "Simulation only; a deployment has none",
    "private": "an exact function of the training users' data, not covered by the guarantee: for the holder of the "
    "data alone. The name of the field, or of a table around it, ends in `_private`",
    "environment": "time, memory and failures of machines: no value of the data, but time and memory grow with it, and "
    "no guarantee covers them",
}
"""Kind -> its meaning."""
SUFFIX = "_private"
ALL_KINDS: tuple[Kind, ...] = get_args(Kind)
SHARED: tuple[Kind, ...] = tuple(kind for kind in ALL_KINDS if kind != "private")
"""Kinds for trackers, and for reports and the console of a run that others than its holder see."""
RELEASED: tuple[Kind, ...] = ("public", "noised")  # kinds in a copy for others


@dataclass(frozen=True)
class Field:
    """A field of a file that leaves a run: its path with dots (empty for the whole file), its kind and its meaning."""

    file: str
    name: str
    kind: Kind
    told: str

    def matches(self, name: str) -> bool:
        """Return whether the field has this path or is a table around it; "NAME of" matches "NAME of anything"."""
        further = f"{self.name} " if self.name.endswith(" of") else f"{self.name}."
        return not self.name or name == self.name or name.startswith(further)


def _listed() -> Iterator[Field]:
    """Yield the fields of the list, and the rows that one file repeats of another."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for file, rows in tables.items():
        repeated = {
            f"result.{name}": row for name, row in tables["result.json"].items() if file.endswith(": cell.json")
        }
        for name, row in (rows | repeated | (tables["rounds.parquet"] if file == "tracker" else {})).items():
            kind, told = row.split(": ", 1)
            if file != "tracker" or kind in SHARED:
                yield Field(file, name, cast("Kind", kind), told)


def _facts() -> list[Field]:
    """List the facts that the strategies' rounds record; two classes must not declare one name differently."""
    found: dict[str, Field] = {}
    for strategy in STRATEGIES.loaded()[0].values():
        for name, fact in notes_of(strategy).items():
            own = Field("rounds.parquet", f"fact.{name}", fact.kind, fact.meaning)
            if found.setdefault(name, own) != own:
                raise ValueError(f"{strategy.__name__}.notes: another strategy declares {name!r} as {found[name]}")
    return [found[name] for name in sorted(found)]


@cache
def all_fields() -> tuple[Field, ...]:
    """Return all fields, file by file; it imports every strategy. If several match, the longest name wins."""
    facts = _facts()
    shared = [Field("tracker", fact.name, fact.kind, fact.told) for fact in facts if fact.kind in SHARED]
    whole = (*_listed(), *facts, *shared)
    files = list(dict.fromkeys(field.file for field in whole))
    return tuple(sorted(whole, key=lambda field: files.index(field.file)))


def field_of(file: str, name: str) -> Field:
    """Return the entry of a field; LookupError if the list has none."""
    path = name.replace("/", ".")
    found = [field for field in all_fields() if field.file == file and field.matches(path)]
    if not found:
        raise LookupError(f"{file}: {name} is not in simulations/records/released_fields.toml: add it with its kind")
    return max(found, key=lambda field: len(field.name))


def kept(file: str, values: Mapping[str, Any], kinds: Collection[Kind], path: str = "") -> dict[str, Any]:
    """Return the fields of the given kinds; tables that lose all their fields are left out."""
    if set(kinds) == set(ALL_KINDS):
        return dict(values)  # unlisted fields too
    found: dict[str, Any] = {}
    for name, inner in values.items():
        whole = f"{path}.{name}" if path else name
        if isinstance(inner, Mapping) and inner:
            if rest := kept(file, inner, kinds, whole):
                found[name] = rest
        elif _kind(file, whole) in kinds:
            found[name] = inner
    return found


def _kind(file: str, name: str) -> Kind:
    try:
        return "private" if is_private(name) else field_of(file, name).kind
    except LookupError:
        return "private"


def is_private(name: str) -> bool:
    """Return whether a part of the path marks the field as private."""
    return any(part.endswith(SUFFIX) for part in name.replace("/", ".").split("."))
