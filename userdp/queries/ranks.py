"""Distances from a quantile's rank at which two more choices are the ends of an interval of 95 %."""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

ENDS = (0.15, 0.15)
"""The shares of a quantile's precision that go to the two ends of its interval."""
PURE_ENDS = (0.025, 0.025)
"""The same of its epsilon, if nothing but choices is asked."""


def reach(quantile: float, users: int, scale: float, candidates: int) -> float:
    """Return how many users to go from a rank so that 39 of 40 times it is not passed, whatever the data.

    The choice of ``users`` moves the rank as a normal number. A choice whose chances fall by a factor e every ``scale``
    users, among ``candidates`` of which one is exact, misses by x users with probability ``candidates exp(-x / scale)``
    at most: it is no further off than ``scale log(candidates)`` and an exponential number of that scale.
    """
    deviation = math.sqrt(users * quantile * (1.0 - quantile))

    def passed(distance: float) -> float:
        if deviation == 0.0:
            return math.exp(-distance / scale)
        near, far = distance / deviation, deviation / scale
        return float(ndtr(-near)) + math.exp(far**2 / 2 - distance / scale + float(log_ndtr(near - far)))

    further = brentq(lambda distance: passed(distance) - 0.025, 0.0, 40.0 * (deviation + scale))
    return scale * math.log(candidates) + float(further)
