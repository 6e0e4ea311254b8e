"""The tests that a change has to run: slow tests that can notice it, cases drawn from large products, planted faults.

``make long`` runs everything and writes `long_run.json`: the commit and what each stage said. Until the next long run
a change runs less. `since` finds the files changed after that commit; `reached` finds the test files whose imports lead
to one of them; `drawn` takes a covering sample of a test's cases. The commit seeds the draw, so that every commit looks
at other cases and anyone can draw the same ones again.

``python tests/selection.py``: the last long run, and what this commit has to run.
"""

import ast
import json
import os
import random
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).resolve().parent / "long_run.json"
PACKAGES = ("userdp", "strategies", "simulations")
ON_THE_PATH = ("tests", "docs", "benchmarks", "research")
"""Folders whose modules are imported without the folder's name."""
EVERYWHERE = ("strategies/core/", "strategies/wire/", "userdp/accounting/", "tests/conftest.py", "tests/selection.py")
"""A change here reaches every test: what all strategies share, and how tests are chosen."""
SETTINGS = ("pyproject.toml", "constraints.txt")
PAGES = (".css", ".md", ".png", ".svg", ".json", ".ipynb", "LICENSE", ".yml")
"""Files that only the fast tests, which always run, can notice; a browser alone sees how `LOOKS` make pages look."""
LOOKS, BROWSER = ("simulations/reports/templates/", "docs/site.css"), "tests/simulations/reports/test_in_a_browser.py"
MOST = 3
"""Slow cases of one test that a change runs; a long run takes all."""
LONG = 5
"""A change runs one case in so many of tests marked ``long``. Where it reaches some files alone, as most changes do
soon after a long run, it also runs the cases of the rooms that it touches."""
_PLACE = re.compile(r"(userdp|strategies|simulations)(\.\w+)+(?=:\w+$|$)")


# The last long run ----------------------------------------------------------------------------------------------------


def long_run(path: Path = RECORD) -> dict[str, Any]:
    """Stage -> what it said in the last long run; empty where there was none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))["stages"]) if path.is_file() else {}


def since(stage: str, path: Path = RECORD, root: Path = ROOT) -> frozenset[str] | None:
    """Files changed after the commit at which that stage of a long run was green; None if there is no such commit."""
    commit = long_run(path).get(stage, {}).get("green_at", "")
    if not commit or _git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    changed = _git(root, "diff", "--name-only", "--no-renames", commit)
    return None if changed is None else frozenset(changed.split())


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


# Who imports what -----------------------------------------------------------------------------------------------------


@cache
def imports(root: Path = ROOT) -> dict[str, frozenset[str]]:
    """File -> the files of the project that it imports, wherever in it, or names as ``"package.module:attribute"``.

    A name that a package only passes on leads to the module that it comes from, not to all of the package. A test leads
    to every module of its room, too, for it may start a process that uses them.
    """
    files = dict(_modules(root))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files.values()}
    passed_on = {module: _passed_on(trees[path]) for module, path in files.items() if path.name == "__init__.py"}

    def targets(module: str, names: Iterable[str]) -> Iterable[str]:
        for name in names:
            if f"{module}.{name}" in files:
                yield f"{module}.{name}"
            elif home := passed_on.get(module, {}).get(name):
                yield home
            else:
                yield module

    def named(tree: ast.AST) -> Iterable[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from targets(node.module, [alias.name for alias in node.names])
            elif isinstance(node, ast.Constant) and (place := _PLACE.match(str(node.value))):
                yield place[0]

    def name(path: Path) -> str:
        return path.relative_to(root).as_posix()

    rooms = defaultdict(set)
    for path in files.values():
        rooms[_tests_of(name(path))].add(name(path))
    return {
        name(path): frozenset(name(files[module]) for module in named(trees[path]) if module in files)
        | rooms[name(path.parent)]
        for path in files.values()
    }


def _tests_of(file: str) -> str:
    """The folder of the tests of a file's room; one for all apps."""
    return "tests/apps" if file.startswith("apps/") else f"tests/{Path(file).parent.as_posix()}"


