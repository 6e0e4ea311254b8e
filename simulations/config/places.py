"""Paths and files of code in a configuration, resolved relative to its folder."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from userdp.errors import BadInput
from userdp.problems.registry import PROBLEMS


def absolute_path(path: str | Path, folder: Path = Path()) -> str:
    """Return the absolute path that a configuration gets, for one relative to a folder, the current one by default."""
    try:
        return str((folder / Path(path).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError):  # such as an unknown home, or a NUL byte
        raise BadInput(f"the path {str(path)!r} leads nowhere: write it in full") from None


def named_code(values: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield (field, section, key) of each text that may name code, "file.py:name" or "package.module:name".

    Fields of [problem] but its kind are named without their section, others with it. Of a loss that is code itself,
    which is not imported, all fields may name some.
    """
    problem, data, strategies = (values.get(name) or {} for name in ("problem", "data", "strategy"))
    problem, data = (section if isinstance(section, Mapping) else {} for section in (problem, data))
    kind = problem.get("kind")
    fields: Iterable[str] = ()
    if isinstance(kind, str) and PROBLEMS.is_place(kind):
        fields = problem.keys() - {"kind"}
    elif isinstance(kind, str) and kind in PROBLEMS:
        fields = PROBLEMS[kind].code_fields
    for field in fields:
        inner = problem.get(field)
        named = [(f"{field}.{name}", inner, name) for name in inner] if isinstance(inner, Mapping) else []
        yield from named or [(field, problem, field)]
    yield from (("problem.kind", problem, "kind"), ("data.kind", data, "kind"))
    for one in strategies if isinstance(strategies, list) else [strategies]:
        yield from ((f"strategy.{key}", one, key) for key in ("kind", "sampling") if isinstance(one, Mapping))
    asked = values.get("ask", problem.get("ask"))
    sections = [one for one in asked if isinstance(one, Mapping)] if isinstance(asked, list) else []
    yield from ((f"ask.{number}", one, "statistic") for number, one in enumerate(sections, start=1))


def name_objects(raw: Mapping[str, Any]) -> None:
    """Put names in the place of the modules, losses and metrics of [problem] that are objects of Python, in place."""
    for field, section, key in named_code({"problem": raw.get("problem")}):
        if key != "kind" and callable(section.get(key)):
            from userdp.neural.objects import place_of  # noqa: PLC0415  (torch is slow to import)

            section[key] = place_of(section[key], field)


def make_absolute(raw: dict[str, Any], folder: Path) -> None:
    """Resolve data paths and files of code, such as "net.py:make", in ``raw`` relative to ``folder``, in place."""

    def resolved(path: str) -> str:
        return absolute_path(path, folder)

    data, problem = raw.get("data"), raw.get("problem")
    for section, keys in ((data, ("path", "cache")), (problem, ("initial_model",))):
        for key in keys:
            if isinstance(section, dict) and isinstance(section.get(key), str):
                section[key] = resolved(section[key])
    sequence = data.get("sequence") if isinstance(data, dict) else None
    for section, key in ((problem, "model"), (sequence, "tokenizer")):
        place = section.get(key) if isinstance(section, dict) else None
        name = place.removeprefix("hf:") if isinstance(place, str) and place.startswith("hf:") else ""
        if isinstance(section, dict) and (name.startswith((".", "~")) or (name and Path(resolved(name)).is_dir())):
            section[key] = f"hf:{resolved(name)}"
    for _, section, key in named_code(raw):
        home, colon, name = section[key].rpartition(":") if isinstance(section.get(key), str) else ("", "", "")
        if colon and home.endswith(".py"):
            section[key] = f"{resolved(home)}:{name}"
