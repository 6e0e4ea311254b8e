"""Distances from a quantile's rank at which two more choices are the ends of an interval of 95 %."""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

ENDS = (0.15, 0.15)
"""The shares of a quantile's precision that go to the two ends of its interval."""
PURE_ENDS = (0.02, 0.02)
"""The same of its epsilon, if nothing but choices is asked."""


def reach(quantile: float, users: int, scale: float) -> float:
    """Return how many users to go from a rank so that 39 of 40 times it is not passed.

    The choice of ``users`` moves the rank as a normal number, and a choice of intervals by Laplace noise of that scale.
    """
    deviation = math.sqrt(users * quantile * (1.0 - quantile))

    def passed(distance: float) -> float:
        if deviation == 0.0:
            return 0.5 * math.exp(-distance / scale)
        near, far = distance / deviation, deviation / scale
        tails = [
            math.exp(far**2 / 2 + sign * distance / scale + float(log_ndtr(-sign * near - far))) for sign in (-1, 1)
        ]
        return float(ndtr(-near)) + 0.5 * (tails[0] - tails[1])

    return float(brentq(lambda distance: passed(distance) - 0.025, 0.0, 40.0 * (deviation + scale)))
