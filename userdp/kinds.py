"""Registries of kinds: what a configuration may name, each imported when it is first asked for.

A registry holds the kinds of this package, one line each; those of other packages, which register them as entry points;
and, where it says so, a class in a file of somebody's own, named as "my_file.py:MyClass".

>>> from userdp.kinds import Kinds
>>> losses = Kinds({"linear": "userdp.problems.linear:LinearSettings"})
>>> list(losses), losses["linear"].__name__
(['linear'], 'LinearSettings')
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from userdp.errors import BadInput
from userdp.named_code import imported

Kind = TypeVar("Kind")


def anything(told: str, kind: Any) -> None:
    """Accepts whatever a place names."""


class Kinds(Mapping[str, Kind]):
    """Name -> the kind of that name. A plan needs a few of them, and importing all takes longer than a plan does.

    Args:
        places: name -> "package.module:attribute", in the order in which people shall see them.
        group: the entry points by which other packages add kinds; None for none.
        files: whether a place, such as "my_file.py:MyClass" or "package.module:MyClass", may stand for a name.
        check: refuses (`BadInput`) what another package or a file gives and is no such kind; it gets the words that
            name the place, and what stands there.

    Attributes:
        places: of this package's own kinds.
    """

    def __init__(
        self,
        places: Mapping[str, str],
        group: str | None = None,
        *,
        files: bool = False,
        check: Callable[[str, Any], None] = anything,
    ) -> None:
        self.places = dict(places)
        self._group, self._files, self._check = group, files, check
        self._found: dict[str, Kind] = {}

    @cached_property
    def installed(self) -> dict[str, str]:
        """Name -> place of other packages' kinds; a name of this package's own stays its own."""
        found = entry_points(group=self._group) if self._group else ()
        return {one.name: one.value for one in sorted(found) if one.name not in self.places}

    def __getitem__(self, name: str) -> Kind:
        if self.is_place(name):  # whose file may have changed
            told = f"kind = {name!r}"
            kind: Kind = imported(name, told, once=True)
            self._check(told, kind)
            return kind
        if name not in self._found:
            self._found[name] = self._loaded(name)
        return self._found[name]

    def _loaded(self, name: str) -> Any:
        if name in self.places:
            return _of_line(f'the registry\'s line "{name}": "{self.places[name]}"', self.places[name])
        place = self.installed[name]
        told = f'the entry point "{name} = {place}" of {self._group}'
        kind = _of_line(told, place)
        self._check(told, kind)
        return kind

    def loaded(self) -> tuple[dict[str, Kind], dict[str, BadInput]]:
        """(those that can be loaded, why each of the others cannot), for lists that show what there is."""
        sound: dict[str, Kind] = {}
        faults: dict[str, BadInput] = {}
        for name in self:
            try:
                sound[name] = self[name]
            except BadInput as fault:
                faults[name] = fault
        return sound, faults

    def is_place(self, name: str) -> bool:
        """Whether a name is the place of a class rather than the name of a kind."""
        return self._files and ":" in name

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.places or self.is_place(name) or name in self.installed)

    def __iter__(self) -> Iterator[str]:
        yield from self.places
        yield from self.installed

    def __len__(self) -> int:
        return len(self.places) + len(self.installed)


def below(place: str, told_of: str) -> Callable[[str, Any], None]:
    """A check of `Kinds`: what a place names is a class below a base, and defines all that the base leaves open.

    Args:
        place: of the base, as "package.module:Base"; it is imported only then.
        told_of: what such a kind is, and where to read about it, for errors.
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
    """The kind at the place that a line names.

    Raises:
        BadInput: there is no such module, or no such name in it; what the module itself raises goes through.
    """
    module, _, attribute = place.partition(":")
    if not attribute:
        raise BadInput(f"{line} names no class: write it as package.module:Class")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise BadInput(f"{line} names the module {error.name}, which does not exist: correct it") from None
    if not hasattr(home, attribute):
        near = get_close_matches(attribute, [known for known in vars(home) if known[:1] != "_"], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"correct the line, or define {attribute} there"
        raise BadInput(f"{line} names {attribute}, which {module} does not define; {hint}")
    return getattr(home, attribute)
