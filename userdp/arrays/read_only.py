"""Vectors that refuse to be written to."""

from typing import Any

from userdp.arrays.types import Vector


def frozen(x: Vector) -> Vector:
    """Return a copy that refuses to be written to."""
    kept = x.copy(order="K")
    kept.flags.writeable = False
    return kept


class ReadOnly:
    """An attribute of a class: a vector that is assigned is copied, and the copy refuses to be written to."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, host: Any, owner: type | None = None) -> Vector:
        try:
            return vars(host)[self._name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"{type(host).__name__} has no {self._name} yet") from None

    def __set__(self, host: Any, value: Vector) -> None:
        vars(host)[self._name] = frozen(value)
