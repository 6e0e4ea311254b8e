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
    """One number of each user, bounded for any data.

    Attributes:
        compute: from finite, centred, UNCLIPPED rows (U, p) and the clip norm to (U,) numbers.
        low: least value.
        high: largest value.
    """

    compute: Callable[[Rows, float], Rows]
    low: float
    high: float

    def sensitivity(self, relation: Relation) -> float:
        """Bound how far one user moves the sum of all users' numbers, by being replaced, added or removed."""
        return self.high - self.low if relation == "replace_one" else max(abs(self.low), abs(self.high))


def log_distances(rows: Rows, clip_norm: float) -> NDArray[np.float64]:
    """Return ``ln(||row||_2 / clip_norm)``, clipped to [-2.5, 1]; its mean is the log of a robust typical distance."""
    return np.clip(_log_lengths(rows, clip_norm), -2.5, 1.0)


def _log_lengths(rows: Rows, clip_norm: float) -> NDArray[np.float64]:
    """Return ``ln(||row||_2 / clip_norm)`` (U,); minus infinity for a row of zeros."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(rows / scale[:, None], axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(norms) + np.log(scale) - np.log(clip_norm))


def log_norms(rows: Rows, clip_norm: float) -> NDArray[np.float64]:
    """Return the same, clipped to [-5, 0], for lengths with only an upper guess."""
    return np.clip(_log_lengths(rows, clip_norm), -5.0, 0.0)


def log_sizes(rows: Rows, clip_norm: float) -> NDArray[np.float64]:
    """Return the same, clipped to [-10, 10], for unknown lengths."""
    return np.clip(_log_lengths(rows, clip_norm), -10.0, 10.0)


def unclipped(rows: Rows, clip_norm: float) -> NDArray[np.float64]:
    """Return (U,): 1/2 for rows that the clip leaves unchanged, -1/2 for those that it shortens."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    # As `clip_rows` decides: by the scaled norm, which does not overflow.
    norms = np.linalg.norm(rows / scale[:, None], axis=1)
    return np.where(largest <= clip_norm / np.maximum(norms, 1.0), 0.5, -0.5)


STATISTICS: dict[str, Statistic] = {
    "log_distance": Statistic(log_distances, -2.5, 1.0),
    "log_norm": Statistic(log_norms, -5.0, 0.0),
    "log_size": Statistic(log_sizes, -10.0, 10.0),
    "unclipped": Statistic(unclipped, -0.5, 0.5),
}


def statistic(name: str) -> Statistic:
    """Return the statistic of that name; raise `BadInput` if there is none."""
    if name not in STATISTICS:
        raise BadInput(f"statistic {name!r} is unknown; there are {', '.join(sorted(STATISTICS))}")
    return STATISTICS[name]
