"""Plain data written as JSON and arrays, and read again: nothing that is read is ever executed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput
from userdp.state import OTHER_VERSION


@dataclass
class Snapshot:
    """Named parts of plain data: numbers, strings, arrays, lists and dicts."""

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Write a part. Raises `TypeError`: it is not plain data."""
        self.values[name] = self._written(value)

    def get(self, name: str) -> Any:
        """Read a part. Raises `BadInput`: it is missing, or this version cannot read it."""
        try:
            return self._made(self.values[name])
        except (LookupError, TypeError, ValueError, AttributeError):
            raise BadInput(f"the checkpoint holds no {name!r} that can be read: {OTHER_VERSION}") from None

    def _written(self, value: Any) -> Any:
        """Return JSON values unchanged, all others under one key that names their type."""
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.ndarray):
            return {"array": self._write_array(value)}
        if isinstance(value, np.generic):
            return {"scalar": self._write_array(np.asarray(value))}
        if isinstance(value, list):
            return {"list": [self._written(one) for one in value]}
        if isinstance(value, dict):
            return {"dict": [[self._written(one) for one in pair] for pair in value.items()]}
        raise TypeError(f"a {type(value).__name__} cannot be written down: keep plain data")

    def _write_array(self, value: NDArray[Any]) -> str:
        if value.dtype.hasobject:
            raise TypeError("an array of objects cannot be written down: keep numbers")
        name = f"array{len(self.arrays)}"
        self.arrays[name] = value.copy(order="K")  # in their order in memory, on which sums depend
        return name

    def _made(self, written: Any) -> Any:
        if not isinstance(written, dict):
            return written
        ((kind, held),) = written.items()
        return _MADE[kind](self, held)

    def _made_list(self, held: list[Any]) -> list[Any]:
        return [self._made(one) for one in held]


_MADE: Mapping[str, Callable[[Snapshot, Any], Any]] = {
    "float": lambda taken, held: float(held),
    "array": lambda taken, held: taken.arrays[held].copy(order="K"),
    "scalar": lambda taken, held: taken.arrays[held][()],
    "list": Snapshot._made_list,
    "dict": lambda taken, held: dict(map(taken._made_list, held)),
}
