"""Validation errors of a configuration as sentences: the dotted field, the value and the fix."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from userdp.problems.registry import kind_of_name
from userdp.settings import TWO_NUMBERS, shown

DISCRIMINATORS = ("kind", "population")  # keys whose value chooses the model of a section
_WHOLE = ("extra_forbidden", "missing", "union_tag_not_found", "union_tag_invalid")
"""Problems of a key rather than of its value's type."""
_TARGET_RANGE = ("data", "target_range")  # a setting of two numbers; pydantic's path ends with the place of one


def sentences(error: ValidationError, raw: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Return one sentence for each problem that validating ``raw`` with a ``model`` gave."""
    known = dict(_known("", model, raw))
    found: dict[str, str] = {}
    for item in error.errors(include_url=False):
        where = _dotted(item["loc"], raw)
        if where in found and item["type"] not in _WHOLE:
            # A value that fits none of several types gets one sentence for all of them.
            if _wanted(item) not in found[where]:
                found[where] += f", or {_wanted(item)}"
        else:
            found[where] = _sentence(item, where, known)
    return list(found.values())


def _wanted(item: Any) -> str:
    if item["type"] in ("float_type", "list_type") and item["loc"][:2] in (("data", "ranges"), _TARGET_RANGE):
        return TWO_NUMBERS
    if item["type"] == "list_type":
        return f"must be a list, such as [{item['input']!r}]" if isinstance(item["input"], str) else "must be a list"
    return str(item["msg"]).replace("Input should", "must").replace("String should", "must")


def _sentence(item: Any, where: str, known: Mapping[str, str]) -> str:
    match item["type"]:
        case "extra_forbidden":
            return f"unknown key {where}{_nearest(where, known)}"
        case "missing":
            return _missing(where, known)
        case "union_tag_not_found" | "union_tag_invalid":
            name = f"{where}.{item['ctx']['discriminator'].strip(chr(39))}"
            choices = known[name].splitlines()
            if item["type"] == "union_tag_not_found":
                return f"{name} is missing: choose one of {', '.join(choices)}"
            tag = str(item["ctx"]["tag"])
            meant = kind_of_name(tag) if where == "problem" else None
            near = [meant] if meant else difflib.get_close_matches(tag, choices, n=1)
            there = f"did you mean {near[0]!r}? There are" if near else "there are"
            return f"{name} = {item['ctx']['tag']!r} is unknown: {there} {', '.join(choices)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            written = f"must be a section, written [{where}], or a table of keys, in Python a dict"
            return f"{where} = {shown(item['input'])}: {written}{_meaning(where, known)}"
    return f"{where} = {shown(item['input'])}{_meaning(where, known)}: {_wanted(item)}"


def _missing(where: str, known: Mapping[str, str]) -> str:
    if kinds := known.get(f"{where}.kind"):
        return f"{where} is missing: its kind is one of {', '.join(kinds.splitlines())}"
    described = _described(where, known) or "this section"
    first = described[0].lower() if described[1:2].islower() else described[0]
    return f"{where} is missing: give {first}{described[1:]}"


def _meaning(where: str, known: Mapping[str, str]) -> str:
    described = _described(where, known)
    return f" ({described})" if described else ""


def _described(name: str, known: Mapping[str, str]) -> str:
    return known.get(name, "").replace("\n", ", ").rstrip(".")


def _dotted(loc: tuple[int | str, ...], raw: Mapping[str, Any]) -> str:
    """Return the key as written in the file, without the kinds that pydantic puts between a section and its keys."""
    if loc[:2] == _TARGET_RANGE:
        return ".".join(_TARGET_RANGE)
    section = raw.get(str(loc[0]))
    chosen = [section.get(key) for key in DISCRIMINATORS] if isinstance(section, Mapping) else []
    rest = list(loc[1:])
    while rest and rest[0] in chosen:
        chosen.remove(rest.pop(0))
    # pydantic ends a key's path with the type that it tried; the file shows where the path really ends.
    return ".".join(map(str, [loc[0], *rest[: _depth(section, rest)]]))


def _depth(section: Any, path: list[int | str]) -> int:
    """Return how many keys of a path lead into a section: one; a second into a table or list; more into tables."""
    inner = _at(section, path[:1])
    if not isinstance(inner, Mapping | list):
        return 1
    depth = 2
    while depth < len(path) and isinstance(inner := _at(inner, path[depth - 1 : depth]), Mapping):
        depth += 1
    return depth


def _at(section: Any, path: list[int | str]) -> Any:
    if path and isinstance(section, list) and isinstance(path[0], int):
        return section[path[0]]  # one of several sections of a name
    return section.get(path[0]) if path and isinstance(section, Mapping) else None


def _known(where: str, annotation: Any, given: Any) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, description) for every possible key below one, given the chosen kinds; a kind lists all kinds.

    Sections within a section are found too: [data.sequence], or with a user's own name [data.derive.NAME].
    """
    for one in (annotation, *get_args(annotation)):
        if get_origin(one) is dict and isinstance(given, Mapping):
            for name, inner in given.items():
                yield from _known(f"{where}{name}.", get_args(one)[1], inner)
    models, discriminators = list(_models(annotation)), DISCRIMINATORS if where.count(".") == 1 else ()
    for discriminator in discriminators:
        if tags := [tag for one in models for tag in _tags(one, discriminator)]:
            yield f"{where}{discriminator}", "\n".join(dict.fromkeys(tags))
    for one in models:
        if all(_agrees(one, given, discriminator) for discriminator in discriminators):
            for key, field in one.model_fields.items():
                if key not in discriminators:
                    yield f"{where}{key}", field.description or ""
                    yield from _known(f"{where}{key}.", field.annotation, _at(given, [key]))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the section models in an annotation, through unions and nested choices, but not those of a table."""
    if get_origin(annotation) is Annotated:
        yield from _models(get_args(annotation)[0])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not dict:
        for argument in get_args(annotation):
            yield from _models(argument)


def _tags(model: type[BaseModel], discriminator: str) -> tuple[str, ...]:
    field = model.model_fields.get(discriminator)
    return tuple(map(str, get_args(field.annotation))) if field is not None else ()


def _agrees(model: type[BaseModel], section: Any, discriminator: str) -> bool:
    tags = _tags(model, discriminator)
    return not tags or not isinstance(section, Mapping) or section.get(discriminator, tags[0]) in tags


def _nearest(where: str, known: Mapping[str, str]) -> str:
    """Suggest a key, of the same section first, then of any; or list the keys."""
    section, _, last = where.rpartition(".")
    siblings = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == section]
    if near := difflib.get_close_matches(last, siblings, n=1):
        return f"; did you mean {section + '.' if section else ''}{near[0]}?"
    if far := difflib.get_close_matches(where, [key for key in known if "." in key], n=1, cutoff=0.75):
        return f"; did you mean {far[0]}?"
    if elsewhere := [key for key in known if key.rpartition(".")[2] == last]:
        return f"; did you mean {elsewhere[0]}?"
    return f"; [{section}] knows {', '.join(siblings)}" if section else f"; there are {', '.join(siblings)}"
