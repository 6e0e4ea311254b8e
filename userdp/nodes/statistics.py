"""One bounded number of each user beside its row, computed before the clip: adaptive clips follow it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.guarantee import Relation
from userdp.arrays.types import Rows
from userdp.errors import BadInput


@dataclass(frozen=True)
class Statistic:
    """One bounded number of each user; ``compute`` takes finite, centred, UNCLIPPED rows (U, p) and the clip norm."""

    compute: Callable[[Rows, float], Rows]
    low: float
    high: float

    def sensitivity(self, relation: Relation) -> float:
        """Bound how far one user moves the sum of all users' numbers, by being replaced, added or removed."""
        return self.high - self.low if relation == "replace_one" else max(abs(self.low), abs(self.high))


def _scaled(rows: Rows) -> tuple[Rows, Rows, Rows]:
    """Return each row's largest entry in size, its scale (1 for a row of zeros), and the norm of the scaled row."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    return largest, scale, np.linalg.norm(rows / scale[:, None], axis=1)


def _log_lengths(rows: Rows, clip_norm: float) -> NDArray[np.float64]:
    """Return ``ln(||row||_2 / clip_norm)`` (U,); minus infinity for a row of zeros."""
    _, scale, norms = _scaled(rows)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(norms) + np.log(scale) - np.log(clip_norm))


def _clipped_log(low: float, high: float) -> Statistic:
    return Statistic(lambda rows, clip_norm: np.clip(_log_lengths(rows, clip_norm), low, high), low, high)


def unclipped(rows: Rows, clip_norm: float) -> NDArray[np.float64]:
    """Return (U,): 1/2 for rows that the clip leaves unchanged, -1/2 for those that it shortens."""
    largest, _, norms = _scaled(rows)  # `clip_rows` decides by the scaled norm too, which does not overflow
    return np.where(largest <= clip_norm / np.maximum(norms, 1.0), 0.5, -0.5)


_OCTAVES = range(-20, 21)  # Edges of the octaves of lengths, as powers of two: from a millionth to a million
OCTAVES = len(_OCTAVES) + 1
"""The entries of a row of `octaves`."""


def octaves(rows: Rows) -> Rows:
    """Return (U, OCTAVES): 1 in the octave that holds each row's l2 norm, else 0; NaN if the row is not finite."""
    finite = np.isfinite(rows).all(axis=1, keepdims=True)
    lengths = _log_lengths(np.where(finite, rows, 0.0), 1.0) / np.log(2)
    return np.where(finite, np.eye(OCTAVES)[np.searchsorted(_OCTAVES, lengths, side="right")], np.nan)


def median_length(shares: Rows) -> float:
    """Return the median length of the users in the two octaves side by side with most of them, of 2^-20 to 2^20.

    ``shares`` (OCTAVES,) are those of all users in each octave, with noise.
    """
    first = int(np.argmax(shares[1:-2] + shares[2:-1]))
    lower, upper = np.maximum(shares[first + 1 : first + 3], 0.0)
    larger, smaller = max(lower, upper), min(lower, upper)
    aside = (larger - smaller) / (2 * larger) if larger > 0 else 0.0  # from the edge between the two
    return float(2.0 ** (_OCTAVES[first + 1] + (aside if upper > lower else -aside)))


def outside(shares: Rows) -> float:
    """Return how much larger the fuller end of the octaves is than the two side by side with most users."""
    return float(max(shares[0], shares[-1]) - (shares[1:-2] + shares[2:-1]).max())


STATISTICS: dict[str, Statistic] = {
    "log_distance": _clipped_log(-2.5, 1.0),
    "log_norm": _clipped_log(-5.0, 0.0),
    "log_size": _clipped_log(-10.0, 10.0),
    "unclipped": Statistic(unclipped, -0.5, 0.5),
}
"""Name -> statistic. The mean of log_distance is the log of a robust typical distance; log_norm is for lengths with an
upper guess, log_size for unknown lengths."""


def statistic(name: str) -> Statistic:
    """Return the statistic of that name; raise `BadInput` if there is none."""
    if name not in STATISTICS:
        raise BadInput(f"statistic {name!r} is unknown; there are {', '.join(sorted(STATISTICS))}")
    return STATISTICS[name]
