"""Docstrings name their subject, and messages use plain words: what a stranger reads needs no second reading."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path
    for folder in ("userdp", "strategies", "simulations", "apps", "docs", "research", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__).resolve()  # which quotes what it forbids
)
OPENINGS = {
    *("Of", "That", "Those", "By", "As", "Over", "From", "Also", "Likewise", "Who", "Whose", "What", "How", "Whether"),
    *("Where", "Which", "With", "For", "Nothing"),
}
"""Words with which no docstring begins: after them the subject comes late, or never."""
PHRASES = re.compile(
    r"\b(told|comes? to|come to|whosever|whomever|goes? on|went on|so it was|as it comes|of whom|for whom|of which"
    r"|for whose|wherefore|thereof|whereof|likewise)\b"
)
"""Words and turns that must not stand in a message."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every docstring, of attributes and constants too."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for index, one in enumerate(body):
            after = index and isinstance(body[index - 1], ast.Assign | ast.AnnAssign)
            if (
                isinstance(one, ast.Expr)
                and isinstance(one.value, ast.Constant)
                and isinstance(one.value.value, str)
                and (after or (index == 0 and documented))
            ):
                yield one.lineno, one.value.value


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every string with a space in it that is no docstring; parts in braces are left out."""
    own = {(line, text) for line, text in docstrings(tree)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text and (node.lineno, text) not in own:
            yield node.lineno, text


def places(files: list[Path], found) -> list[str]:
    """Return "file:line: text" of what ``found`` says of each file."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files
        for line, text in found(ast.parse(path.read_text(encoding="utf-8")))
    ]


def headless(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, text in docstrings(tree):
        first = text.strip().splitlines()[0]
        if re.split(r"\W", first, maxsplit=1)[0] in OPENINGS:
            yield line, first


def obscure(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, text in messages(tree):
        if PHRASES.search(text):
            yield line, text


def test_docstrings_begin_with_their_subject():
    assert places(FILES, headless) == []


def test_messages_use_plain_words():
    assert places(FILES, obscure) == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ('"""What a thing is."""', True),
        ('def f():\n    """Whether it holds."""', True),
        ('x = 1\n"""Of a thing."""', True),
        ('"""The thing."""\nx = 1\n"""The number of things."""', False),
    ],
)
def test_the_rule_sees_docstrings_of_modules_functions_and_constants(code, wrong):
    assert bool(list(headless(ast.parse(code)))) == wrong


def test_the_rule_sees_messages_and_their_parts():
    assert list(obscure(ast.parse('raise E(f"{a} is told to {b}")')))
    assert not list(obscure(ast.parse('"""Who is told."""\nlog.info("the run resumes")')))
