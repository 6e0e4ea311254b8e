"""Every key of a configuration file, from the models that check it."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simulations.config.run_config import EngineSection, OutputSection, PrivacySection, RunConfig, strategy_section
from strategies.registry import STRATEGIES
from userdp.data.registry import DATA_SOURCES
from userdp.data.synthetic.registry import POPULATIONS
from userdp.data.synthetic.source import synthetic_settings
from userdp.data.tables.declared import did_you_mean
from userdp.errors import BadInput
from userdp.problems.registry import PROBLEMS
from userdp.settings import NameOf, choices

_SIGNS = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}


@cache
def _effects() -> dict[str, dict[str, str]]:
    """Return section -> key, or "other" -> its effect on privacy, from effects.toml."""
    sections = tomllib.loads(Path(__file__).with_name("effects.toml").read_text(encoding="utf-8"))
    return {
        name: {key: words for many, words in rows.items() for key in many.split()} for name, rows in sections.items()
    }


@dataclass(frozen=True)
class Key:
    """A key of a configuration."""

    name: str
    """The name with its section, such as "strategy.clip_norm"."""
    kind: str | None
    """The kind of the section that has it; None if every kind has it."""
    field: FieldInfo
    """Its declaration."""

    @property
    def effect(self) -> str:
        """The effect on privacy."""
        section, _, key = self.name.rpartition(".")
        words = _effects()["synthetic" if section == "data" and self.kind in POPULATIONS else section or "top"]
        return words.get(key) or words["other"]

    @property
    def meaning(self) -> str:
        """The description, on one line."""
        return self.field.description or ""

    @property
    def default(self) -> str:
        """The default as a file would write it; "must be set" if there is none."""
        if self.field.is_required():
            return "must be set"
        return shown(self.field.get_default(call_default_factory=True)).strip("`") or "none"


@cache
def keys() -> tuple[Key, ...]:
    """Return every key of a run's configuration, in the order of the page."""
    return tuple(_keys())


def _keys() -> Iterator[Key]:
    for name in ("name", "seed", "preparation"):
        yield Key(name, None, RunConfig.model_fields[name])
    kinds: list[tuple[str, str | None, type[BaseModel]]] = [
        ("problem", name, one) for name, one in PROBLEMS.loaded()[0].items()
    ]
    kinds += [("data", name, one) for name, one in DATA_SOURCES.loaded()[0].items() if not one.simulated]
    kinds += [("data", name, synthetic_settings(name)) for name in POPULATIONS.loaded()[0]]
    kinds += [("strategy", name, strategy_section(name)) for name in STRATEGIES.loaded()[0]]
    kinds += [("privacy", None, PrivacySection), ("engine", None, EngineSection), ("output", None, OutputSection)]
    for section, kind, model in kinds:
        for name, field in model.model_fields.items():
            yield Key(f"{section}.{name}", kind, field)


@cache
def _meanings() -> dict[tuple[str, str, str], list[Key]]:
    """Return the keys of each name, meaning and default."""
    found: dict[tuple[str, str, str], list[Key]] = {}
    for key in keys():
        found.setdefault((key.name, key.meaning, key.default), []).append(key)
    return found


def explained(name: str | None = None) -> list[Key]:
    """Return all keys, or those of a name, which may lack its section: one key for each meaning.

    Raises:
        BadInput: no configuration has such a key; names the nearest.
    """
    every = [same[0] for same in _meanings().values()]
    found = [key for key in every if name in (None, key.name, key.name.rpartition(".")[2])]
    if not found:
        near = did_you_mean(str(name), {word for key in every for word in (key.name, key.name.rpartition(".")[2])})
        raise BadInput(f"no configuration has a key {name!r}{near}: docs/configuration.md has all")
    return found


def having(key: Key) -> list[str]:
    """Return the kinds that have a key with this meaning and default; empty if every kind does."""
    return [one.kind for one in _meanings()[key.name, key.meaning, key.default] if one.kind is not None]


def values(field: FieldInfo) -> str:
    """Return what a key may be, with its bounds."""
    bounds = [
        f"{sign} {getattr(item, attribute):g}"
        for item in field.metadata
        for kind, (sign, attribute) in _SIGNS.items()
        if isinstance(item, kind)
    ]
    named = any(isinstance(item, NameOf) for item in field.metadata)
    words = f'{_quoted(choices(field))} or `"FILE.py:CLASS"`' if named else kind_of(field.annotation)
    return " ".join([words, ", ".join(bounds)]).strip()


def _quoted(texts: Iterable[Any]) -> str:
    return " or ".join(f'`"{text}"`' for text in texts)


def kind_of(annotation: Any) -> str:
    """Return a type in words of TOML."""
    origin = get_origin(annotation)
    if origin is Literal:
        return _quoted(get_args(annotation))
    if origin in (Union, UnionType):
        return " or ".join(kind_of(part) for part in get_args(annotation) if part is not NoneType)
    if origin is list:
        return f"list of {kind_of(get_args(annotation)[0])}"
    if origin is dict:
        return f"table of {kind_of(get_args(annotation)[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}.get(annotation, "any value")


def shown(default: object) -> str:
    """Return a default as it would stand in a file, as code; empty for None."""
    if default is None:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else repr(default)}`".replace("'", '"')
