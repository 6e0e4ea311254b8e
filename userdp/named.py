"""Modules made of files that configurations name: other processes that unpickle their classes find them by name.

``userdp.named.DIGEST:FILE`` is the file with that path and digest, each dot of the path written "%2E". Another content
has another name, and a file that has changed since is not imported.
"""

import hashlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

__path__: list[str] = []  # a package: its modules are made below


def module_name(path: Path) -> str:
    """Return the name of a file's module, for its present content."""
    whole = str(path.resolve())
    quoted = whole.replace("%", "%25").replace(".", "%2E")
    return f"{__name__}.{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}:{quoted}"


class _Finder(MetaPathFinder):
    """Finds a file by the name of its module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        home, _, quoted = fullname.partition(":")
        if not home.startswith(f"{__name__}."):
            return None
        file = Path(quoted.replace("%2E", ".").replace("%25", "%"))
        if not file.is_file() or module_name(file) != fullname:
            raise ModuleNotFoundError(f"{file} is missing, or has changed since it was read", name=fullname)
        return spec_from_file_location(fullname, file)


sys.meta_path.append(_Finder())
