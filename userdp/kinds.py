"""Registries of kinds: what a configuration may name, one line a kind, each imported when it is first asked for.

>>> from userdp.kinds import Kinds
>>> losses = Kinds({"linear": "userdp.problems.linear:LinearSettings"})
>>> list(losses), losses["linear"].__name__
(['linear'], 'LinearSettings')
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

from userdp.errors import BadInput

Kind = TypeVar("Kind")


class Kinds(Mapping[str, Kind]):
    """Name -> what is called so. A plan needs a few of them, and importing all takes longer than it does.

    Args:
        places: name -> "package.module:attribute", in the order in which people shall see them.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = dict(places)
        self._found: dict[str, Kind] = {}

    def __getitem__(self, name: str) -> Kind:
        if name not in self._found:
            self._found[name] = _loaded(name, self.places[name])
        return self._found[name]

    def loaded(self) -> tuple[dict[str, Kind], dict[str, BadInput]]:
        """(those that can be loaded, why each of the others cannot), for lists that show what there is."""
        sound: dict[str, Kind] = {}
        faults: dict[str, BadInput] = {}
        for name in self.places:
            try:
                sound[name] = self[name]
            except BadInput as fault:
                faults[name] = fault
        return sound, faults

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _loaded(name: str, place: str) -> Any:
    """What stands at a place.

    Raises:
        BadInput: there is no such module, or no such name in it; what the module itself raises goes through.
    """
    module, _, attribute = place.partition(":")
    line = f'the registry\'s line "{name}": "{place}"'
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
