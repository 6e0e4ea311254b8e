"""Numbers of the localised robust SGD, from public facts alone.

The search is over phases, steps a phase, step size and the split of the budget between test and release. What it
minimises is a bound on the excess risk made of textbook parts, for a phase of T steps of size eta on batches of B users
whose average gradients deviate by v per coordinate and start within squared distance R of where they go:

    R / (2 eta T)                        optimisation (or the contraction of a strongly convex loss, if smaller)
  + eta d v^2 / B                        sampling
  + beta d sigma^2 / 2, or G d sigma     the noise of the last release, whichever is smaller

A later phase starts at squared distance d sigma^2, the noise of the phase before it. A linear loss has one phase, and
is projected onto the domain only when it is released: its gradient is the same everywhere, and a longer step drowns the
noise of the release in travelled distance.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from strategies.localized.phases import Phase
from strategies.robust.passing import (
    KERNELS,
    TESTS,
    EstimateShape,
    certified_ratio,
    guaranteed_score,
    needed_ratio,
    needed_score,
)
from userdp.accounting import Cost, calibrate_noise
from userdp.estimators import MINIMUM_BATCH, Estimator, Kernel
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Certificate

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
"""Shares of epsilon that the search tries for the test."""

COMPARISONS = 5e9
"""Coordinate comparisons that the scores of a whole run may take: a few seconds. Large batches of users that agree
only barely would take hours; they get a radius at which the ramp score is certified in linear time instead."""


@dataclass(frozen=True)
class LocalizedSetting:
    """What the search may not change: public facts, the budget, and what options fix.

    Attributes:
        users: n.
        samples: m, fewest of a user.
        dimension: d.
        user_deviation: v, standard deviation of one coordinate of one user's average gradient (utility only).
        certificate: of the loss.
        domain_radius: D.
        epsilon: of the run.
        delta: of the run.
        failure: probability with which an honest run may fail a test.
        shape: of the estimate.
        kernel, test: by name.
        phase_base: factor by which the step size shrinks from phase to phase.
        radius, batch, phases, learning_rate: fixed by the user, or None.
    """

    users: int
    samples: int
    dimension: int
    user_deviation: float
    certificate: Certificate
    domain_radius: float
    epsilon: float
    delta: float
    failure: float
    shape: EstimateShape
    kernel: str
    test: str
    phase_base: float
    radius: float | None = None
    batch: int | None = None
    phases: int | None = None
    learning_rate: float | None = None

    @property
    def smoothness(self) -> float:
        """beta, zero for linear losses and where nothing is certified."""
        return self.certificate.smoothness or 0.0

    @property
    def gradient_bound(self) -> float:
        """G, or the deviation where nothing is certified."""
        return self.certificate.lipschitz or self.user_deviation


@dataclass(frozen=True)
class LocalizedPlan:
    """The outcome of the search.

    Attributes:
        batch: B, users a step.
        estimator: with its radius rho.
        kernel: with the same radius.
        phases: in order.
        cost: of one user's one participation.
        predicted_risk: the bound that was minimised.
        pass_probability: bound on passing all tests, if the declared deviation is true.
    """

    batch: int
    estimator: Estimator
    kernel: Kernel
    phases: tuple[Phase, ...]
    cost: Cost
    predicted_risk: float
    pass_probability: float


def phase_users(users: int, phases: int) -> list[int]:
    """n/2, n/4, ... users a phase; the last takes what is left."""
    sizes = [users >> (phase + 1) for phase in range(phases - 1)]
    return [*sizes, users - sum(sizes)]


def phase_risk(
    setting: LocalizedSetting, start: float, steps: int, batch: int, learning_rate: float, deviation: float
) -> tuple[float, float]:
    """(risk gained by a phase without its noise, risk of its noise) for squared start distance ``start``."""
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


def theory_radius(setting: LocalizedSetting, batch: int, steps: int, score: float) -> float | None:
    """The smallest rho at which honest users are sure of ``score`` and scores can be computed in time; None if none."""
    failure = setting.failure / 2
    ratio = needed_ratio(setting.kernel, batch, setting.dimension, steps, failure, score)
    if ratio is None:
        return None
    if setting.batch is None and batch**2 / 2 * setting.dimension * steps > COMPARISONS:
        if setting.kernel != "ramp":
            return None
        ratio = max(ratio, certified_ratio(batch, setting.dimension, steps, failure))
    return ratio * setting.user_deviation


def search(setting: LocalizedSetting) -> LocalizedPlan | None:
    """The plan with the smallest predicted risk; None when no batch of these users can pass its tests."""
    best: LocalizedPlan | None = None
    for phases in phase_counts(setting):
        smallest = min(phase_users(setting.users, phases))
        batches = [setting.batch] if setting.batch else [smallest >> k for k in range(12)]
        for batch in (batch for batch in batches if MINIMUM_BATCH <= batch <= smallest):
            for share in SHARES:
                for learning_rate in learning_rates(setting):
                    plan = build(setting, batch, phases, learning_rate, share, calibrated=False)
                    if plan is not None and (best is None or plan.predicted_risk < best.predicted_risk):
                        best, choice = plan, (batch, phases, learning_rate, share)
    return build(setting, *choice) if best is not None else None


def phase_counts(setting: LocalizedSetting) -> list[int]:
    """Numbers of phases that the search tries."""
    if setting.phases is not None:
        return [setting.phases]
    return [1, 2, 3] if setting.smoothness else [1]


def learning_rates(setting: LocalizedSetting) -> list[float]:
    """Step sizes of the first phase that the search tries."""
    if setting.learning_rate is not None:
        return [setting.learning_rate]
    if setting.smoothness > 0:
        return [2.0**-k / setting.smoothness for k in range(7)]
    # A linear loss has no natural step: this one leaves the domain from gradients a millionth of their bound.
    return [1e6 * setting.domain_radius / setting.gradient_bound]


def build(
    setting: LocalizedSetting,
    batch: int,
    phases: int,
    learning_rate: float,
    share: float,
    *,
    sizes: list[int] | None = None,
    calibrated: bool = True,
) -> LocalizedPlan | None:
    """The plan for given numbers, or None if its tests cannot be passed, or its batch is too small for the estimate.

    Args:
        setting: what is given.
        batch: B.
        phases: S.
        learning_rate: of the first phase.
        share: of epsilon (and half of delta) that goes to the test.
        sizes: users of each phase; `phase_users` by default.
        calibrated: compose test and release exactly; otherwise by addition, which never needs less noise.
    """
    if batch < setting.shape.minimum_batch:
        return None
    epsilon, delta = share * setting.epsilon, setting.delta / 2
    steps = [size // batch for size in sizes or phase_users(setting.users, phases)]
    rates = [learning_rate / setting.phase_base**phase for phase in range(phases)]
    # Everything scales with rho: sensitivities and movements are computed at rho = 1.
    unit = setting.shape.estimator(batch, 1.0).sup_sensitivity(batch)
    movements = [
        2 * setting.smoothness * rate * unit if count > 1 else 0.0 for rate, count in zip(rates, steps, strict=True)
    ]
    scores = [
        needed_score(setting.test, setting.kernel, batch, movement, epsilon, delta, count, setting.failure / 2 / phases)
        for movement, count in zip(movements, steps, strict=True)
    ]
    passable = [score for score in scores if score is not None]
    if len(passable) < phases:
        return None
    radius = setting.radius or theory_radius(setting, batch, sum(steps), max(passable))
    if radius is None:
        return None
    if calibrated:
        multiplier = calibrate_noise(setting.epsilon, setting.delta, 1, pure_epsilon=epsilon, failure_delta=delta)
    else:
        multiplier = calibrate_noise(setting.epsilon - epsilon, setting.delta - delta, 1)
    kernel, estimator = KERNELS[setting.kernel](radius), setting.shape.estimator(batch, radius)
    chosen = partial(TESTS[setting.test], batch=batch, kernel=kernel, epsilon=epsilon, delta=delta)
    tests = [chosen(movement=movement * radius) for movement in movements]
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
        cost=Cost(noise_multiplier=multiplier, pure_epsilon=epsilon, failure_delta=delta),
        predicted_risk=risk + noise,
        pass_probability=passing * (1 - setting.failure / 2),
    )
