"""The advice and the example of each strategy's page, from examples.toml."""

import hashlib
import json
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from making.chapters import chapter_of
from strategies import STRATEGIES

FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, kw_only=True)
class Example:
    """The advice on a strategy, and a run that shows it.

    Attributes:
        take: when to use it.
        leave: when not to use it, and what to use instead.
        people: name of the made-up people of the run.
        options: settings of the strategy.
    """

    take: str
    leave: str = ""
    people: str = "location"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The learning task and the people of the run."""
        return str(_file()["people"][self.people]["told"])


def example_of(name: str) -> Example:
    """Return the example of a strategy; one missing from the file has its chapter's advice and its class's settings."""
    own = _file()["strategy"].get(name)
    if own is None:
        return Example(take=chapter_of(STRATEGIES[name]).when, options=dict(STRATEGIES[name].about.example))
    return Example(**own)


def configuration(name: str) -> dict[str, Any]:
    """Return the whole configuration of a strategy's example."""
    return on(example_of(name).people, name, STRATEGIES[name].about.units[0], example_of(name).options)


def on(people: str, kind: str, unit: str = "user", options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the configuration of a run on some made-up people, at the budget of all examples."""
    file = _file()
    return {
        "name": f"{kind.replace('_', '-')}-example",
        "problem": file["people"][people]["problem"],
        "data": file["people"][people]["data"],
        "privacy": {**file["budget"], "unit": unit},
        "strategy": {"kind": kind, **(options or {})},
    }


def digest(config: dict[str, Any]) -> str:
    """Return twelve digits that change whenever the configuration does."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
