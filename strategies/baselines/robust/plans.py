"""Plans of the localised robust SGD from public facts, and the bound on their excess risk.

The bound is made of textbook parts, for a phase of T steps of size eta on batches of B users whose average gradients
deviate by v per coordinate and start within squared distance R of the optimum: ``R / (2 eta T)`` for the optimisation
(or the contraction of a strongly convex loss, if smaller), ``eta d v^2 / B`` for sampling, and the smaller of ``beta d
sigma^2 / 2`` and ``G d sigma`` for the noise of the last release. A later phase starts at squared distance d sigma^2,
the noise of the phase before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field

from strategies.localized import Phase
from strategies.robust import AgreementOptions, AnyTest, guaranteed_score
from userdp.accounting import Cost
from userdp.estimators import MINIMUM_BATCH, Estimator, Kernel
from userdp.mechanisms import GaussianMechanism
from userdp.problems import Certificate


class LocalizedOptions(AgreementOptions):
    """Settings of plans; None leaves one to the search."""

    test: Literal["above_threshold", "min_score"] = "min_score"
    """above_threshold can stop early; min_score needs about a quarter of the users."""
    constants: Literal["paper", "calibrated"] = "calibrated"
    """paper: the paper's batch, steps, phases and radius; calibrated: searched for the least risk."""
    threshold: Literal["exact", "printed"] = "exact"
    """exact: the least private one; printed: the paper's, with its constants, where that is private."""
    batch: int | None = Field(None, ge=MINIMUM_BATCH, description="Users a step; searched if not given.")
    phases: int | None = Field(None, ge=1, le=64, description="Releases; searched if not given.")
    learning_rate: float | None = Field(None, gt=0, description="Step size of the first phase; searched if not given.")
    phase_base: float | None = Field(
        None, gt=1, description="Factor between step sizes; default max(ln m, 4), the paper's ln m."
    )


@dataclass(frozen=True)
class LocalizedSetting:
    """The fixed inputs of the search: public facts, the budget, and the options."""

    users: int  # n
    samples: int  # m, fewest of a user
    dimension: int  # d
    user_deviation: float  # v, of one coordinate of a user's average gradient (utility only)
    certificate: Certificate
    domain_radius: float  # D
    epsilon: float
    delta: float
    options: LocalizedOptions
    phase_base: float  # factor by which the step size shrinks from phase to phase

    def with_batch(self, batch: int) -> "LocalizedSetting":
        """Return the setting with so many users a step."""
        return replace(self, options=self.options.model_copy(update={"batch": batch}))

    @property
    def smoothness(self) -> float:
        """The smoothness beta, zero for linear losses and without a certificate."""
        return self.certificate.smoothness or 0.0

    @property
    def gradient_bound(self) -> float:
        """The bound G, or the deviation without a certificate."""
        return self.certificate.lipschitz or self.user_deviation


@dataclass(frozen=True)
class LocalizedPlan:
    """The phases of a run, with what is predicted of them."""

    batch: int  # B, users per step
    estimator: Estimator  # with its radius rho
    kernel: Kernel  # with the same radius
    phases: tuple[Phase, ...]
    cost: Cost  # of one user's one participation
    predicted_risk: float  # the bound of `phase_risk` on all phases
    pass_probability: float  # bound on passing all tests, if the declared deviation is true


def phase_risk(
    setting: LocalizedSetting, start: float, steps: int, batch: int, learning_rate: float, deviation: float
) -> tuple[float, float]:
    """Return (risk gained by a phase without its noise, risk of its noise) for squared start distance ``start``."""
    c, d = setting.certificate, setting.dimension
    beta = setting.smoothness
    if beta == 0:
        # The average iterate is a multiple of the mean gradient g plus noise; projected, it errs where noise flips a
        # sign. Of all g, the worst loses max_z 2 z Phi(-z) = 0.34 of the noise in g, times the domain's radius.
        travel = learning_rate * (steps + 1) / 2
        spread = math.hypot(deviation / travel, setting.user_deviation / math.sqrt(batch * steps))
        return start / (2 * travel), 0.34 * d * math.sqrt(start / d) * spread
    optimisation = start / (2 * learning_rate * steps)
    if c.strong_convexity > 0 and learning_rate * beta <= 1:
        shrink = (1 - learning_rate * c.strong_convexity) ** (2 * np.arange(1, steps + 1))
        optimisation = min(optimisation, beta / 2 * start * float(shrink.mean()))
    sampling = learning_rate * d * setting.user_deviation**2 / batch
    linear = setting.gradient_bound * d * deviation * math.sqrt(2 / math.pi)
    return optimisation + sampling, min(linear, beta * d * deviation**2 / 2)


def movements(setting: LocalizedSetting, batch: int, rates: Sequence[float], steps: Sequence[int]) -> list[float]:
    """Return how far distances of later users' gradients move if one user is replaced, by phase, in units of rho."""
    unit = setting.options.estimator(batch, 1.0).sup_sensitivity(batch)
    beta = setting.smoothness
    return [2 * beta * rate * unit if count > 1 else 0.0 for rate, count in zip(rates, steps, strict=True)]


def assembled(
    setting: LocalizedSetting,
    tests: Sequence[AnyTest],
    rates: Sequence[float],
    steps: Sequence[int],
    kernel: Kernel,
    cost: Cost,
) -> LocalizedPlan:
    """Return the plan of phases with these tests, step sizes and numbers of steps, for users who agree as ``kernel``.

    ``cost`` is that of a test and a release; its noise multiplier is for the latter.
    """
    batch, radius = tests[0].batch, kernel.radius
    # Everything scales with rho: the sensitivity is computed at rho = 1.
    unit = setting.options.estimator(batch, 1.0).sup_sensitivity(batch)
    multiplier, estimator = cost.noise_multiplier, setting.options.estimator(batch, radius)
    chain, start, risk, noise = [], setting.dimension * setting.domain_radius**2, 0.0, 0.0
    for rate, count, test in zip(rates, steps, tests, strict=True):
        mechanism = GaussianMechanism(math.sqrt(setting.dimension) * rate * unit * radius, multiplier)
        chain.append(Phase(steps=count, learning_rate=rate, gradient=estimator, mechanism=mechanism, test=test))
        gained, noise = phase_risk(setting, start, count, batch, rate, mechanism.standard_deviation)
        # Later phases start from the released model: what the first phase did not reach stays in the sum.
        risk += gained
        start = setting.dimension * mechanism.standard_deviation**2
    failure, ratio = setting.options.failure / 2, radius / setting.user_deviation
    score = guaranteed_score(setting.options.kernel, ratio, batch, setting.dimension, sum(steps), failure)
    passing = math.prod(test.pass_probability(max(score, 1.0), count) for test, count in zip(tests, steps, strict=True))
    return LocalizedPlan(
        batch=batch,
        estimator=estimator,
        kernel=kernel,
        phases=tuple(chain),
        cost=cost,
        predicted_risk=risk + noise,
        pass_probability=passing * (1 - failure),
    )
