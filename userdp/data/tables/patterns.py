"""Runs of column names: "pixel_[0-63]" declares 64 columns, so that no file is needed to know how many there are."""

import re
from collections.abc import Iterable, Mapping
from itertools import product
from typing import TypeVar

from userdp.errors import BadInput

_RUN = re.compile(r"\[([0-9]+)-([0-9]+)\]")
_MOST = 1 << 20
Value = TypeVar("Value")


def expanded(field: str, names: Iterable[str]) -> list[str]:
    """Names with every run [first-last] written out; of several runs in a name, the last one moves fastest.

    >>> expanded("features", ["age", "pixel_[8-10]", "day_[01-02]"])
    ['age', 'pixel_8', 'pixel_9', 'pixel_10', 'day_01', 'day_02']

    Args:
        field: what declares them, for sentences.
        names: as declared.

    Raises:
        BadInput: a run that ends before it begins or is too long, or a * in a name: how many columns match it only a
            file tells, and the server of a deployment has none.
    """
    return [column for name in names for column in _columns(field, name)]


def expanded_keys(field: str, declared: Mapping[str, Value]) -> dict[str, Value]:
    """The same for the keys of a mapping; every column of a run has its value.

    Raises:
        BadInput: as `expanded`, or a column that two keys name.
    """
    found: dict[str, Value] = {}
    for name, value in declared.items():
        for column in _columns(field, name):
            if column in found:
                raise BadInput(f"{field} names column {column!r} twice; leave it out of one of the two")
            found[column] = value
    return found


def _columns(field: str, name: str) -> list[str]:
    if "*" in name:
        example = name.replace("*", "[0-63]")
        raise BadInput(
            f"{field} names {name!r}: how many columns there are must be declared, for a server has no file to count "
            f"them in; name the run, such as {example!r}"
        )
    texts, runs = _RUN.split(name)[::3], [_numbers(field, name, *run) for run in _RUN.findall(name)]
    count = 1
    for numbers in runs:
        count *= len(numbers)
    if count > _MOST:
        raise BadInput(f"{field} names {name!r}, {count} columns; a run has {_MOST} at most")
    rows = product(*([text + number for number in numbers] for text, numbers in zip(texts, runs, strict=False)))
    return ["".join(parts) + texts[-1] for parts in rows]


def _numbers(field: str, name: str, first: str, last: str) -> list[str]:
    """From first to last; as wide as the first one where that begins with 0."""
    start, stop = int(first), int(last)
    if stop < start:
        raise BadInput(f"{field} names {name!r}, a run that ends before it begins; write [{last}-{first}]")
    if stop - start >= _MOST:
        raise BadInput(f"{field} names {name!r}, a run of {stop - start + 1} columns; it has {_MOST} at most")
    width = len(first) if first.startswith("0") else 0
    return [str(number).zfill(width) for number in range(start, stop + 1)]
