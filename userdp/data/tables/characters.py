"""Text as codes of a declared alphabet, character by character."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.federation import BLOCK_BYTES
from userdp.data.tables.cells import bytes_in, ends_of
from userdp.errors import BadInput

_CODE_POINTS = 0x110000


def checked_alphabet(name: str, alphabet: str) -> str:
    """The alphabet.

    Raises:
        BadInput: no character, or one twice.
    """
    if not alphabet:
        raise BadInput(f"{name} is empty: list the characters that get codes of their own")
    character, times = Counter(alphabet).most_common(1)[0]
    if times > 1:
        raise BadInput(f"{name} lists {character!r} {times} times; every character must differ")
    return alphabet


def character_codes(
    cells: pa.LargeBinaryArray, alphabet: str
) -> tuple[NDArray[np.unsignedinteger[Any]], NDArray[np.int64]]:
    """Codes of all characters of all cells, one cell after the other.

    *Formal guarantee*: a cell's codes depend on that cell alone: those of its code points where it is valid UTF-8, and
    where it is not, bytes that are none count as U+FFFD. Valid cells are decoded together and others one by one, which
    gives valid ones the same code points.

    Args:
        cells: (N,) UTF-8, or nearly so; a missing one has no characters.
        alphabet: A declared characters, whose positions are their codes; any other has the code A.

    Returns:
        (codes (S,) of the smallest type that holds A, (N + 1,) where the cells begin and end among them).
    """
    table = np.full(_CODE_POINTS, len(alphabet), dtype=np.min_scalar_type(len(alphabet)))
    table[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    codes, lengths = [table[:0]], [np.zeros(1, dtype=np.int64)]
    for block in _blocks(pc.fill_null(cells, b"")):
        texts = _valid(block)
        text = bytes_in(texts).tobytes().decode("utf-8")
        codes.append(table[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")])
        lengths.append(pc.utf8_length(texts).to_numpy())
    return np.concatenate(codes), np.cumsum(np.concatenate(lengths))


def _blocks(cells: pa.LargeBinaryArray) -> Iterator[pa.LargeBinaryArray]:
    """Consecutive cells of about `BLOCK_BYTES`, at least one."""
    ends, first = ends_of(cells), 0
    while first < len(cells):
        last = int(np.searchsorted(ends, ends[first] + BLOCK_BYTES, side="right")) - 1
        last = min(max(first + 1, last), len(cells))
        yield cells.slice(first, last - first)
        first = last


def _valid(cells: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """The cells as text; where the bytes of some are no UTF-8, each decoded by itself, which changes no valid one."""
    try:
        return cells.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([cell.decode("utf-8", "replace") for cell in cells.to_pylist()], type=pa.large_string())
