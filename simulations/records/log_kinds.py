"""What is said of a line of a log: who writes it, on whose machine, and what stands in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Place = Literal["server", "node", "holder"]
PLACES: Mapping[Place, str] = {
    "server": "the server's process, and whoever may read its log",
    "node": "the machine of the node that the line is about, or of a simulation",
    "holder": "whoever prepares, holds or scores the data",
}
"""Whose log it is."""

LineKind = Literal["public", "environment", "private"]
LINE_KINDS: Mapping[LineKind, str] = {
    "public": "neither the line nor what stands in it depends on anybody's data",
    "environment": "it tells of machines, messages and addresses: that something failed, never a value of the data",
    "private": "that it is there, or what stands in it, depends on users' data, and no guarantee covers it",
}
"""What each kind means."""


@dataclass(frozen=True)
class LogLine:
    """A line of a log.

    Attributes:
        module: who writes it.
        level: of Python's logging.
        text: of the line, with a place for each value.
        place: see `PLACES`.
        kind: see `LINE_KINDS`.
        values: what is put into the text, as the source has it -> what that is.
    """

    module: str
    level: str
    text: str
    place: Place
    kind: LineKind
    values: Mapping[str, str]


def lines(
    module: str, *rows: tuple[str, str, Place, LineKind] | tuple[str, str, Place, LineKind, Mapping[str, str]]
) -> Iterator[LogLine]:
    """Lines of one module."""
    for level, text, place, kind, *values in rows:
        yield LogLine(module, level, text, place, kind, values[0] if values else {})
