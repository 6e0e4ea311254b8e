"""The two packages beside this one, also where a folder of somebody's own has the name of one of them.

Imports point one way, and `userdp` needs neither: only `userdp.train`, `userdp.plan`, `userdp.compare` and
`userdp.load_model` reach up, when they are first asked for. ``from simulations import train`` finds a folder
``simulations`` beside somebody's program first; these find the package that was installed together with this one.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_HERE = Path(__file__).resolve().parent.parent


def load_siblings() -> None:
    """Make ``strategies`` and ``simulations`` the packages beside this one for the rest of the process.

    Raises:
        ImportError: the program has imported something else of that name already.
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
        elif file.is_file():  # elsewhere Python finds them by itself
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
