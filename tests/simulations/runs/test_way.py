"""A run is read from its first line to its last, and nowhere is the reader sent back and forth."""

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("userdp", "strategies", "simulations")


def stays(text: str, module: str, start: str) -> list[str]:
    """The modules where the reader of a function is, one after the other.

    What it calls of other modules is looked up there; functions, methods and constructors of its module are read where
    they are called.
    """
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    kinds = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies |= {kind.name: part for kind in kinds for part in kind.body if getattr(part, "name", "") == "__init__"}

    def read(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            yield from read(child)
        if isinstance(node, ast.Call):
            holder = getattr(getattr(node.func, "value", node.func), "id", "")
            called = getattr(node.func, "attr", holder)
            if homes.get(holder, "").split(".")[0] in PACKAGES:
                yield homes[holder]
            elif called in bodies:
                yield module
                yield from read(bodies[called])

    return [place for place, _ in groupby([module, *read(bodies[start])])]


def test_a_run_is_at_most_twenty_stays_with_at_most_six_returns():
    text = (ROOT / "simulations/runs/run.py").read_text(encoding="utf-8")
    way = stays(text, "simulations.runs.run", "run")
    assert {"simulations.runs.build", "simulations.runs.folder", "simulations.runs.result"} <= set(way)
    assert len(way) <= 20, way
    assert len(way) - len(set(way)) <= 6, way
