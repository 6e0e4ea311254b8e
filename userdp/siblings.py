"""The two packages beside this one, imported even if the user's own folder has the name of one of them.

Imports point one way, and `userdp` needs neither: only `userdp.train`, `userdp.plan`, `userdp.compare`, `userdp.query`,
`userdp.find`, `userdp.enter` and `userdp.load_model` import them, on first use. ``from simulations import train`` would
find a folder ``simulations`` beside the user's program first; this module finds the package installed together with
`userdp`.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_HERE = Path(__file__).resolve().parent.parent


def load_siblings() -> None:
    """Make ``strategies`` and ``simulations`` the packages beside this one for the rest of the process.

    Raises `ImportError` if the program has already imported something else of that name.
    """
    for name in ("strategies", "simulations"):
        file = _HERE / name / "__init__.py"
        there = sys.modules.get(name)
        if there is not None:
            place = next(iter(getattr(there, "__path__", [])), getattr(there, "__file__", None) or "?")
            if Path(place).resolve() != file.parent:
                raise ImportError(
                    f"{name!r} was imported from {place}, which hides the package of that name that userdp needs: "
                    "rename that file or folder, or do not import it in the same program",
                    name=name,
                )
        elif file.is_file():  # otherwise Python finds them by itself
            _load(name, file)


def _load(name: str, file: Path) -> None:
    spec = spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported", name=name)
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
