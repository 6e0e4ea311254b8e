"""The site made from the repository: its pages, their links, and their order.

Knows neither the packages nor the tool that builds the site, so that tests need neither.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from making import notebooks

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "research/README.md": "research.md",
    **{
        f"{room.parent.relative_to(ROOT).as_posix()}/README.md": f"papers/{room.parent.name}.md"
        for room in sorted(ROOT.glob("strategies/**/paper.toml"))
    },
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "MAINTAINERS.md": "maintainers.md",
    "SECURITY.md": "security.md",
}
"""Pages that lie outside docs, and their place in the site."""
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \|", re.MULTILINE)


def sources(root: Path = ROOT) -> dict[str, str]:
    """Path of a page in the repository -> its place in the site."""
    within = sorted(path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md"))
    shown = {path.relative_to(root).as_posix(): f"{path.stem}.md" for path in sorted((root / "docs").glob("*.ipynb"))}
    return ELSEWHERE | {f"docs/{path}": path for path in within} | shown


def text(source: str, root: Path = ROOT) -> str:
    """A page as it is written, or what the site shows of a notebook, by its path in the repository."""
    path = root / source
    written = path.read_text(encoding="utf-8")
    return notebooks.page(written, path.name) if path.suffix == ".ipynb" else written


def navigation(entries: list[Any], pages: list[str], root: Path = ROOT) -> list[Any]:
    """The navigation with every folder, such as ``strategy/``, replaced by its pages, its README first.

    A notebook becomes its page.
    Where that README links to its pages under headings, they are in the order and under the headings that it has.
    """

    def opened(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: opened(inside) for title, inside in entry.items()}
        if isinstance(entry, list):
            return navigation(entry, pages, root)
        return listed(entry) if entry.endswith("/") else re.sub(r"\.ipynb$", ".md", entry)

    def listed(folder: str) -> list[Any]:
        inside = [page for page in pages if page.startswith(folder)]
        inside = sorted(inside, key=lambda page: not page.endswith("/README.md"))
        readme = root / "docs" / folder / "README.md"
        if not readme.is_file():
            return inside
        grouped = {title: [page for page in own if page in inside] for title, own in _chapters(readme, folder).items()}
        placed = {page for own in grouped.values() for page in own}
        return [page for page in inside if page not in placed] + [{title: own} for title, own in grouped.items() if own]

    return [opened(entry) for entry in entries]


def _chapters(readme: Path, folder: str) -> dict[str, list[str]]:
    """Heading of a page -> places of the pages of its folder that its tables' first columns lead to."""
    _, *sections = re.split(r"^## ", readme.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {section.partition("\n")[0]: [f"{folder}{page}" for page in _ROW.findall(section)] for section in sections}


def rewritten(text: str, source: str, places: dict[str, str], root: Path = ROOT) -> str:
    """A page with links that lead somewhere in the site.

    A link to another page leads to that page's place. One to a file of the repository that is no part of the site
    becomes the file's path, as code.

    Args:
        text: of the page.
        source: its path in the repository.
        places: what `sources` gives.
        root: of the repository.
    """
    here = posixpath.dirname(places[source])

    def link(match: re.Match[str]) -> str:
        words, (target, mark, anchor) = match[1], match[2].partition("#")
        if "://" in target or not target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = places.get(path)
        if place is None and path.startswith("docs/") and (root / path).is_file():
            place = path.removeprefix("docs/")
        if place is not None:
            return f"[{words}]({posixpath.relpath(place, here or '.')}{mark}{anchor})"
        same = words.strip("`") in (path, posixpath.basename(path))
        return f"`{path}`" if same else f"{words} (`{path}`)"

    between = _FENCED.split(text)
    fenced = [*_FENCED.findall(text), ""]
    return "".join(_LINK.sub(link, part) + code for part, code in zip(between, fenced, strict=True))
