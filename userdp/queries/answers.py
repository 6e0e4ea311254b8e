"""Answers with intervals from noisy sums of users' shares.

With sums S of users' rows r_u, noise of standard deviation s on each entry, and public vectors a and b, the ratio
``theta = a.S / b.S`` has, to first order, the error ``c.(noise + sum_u (r_u - E r)) / b.S`` with ``c = a - theta b``.
Noise is independent of the choice of users, and ``E c.r = 0``. So its variance is ``(s^2 |c|^2 + n E (c.r)^2) /
(b.S)^2``. A row is an average of *atoms*: one bin, or Bernstein polynomials of one number. For one atom (c.r)^2 is
linear in r, and by Jensen's inequality an average has no larger square: ``n E (c.r)^2 <= q.S``, equal where each
user is one atom. So intervals hold for each user's share of anything, and are wider than needed where users' shares
differ less than those of single samples would.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import ndtri

from userdp.arrays.types import Array, Vector
from userdp.queries.votes import bernstein

NORMAL_95 = float(ndtri(0.975))
NARROW = 0.01  # Standard deviation of people's numbers over the width of their range, which may well be smaller
TOLD_APART = 3.0  # A denominator is known if it exceeds so many standard deviations of its noise

REMEDY = "declare narrower data.ranges (userdp find proposes them), ask for less beside it, or raise privacy.epsilon"
"""The remedy for an answer that noise hides."""


@dataclass(frozen=True)
class Answer:
    """One number of a query's answer."""

    statistic: str
    column: str | None
    level: str | None  # level, bin, quantile or other column that the number is about; None for none
    estimate: float  # NaN if a denominator drowns in noise
    standard_error: float  # of noise, and for all but counts of the choice of users
    low: float  # the interval that holds the true value with probability 95 %, within the declared bounds
    high: float
    unit: str
    where: str | None = None  # the samples that it is about; None for all

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Estimated:
    """An estimate and its standard error."""

    value: float
    error: float

    def scaled(self, factor: float, shift: float = 0.0) -> "Estimated":
        """Return the estimate in other units."""
        return Estimated(self.value * factor + shift, self.error * abs(factor))

    def interval(self, least: float, most: float) -> tuple[float, float, float]:
        """Return estimate, low and high end, within public bounds; all of them if nothing is known."""
        if not math.isfinite(self.value):
            return math.nan, least, most
        reach = NORMAL_95 * self.error
        value, low, high = (min(max(one, least), most) for one in (self.value, self.value - reach, self.value + reach))
        return value, low, high


UNKNOWN = Estimated(math.nan, math.inf)


@dataclass(frozen=True)
class Sums:
    """Noisy sums of one statistic's rows, by post-processing of what was released.

    Attributes:
        values: (K,) the sums.
        deviation: standard deviation of the noise on each entry before the projection.
        whole: the public sum of all entries without noise, n where each user's entries add up to 1; None if unknown.
    """

    values: Vector
    deviation: float
    whole: float | None

    @classmethod
    def of(cls, noisy: Vector, deviation: float, whole: float | None) -> "Sums":
        """Project noisy sums to the plane of the known total, which takes off the noise along its normal."""
        surplus = 0.0 if whole is None or not len(noisy) else (float(noisy.sum()) - whole) / len(noisy)
        return cls(noisy - surplus, deviation, whole)

    def noise(self, c: Vector) -> float:
        """Return the variance of the noise in ``c.values``."""
        along = 0.0 if self.whole is None else float(c.sum()) ** 2 / len(c)
        return self.deviation**2 * max(float(c @ c) - along, 0.0)

    def least(self, bottom: Vector) -> float:
        """Return what a denominator has to exceed to stand out of its noise."""
        return max(TOLD_APART * math.sqrt(self.noise(bottom)), 1e-9)

    def known(self, bottom: Vector) -> bool:
        """Return whether a denominator stands out of its noise."""
        return float(bottom @ self.values) > self.least(bottom)

    def total(self, c: Vector) -> Estimated:
        """Return the estimate of ``c.S``, about this table alone."""
        return Estimated(float(c @ self.values), math.sqrt(self.noise(c)))

    def error(self, c: Vector, square: Vector, bottom: Vector) -> float:
        """Return the standard error of an average of ``c.r`` over the users whose number is ``bottom.S``."""
        spread = max(float(square @ self.values), 0.0)
        return math.sqrt(self.noise(c) + spread) / float(bottom @ self.values)

    def ratio(self, top: Vector, bottom: Vector, squared: Callable[[Vector], Vector]) -> Estimated:
        """Return the estimate of ``top.S / bottom.S``; ``squared`` gives q of c."""
        if not self.known(bottom):
            return UNKNOWN
        value = float(top @ self.values) / float(bottom @ self.values)
        c = top - value * bottom
        return Estimated(value, self.error(c, squared(c), bottom))


@cache
def _evaluation(degree: int) -> tuple[Array, Array]:
    """Return the Bernstein polynomials at degree + 1 points (points, polynomials), and the inverse matrix."""
    at = bernstein(np.linspace(0.0, 1.0, degree + 1), degree)
    return at, np.linalg.inv(at).astype(np.float64)


