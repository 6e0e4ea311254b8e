"""Pages of the reference: each package that programs may import from, its names, and an example of each class.

Imports none of the packages: names are read from their lists, docstrings when the site is built.
"""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(__file__).with_name("api_examples.txt")
_PUBLIC = re.compile(r"## Public faces\n.*?:\n\n(.*?)\n\n", re.DOTALL)
_SHOWN = "    options:\n      heading_level: 2\n      show_root_heading: true\n      show_root_toc_entry: true\n"


def reference(root: Path = ROOT) -> dict[str, str]:
    """Place of a page in the site -> its text, for each package that programs may import from.

    They are those that docs/architecture.md lists. The three packages show each public name with its example.
    """
    architecture = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = _PUBLIC.search(architecture)
    faces = re.findall(r"`([\w.]+)`", found[1]) if found else []
    return {f"api/{face}.md": _page(face, root) for face in faces}


def examples() -> dict[str, tuple[str, dict[str, str]]]:
    """Package -> (what its examples begin with, name -> its example), as in a Python console."""
    _, *packages = re.split(r"^# ", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {}
    for text in packages:
        first, *own = re.split(r"^## ", text, flags=re.MULTILINE)
        package, _, begins = first.partition("\n")
        parts = (one.partition("\n") for one in own)
        found[package] = begins.strip(), {name: example.strip() for name, _, example in parts}
    return found


def names(package: str, root: Path = ROOT) -> list[str]:
    """The names that a package lists as public."""
    tree = ast.parse((root / package / "__init__.py").read_text(encoding="utf-8"))
    lists = [one for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"]
    return list(ast.literal_eval(lists[0].value))


def _page(face: str, root: Path) -> str:
    if face not in (shown := examples()):
        return f"# {face}\n\n::: {face}\n"
    begins, own = shown[face]
    installed = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    # The papers' strategies are plug-ins, which a reader of source text finds at their own places alone.
    plug_ins = {place.partition(":")[2]: place.replace(":", ".") for place in installed["userdp.strategies"].values()}
    parts = [f"# {face}", f"::: {face}\n    options:\n      members: false", "Examples begin with:", _console(begins)]
    for name in names(face, root):
        parts.append(f"::: {plug_ins.get(name, f'{face}.{name}')}\n{_SHOWN}")
        parts += [_console(own[name])] if name in own else []
    return "\n\n".join(parts) + "\n"


def _console(code: str) -> str:
    return f"```pycon\n{code}\n```"
