"""Public names of a package, each imported on first use, so that importing the package costs nothing."""

import ast
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path


def lazily(
    package: str,
    others: Callable[[], Mapping[str, str]] = dict,
    before_others: Callable[[], None] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, whose ``if TYPE_CHECKING`` block lists its names.

    Args:
        package: its name.
        others: returns name -> module of names that are not in the block; called when one of them is asked for.
        before_others: called before a name is taken from a module of another package.
    """

    @cache  # and not on import: packages that load most names at once are seldom asked for another
    def homes() -> dict[str, str]:
        source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
        return {
            alias.name: str(node.module)
            for block in ast.parse(source).body
            if isinstance(block, ast.If)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def __getattr__(name: str) -> object:  # noqa: N807
        home = homes().get(name) or (None if name.startswith("__") else others().get(name))
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if before_others is not None and home.partition(".")[0] != package:
            before_others()
        return getattr(import_module(home), name)

    def __dir__() -> list[str]:  # noqa: N807
        return list(sys.modules[package].__all__)

    return __getattr__, __dir__
