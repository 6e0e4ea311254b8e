"""Registries of kinds: what a configuration may name, one line a kind, each imported when it is first asked for.

>>> from userdp.kinds import Kinds
>>> losses = Kinds({"linear": "userdp.problems.linear:LinearSettings"})
>>> list(losses), losses["linear"].__name__
(['linear'], 'LinearSettings')
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

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
            module, _, attribute = self.places[name].partition(":")
            self._found[name] = getattr(import_module(module), attribute)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
