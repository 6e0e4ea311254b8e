"""Texts as codes: of their characters in an alphabet, or of their tokens by a model's own tokenizer.

A tokenizer is a folder that the transformers library loads, 'hf:FOLDER', or a name on the Hugging Face hub, 'hf:NAME'.
It is public, and so is its number of tokens.
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.federation import BLOCK_BYTES
from userdp.data.tables.cells import bytes_in, ends_of
from userdp.errors import BadInput
from userdp.extras import check_extra

_CODE_POINTS = 0x110000
_HUB = "hf:"
_TOKENISED_BYTES = 1 << 20
"""Bytes of text that are tokenised at once, as each token takes a Python number meanwhile."""
Integers = NDArray[np.int64]
Codes = NDArray[np.integer[Any]]


def character_codes(cells: pa.LargeBinaryArray, alphabet: str) -> tuple[NDArray[np.unsignedinteger[Any]], Integers]:
    """Return the codes (S,) of the characters of all (N,) cells, in the smallest type, and the cells' bounds (N + 1,).

    A character's code is its position among the A of the alphabet, or A for any other; a missing cell has none.

    *Formal guarantee*: a cell's codes depend on that cell alone. They are those of its code points; bytes that are no
    UTF-8 count as U+FFFD. Valid cells are decoded together and others one by one, which gives valid cells the same code
    points.
    """
    table = np.full(_CODE_POINTS, len(alphabet), dtype=np.min_scalar_type(len(alphabet)))
    table[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    codes, lengths = [table[:0]], [np.zeros(1, dtype=np.int64)]
    for block in _blocks(cells, BLOCK_BYTES):
        texts = _valid(block)
        text = bytes_in(texts).tobytes().decode("utf-8")
        codes.append(table[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")])
        lengths.append(pc.utf8_length(texts).to_numpy())
    return np.concatenate(codes), np.cumsum(np.concatenate(lengths))


def token_codes(cells: pa.LargeBinaryArray, place: str) -> tuple[Codes, Integers]:
    """Return the tokens (S,) of all (N,) cells, in the smallest type, and the cells' bounds (N + 1,).

    *Formal guarantee*: a cell's tokens depend on that cell and the tokenizer alone, as it keeps nothing of one text for
    the next, and neither pads nor cuts. A cell that it fails on, or a missing one, has none. Bytes that are no UTF-8
    count as U+FFFD, and the spelling of a special token in a text is text. Raises `BadInput` as `tokenizer_of`.
    """
    tokenizer = tokenizer_of(place)
    kind = np.min_scalar_type(token_count(place) - 1)
    codes, lengths = [np.zeros(0, dtype=kind)], [np.zeros(1, dtype=np.int64)]
    for block in _blocks(cells, _TOKENISED_BYTES):
        tokens = _tokenised(tokenizer, _valid(block).to_pylist())
        lengths.append(np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens)))
        codes.append(np.fromiter(chain.from_iterable(tokens), dtype=kind, count=lengths[-1].sum()))
    return np.concatenate(codes), np.cumsum(np.concatenate(lengths))


def text_rows(cells: pa.LargeBinaryArray, place: str, window: int) -> tuple[NDArray[np.int32], int]:
    """Return the first tokens of each cell, (N, window), and the number of cells that have more.

    Token c is c + 1 and 0 is padding behind a text; a cell without any token is -1 throughout, which no loss uses.
    *Formal guarantee*: a cell's row follows from that cell, as `token_codes` promises. Raises `BadInput` as it does.
    """
    codes, ends = token_codes(cells, place)
    lengths = np.diff(ends)
    places = np.arange(window)
    there = places < lengths[:, None]
    rows = np.zeros((len(cells), window), dtype=np.int32)
    rows[there] = codes[(ends[:-1, None] + places)[there]].astype(np.int32) + 1
    rows[lengths == 0] = -1
    return rows, int(np.count_nonzero(lengths > window))


def _tokenised(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Return the tokens of each text: of all together, or if that fails of each alone."""
    try:
        found = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    except Exception:  # any error of a tokenizer, whose text one person's cell may be
        return [[]] if len(texts) == 1 else [_tokenised(tokenizer, [text])[0] for text in texts]
    return list(found)


@cache
def tokenizer_of(place: str) -> Any:
    """Return the tokenizer of a model, read once per process.

    Raises `BadInput` if ``place`` is no 'hf:...', the library is not installed, or no tokenizer can be read.
    """
    if not place.startswith(_HUB):
        raise BadInput(f"sequence.tokenizer = {place!r}: write 'hf:FOLDER', or 'hf:NAME' of the Hugging Face hub")
    name = place.removeprefix(_HUB)
    told = f"sequence.tokenizer = {place!r}"
    check_extra("language", told, ["transformers"])
    from transformers import AutoTokenizer  # noqa: PLC0415 -- optional, and slow to import

    folder = Path(name).is_dir()
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        fix = (
            "the folder has to hold the files of a tokenizer, as save_pretrained writes them"
            if folder
            else "there is no such folder; where there is no network, name a folder that holds the tokenizer's files "
            "(`python research/pretrain.py FOLDER` makes a small model with its own)"
        )
        unset = ", which is that of problem.model unless it is set,"
        raise BadInput(f"{told}{unset} cannot be read ({type(error).__name__}): {fix}") from None


@cache
def token_count(place: str) -> int:
    """Return the number of codes of a tokenizer, its largest token and one; raise `BadInput` as `tokenizer_of`."""
    return int(max(tokenizer_of(place).get_vocab().values())) + 1


def separator(place: str) -> int:
    """Return the token that ends a text, which joins a user's rows; `BadInput` if the tokenizer has none."""
    end = tokenizer_of(place).eos_token_id
    if end is None:
        raise BadInput(
            f"sequence.tokenizer = {place!r} has no token that ends a text, which joins a user's rows: name a model "
            "that was trained to predict the next token"
        )
    return int(end)


def _blocks(cells: pa.LargeBinaryArray, size: int) -> Iterator[pa.LargeBinaryArray]:
    """Yield the cells, missing ones empty, in parts of at most so many bytes, or of one cell."""
    cells = pc.fill_null(cells, b"")
    ends, first = ends_of(cells), 0
    while first < len(cells):
        last = int(np.searchsorted(ends, ends[first] + size, side="right")) - 1
        last = min(max(first + 1, last), len(cells))
        yield cells.slice(first, last - first)
        first = last


def _valid(cells: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return the cells as text; if some are no UTF-8, each is decoded by itself, which changes no valid one."""
    try:
        return cells.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([cell.decode("utf-8", "replace") for cell in cells.to_pylist()], type=pa.large_string())
