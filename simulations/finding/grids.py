"""Public grids of candidates, and ranges rounded outwards to numbers that people read."""

import math
from datetime import date, timedelta
from statistics import NormalDist

import numpy as np

from userdp.mechanisms.user_quantile import Grid

_DECADES = (-6, 9)  # Powers of ten of the numbers; further ones belong to the outermost bins.
_ZERO, _ONE_DIGIT, _TWO_DIGITS = 1e4, 100.0, 10.0  # Weights; a number of three digits weighs 1.
_YEARS = (1850, 2150)
_MOST_COUNT = 10**6
_STEPS = 20  # The least number of steps of a rounded range; its step is 1, 2 or 5 times a power of ten.
_EPOCH = date(1970, 1, 1)


def numbers() -> Grid:
    """Return zero and all numbers of three digits from 1e-6 to 1e9, of both signs.

    Numbers of people often begin or end at zero or at a number of one digit, which weigh more than those of three.
    """
    first, last = _DECADES
    digits = np.arange(100, 1000)
    texts = [f"{each}e{power - 2}" for power in range(first, last) for each in digits]
    positive = np.array([*texts, f"1e{last}"], dtype=np.float64)
    simple = np.select([digits % 100 == 0, digits % 10 == 0], [_ONE_DIGIT, _TWO_DIGITS], 1.0)
    weights = np.append(np.tile(simple, last - first), _ONE_DIGIT)
    return Grid(np.concatenate([-positive[::-1], [0.0], positive]), np.concatenate([weights[::-1], [_ZERO], weights]))


def counts() -> Grid:
    """Return the whole numbers of two digits or fewer significant ones, from 0 to a million."""
    digits, most = np.arange(10, 100), int(math.log10(_MOST_COUNT))
    larger = [digits * 10.0**power for power in range(most - 1)]
    return Grid.even(np.concatenate([np.arange(10.0), *larger, [float(_MOST_COUNT)]]))


def years() -> Grid:
    """Return the first days of years, in days since 1970."""
    return Grid.even(np.array([_days(year) for year in range(_YEARS[0], _YEARS[1] + 1)], dtype=np.float64))


def stretched(low: float, high: float, found: float, wanted: float) -> tuple[float, float]:
    """Stretch a range that leaves out a share ``found`` on each side, as if numbers were normal, to the share wanted.

    A range that begins at zero or above stays there, and one that ends at zero or below.
    """
    low, high = min(low, high), max(low, high)
    if found <= wanted:
        return low, high
    normal = NormalDist()
    further = (normal.inv_cdf(wanted) / normal.inv_cdf(found) - 1) * (high - low) / 2
    return max(low - further, 0.0 if low >= 0 else -math.inf), min(high + further, 0.0 if high <= 0 else math.inf)


def outwards(low: float, high: float) -> tuple[float, float]:
    """Round a range outwards to whole steps, twenty of which at least lie in it; an empty one gets a step's width."""
    width = high - low or abs(low) or 1.0
    power = math.floor(math.log10(width / _STEPS))
    step = max(factor for factor in (1, 2, 5) if factor * 10.0**power <= width / _STEPS * (1 + 1e-9))
    places = 10.0**-power  # whole for fractions, so that the division below rounds once
    first, last = math.floor(low * places / step + 1e-9) * step, math.ceil(high * places / step - 1e-9) * step
    last += step if last == first else 0
    return _plain(first, power), _plain(last, power)


def _plain(digits: int, power: int) -> float:
    value = float(f"{digits}e{power}")
    return int(value) if value.is_integer() else value


def outward_years(low: float, high: float) -> tuple[str, str]:
    """Return the first days of the year of ``low`` and of the year after ``high``, both in days since 1970, as text."""
    first, last = (_EPOCH + timedelta(days=math.floor(day)) for day in (low, high))
    ends = last.year if last == date(last.year, 1, 1) and last > first else last.year + 1
    return f"{first.year}-01-01", f"{ends}-01-01"


def _days(year: int) -> int:
    return (date(year, 1, 1) - _EPOCH).days
