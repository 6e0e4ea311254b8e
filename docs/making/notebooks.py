"""Notebooks of the documentation: what their cells give, and the pages that the site shows of them."""

import ast
import json
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

MOST = 6000
"""Characters of outputs that a notebook stores: text alone, so that a change of a number is a change of a line."""


def executed(text: str) -> tuple[str, dict[str, Any], list[object]]:
    """Run a notebook's cells from top to bottom, in the folder where this process works.

    Returns:
        The notebook with what each cell printed and the text of its last line's value; the names that the cells
        defined; and those values, None where there is none.
    """
    notebook = json.loads(text)
    # By this name functions reach processes of Ray by their code, as from a kernel.
    names: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed = StringIO()
        with redirect_stdout(printed):
            values.append(_run("".join(cell["source"]), cell["id"], names))
        cell["outputs"] = []
        if said := printed.getvalue():
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": _lines(said)})
        if values[-1] is not None:
            data = {"text/plain": _lines(repr(values[-1]))}
            cell["outputs"].append(
                {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}
            )
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", names, values


def _run(code: str, name: str, names: dict[str, Any]) -> object:
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def _lines(text: str) -> list[str]:
    return [line.rstrip() + "\n" for line in text.splitlines()]


def outputs(text: str) -> list[str]:
    """The text of each output that a notebook stores."""
    cells = json.loads(text)["cells"]
    return [_text(output) for cell in cells for output in cell.get("outputs", [])]


def _text(output: Mapping[str, Any]) -> str:
    return "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])


def words(text: str) -> str:
    """The words of a text without its numbers, whose last digits differ from one processor to another."""
    return " ".join(re.sub(r"[-+]?\d[\d,.]*(e[-+]?\d+)?", "#", text).split())


def page(text: str, name: str) -> str:
    """A notebook as a page of the site: its text, its code, and below each cell what it gave; ``name`` is its file."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [f"```text\n{_text(output).rstrip()}\n```" for output in cell["outputs"]]
    # Not a Markdown link, which would lead to this page.
    parts.insert(1, f'<a href="{name}" download>This page as a notebook</a>')
    return "\n\n".join(parts) + "\n"


def store(folder: Path) -> list[str]:
    """Run all notebooks of a folder and write what their cells give; the names of those that changed."""
    changed = []
    for path in sorted(folder.glob("*.ipynb")):
        before = path.read_text(encoding="utf-8")
        after, *_ = executed(before)
        if list(map(words, outputs(before))) != list(map(words, outputs(after))):
            path.write_text(after, encoding="utf-8")
            changed.append(path.name)
    return changed
