"""Objects that declare their memory, so that a killed run can be resumed.

>>> class Mean(Stateful):
...     remembered = ("total", "count")
...     given = ("scale",)
...     def __init__(self, scale):
...         self.total, self.count, self.scale = 0.0, 0, scale
>>> mean = Mean(2.0)
>>> mean.total, mean.count = 3.0, 4
>>> mean.state()
{'total': 3.0, 'count': 4}
>>> again = Mean(2.0)
>>> again.restore(mean.state())
>>> (again.total, again.count, again.scale)
(3.0, 4, 2.0)
"""

from collections import deque
from typing import Any, ClassVar, Protocol

import numpy as np

from userdp.errors import BadInput

OTHER_VERSION = "resume with the version of userdp that the run began with"
"""The remedy for a sound state that another version wrote."""

State = dict[str, Any]
"""Plain data: None, numbers, strings, arrays of numbers, lists of plain data, and dicts with plain keys and values."""


class Stateful:
    """An object whose class declares every attribute in one of three lists: remembered, parts or given.

    A subclass adds to the lists of its base. An attribute in no list is an error of the class, which `state` reports.

    Attributes:
        remembered: attributes that hold plain data; a deque counts as a list.
        parts: attributes that hold a `Stateful`, or None, or nothing yet.
        given: attributes that the settings determine. A state leaves them out.
    """

    remembered: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    given: ClassVar[tuple[str, ...]] = ()

    def state(self) -> State:
        """Return the object's memory as plain data; arrays are not copied.

        Raises `BadInput` if an attribute is in no list, or its list does not allow its value.
        """
        name = type(self).__name__
        for attribute in vars(self).keys() - {*self.remembered, *self.parts, *self.given}:
            raise BadInput(
                f"{name}.{attribute} is not declared, and a killed run would forget it: list {attribute!r} in "
                f"{name}.remembered, or in {name}.given if the settings determine it"
            )
        state: State = {}
        for attribute in self.remembered:
            value = getattr(self, attribute)
            state[attribute] = value = list(value) if isinstance(value, deque) else value
            if not _plain(value):
                raise BadInput(
                    f"{name}.{attribute} holds a {type(value).__name__}, which a checkpoint cannot hold: keep numbers, "
                    f"strings, arrays, lists or dicts of these, or list {attribute!r} in {name}.parts"
                )
        for attribute in self.parts:
            part = getattr(self, attribute, None)
            if not (part is None or isinstance(part, Stateful)):
                raise BadInput(
                    f"{name}.{attribute} holds a {type(part).__name__}, which does not declare what it remembers: make "
                    "it a Stateful"
                )
            state[attribute] = None if part is None else part.state()
        return state

    def restore(self, state: State) -> None:
        """Restore a state into a fresh object with equal settings; `BadInput` refuses the state of another class."""
        try:
            for attribute in self.remembered:
                value, held = state[attribute], getattr(self, attribute, None)
                self._set(attribute, deque(value, held.maxlen) if isinstance(held, deque) else value)
            for attribute in self.parts:
                part = getattr(self, attribute, None)
                of_part = state.get(attribute) if part is None else state[attribute]
                if of_part is None:
                    continue
                if part is None:
                    part = self.new_part(attribute, of_part)
                    self._set(attribute, part)
                part.restore(of_part)
        except BadInput:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            name = type(self).__name__
            raise BadInput(f"the checkpoint does not fit {name} ({type(error).__name__}): {OTHER_VERSION}") from None

    def new_part(self, attribute: str, state: State) -> "Stateful":
        """Make a part that a fresh object lacks; a class with such parts defines it."""
        raise NotImplementedError(f"{type(self).__name__}.new_part makes no {attribute}")

    def _set(self, attribute: str, value: Any) -> None:
        object.__setattr__(self, attribute, value)


class Remembering(Protocol):
    """Whatever has a state, as a `Stateful` and a ledger have one."""

    def state(self) -> State:
        """Return what it remembers, as plain data."""

    def restore(self, state: State) -> None:
        """Go on from what `state` returned."""


def _plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, value)) and all(map(_plain, value.values()))
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def state_of(memory: Any) -> State | None:
    """Return the state of an object that a run needs to resume; None for None or an empty state.

    Raises `BadInput` if the object is no `Stateful`, or its declaration is incomplete.
    """
    if memory is None:
        return None
    if not isinstance(memory, Stateful):
        raise BadInput(
            f"the server's memory, a {type(memory).__name__}, does not declare its attributes: make it a "
            "userdp.state.Stateful"
        )
    return memory.state() or None


def put_back(memory: Any, state: State | None) -> None:
    """Restore a state from `state_of` into a fresh object; `BadInput` refuses that of another class."""
    if (state_of(memory) is None) != (state is None):
        raise BadInput(f"the checkpoint and this run keep different memory between rounds: {OTHER_VERSION}")
    if memory is not None and state is not None:
        memory.restore(state)
