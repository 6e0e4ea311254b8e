"""Plans of the localised robust SGD from public facts, and the bound on their excess risk.

The bound is made of textbook parts, for a phase of T steps of size eta on batches of B users whose average gradients
deviate by v per coordinate and start within squared distance R of the optimum: ``R / (2 eta T)`` for the optimisation
(or the contraction of a strongly convex loss, if smaller), ``eta d v^2 / B`` for sampling, and the smaller of ``beta d
sigma^2 / 2`` and ``G d sigma`` for the noise of the last release. A later phase starts at squared distance d sigma^2,
the noise of the phase before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategies.core.row_rounds import AnyTest
from strategies.localized.phases import Phase
from strategies.robust.passing import AgreementOptions, guaranteed_score
from userdp.accounting import Cost
from userdp.estimators import Estimator, Kernel
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Certificate


@dataclass(frozen=True)
class LocalizedSetting:
    """The fixed inputs of the search: public facts, the budget, options; None leaves an option to the search."""

    users: int  # n
    samples: int  # m, fewest of a user
    dimension: int  # d
    user_deviation: float  # v, of one coordinate of a user's average gradient (utility only)
    certificate: Certificate
    domain_radius: float  # D
    epsilon: float
    delta: float
    failure: float  # probability with which an honest run may fail a test
    options: AgreementOptions  # of the estimate
    kernel: str
    test: str
    phase_base: float  # factor by which the step size shrinks from phase to phase
    threshold: str = "exact"  # of the test, with the paper's constants; or "printed"
    radius: float | None = None
    batch: int | None = None
    phases: int | None = None
    learning_rate: float | None = None

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
    score = guaranteed_score(
        setting.kernel, radius / setting.user_deviation, batch, setting.dimension, sum(steps), setting.failure / 2
    )
    passing = math.prod(test.pass_probability(max(score, 1.0), count) for test, count in zip(tests, steps, strict=True))
    return LocalizedPlan(
        batch=batch,
        estimator=estimator,
        kernel=kernel,
        phases=tuple(chain),
        cost=cost,
        predicted_risk=risk + noise,
        pass_probability=passing * (1 - setting.failure / 2),
    )
