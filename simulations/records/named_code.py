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

from simulations.config.run_config import RunConfig
from userdp.errors import BadInput

log = logging.getLogger("userdp")
_KEY = Path("userdp") / "key"
NO_FILE = "no file"
"""In place of a digest."""


def digests(config: RunConfig) -> dict[str, str]:
    """Field of the configuration -> SHA-256 of the file of code that it names; what that file imports is not in it.

    To find the module of a package the packages around it are imported.
    """
    return {field: _digest(place) for field, place in config.problem.named_code().items()}


def _digest(place: str) -> str:
    home = place.rpartition(":")[0]
    try:
        spec = None if home.endswith(".py") else find_spec(home)
        path = Path(home) if home.endswith(".py") else Path((spec and spec.origin) or "")
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except Exception:  # whatever somebody's package raises: who imports it says what is wrong
        return NO_FILE


def signature(config: RunConfig) -> str:
    """Says that this user ran the code that the configuration names: an HMAC (RFC 2104) by a key of the user's."""
    return _signature(config, digests(config))


def signed(config: RunConfig, recorded: Mapping[str, str], found: str) -> bool:
    """Whether it is the `signature` of a configuration that named this code, of those digests."""
    return hmac.compare_digest(_signature(config, recorded), found)


def _signature(config: RunConfig, recorded: Mapping[str, str]) -> str:
    text = json.dumps([config.problem.named_code(), dict(recorded)], sort_keys=True)
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


def check_code(directory: Path, config: RunConfig, *, trusted: bool) -> None:
    """Refuse to import what a run directory names, before it is imported.

    Args:
        directory: of the run, whoever sent it.
        config: what its config.toml says.
        trusted: whether the caller has said so.

    Raises:
        BadInput: it names code, which is not trusted, or is not what the run had.
    """
    named = config.problem.named_code()
    if not named:
        return
    recorded = _recorded(directory)
    told = "; ".join(
        f"problem.{field} = {place!r} (SHA-256 {recorded.get(field, 'not recorded')})" for field, place in named.items()
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
                f"problem.{field} = {named[field]!r} is not what the run had: its SHA-256 is {found}, and was "
                f"{recorded[field]}; put the file of the run in its place"
            )


def _recorded(directory: Path) -> Mapping[str, str]:
    """What result.json says; nothing of a run that was killed, whose checkpoint is compared when it is resumed."""
    try:
        found = json.loads((directory / "result.json").read_text(encoding="utf-8")).get("code")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}
