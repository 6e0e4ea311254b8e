"""Every line that userdp writes to a log: its machine, its kind and the values in it, read from log_lines.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Place = Literal["server", "node", "holder"]
PLACES: Mapping[Place, str] = {
    "server": "the server's process, and anybody who may read its log",
    "node": "the machine of the node that the line is about, or of a simulation",
    "holder": "the person who prepares, holds or scores the data",
}
"""Owner of the log -> who that is."""

LineKind = Literal["public", "environment", "noised", "private"]
LINE_KINDS: Mapping[LineKind, str] = {
    "public": "neither the line nor its values depend on anybody's data",
    "environment": "about machines, messages and addresses: that something failed, never a value of the data",
    "noised": "the presence of the line, and its values, follow from what a guarantee covers",
    "private": "the presence of the line, or a value in it, depends on users' data, and no guarantee covers it",
}
"""Kind -> its meaning."""


@dataclass(frozen=True)
class LogLine:
    """A line of a log: its module and level, the text with placeholders, and expression in the source -> meaning."""

    module: str
    level: str
    text: str
    place: Place
    kind: LineKind
    values: Mapping[str, str]


LOG_LINES = tuple(
    LogLine(module, level, text, place, kind, dict(value.split(": ", 1) for value in values))
    for module, rows in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
    for level, place, kind, text, *values in rows
)
