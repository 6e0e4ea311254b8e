"""The users' ids as text, to the letter, and ids that may be two spellings of one person."""

import math
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]

from userdp.data.tables.cells import Texts, cell_text, plain, texts_of, time_text
from userdp.errors import BadInput

_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)\.0|[0-9](?:\.[0-9]+)?e\+[0-9]{2,3})")
"""A whole number as programs write one of a column of floats."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:e[+-]?[0-9]{1,4})?")
_NOBODY = frozenset({"na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none"})
"""Words for a missing cell, in small letters; as an id such a word would make one person of many."""
_SUMMARIES = frozenset({"total", "totals", "grand total", "subtotal", "sum", "all", "overall", "mean", "average"})
"""Words in a row of totals, in small letters: one person's limits do not protect everybody's sum."""
_BITS = {"halffloat": 11, "float": 24}
"""Type of floats -> the bits of a whole number that it holds exactly; 53 for others."""


def ids_of(column: pa.ChunkedArray, name: str) -> Texts:
    """Return the user column as text; '' for a missing id, also one that is written as a word, such as NA or NULL.

    Text is an id to the letter, so "007" is not "7", "1e5" not "100000", and "True" not "1". A whole number is its
    digits in columns of all types, also where a program wrote a column of floats as text: 7.0 is "7". Dates are as in
    `cell_text`.

    Raises `BadInput`: a type without ids; a float that is not whole, or so large that its type rounds it, as two people
    could then have one id; a NUL byte. Which ids there are is public by assumption, so they may decide that.
    """
    return texts_of(column, name, partial(_id, name, 2 ** _BITS.get(str(plain(column).type), 53)))


def _id(name: str, end: int, cell: object) -> str:
    if isinstance(cell, str) and "\0" in cell:
        raise BadInput(f"the user column {name!r} has an id with a NUL byte: write the file again")
    if isinstance(cell, str) and cell.strip().lower() in ("", *_NOBODY):
        return ""
    if isinstance(cell, str) and _FLOAT.fullmatch(cell):
        cell = float(cell)
    if isinstance(cell, float):
        if math.isnan(cell):
            return ""
        if abs(cell) >= end or not cell.is_integer():
            raise BadInput(
                f"the user column {name!r} has an id that is a float which is not whole, or from {end} on, where "
                "floats are rounded and two people can become one: write ids as text or whole numbers at their source"
            )
        return str(int(cell))
    if isinstance(cell, bool):
        return str(cell)
    return time_text(cell) if isinstance(cell, str) else cell_text(cell)


def doubtful_ids(ids: Iterable[str], name: str) -> str:
    """Return sentences if some of the distinct ids may be one person's, or nobody's; else ''.

    They are for the holder of the data alone.
    """
    known = list(ids)
    folded, found = set(map(_folded, known)), []
    if more := len(known) - len(folded):
        found.append(
            f"the same people may be written in two ways: {more} of the {len(known)} ids in data.user = {name!r} "
            "differ from another one in case, blanks, leading zeros, forms of letters or the spelling of a number "
            "alone; a person with two ids is protected as two people: write each person in one way, unless these are "
            "different people"
        )
    if folded & _SUMMARIES:
        found.append(
            f"data.user = {name!r} has an id that is a word for many people, such as total, all or mean: leave such "
            "rows out of the table, for they count as a person of their own and repeat what other people's rows say"
        )
    return "; ".join(found)


def _folded(label: str) -> str | Decimal:
    text = label
    if not label.isascii():  # signs without a width are left out
        text = "".join(one for one in unicodedata.normalize("NFKC", label) if unicodedata.category(one) != "Cf")
    text = text.strip().casefold()
    return Decimal(text) if _NUMBER.fullmatch(text) else text.lstrip("0")