def _modules(root: Path) -> Iterable[tuple[str, Path]]:
    apps = [path.relative_to(root).as_posix() for path in sorted(root.glob("apps/*"))]
    for folder in (*PACKAGES, *ON_THE_PATH, *apps):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root if folder in PACKAGES else root / folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _passed_on(tree: ast.Module) -> dict[str, str]:
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def reached(changed: Iterable[str], graph: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The files whose imports lead to a changed one, and these themselves."""
    importers = defaultdict(set)
    for file, targets in graph.items():
        for target in targets:
            importers[target].add(file)
    found: set[str] = set()
    ahead = list(changed)
    while ahead:
        file = ahead.pop()
        if file not in found:
            found.add(file)
            ahead += importers[file]
    return frozenset(found)


def noticing(changed: frozenset[str] | None) -> frozenset[str] | None:
    """The files in which a slow test can notice these changes; None for every file.

    Files that are no modules, such as configurations, are read by code that no import tells of: they reach all.
    """
    if changed is None or any(file.startswith(EVERYWHERE) or file in SETTINGS for file in changed):
        return None
    changed, graph = _with_browser(changed), imports()
    known = changed & graph.keys()
    ours = {file for file in changed - known if file.startswith((*PACKAGES, *ON_THE_PATH))}
    # Whoever imported a module that is gone has changed, too.
    if any(not file.endswith((".py", *PAGES)) and not file.startswith("tests/mutants/") for file in ours):
        return None
    return reached(known, graph)


def touched(file: str, changed: frozenset[str] | None) -> bool:
    room = Path(file).parent.as_posix()
    changed = _with_browser(changed or frozenset())
    return any(one == file or _tests_of(one) == room for one in changed)


def _with_browser(changed: frozenset[str]) -> frozenset[str]:
    """The changed files, and the browser's test if one of them is a matter of looks."""
    return changed | {BROWSER} if any(file.startswith(LOOKS) for file in changed) else changed


# Cases of one test ----------------------------------------------------------------------------------------------------


def drawn(cases: Sequence[str], most: int, seed: str) -> frozenset[str]:
    """At most ``most`` of a test's cases, in which each part of a case's name stands where there is room for it.

    The name of a case is that of its parameters, joined by dashes. Cases are taken in an order that the seed shuffles;
    first each that shows a part not seen yet, then as many others as there is room for.

    Args:
        cases: different names.
        most: >= 1.
        seed: any text.
    """
    if len(cases) <= most:
        return frozenset(cases)
    order = sorted(cases)
    random.Random(f"{seed} {order[0]}").shuffle(order)
    seen: set[tuple[int, str]] = set()
    covering, others = [], []
    for case in order:
        inner = case.partition("[")[2].removesuffix("]")
        parts = set(enumerate(inner.split("-")))
        (others if parts <= seen else covering).append(case)
        seen |= parts
    return frozenset((covering + others)[:most])


def by_lot(case: str, seed: str) -> bool:
    return random.Random(f"{seed} {case}").randrange(LONG) == 0


def main() -> None:
    """The last long run, and what this commit has to run."""
    commit = (_git(ROOT, "rev-parse", "HEAD") or "").strip()
    for stage, said in long_run().items():
        at, ago = said["commit"], (_git(ROOT, "rev-list", "--count", f"{said['commit']}..HEAD") or "?").strip()
        print(f"the long run, {stage}: {said['verdict']} at {at[:10]}, {ago} commits ago: {said['text']}")
    files = noticing(since("slow tests"))
    tests = "every file" if files is None else f"{sum('/test_' in f'/{file}' for file in files)} files"
    print(f"this commit runs slow tests of {tests}; its draw: {commit or os.environ.get('SEED', 'none')}")


if __name__ == "__main__":
    main()
