"""Code that a configuration names by its place: "file.py:name" with the file's absolute path, or "package:name"."""

import hashlib
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from userdp.errors import BadInput


def imported(place: str, told: str, *, once: bool = False) -> Any:
    """Import the function or class at a place; ``told`` names the place in errors.

    ``once`` returns the same object as long as the file stays the same, as classes need. Raises `BadInput` if the file,
    module or name does not exist, or importing it fails.
    """
    home, _, name = place.rpartition(":")
    try:
        module = _module_of_file(Path(home), once) if home.endswith(".py") else import_module(home)
        return getattr(module, name)
    except Exception as error:  # any error of the module
        raise BadInput(
            f"{told} cannot be imported ({type(error).__name__}: {error}): give 'file.py:function', a file beside "
            "the configuration, or 'package.module:function', installed where every node can import it"
        ) from None


def _module_of_file(path: Path, once: bool) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    whole = path.resolve()
    digest = hashlib.sha256(str(whole).encode() + whole.read_bytes()).hexdigest()[:16]
    name = f"userdp_named_{path.stem}_{digest}"
    if once and name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    if once:
        sys.modules[name] = module  # classes look their annotations up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
