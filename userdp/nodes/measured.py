"""Metrics with intervals from noisy answers of held-out users (`userdp.nodes.answers`).

With K means m over t users, noise of standard deviation s on each, and C the covariance of users, a metric f(m) has the
variance ``g^T (s^2 I + C / t) g`` to first order, g the gradient of f: noise and the choice of users are independent.

*Ranking.* With F and H the shares of class 0 and 1 below a score, the area under the curve is ``A(F, H) = int F dH``.
For rough F', H' known before, ``int F' dH + int (1 - H') dF - A(F', H') = A(F, H) - int (F - F') d(H - H')``, because
A is bilinear. The first two are means over users, so noise enters a sum of three numbers, not of a histogram; the
error of the rough ones counts to second order alone. (One-step estimation, as in debiased machine learning.)
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from userdp.arrays.types import Array, Vector
from userdp.nodes.answers import Measures
from userdp.nodes.moments import symmetric

NORMAL_95 = 1.959963984540054  # quantile of the normal distribution for intervals of 95 %
_TOLD_APART = 3.0  # a share of a class is known if it exceeds so many standard deviations of its noise


@dataclass(frozen=True)
class Estimate:
    """A metric of a released model over the users that the held-out ones stand for; each user counts alike."""

    value: float
    standard_error: float  # of noise and of the choice of held-out users together
    least: float = -math.inf  # bounds of the true value
    most: float = math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that holds the true value with probability 95 %, within its bounds."""
        reach = NORMAL_95 * self.standard_error
        ends = np.clip([self.value - reach, self.value + reach], self.least, self.most)
        return float(ends[0]), float(ends[1])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"value": self.value, "standard_error": self.standard_error, "interval": list(self.interval)}


@dataclass(frozen=True, eq=False)
class Histogram:
    """Rough shares of two classes below each end of k + 1 intervals of the score: ``below`` (2, k + 2), from 0 to 1."""

    below: Array

    @classmethod
    def of(cls, counts: Vector) -> Self:
        """Make them from noisy sums (2 (k + 1),) of `userdp.nodes.answers.score_shares`; negative ones are zero."""
        shares = np.maximum(counts.reshape(2, -1), 1e-9)
        shares /= shares.sum(axis=1, keepdims=True)
        return cls(np.hstack([np.zeros((2, 1)), np.minimum(np.cumsum(shares, axis=1), 1.0)]))

    @property
    def area(self) -> float:
        """The area under the curve of these shares, linear within intervals."""
        return float(np.trapezoid(*self.below))


def estimates(
    what: Measures,
    released: Vector,
    deviation: float,
    users: int,
    limit: float,
    weight: float,
    ranking: Histogram | None,
    constant: bool,
) -> dict[str, Estimate]:
    """Return the metrics that follow from the answers, name -> estimate.

    Args:
        what: the measures that were asked for.
        released: noisy means of `userdp.nodes.answers.answers` over users.
        deviation: the standard deviation of the noise on each of them.
        users: t, the number of held-out users.
        limit: largest average loss of a user that counts.
        weight: of the products of means.
        ranking: the rough shares from which a ranking was asked; None for no ranking.
        constant: whether the model compared with predicts the same of everybody; else it is the initial one.

    Returns:
        The loss; "r2" or "deviance_explained" against a constant, or "initial_loss_removed", the same against the
        initial model; "accuracy"; "predicted_minus_observed"; "auc". A ratio is left out if its denominator drowns in
        noise.
    """
    centred, means = released[: what.means], released[: what.means] + 0.5
    spread = symmetric(released[what.means :]) / weight - np.outer(centred, centred)
    values, directions = np.linalg.eigh(spread)
    spread = (directions * np.maximum(values, 0.0)) @ directions.T
    covariance = deviation**2 * np.eye(what.means) + spread / users

    def estimate(value: float, slopes: dict[int, float], *within: float) -> Estimate:
        gradient = np.zeros(what.means)
        gradient[list(slopes)] = list(slopes.values())
        return Estimate(float(value), math.sqrt(float(gradient @ covariance @ gradient)), *within)

    found = {what.loss: estimate(means[0] * limit, {0: limit}, 0.0, limit)}
    if means[1] > _TOLD_APART * deviation:
        slopes = {0: -1 / means[1], 1: means[0] / means[1] ** 2}
        explained = "r2" if what.loss == "squared_error" else "deviance_explained"
        found[explained if constant else "initial_loss_removed"] = estimate(
            1 - means[0] / means[1], slopes, -math.inf, 1.0
        )
    place = 2
    if what.accuracy:
        found["accuracy"], place = estimate(means[place], {place: 1.0}, 0.0, 1.0), place + 1
    if what.difference is not None:
        width = 2 * what.difference
        found["predicted_minus_observed"] = estimate(width * (means[place] - 0.5), {place: width})
        place += 1
    if ranking is not None:
        below, above, ones = means[place : place + 3]
        if min(ones, 1 - ones) > _TOLD_APART * deviation:
            value = below / ones + above / (1 - ones) - ranking.area
            slope = above / (1 - ones) ** 2 - below / ones**2
            slopes = {place: 1 / ones, place + 1: 1 / (1 - ones), place + 2: slope}
            found["auc"] = estimate(value, slopes, 0.0, 1.0)
    return found
