"""What is declared of columns: ranges and levels, checked, and cells turned into numbers by them, each by itself."""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.cells import Texts, cell_text
from userdp.errors import BadInput
from userdp.settings import TWO_NUMBERS

_NEAR = 0.7
"""How alike two names are of which one may be the other misspelt."""
Range = tuple[float, float]
Levels = int | Sequence[object]
"""Of a column of codes: how many there are, or what they are."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' with the nearest of ``names``, or nothing."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=_NEAR)
    return f"; did you mean {near[0]!r}?" if near else ""


def checked_range(name: str, bounds: Sequence[float]) -> Range:
    """Bounds as (low, high).

    Raises:
        BadInput: not two finite numbers with low < high.
    """
    try:
        values = tuple(float(value) for value in bounds)
    except (TypeError, ValueError):
        raise BadInput(f"{name} = {bounds!r}: {TWO_NUMBERS}") from None
    if len(values) != 2 or not values[0] < values[1] or not np.isfinite(values[1] - values[0]):
        raise BadInput(f"{name} must be [low, high] with low < high, got {list(bounds)}")
    return values[0], values[1]


def checked_levels(name: str, levels: Sequence[object]) -> list[str]:
    """Declared levels as text, by `cell_text` as cells are.

    Raises:
        BadInput: none, or one twice.
    """
    if isinstance(levels, str) or len(levels) == 0:
        raise BadInput(f"{name} must be a list of levels, at least one")
    texts = [cell_text(level) for level in levels]
    text, times = Counter(texts).most_common(1)[0]
    if times > 1:
        raise BadInput(f"{name} lists {text!r} twice; every level must differ")
    return texts


def level_count(name: str, levels: object) -> int:
    """How many levels a column of codes is declared to have.

    Raises:
        BadInput: neither a whole number in 1..2^31 - 1 nor a list of levels.
    """
    if isinstance(levels, Sequence):
        return len(checked_levels(name, levels))
    if not isinstance(levels, int) or isinstance(levels, bool) or not 1 <= levels < 2**31:
        raise BadInput(f"{name} must lie in 1..2^31 - 1, or be a list of levels, got {levels!r}")
    return levels


def scaled(values: NDArray[np.float64], bounds: Range, low: float, high: float) -> tuple[NDArray[np.float32], int]:
    """Values clipped into ``bounds`` and mapped to [low, high], and how many were clipped; NaN stays NaN.

    Each by itself, in operations that IEEE 754 rounds exactly: where a value stands in an array changes no bit of it.
    """
    first, last = bounds
    inside = np.clip(values, first, last)
    unit = (inside - first) / (last - first)
    clipped = np.count_nonzero((values < first) | (values > last))
    return (low + (high - low) * unit).astype(np.float32), int(clipped)


def level_codes(texts: Texts, levels: Sequence[str]) -> NDArray[np.int64]:
    """Position of each cell among the declared levels, -1 where it is none of them."""
    codes = {level: code for code, level in enumerate(levels)}
    return texts.mapped(codes.get(text, -1) for text in texts.distinct)
