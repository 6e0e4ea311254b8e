"""docs/papers/README.md: every algorithm and experiment of the papers, and where it is here.

What is said of each is kept in papers_index.toml, and a test looks up every module, configuration and test named there.
"""

import posixpath
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from strategies import STRATEGIES

FILE = Path(__file__).with_suffix(".toml")
ROOT = FILE.parents[2]
PAGE = "docs/papers/README.md"
HOW = ("as printed", "corrected", "in part", "left out")

HEAD = """\
# Papers

Five papers, and where each of their algorithms and experiments is here: as printed; corrected, with what was; in part;
or left out, with the reason. A paper's page has the proofs' slips and what was measured. What leads to a page is a
`strategy.kind`, other code a module; configurations are files of `simulations/configs`.

This page is made by `docs/make.py` from `docs/making/papers_index.toml`.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a paper holds.

    Attributes:
        what: a name that readers of the paper know.
        how: one of `HOW`.
        why: what was changed, or why it is not here.
        code: strategies, ``module`` or ``module:name``.
        configurations: names of files of simulations/configs.
        tests: paths of test files.
    """

    what: str
    how: str
    why: str = ""
    code: list[str] = field(default_factory=list)
    configurations: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)

    def item(self) -> str:
        """Of the list of its paper: a list can be read on a narrow screen, where columns cannot."""
        how = f"{self.how}: {self.why}" if self.why else self.how
        parts = {
            "Here": ", ".join(map(_code, self.code)),
            "Configurations": ", ".join(f"`{name}.toml`" for name in self.configurations),
            "Tests": ", ".join(f"[{Path(test).stem}](../../{test})" for test in self.tests),
        }
        return "\n".join(
            [f"- **{self.what}**, {how}.", *(f"  {name}: {told}." for name, told in parts.items() if told)]
        )


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper.

    Attributes:
        title: of the paper.
        authors: of the paper.
        cited: how the strategies' classes name it, at the least.
        page: path of its page in the repository.
        entries: what it holds.
    """

    title: str
    authors: str
    cited: str
    page: str
    entries: list[Entry]

    def section(self) -> str:
        """Heading and list."""
        return "\n".join(
            [
                f"## {self.title}\n",
                f"{self.authors}: [its page]({posixpath.relpath(self.page, posixpath.dirname(PAGE))}).\n",
                *(entry.item() for entry in self.entries),
            ]
        )


def papers() -> list[Paper]:
    """All of them, as the file has them."""
    told = tomllib.loads(FILE.read_text(encoding="utf-8"))["paper"]
    return [Paper(entries=[Entry(**entry) for entry in one.pop("entry")], **one) for one in told]


def pages() -> dict[str, str]:
    """Path of the page -> what it should hold."""
    return {PAGE: "\n\n".join([HEAD.rstrip(), *(paper.section() for paper in papers())]) + "\n"}


def _code(name: str) -> str:
    """A strategy leads to its page."""
    return f"[{name}](../strategy/{name}.md)" if name in list(STRATEGIES) else f"`{name}`"
