"""Quantiles by the exponential mechanism over intervals, with intervals of 95 %.

*Formal guarantees.* *Claim.* The scores of `scores` move by at most `sensitivity`, whatever the data, and
`userdp.mechanisms.ExponentialMechanism` prices the choice. Unit: a user. *Why.* Let F_i be the sum over users of their
shares of samples up to interval i, T the sum of all their shares, and t = alpha T + shift. Score i is minus the
distance of t from the interval from F_{i-1} to F_i, so it moves by at most as much as ``F_i - t`` or ``F_{i-1} - t``
does. A user's shares are not negative and add up to 1 at most, so the user's part of ``F_i - alpha T`` lies between
-alpha and 1 - alpha: adding or removing one moves it by at most max(alpha, 1 - alpha), replacing one by at most 1. The
shift is public.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from userdp.accounting.guarantee import Relation
from userdp.arrays.types import Vector

ENDS = (0.15, 0.15)
"""The shares of a quantile's precision that go to the two ends of its interval."""
PURE_ENDS = (0.02, 0.02)
"""The same of its epsilon, if nothing but choices is asked."""


def sensitivity(quantile: float, relation: Relation) -> float:
    """Return how far a user moves a score."""
    return 1.0 if relation == "replace_one" else max(quantile, 1.0 - quantile)


def scores(shares: Vector, quantile: float, shift: float) -> Vector:
    """Return (G,) scores of intervals, from the sums (G,) of users' shares of samples in them."""
    after = np.cumsum(shares)
    rank = quantile * float(after[-1]) + shift
    return -np.maximum(0.0, np.maximum(after - shares - rank, rank - after))


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
