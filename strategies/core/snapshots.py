"""Objects written down as plain values and arrays, and made again from them: nothing that is read is ever executed.

What an object holds is found by walking its attributes. Two rules make that general:

- What is the very object that a fresh one holds follows from the settings, and is not written: options, schemes,
  projections. So whoever reads makes a fresh one first, from the same settings.
- A class is never looked up by what a file says. It is that of the fresh object in the same place or, where there is
  none, a class that the attribute's annotation names, or a subclass of one.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput

_NOTHING: Any = object()
"""No fresh object in this place."""

DAMAGED = "the checkpoint is damaged: start the run anew, or go on from another copy"
"""Of files that no run has written."""


@dataclass
class Snapshot:
    """Values as JSON has them, with the arrays that they name.

    Attributes:
        values: of every part, by its name.
        arrays: by the names that stand for them in ``values``.
    """

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def add(self, name: str, value: Any, fresh: Any = _NOTHING) -> None:
        """Write a part; ``fresh`` is one that the same settings make.

        Raises:
            TypeError: it holds something that has no plain values.
        """
        self.values[name] = self._written(value, fresh)

    def get(self, name: str, fresh: Any = _NOTHING) -> Any:
        """A part, made again.

        Raises:
            BadInput: it is not there, or is no such part.
        """
        try:
            return self._made(self.values[name], fresh)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise BadInput(DAMAGED) from None

    def _written(self, value: Any, fresh: Any) -> Any:
        """What JSON has as it is; all else under the one key that says what it is."""
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if value is fresh:
            return {"given": None}
        kind = next((kind for kind, types in _KINDS.items() if isinstance(value, types)), "object")
        return {kind: getattr(self, f"_write_{kind}")(value, fresh)}

    def _write_array(self, value: NDArray[Any], _: Any) -> str:
        if value.dtype.hasobject:
            raise TypeError("an array of objects cannot be written down: keep numbers")
        name = f"array{len(self.arrays)}"
        self.arrays[name] = value.copy(order="K")  # in their order in memory, on which sums depend
        return name

    def _write_scalar(self, value: np.generic, _: Any) -> str:
        return self._write_array(np.asarray(value), None)

    def _write_generator(self, value: np.random.Generator, _: Any) -> Any:
        return value.bit_generator.state

    def _write_list(self, value: Iterable[Any], _: Any) -> list[Any]:
        return [self._written(one, _NOTHING) for one in value]

    def _write_tuple(self, value: tuple[Any, ...], _: Any) -> list[Any]:
        return self._write_list(value, None)

    def _write_deque(self, value: deque[Any], _: Any) -> list[Any]:
        return [value.maxlen, self._write_list(value, None)]

    def _write_dict(self, value: dict[Any, Any], _: Any) -> list[Any]:
        return [self._write_list(pair, None) for pair in value.items()]

    def _write_object(self, value: Any, fresh: Any) -> list[Any]:
        if callable(value) or not hasattr(value, "__dict__"):
            raise TypeError(f"a {type(value).__name__} cannot be written down: keep it among what the settings make")
        there = getattr(fresh, "__dict__", {})
        state = {name: self._written(held, there.get(name, _NOTHING)) for name, held in vars(value).items()}
        return [type(value).__qualname__, state]

    def _made(self, written: Any, fresh: Any = _NOTHING, declared: tuple[type, ...] = ()) -> Any:
        """What `_written` wrote."""
        if not isinstance(written, dict):
            return written
        ((kind, held),) = written.items()
        if kind == "object":
            name, state = held
            return self._made_object(name, state, fresh, declared)
        if kind != "given":
            return getattr(self, f"_made_{kind}")(held)
        if fresh is _NOTHING:
            raise ValueError("nothing is given")
        return fresh

    def _made_float(self, held: str) -> float:
        return float(held)

    def _made_array(self, held: str) -> NDArray[Any]:
        return self.arrays[held].copy(order="K")

    def _made_scalar(self, held: str) -> Any:
        return self.arrays[held][()]

    def _made_generator(self, held: Any) -> np.random.Generator:
        generator = np.random.Generator(np.random.PCG64())
        generator.bit_generator.state = held
        return generator

    def _made_list(self, held: list[Any]) -> list[Any]:
        return [self._made(one) for one in held]

    def _made_tuple(self, held: list[Any]) -> tuple[Any, ...]:
        return tuple(self._made_list(held))

    def _made_deque(self, held: list[Any]) -> deque[Any]:
        most, values = held
        return deque(self._made_list(values), maxlen=most)

    def _made_dict(self, held: list[Any]) -> dict[Any, Any]:
        return dict(map(self._made_list, held))

    def _made_object(self, name: str, state: dict[str, Any], fresh: Any, declared: tuple[type, ...]) -> Any:
        known = {type(fresh), *(one for cls in declared for one in _family(cls))}
        (cls,) = (one for one in known if one.__qualname__ == name)
        made: Any = object.__new__(cls)
        there, hints = getattr(fresh, "__dict__", {}), _annotated(cls)
        for attribute, written in state.items():
            # Not by setattr: frozen objects are made like others.
            vars(made)[attribute] = self._made(written, there.get(attribute, _NOTHING), hints.get(attribute, ()))
        return made


_KINDS: dict[str, Any] = {
    "array": np.ndarray,
    "scalar": np.generic,
    "generator": np.random.Generator,
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "dict": dict,
}
"""What values are called that are no objects."""


@cache
def _annotated(cls: type) -> dict[str, tuple[type, ...]]:
    """Attribute -> the classes that its annotation names."""
    return {name: tuple(_classes(hint)) for name, hint in get_type_hints(cls).items()}


def _classes(hint: Any) -> Iterator[type]:
    if get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _classes(one)
    elif isinstance(hint, type):
        yield hint


def _family(cls: type) -> Iterator[type]:
    """A class and all below it."""
    yield cls
    below: list[type] = type.__subclasses__(cls)
    for one in below:
        yield from _family(one)
