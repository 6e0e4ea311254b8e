"""Code that a configuration names: a model is data, and this is not. Somebody else's runs only when it is trusted."""

import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simulations.config.run_config import RunConfig
from userdp.errors import BadInput
from userdp.problems.registry import PROBLEMS

log = logging.getLogger("userdp")
_KEY = Path("userdp") / "key"
NO_FILE = "no file"
"""In place of a digest."""


Values = RunConfig | Mapping[str, Any]
"""A configuration, or its values as a file has them: those of a stranger are looked at before anything is imported."""


def code_in(config: Values) -> dict[str, str]:
    """Field of the configuration -> the code that it names, "file.py:name" or "package.module:name".

    Fields of [problem] have their own names, ``strategy.kind`` has its whole one.
    """
    values = config.model_dump(exclude_none=True) if isinstance(config, RunConfig) else config
    found: dict[str, str] = {}
    problem, strategy = (_section(values, name) for name in ("problem", "strategy"))
    for field in _code_fields(problem.get("kind")):
        given = problem.get(field)
        named = {f"{field}.{name}": place for name, place in given.items()} if isinstance(given, Mapping) else {}
        found |= named or {field: given}
    found["strategy.kind"] = strategy.get("kind", "")
    return {field: place for field, place in found.items() if isinstance(place, str) and ":" in place}


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}


def _code_fields(kind: Any) -> tuple[str, ...]:
    """Of a problem; none of one that there is not, which is refused elsewhere."""
    return PROBLEMS[kind].code_fields if kind in PROBLEMS else ()


def digests(config: Values) -> dict[str, str]:
    """Field of the configuration -> SHA-256 of the file of code that it names; what that file imports is not in it.

    To find the module of a package the packages around it are imported.
    """
    return {field: _digest(place) for field, place in code_in(config).items()}


def _digest(place: str) -> str:
    home = place.rpartition(":")[0]
    try:
        spec = None if home.endswith(".py") else find_spec(home)
        path = Path(home) if home.endswith(".py") else Path((spec and spec.origin) or "")
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except Exception:  # whatever somebody's package raises: who imports it says what is wrong
        return NO_FILE


def signature(config: Values) -> str:
    """Says that this user ran the code that the configuration names: an HMAC (RFC 2104) by a key of the user's."""
    return _signature(config, digests(config))


def signed(config: Values, recorded: Mapping[str, str], found: str) -> bool:
    """Whether it is the `signature` of a configuration that named this code, of those digests."""
    return hmac.compare_digest(_signature(config, recorded), found)


def _signature(config: Values, recorded: Mapping[str, str]) -> str:
    text = json.dumps([code_in(config), dict(recorded)], sort_keys=True)
    return hmac.new(_key(), text.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Of this user on this machine, made when it is first asked for; another each time where none can be kept."""
    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / _KEY
    fresh = secrets.token_bytes(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(fresh)
    except FileExistsError:
        pass
    except OSError:
        return fresh
    kept = path.read_bytes()
    return kept if len(kept) == len(fresh) else fresh


def check_code(directory: Path, config: Values, *, trusted: bool) -> None:
    """Refuse to import what a run directory names, before it is imported.

    Args:
        directory: of the run, whoever sent it.
        config: what its config.toml says, not yet parsed: a strategy's class is imported by that.
        trusted: whether the caller has said so.

    Raises:
        BadInput: it names code, which is not trusted, or is not what the run had.
    """
    named = code_in(config)
    if not named:
        return
    recorded = _recorded(directory)
    told = "; ".join(
        f"{_whole(field)} = {place!r} (SHA-256 {recorded.get(field, 'not recorded')})" for field, place in named.items()
    )
    if not trusted:
        raise BadInput(
            f"{directory} names code that would run here: {told}. A model is data, and this is not: look at the code, "
            "and if you trust whoever wrote it, add --trust-code (in Python trust_code=True)"
        )
    log.warning("code that %s names runs here: %s", directory, told)
    for field, found in digests(config).items():
        if recorded.get(field, found) != found:
            raise BadInput(
                f"{_whole(field)} = {named[field]!r} is not what the run had: its SHA-256 is {found}, and was "
                f"{recorded[field]}; put the file of the run in its place"
            )


def _whole(field: str) -> str:
    """The field's name with its section."""
    return field if field.startswith("strategy.") else f"problem.{field}"


def _recorded(directory: Path) -> Mapping[str, str]:
    """What result.json says; nothing of a run that was killed, whose checkpoint is compared when it is resumed."""
    try:
        found = json.loads((directory / "result.json").read_text(encoding="utf-8")).get("code")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}
