"""Ranks of predictions, and groups of similar ones."""

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Array


def ranks(values: Array) -> Array:
    """(N,) Ranks in rising order, from 1; equal values share the mean of their ranks."""
    _, places, times = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - 0.5 * (times - 1))[places])


def groups_alike(predicted: Array, groups: int) -> NDArray[np.int64]:
    """(N,) The group of each sample, 0 with the lowest predictions.

    Groups have equal sizes up to ties: equal predictions share a group, so that the order of the samples does not
    matter, and some of the ``groups`` may be empty.
    """
    return ((ranks(predicted) - 0.5) * groups / len(predicted)).astype(np.int64)
