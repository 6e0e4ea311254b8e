"""Modules made of files that configurations name: other processes that unpickle their classes find them by name.

``userdp.named.DIGEST:FILE`` is the file with that path and digest, each dot of the path written "%2E". Another content
has another name, and a file that has changed since is not imported. ``userdp.named.object_DIGEST`` holds an object that
Python gave to this process, such as a torch module, under the digest of its code.
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
OBJECT = f"{__name__}.object_"
"""The beginning of the places of objects."""


def module_name(path: Path) -> str:
    """Return the name of a file's module, for its present content."""
    whole = str(path.resolve())
    quoted = whole.replace("%", "%25").replace(".", "%2E")
    return f"{__name__}.{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}:{quoted}"


def is_object(place: str) -> bool:
    """Return whether a place is that of an object, and not of a file that has such a name."""
    home = place.rpartition(":")[0]
    return home.startswith(OBJECT) and not home.endswith(".py")


def keep_object(value: object, name: str, digest: str) -> str:
    """Keep an object for this process, and return its place; a later one of the same name and digest replaces it."""
    module = sys.modules.setdefault(OBJECT + digest, ModuleType(OBJECT + digest))
    setattr(module, name, value)
    return f"{OBJECT}{digest}:{name}"


class _Finder(MetaPathFinder):
    """Finds a file by the name of its module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith(OBJECT):
            raise ModuleNotFoundError(
                "it was given to Python as an object, and this process has no object of the same code and shapes; "
                "load_model(directory, objects={...}) takes it",
                name=fullname,
            )
        home, _, quoted = fullname.partition(":")
        if not home.startswith(f"{__name__}."):
            return None
        file = Path(quoted.replace("%2E", ".").replace("%25", "%"))
        if not file.is_file() or module_name(file) != fullname:
            raise ModuleNotFoundError(f"{file} is missing, or has changed since it was read", name=fullname)
        return spec_from_file_location(fullname, file)


sys.meta_path.append(_Finder())
