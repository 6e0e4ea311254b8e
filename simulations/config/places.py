"""Paths and files of code in a configuration, resolved relative to its folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from userdp.errors import BadInput


def absolute_path(path: str | Path, folder: Path = Path()) -> str:
    """Return the absolute path that a configuration gets, for one relative to a folder, the current one by default."""
    try:
        return str((folder / Path(path).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError):  # such as an unknown home, or a NUL byte
        raise BadInput(f"the path {str(path)!r} leads nowhere: write it in full") from None


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def make_absolute(raw: dict[str, Any], folder: Path) -> None:
    """Resolve data paths and files of code, such as "net.py:make", in ``raw`` relative to ``folder``, in place."""

    def resolved(path: str) -> str:
        return absolute_path(path, folder)

    data, problem, strategies = raw.get("data"), raw.get("problem"), raw.get("strategy")
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
    metrics = problem.get("metrics") if isinstance(problem, dict) else None
    named: list[tuple[Any, Iterable[str]]] = [(one, tuple(one)) for one in (problem, metrics) if isinstance(one, dict)]
    named += [(one, ("kind", "sampling")) for one in _listed(strategies)]
    named += [(data, ("kind",)), *((one, ("statistic",)) for one in _listed(raw.get("ask")))]
    for section, fields in named:
        for key in fields if isinstance(section, dict) else ():
            place = section.get(key)
            home, colon, name = place.rpartition(":") if isinstance(place, str) else ("", "", "")
            if colon and home.endswith(".py"):
                section[key] = f"{resolved(home)}:{name}"