def squared_polynomial(c: Vector) -> Vector:
    """Return the coefficients of the square of a polynomial, at most half as high, among as many Bernstein ones."""
    at, back = _evaluation(len(c) - 1)
    return np.asarray(back @ (at @ c) ** 2)


def mean_of(sums: Sums, places: slice) -> Estimated:
    """Return the mean of users' numbers in [0, 1], from sums of `bernstein` of degree 2 at these places."""
    top, bottom = np.zeros((2, len(sums.values)))
    top[places], bottom[places] = [0.0, 0.5, 1.0], 1.0

    def squared(c: Vector) -> Vector:
        square = np.zeros(len(c))
        square[places] = squared_polynomial(c[places])
        return square

    return sums.ratio(top, bottom, squared)


def mean_and_variance(sums: Sums, degree: int) -> tuple[Estimated, Estimated]:
    """Return those of users' numbers in [0, 1], from sums of `bernstein` of the given degree, at least 4.

    Further entries of the sums are of users without a number.
    """
    k, zero = np.arange(degree + 1), np.zeros(len(sums.values) - degree - 1)
    first, second = np.append(k / degree, zero), np.append(k * (k - 1) / (degree * (degree - 1)), zero)
    ones = np.append(np.ones(degree + 1), zero)

    def squared(c: Vector) -> Vector:
        return np.append(squared_polynomial(c[: degree + 1]), zero)

    mean = sums.ratio(first, ones, squared)
    if not math.isfinite(mean.value):
        return UNKNOWN, UNKNOWN
    square = float(second @ sums.values) / float(ones @ sums.values)
    # The square of a noisy mean is too large by its variance.
    variance = square - mean.value**2 + mean.error**2
    c = (second - square * ones) - 2 * mean.value * (first - mean.value * ones)
    return mean, Estimated(variance, sums.error(c, squared(c), ones))


def least_variance(deviation: float) -> float:
    """Return the variance of cells near an end of [-1, 1] that `correlations` tells from noise on means of products.

    A variance ``q - m^2`` of cells with mean m and mean square q moves with the noises of the number of users, of m and
    of q by ``2 m^2 - q``, ``2 m`` and 1: by ``sqrt(6)`` deviations at ``q = m^2 = 1``, and by one about zero.
    """
    return TOLD_APART * math.sqrt(6.0) * deviation


def hidden_correlations(of: list[str], deviation: float) -> Iterator[str]:
    """Warn of correlations of these columns that noise of that deviation on means of products hides in usual tables."""
    least = math.sqrt(least_variance(deviation)) / 2  # over the width of a range, which is 2
    if least > NARROW:
        yield (
            f"correlation of {' and '.join(of)}: noise hides it unless people's numbers in each column have a standard "
            f"deviation of about {100 * least:.2g} % of its range, if they lie near an end of that: {REMEDY}"
        )


def correlations(values: Array, deviation: float) -> Array:
    """Return (2, k, k): correlations of k columns and their standard errors; NaN where a variance drowns in noise.

    ``values`` (k + 1, k + 1) are sums of products of (1, cells), with noise of this standard deviation on each entry of
    the upper triangle, mirrored. The choice of users counts as for normal columns, ``(1 - rho^2)^2 / n``.
    """
    k = len(values) - 1
    found = np.full((2, k, k), np.nan)
    if values[0, 0] <= TOLD_APART * deviation:
        return found
    means = values / values[0, 0]
    # Directions of the noise: a unit of the triangle moves its entry and the mirror of it.
    slope = np.zeros((k + 1, k + 1, k + 1, k + 1))
    for i in range(k + 1):
        for j in range(i, k + 1):
            slope[i, j, i, j] = slope[i, j, j, i] = 1.0
    slope = (slope - slope[:, :, :1, :1] * means) / values[0, 0]
    covariance = means[1:, 1:] - np.outer(means[0, 1:], means[0, 1:])
    moved = slope[:, :, 1:, 1:] - slope[:, :, :1, 1:] * means[0, 1:, None] - slope[:, :, 1:, :1] * means[0, 1:]
    variances, changes = np.diagonal(covariance), np.diagonal(moved, axis1=2, axis2=3)
    errors = deviation * np.sqrt((changes**2).sum(axis=(0, 1)))
    for i in range(k):
        for j in range(k):
            if min(variances[[i, j]] / errors[[i, j]]) <= TOLD_APART if deviation else min(variances[[i, j]]) <= 0:
                continue
            size = math.sqrt(variances[i] * variances[j])
            rho = covariance[i, j] / size
            along = changes[:, :, i] / variances[i] + changes[:, :, j] / variances[j]
            noise = deviation**2 * float(((moved[:, :, i, j] / size - rho / 2 * along) ** 2).sum())
            held = min(max(rho, -1.0), 1.0)
            found[:, i, j] = rho, math.sqrt(noise + (1 - held**2) ** 2 / values[0, 0])
    return found
