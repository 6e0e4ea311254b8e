"""docs/papers/README.md: every algorithm and experiment of the papers, and its place in this project.

The entries are in papers_index.toml; a test looks up every module, configuration and test named there.
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

This page lists each algorithm and experiment of five papers with its place here: as printed; corrected, with the
change; in part; or left out, with the reason. A paper's page has the errors in its proofs and our measurements. Under
*Here*, a link is a `strategy.kind`, other names are modules; configurations are files of `simulations/configs`.

This page is made by `docs/make.py` from `docs/making/papers_index.toml`.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An algorithm, theorem or experiment of a paper.

    Attributes:
        what: Its name in the paper.
        how: One of `HOW`.
        why: The change, or the reason why it is left out.
        code: Strategies, ``module`` or ``module:name``.
        configurations: Names of files of simulations/configs.
        tests: Paths of test files.
    """

    what: str
    how: str
    why: str = ""
    code: list[str] = field(default_factory=list)
    configurations: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)

    def item(self) -> str:
        """Return the list item; a list fits a narrow screen better than a table."""
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
        title: The title.
        authors: The authors.
        cited: The beginning of its citation in the strategies' classes.
        page: The path of its page in the repository.
        entries: Its algorithms, theorems and experiments.
    """

    title: str
    authors: str
    cited: str
    page: str
    entries: list[Entry]

    def section(self) -> str:
        """Return the heading and the list."""
        return "\n".join(
            [
                f"## {self.title}\n",
                f"{self.authors}: [its page]({posixpath.relpath(self.page, posixpath.dirname(PAGE))}).\n",
                *(entry.item() for entry in self.entries),
            ]
        )


def papers() -> list[Paper]:
    """Return all papers of the file, in its order."""
    told = tomllib.loads(FILE.read_text(encoding="utf-8"))["paper"]
    return [Paper(entries=[Entry(**entry) for entry in one.pop("entry")], **one) for one in told]


def pages() -> dict[str, str]:
    """Return the text of the page, by path."""
    return {PAGE: "\n\n".join([HEAD.rstrip(), *(paper.section() for paper in papers())]) + "\n"}


def _code(name: str) -> str:
    """Return a name as code, for a strategy with a link to its page."""
    return f"[{name}](../strategy/{name}.md)" if name in list(STRATEGIES) else f"`{name}`"
