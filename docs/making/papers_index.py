"""docs/papers/README.md: every algorithm and experiment of the papers, and its place in this project.

The entries are in the rooms' paper.toml; a test looks up every module, configuration and test named there.
"""

import posixpath
from pathlib import Path

from making.rooms import Entry, Room, rooms
from strategies import STRATEGIES

PAGE = "docs/papers/README.md"
HOW = ("as printed", "corrected", "in part", "left out")

HEAD = """\
# Papers

This page lists the algorithms, theorems and experiments of five papers with their place here: as printed; corrected,
with the change; in part; or left out, with the reason. A paper's page has the errors in its proofs and our
measurements. Under *Here*, a link is a `strategy.kind`, other names are modules; configurations are files in the
papers' folders and in `simulations/configs`.

This page is made by `docs/make.py` from the `paper.toml` of each paper's folder.
"""


def item(entry: Entry) -> str:
    """Return the list item; a list fits a narrow screen better than a table."""
    how = f"{entry.how}: {entry.why}" if entry.why else entry.how
    parts = {
        "Here": ", ".join(map(_code, entry.code)),
        "Configurations": ", ".join(f"`{name}.toml`" for name in entry.configurations),
        "Tests": ", ".join(f"[{Path(test).stem}](../../{test})" for test in entry.tests),
    }
    return "\n".join([f"- **{entry.what}**, {how}.", *(f"  {name}: {told}." for name, told in parts.items() if told)])


def _section(room: Room) -> str:
    """Return the heading of a paper and the list."""
    page = posixpath.relpath(room.page, posixpath.dirname(PAGE))
    return "\n".join([f"## {room.title}\n", f"{room.authors}: [its page]({page}).\n", *map(item, room.entry)])


def pages() -> dict[str, str]:
    """Return the text of the page, by path."""
    return {PAGE: "\n\n".join([HEAD.rstrip(), *map(_section, rooms())]) + "\n"}


def _code(name: str) -> str:
    """Return a name as code, for a strategy with a link to its page."""
    return f"[{name}](../strategy/{name}.md)" if name in list(STRATEGIES) else f"`{name}`"
