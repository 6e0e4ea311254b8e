"""The contents of a module: its tensors and attributes, also inside lists, dictionaries and objects.

Two copies of a module are compared by value (`described`); one copy with itself, a moment later, by the identity of its
contents (`Marks`), which takes a few microseconds. Contents outside the module are not seen: globals, class attributes
and closures of functions.
"""

import logging
import operator
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import blake2b
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_BY_REPR = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_BY_NAME = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, logging.Logger)
_NO_HOLDERS = (*_BY_NAME, Tensor, np.ndarray, random.Random)
_MUTABLE = (np.ndarray, random.Random, np.random.Generator, np.random.RandomState, torch.Generator)  # in place
_REBUILT = frozenset({"_flat_weights", "_flat_weight_refs"})  # Torch rebuilds these lists when a parameter is replaced.
_UNNAMED = frozenset({"_parameters", "_buffers", "_modules"})  # Steps of a path that its reader need not see.

Path = tuple[str, ...]  # Names of attributes, keys and positions, from the outside in.


def _attributes(thing: Any) -> dict[str, Any]:
    found = {} if isinstance(thing, _NO_HOLDERS) else getattr(thing, "__dict__", {})
    if isinstance(thing, nn.RNNBase):
        return {name: value for name, value in found.items() if name not in _REBUILT}
    return found if isinstance(found, dict) else {}


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a thing by name; none of a leaf."""
    if isinstance(thing, partial):
        yield from (("func", thing.func), ("args", thing.args), ("keywords", thing.keywords))
    elif isinstance(thing, dict):
        yield from ((key if isinstance(key, str) else repr(key), value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | deque):
        yield from ((str(place), value) for place, value in enumerate(thing))
    yield from _attributes(thing).items()


def _walk(root: Any) -> Iterator[tuple[Path, Any]]:
    """Yield everything in ``root`` by its path: a thing at two paths twice, but its parts once."""
    seen, waiting = dict[int, Any](), list[tuple[Path, Any]]([((), root)])
    while waiting:
        path, thing = waiting.pop()
        yield path, thing
        if id(thing) not in seen:
            seen[id(thing)] = thing
            waiting += [((*path, name), part) for name, part in _parts(thing)]


def _value(thing: Any) -> Any:  # noqa: PLR0911  (one line a kind)
    """Return a value that two equal things share, bit for bit; of a holder its kind and size."""
    if isinstance(thing, Tensor):
        return str(thing.dtype), tuple(thing.shape), _bits(thing)
    if isinstance(thing, np.ndarray):
        return str(thing.dtype), thing.shape, repr(thing.tolist()) if thing.dtype.hasobject else thing.tobytes()
    if isinstance(thing, torch.Generator):
        return thing.get_state().numpy().tobytes()
    if isinstance(thing, np.random.Generator):
        return repr(thing.bit_generator.state)
    if isinstance(thing, np.random.RandomState):
        return repr(thing.get_state(legacy=False))
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, memoryview):
        return thing.format, thing.shape, thing.tobytes()
    if isinstance(thing, set | frozenset):
        return type(thing).__name__, sorted(map(repr, thing))
    if isinstance(thing, _BY_REPR):
        return type(thing).__name__, repr(thing)
    if isinstance(thing, _BY_NAME):
        return getattr(thing, "__qualname__", "")
    parts = 0 if _slotted(thing) else sum(1 for _ in _parts(thing))
    return type(thing).__qualname__, parts, None if parts else _pickled(thing)


def _slotted(thing: Any) -> bool:
    """Return whether a thing has values in slots, which are no parts of it."""
    kinds = (vars(kind) for kind in type(thing).__mro__)
    return any(isinstance(one, MemberDescriptorType) for own in kinds if "__slots__" in own for one in own.values())


def _bits(tensor: Tensor) -> bytes | str:
    """Digest a tensor's bytes; return the printed form of one that is not laid out as an array."""
    try:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return blake2b(plain.view(torch.uint8).numpy().tobytes() if len(plain) else b"").digest()
    except (RuntimeError, NotImplementedError, TypeError):
        return repr(tensor)


def _pickled(thing: Any) -> bytes | None:
    try:
        return pickle.dumps(thing)
    except Exception:  # any error of the object
        # Attributes are all that there is, but for slots.
        return b"" if hasattr(thing, "__dict__") and not _slotted(thing) else None


def described(root: Any) -> dict[Path, Any]:
    """Describe all contents of ``root``, by path."""
    return {path: _value(thing) for path, thing in _walk(root)}


def without_value(found: dict[Path, Any]) -> str | None:
    """Return the kind of something described whose value cannot be told, None if there is nothing such."""
    return next((one[0] for one in found.values() if type(one) is tuple and one[1:] == (0, None)), None)


def code_in(root: Any) -> Iterator[FunctionType | MethodType | type]:
    """Yield the functions, bound methods and classes in ``root``, and the class of whatever else Python code calls."""
    for _, thing in _walk(root):
        if isinstance(thing, FunctionType | MethodType | type):
            yield thing
        elif isinstance(getattr(type(thing), "__call__", None), FunctionType):  # noqa: B004  (of which kind it is)
            yield type(thing)


def difference(one: dict[Path, Any], other: dict[Path, Any]) -> str | None:
    """Return the name of something that differs, None if nothing does; the longest path is the most specific."""
    absent = object()
    paths = [path for path in {**one, **other} if one.get(path, absent) != other.get(path, absent)]
    deepest = max(paths, key=lambda path: (len(path), path), default=None)
    return None if deepest is None else ".".join(step for step in deepest if step not in _UNNAMED)


class Marks:
    """The contents of ``root`` at one moment: object by object, and each tensor's count of writes."""

    def __init__(self, root: Any) -> None:
        self._holders: list[Any] = []
        self._readers: list[Callable[[], Iterable[Any]]] = []
        self._tensors: list[Tensor] = []
        self._leaves: list[Any] = []
        things = {id(thing): thing for _, thing in _walk(root)}
        for thing in things.values():
            self._mark(thing)
        self._held = [*self._read()]
        self._sizes, self._versions = [*map(len, self._holders)], self._written()
        self._values = [*map(_value, self._leaves)]

    def _mark(self, thing: Any) -> None:
        if isinstance(thing, Tensor) and not thing.is_inference():
            self._tensors.append(thing)
        elif isinstance(thing, _MUTABLE):
            self._leaves.append(thing)
        elif isinstance(thing, dict):
            self._hold(thing, thing.values, thing.keys)
        elif isinstance(thing, list | deque | set):
            self._hold(thing, thing.__iter__)
        if isinstance(thing, nn.RNNBase):
            self._holders.append(vars(thing))
            self._readers.append(lambda: _attributes(thing).values())
        elif attributes := _attributes(thing):
            self._hold(attributes, attributes.values)

    def _hold(self, holder: Any, *readers: Callable[[], Iterable[Any]]) -> None:
        self._holders.append(holder)
        if holder:
            self._readers += readers

    def _read(self) -> Iterator[Any]:
        return chain.from_iterable(reader() for reader in self._readers)

    def _written(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]

    def hold(self) -> bool:
        """Return whether the contents are still the same, and nothing was added."""
        return (
            self._sizes == [*map(len, self._holders)]
            and all(map(operator.is_, self._held, self._read()))
            and self._versions == self._written()
            and (not self._leaves or self._values == [*map(_value, self._leaves)])
        )
