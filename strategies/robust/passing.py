"""Scores that honest users reach in a concentration test, and the radius at which they do, from public facts.

Users' gradients are taken as sub-Gaussian with a declared deviation v a coordinate. Accuracy depends on that
declaration, privacy never does.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.special import erfc

from strategies.core.options import StrategyOptions
from strategies.robust.row_rounds import AnyTest
from userdp.errors import BadInput
from userdp.estimators import MINIMUM_BATCH, Debiased, Estimator, ExpKernel, RampKernel, Winsorized
from userdp.estimators.robust import REACH, smallest_trim
from userdp.mechanisms import AboveThreshold, MinimumScore

TESTS: dict[str, type[AnyTest]] = {"above_threshold": AboveThreshold, "min_score": MinimumScore}
KERNELS: dict[str, type[ExpKernel] | type[RampKernel]] = {"exp": ExpKernel, "ramp": RampKernel}


class DeviationOptions(StrategyOptions):
    """Settings of how far users' gradients are expected to deviate."""

    deviation: float | None = Field(None, gt=0)
    """Per-sample standard deviation of a gradient coordinate (utility only); default G."""
    heterogeneity: float = Field(0.0, ge=0, description="Standard deviation of users' mean gradients (utility only).")

    def user_deviation(self, per_sample: float, samples: int) -> float:
        """Return v of the average over ``samples`` samples that each deviate by ``per_sample``."""
        return math.hypot(self.heterogeneity, per_sample / math.sqrt(samples))


class AgreementOptions(DeviationOptions):
    """Settings of how agreement is measured, and of the estimate from users that agree."""

    statistic: Literal["median", "trimmed_mean"] = Field("trimmed_mean", description="Robust centre of a batch.")
    estimate: Literal["debiased", "winsorized"] = "winsorized"
    """debiased: the paper's clip of the mean; winsorized: mean of clipped users, far less noise."""
    trim: float | None = None
    """Share of a batch that the trimmed mean drops at each end, above 1/3; the least if not given."""
    width: float | None = None
    """Largest distance of the mean, or a user, from the robust centre, in radii; default 1 (debiased) or 2."""
    kernel: Literal["exp", "ramp"] = Field("ramp", description="How agreement of two users falls with their distance.")
    radius: float | None = Field(None, gt=0)
    """rho, sup-norm radius within which users' gradients agree; from theory if not given."""
    failure: float = Field(0.01, gt=0, lt=1, description="Probability with which honest users may fail the tests.")

    def check_estimate(self) -> None:
        """Refuse an estimate without a proof.

        Raises `BadInput` if the winsorised estimate about the median, a trim of a third or less, or of a half or more,
        one of the median, or a width for which rounding has no bound.
        """
        if self.estimate == "winsorized" and self.statistic == "median":
            raise BadInput(
                "strategy.statistic = 'median': the winsorised estimate is proven for the trimmed mean; "
                "use statistic = 'trimmed_mean', or estimate = 'debiased'"
            )
        if self.trim is not None and self.statistic == "median":
            raise BadInput(
                f"strategy.trim = {self.trim:g}: the median drops all but the middle; leave strategy.trim out, or use "
                "statistic = 'trimmed_mean'"
            )
        if self.trim is not None and not 1 / 3 < self.trim < 1 / 2:
            raise BadInput(
                f"strategy.trim = {self.trim:g}: must lie above 1/3, because up to a third of a batch that passes its "
                "test may lie anywhere, and below 1/2, so that users are left; leave it out for the least proven trim"
            )
        if self.width is not None and not 1 / REACH <= self.width <= REACH:
            raise BadInput(
                f"strategy.width = {self.width:g}: must be a positive number of radii, between {1 / REACH:.0e} and "
                f"{REACH:.0e}; 1 to 2 suit users that agree"
            )

    @property
    def minimum_batch(self) -> int:
        """The fewest users of whom the trim leaves some: rounded, it is at most half a user above its share."""
        return MINIMUM_BATCH if self.trim is None else max(MINIMUM_BATCH, math.ceil(2 / (1 - 2 * self.trim)))

    def estimator(self, batch: int, radius: float) -> Estimator:
        """Return the estimator for batches of that size, from `minimum_batch` on."""
        trim = None if self.trim is None else max(smallest_trim(batch), round(self.trim * batch))
        width = None if self.width is None else self.width * radius
        if self.estimate == "winsorized":
            return Winsorized(radius, width, trim)
        return Debiased(self.statistic, radius, width, trim)


def expected_kernel(kernel: str, ratio: float, dimension: int) -> float:
    """Return a lower bound on E phi(||q - q'||_inf / rho) for two sub-Gaussian users; ``ratio`` is rho / v.

    The tail P(||q - q'||_inf > u) <= min(1, d erfc(u / 2v)) is integrated against the kernel's slope.
    """
    if kernel == "ramp":
        u = np.linspace(0.5, 1.0, 129)
        slope = np.full_like(u, 2.0)
    else:
        u = np.linspace(0.0, 30.0, 3001)
        slope = np.exp(-u)
    tail = np.minimum(1.0, dimension * erfc(u * ratio / 2))
    return float(1.0 - np.trapezoid(slope * tail, u))


def guaranteed_score(kernel: str, ratio: float, batch: int, dimension: int, steps: int, failure: float) -> float:
    """Return a score that all ``steps`` batches reach with probability ``1 - failure`` if users are sub-Gaussian.

    The better of two bounds: every pair within rho/2 (union bound; ramp kernel only), and the mean score less
    McDiarmid's deviation (replacing one user moves the score by less than 2).
    """
    typical = batch * expected_kernel(kernel, ratio, dimension) - math.sqrt(2 * batch * math.log(steps / failure))
    if kernel == "ramp":
        pairs = batch * (batch - 1) / 2 * steps * dimension
        if pairs * erfc(ratio / 4) <= failure:
            return float(batch)
    return typical


@lru_cache(maxsize=4096)
def needed_ratio(kernel: str, batch: int, dimension: int, steps: int, failure: float, score: float) -> float | None:
    """Return the smallest rho / v at which the guaranteed score reaches ``score``; None if none does."""

    def reaches(ratio: float) -> bool:
        return guaranteed_score(kernel, ratio, batch, dimension, steps, failure) >= score

    return _smallest(reaches, 0.0, 4096.0, halvings=30) if reaches(4096.0) else None


@lru_cache(maxsize=4096)
def needed_score(
    test: str, kernel: str, batch: int, movement: float, epsilon: float, delta: float, steps: int, failure: float
) -> float | None:
    """Return the smallest constant score that passes ``steps`` queries with probability ``1 - failure``; None beyond B.

    ``movement`` is in units of rho: the test does not depend on rho itself.
    """
    chosen = TESTS[test](batch=batch, kernel=KERNELS[kernel](1.0), movement=movement, epsilon=epsilon, delta=delta)

    def passes(score: float) -> bool:
        return chosen.pass_probability(score, steps) >= 1 - failure

    if chosen.threshold > batch or not passes(float(batch)):
        return None
    return _smallest(passes, chosen.threshold, float(batch), halvings=20)


def _smallest(passes: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high
