"""Registries of the kinds that a configuration may name, each imported on first use; code that it names by its place.

A registry holds this package's kinds, one line each; kinds of other packages, registered as entry points; and, if it
allows files, a class in the user's own file, named as "my_file.py:MyClass".

>>> from userdp.kinds import Kinds
>>> losses = Kinds({"linear": "userdp.problems.separable:LinearSettings"})
>>> list(losses), losses["linear"].__name__
(['linear'], 'LinearSettings')
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from userdp.errors import BadInput
from userdp.named import module_name

Kind = TypeVar("Kind")


class Kinds(Mapping[str, Kind]):
    """Map names to kinds, without importing all of them: that would take longer than a plan does.

    Args:
        places: name -> "package.module:attribute" of this package's own kinds, in the order of display.
        group: the entry points by which other packages add kinds; None for none.
        unlisted: further kinds of this package, which only its own commands name: they are found by name, and listed
            nowhere.
        files: whether a place, such as "my_file.py:MyClass" or "package.module:MyClass", may stand for a name.
        check: raises `BadInput` for a kind from another package or a file that does not fit; its arguments are the
            words that name the place, and the kind.
    """

    def __init__(
        self,
        places: Mapping[str, str],
        group: str | None = None,
        *,
        unlisted: Mapping[str, str] | None = None,
        files: bool = False,
        check: Callable[[str, Any], None] = lambda told, kind: None,
    ) -> None:
        self.places, self.unlisted = dict(places), dict(unlisted or {})
        self._group, self._files, self._check = group, files, check
        self._found: dict[str, Kind] = {}

    @cached_property
    def installed(self) -> dict[str, str]:
        """The kinds of other packages, name -> place; this package's own names have priority."""
        found = entry_points(group=self._group) if self._group else ()
        return {one.name: one.value for one in sorted(found) if one.name not in self.places}

    def __getitem__(self, name: str) -> Kind:
        if self.is_place(name):  # its file may have changed
            told = f"kind = {name!r}"
            kind: Kind = imported(name, told, once=True)
            self._check(told, kind)
            return kind
        if name not in self._found:
            ours = self.places | self.unlisted
            own = name in ours
            place = ours[name] if own else self.installed[name]
            entry = f'the entry point "{name} = {place}" of {self._group}'
            told = f'the registry\'s line "{name}": "{place}"' if own else entry
            kind = _of_line(told, place)
            if not own:
                self._check(told, kind)
            self._found[name] = kind
        return self._found[name]

    def loaded(self) -> tuple[dict[str, Kind], dict[str, BadInput]]:
        """Return the kinds that can be loaded, and the fault of each other one."""
        sound: dict[str, Kind] = {}
        faults: dict[str, BadInput] = {}
        for name in self:
            try:
                sound[name] = self[name]
            except BadInput as fault:
                faults[name] = fault
        return sound, faults

    def is_place(self, name: str) -> bool:
        """Return whether a name is the place of a class rather than the name of a kind."""
        return self._files and ":" in name

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (
            name in self.places or name in self.unlisted or self.is_place(name) or name in self.installed
        )

    def __iter__(self) -> Iterator[str]:
        yield from self.places
        yield from self.installed

    def __len__(self) -> int:
        return len(self.places) + len(self.installed)


def registering() -> set[str]:
    """Return the installed packages that register kinds by entry points."""
    groups = [group for group in entry_points().groups if group.startswith("userdp.")]
    return {one.module.partition(".")[0] for group in groups for one in entry_points(group=group)}


def below(place: str, told_of: str) -> Callable[[str, Any], None]:
    """Make a check of `Kinds`: a kind must be a concrete class below the base at ``place``, which is imported on use.

    ``told_of`` describes such a kind in errors, and where to read about it.
    """

    def check(told: str, kind: Any) -> None:
        base = _of_line(f"below({place!r})", place)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            what = kind.__name__ if isinstance(kind, type) else f"a {type(kind).__name__}"
            raise BadInput(f"{told} names {what}, which is no class below {base.__name__}: {told_of}")
        if missing := sorted(getattr(kind, "__abstractmethods__", ())):
            raise BadInput(f"{told} names {kind.__name__}, which does not define {', '.join(missing)}: {told_of}")

    return check


def _of_line(line: str, place: str) -> Any:
    """Import the kind at the place that a line names; errors raised within the module itself pass through."""
    module, _, attribute = place.partition(":")
    if not attribute:
        raise BadInput(f"{line} names no class: write it as package.module:Class")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and one of its imports does not
        raise BadInput(f"{line} names the module {error.name}, which does not exist: correct it") from None
    if not hasattr(home, attribute):
        near = get_close_matches(attribute, [known for known in vars(home) if known[:1] != "_"], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"correct the line, or define {attribute} there"
        raise BadInput(f"{line} names {attribute}, which {module} does not define; {hint}")
    return getattr(home, attribute)


def imported(place: str, told: str, *, once: bool = False) -> Any:
    """Import the function or class at a place, "file.py:name" with the file's absolute path, or "package.module:name".

    ``told`` names the place in errors. ``once`` returns the same object as long as the file stays the same, as classes
    need. Raises `BadInput` if the file, module or name does not exist, or importing it fails.
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
    name = module_name(path)
    if once:
        return import_module(name)
    spec = spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
