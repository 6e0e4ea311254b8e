"""Checked reading of foreign arrays, counts and records in replies.

No reply may end a run or take memory beyond its own bytes. `Array.numpy` guarantees neither: it unpacks archives,
allocates what a header claims, and raises whatever its parsers raise.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from userdp.errors import BadInput

_HEADER_BYTES = 1 << 12  # Bytes searched for an array's header; valid ones have 128.
_MAGIC_BYTES = 10  # Version and length of the header.
_WORD_BYTES = 8  # Of the widest numbers read: longer ones differ between machines.
_KINDS = {"f": "floats", "i": "whole numbers", "u": "unsigned numbers", "fiu": "numbers", "fiub": "numbers or booleans"}

Record = TypeVar("Record", ArrayRecord, MetricRecord)


@dataclass(frozen=True)
class AtMost:
    """A length of an array that its sender chooses, up to this one."""

    length: int

    def __str__(self) -> str:
        return f"at most {self.length}"


Shape: TypeAlias = tuple[int | AtMost | None, ...]  # Of an array; None is any length, if it is not copied


type_name = lru_cache(maxsize=32)(cast("Callable[[np.dtype[Any]], str]", str))
"""Returns the name of a dtype, which numpy puts together anew at each call."""


class SharedArray(Array):
    """A Flower array that keeps its numpy array, for grids that never serialise (local, Ray)."""

    def __init__(self, array: NDArray[np.generic]) -> None:
        self.__dict__.update(array=array, dtype=type_name(array.dtype), shape=array.shape, stype="numpy.ndarray")

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes, serialised on demand."""
        return Array(self.__dict__["array"]).data

    def numpy(self) -> NDArray[np.generic]:
        """Return the array itself."""
        return cast("NDArray[np.generic]", self.__dict__["array"])


@contextmanager
def untrusted(complaint: str) -> Iterator[None]:
    """Turn any error inside into one `BadInput`: the complaint, and our check's text or the foreign error's kind.

    The text of a foreign error is dropped, for it may quote data.
    """
    try:
        yield
    except Exception as error:  # also of parsers that a hostile text exhausts: MemoryError, RecursionError
        detail = str(error) if isinstance(error, BadInput) else type(error).__name__
        raise BadInput(f"{complaint} ({detail})") from None


def read_array(array: object, what: str, kinds: str, shape: Shape | None) -> NDArray[Any]:
    """Return the numbers of a Flower array, which may be read-only and share its memory; call it inside `untrusted`.

    ``what`` is its name in messages, and ``kinds`` holds the letters of the allowed numpy kinds, of native numbers of
    at most 8 bytes. Raises `BadInput` if it is something else or its bytes do not fit its header, and other errors if
    its header cannot be parsed.
    """
    if isinstance(array, SharedArray):
        values = np.asarray(array.numpy())
        _require(what, values.dtype, values.shape, kinds, shape)
        return values
    if not isinstance(array, Array) or array.stype != "numpy.ndarray":
        raise BadInput(f"{what} must be a numpy array")
    return _parsed(array, what, kinds, shape)


def read_exactly(array: object, what: str, dtype: type[np.generic], shape: Shape) -> NDArray[Any]:
    """Return the same as `read_array`, for numbers of one type."""
    values = read_array(array, what, np.dtype(dtype).kind, shape)
    if values.dtype != dtype:
        raise BadInput(f"{what} must be of type {dtype.__name__}")
    return values


def _parsed(array: Array, what: str, kinds: str, shape: Shape | None) -> NDArray[Any]:
    head = array.data[:_MAGIC_BYTES]
    if npy.read_magic(BytesIO(head)) != (1, 0):
        raise BadInput(f"{what} must be in version 1.0 of numpy's format, as plain numbers are")
    offset = _MAGIC_BYTES + int.from_bytes(head[-2:], "little")
    found, by_columns, dtype = _header(array.data[: min(offset, _HEADER_BYTES)])
    _require(what, dtype, found, kinds, shape)
    if (array.dtype, tuple(array.shape)) != (type_name(dtype), found):
        raise BadInput(f"{what} must have the type and the shape that its record says")
    count = math.prod(found)
    if count * dtype.itemsize != len(array.data) - offset:
        raise BadInput(f"{what} must have as many bytes as its shape says")
    flat = np.frombuffer(array.data, dtype, count, offset)
    values = flat.reshape(found[::-1]).T if by_columns else flat.reshape(found)
    return np.require(values, requirements="A")  # compiled code elsewhere expects whole words at their addresses


@lru_cache(maxsize=32)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    start = BytesIO(header)
    npy.read_magic(start)
    dimensions, by_columns, dtype = npy.read_array_header_1_0(start)
    return tuple(int(length) for length in dimensions), by_columns, dtype


def _require(what: str, dtype: np.dtype[Any], found: tuple[int, ...], kinds: str, shape: Shape | None) -> None:
    plain = dtype.kind in kinds and dtype.isnative and dtype.itemsize <= _WORD_BYTES
    fits = shape is None or (len(found) == len(shape) and all(map(_fits, found, shape)))
    if not plain or not fits or any(length < 0 for length in found):
        lengths = ", ".join("any" if length is None else str(length) for length in shape or ())
        got = f", not {type_name(dtype)}" if not plain and dtype.kind in "fiubc" else ""  # structures have texts
        raise BadInput(f"{what} must be {_KINDS[kinds]}" + (f" of shape ({lengths})" if lengths else "") + got)


def _fits(found: int, wanted: int | AtMost | None) -> bool:
    return found <= wanted.length if isinstance(wanted, AtMost) else wanted in (None, found)


def read_count(value: object, what: str, most: int) -> int:
    """Return a whole number of 0 to ``most``; raises `BadInput` for anything else."""
    if type(value) is not int or not 0 <= value <= most:
        raise BadInput(f"{what} must be a whole number from 0 to {most}")
    return value


def read_record(content: RecordDict, name: str, kind: type[Record], keys: Collection[str]) -> Record:
    """Return the record of that name, of that kind, with exactly these keys; raises `BadInput` for anything else."""
    record = content.get(name)
    if not isinstance(record, kind) or set(record) != set(keys):
        raise BadInput(f"{name} must be one {kind.__name__} of {', '.join(sorted(keys)) or 'nothing'}")
    return record
