"""Declarations about columns, checked: runs of names, ranges, levels, targets, and values for missing cells.

A value for missing cells is declared, never a mean, a median or the most frequent level: those are functions of
everybody's cells, so one person's cells could be read off everybody else's samples, and no noise would hide it.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.cells import Texts, cell_text
from userdp.errors import BadInput
from userdp.settings import TWO_NUMBERS, shown

OWN_LEVEL = "own level"
"""The declared value that makes missing cells of a column of categories one more level."""
STATISTICS = frozenset(
    {"mean", "average", "median", "mode", "most frequent", "most_frequent", "max", "min", "last", "previous", "knn"}
)
"""Words for values that would be computed from the data."""
_SIMILARITY = 0.7
_RUN = re.compile(r"\[([0-9]+)-([0-9]+)\]")
_MOST_COLUMNS = 1 << 20

Range = tuple[float, float]
Levels = int | Sequence[object]
"""The levels of a column of codes: their number, or a list."""
Value = TypeVar("Value")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return '; did you mean ...?' with the most similar of ``names``, or '' if none is similar."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=_SIMILARITY)
    return f"; did you mean {near[0]!r}?" if near else ""


def expanded(field: str, names: Iterable[str]) -> list[str]:
    """Write out every run [first-last] in the names of ``field``; of several runs in a name the last varies fastest.

    >>> expanded("features", ["age", "pixel_[8-10]", "day_[01-02]"])
    ['age', 'pixel_8', 'pixel_9', 'pixel_10', 'day_01', 'day_02']
    """
    return [column for name in names for column in _columns(field, name)]


def expanded_keys(field: str, declared: Mapping[str, Value]) -> dict[str, Value]:
    """Write out the runs in the keys of a mapping; every column of a run gets its value, and may occur once."""
    columns: dict[str, Value] = {}
    for name, value in declared.items():
        for column in _columns(field, name):
            if column in columns:
                raise BadInput(f"{field} names column {column!r} twice; leave it out of one of the two")
            columns[column] = value
    return columns


def _columns(field: str, name: str) -> list[str]:
    if "*" in name:
        example = name.replace("*", "[0-63]")
        raise BadInput(f"{field} names {name!r}: how many columns match must be declared, by a run such as {example!r}")
    texts, runs = _RUN.split(name)[::3], [_numbers(field, name, *run) for run in _RUN.findall(name)]
    count = math.prod(map(len, runs))
    if count > _MOST_COLUMNS:
        raise BadInput(f"{field} names {name!r}, {count} columns; a run has {_MOST_COLUMNS} at most")
    rows = product(*([text + number for number in numbers] for text, numbers in zip(texts, runs, strict=False)))
    return ["".join(parts) + texts[-1] for parts in rows]


def _numbers(field: str, name: str, first: str, last: str) -> list[str]:
    """Return the numbers of a run as text, as wide as the first one if that begins with 0."""
    start, stop = int(first), int(last)
    if stop < start:
        raise BadInput(f"{field} names {name!r}, a run that ends before it begins; write [{last}-{first}]")
    if stop - start >= _MOST_COLUMNS:
        raise BadInput(f"{field} names {name!r}, a run of {stop - start + 1} columns; it has {_MOST_COLUMNS} at most")
    width = len(first) if first.startswith("0") else 0
    return [str(number).zfill(width) for number in range(start, stop + 1)]


def checked_range(name: str, bounds: Sequence[float]) -> Range:
    """Return bounds as (low, high); raise `BadInput` unless they are two finite numbers with low < high."""
    try:
        values = tuple(float(value) for value in bounds)
    except (TypeError, ValueError):
        raise BadInput(f"{name} = {shown(bounds)}: {TWO_NUMBERS}") from None
    if len(values) != 2 or not values[0] < values[1] or not np.isfinite(values[1] - values[0]):
        raise BadInput(f"{name} must be [low, high] with low < high, got {shown(list(bounds))}")
    return values[0], values[1]


def checked_levels(name: str, levels: Sequence[object]) -> list[str]:
    """Return declared levels as text, by `cell_text`; raise `BadInput` if there is none, or one twice."""
    if isinstance(levels, str) or not len(levels) or any(isinstance(one, list | tuple | Mapping) for one in levels):
        raise BadInput(f"{name} must be a list of levels, at least one, and none of them a list")
    texts = [cell_text(level) for level in levels]
    text, times = Counter(texts).most_common(1)[0]
    if times > 1:
        raise BadInput(f"{name} lists {text!r} twice; every level must differ")
    return texts


def level_count(name: str, levels: object) -> int:
    """Return the number of declared levels; raise `BadInput` unless it is in 1..2^31 - 1 or a list of levels."""
    if isinstance(levels, Sequence):
        return len(checked_levels(name, levels))
    if not isinstance(levels, int) or isinstance(levels, bool) or not 1 <= levels < 2**31:
        raise BadInput(f"{name} must lie in 1..2^31 - 1, or be a list of levels, got {levels!r}")
    return levels


def imputed_number(column: str, value: object, bounds: Sequence[float] | None) -> float:
    """Return the number that stands for a missing cell; refuse a word, or no finite number within ``bounds``."""
    field = f"impute.{column} = {value!r}"
    example = "" if bounds is None else f", such as the middle of its range, {0.5 * bounds[0] + 0.5 * bounds[1]:g}"
    if isinstance(value, str):
        raise BadInput(not_from_data(field, f"a public number{example}"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{field}: must be a public number{example}")
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        raise BadInput(f"{field}: must lie within ranges.{column} = [{bounds[0]:g}, {bounds[1]:g}]")
    return float(value)


def imputed_code(column: str, value: object, levels: Levels, levels_field: str) -> int:
    """Return the code of a missing cell: that of a declared level, or one after the last for `OWN_LEVEL`."""
    field, text = f"impute.{column} = {value!r}", None
    if isinstance(levels, int):
        wanted = f"a level in 0..{levels - 1}"
        if value == OWN_LEVEL:
            return levels
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < levels:
            return value
        text = value if isinstance(value, str) else None
    else:
        wanted, texts = f"one of the levels of {levels_field}", checked_levels(levels_field, levels)
        if "" in texts:
            raise BadInput(f"{field}: {levels_field} lists '', so a missing cell is a level already; leave one out")
        if not isinstance(value, Mapping | list | tuple):
            text = cell_text(value)
        if value == OWN_LEVEL and text not in texts:
            return len(texts)
        if value != OWN_LEVEL and text in texts:
            return texts.index(text)
    if text in STATISTICS:
        raise BadInput(not_from_data(field, f"{OWN_LEVEL!r}, or {wanted}"))
    raise BadInput(f"{field}: must be {OWN_LEVEL!r}, for one more level, or {wanted}")


def not_from_data(field: str, instead: str) -> str:
    """Explain why ``field`` must not be a statistic of the data, and what to declare instead."""
    return (
        f"{field}: a value taken from the data would tell about the people in them, and no noise hides it; declare "
        f"{instead}"
    )


def scaled(values: NDArray[np.float64], bounds: Range, low: float, high: float) -> tuple[NDArray[np.float32], int]:
    """Clip values into ``bounds`` and map them to [low, high]; also count the clipped ones. NaN stays NaN.

    Every operation is elementwise and rounded exactly by IEEE 754: a value's position in the array changes no bit.
    """
    first, last = bounds
    inside = np.clip(values, first, last)
    unit = (inside - first) / (last - first)
    clipped = np.count_nonzero((values < first) | (values > last))
    return (low + (high - low) * unit).astype(np.float32), int(clipped)


def level_codes(texts: Texts, levels: Sequence[str]) -> NDArray[np.int64]:
    """Return the position of each cell among the declared levels; -1 for any other cell."""
    codes = {level: code for code, level in enumerate(levels)}
    return texts.mapped(codes.get(text, -1) for text in texts.distinct)
