"""Code that a configuration names: a model is data, and code is not. A stranger's code runs only if it is trusted."""

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

from simulations.config.places import named_code
from simulations.config.run_config import RunConfig
from simulations.records.run_directory import private_folder, read_json
from userdp.errors import BadInput
from userdp.named import OBJECT, is_object

log = logging.getLogger("userdp")
_KEY = Path("userdp") / "key"
NO_FILE = "no file"  # the value for a digest that cannot be computed

Values = RunConfig | Mapping[str, Any]
"""A configuration, or its values as read: a stranger's are inspected before anything is imported."""


def code_in(config: Values) -> dict[str, str]:
    """Return field of the configuration -> code that it names; see `simulations.config.places.named_code`."""
    values = config.model_dump(exclude_none=True) if isinstance(config, RunConfig) else config
    found = {field: section.get(key) for field, section, key in named_code(values)}
    return {field: place for field, place in found.items() if isinstance(place, str) and ":" in place}


def digests(config: Values) -> dict[str, str]:
    """Return field of the configuration -> SHA-256 of the file of code that it names, without that file's imports.

    An object's digest is that of `userdp.neural.objects`. To find the module of a package, the packages around it are
    imported.
    """
    return {field: _digest(place) for field, place in code_in(config).items()}


def _digest(place: str) -> str:
    home = place.rpartition(":")[0]
    if is_object(place):
        return home.removeprefix(OBJECT)
    try:
        spec = None if home.endswith(".py") else find_spec(home)
        path = Path(home) if home.endswith(".py") else Path((spec and spec.origin) or "")
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except Exception:  # a foreign package may raise anything; importing it later names the fault
        return NO_FILE


def signature(config: Values, recorded: Mapping[str, str]) -> str:
    """Return a proof that this user ran code with the recorded digests: an HMAC (RFC 2104) with a key of the user's."""
    text = json.dumps([code_in(config), dict(recorded)], sort_keys=True)
    return hmac.new(_key(), text.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return the key of this user on this machine, made on first use; a fresh one each time if none can be stored."""
    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / _KEY
    fresh = secrets.token_bytes(32)
    try:
        private_folder(path.parent)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(fresh)
    except FileExistsError:
        pass
    except OSError:
        return fresh
    kept = path.read_bytes()
    return kept if len(kept) == len(fresh) else fresh


def check_code(directory: Path, config: Values, *, trusted: bool) -> None:
    """Refuse to import the code that a run directory names, unless it is trusted and the same as the run had.

    ``config`` holds the values of its config.toml, not yet parsed, because parsing imports the class of a strategy.
    """
    # Objects that this process has were given to it; importing others names the fault.
    named = {field: place for field, place in code_in(config).items() if not is_object(place)}
    if not named:
        return
    recorded = _recorded(directory)
    places = "; ".join(
        f"{_whole(field)} = {place!r} (SHA-256 {recorded.get(field, 'not recorded')})" for field, place in named.items()
    )
    if not trusted:
        raise BadInput(
            f"{directory} names code that would run here: {places}. A model is data, and this is not: read the code, "
            "and if you trust its author, add --trust-code (in Python trust_code=True)"
        )
    log.warning("code that %s names runs here: %s", directory, places)
    for field, place in named.items():
        found = _digest(place)
        if recorded.get(field, found) != found:
            raise BadInput(
                f"{_whole(field)} = {place!r} is not what the run had: its SHA-256 is {found}, and was "
                f"{recorded[field]}; put the file of the run in its place"
            )


def _whole(field: str) -> str:
    return field if field.startswith(("strategy.", "data.", "problem.", "ask.")) else f"problem.{field}"


def _recorded(directory: Path) -> Mapping[str, str]:
    """Return the digests of result.json; a killed run has none, and its checkpoint is compared on resuming."""
    try:
        found = read_json(directory / "result.json").get("code")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}
