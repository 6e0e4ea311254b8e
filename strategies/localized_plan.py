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
from functools import lru_cache

import numpy as np
from scipy.special import erfc

from userdp.accounting import Cost, calibrate_noise
from userdp.estimators import MINIMUM_BATCH, Debiased, Estimator, ExpKernel, Kernel, RampKernel, Winsorized
from userdp.mechanisms import AboveThreshold, ConcentrationTest, MinimumScore
from userdp.problems.base import Certificate

TESTS: dict[str, type[AboveThreshold] | type[MinimumScore]] = {
    "above_threshold": AboveThreshold,
    "min_score": MinimumScore,
}
KERNELS: dict[str, type[ExpKernel] | type[RampKernel]] = {"exp": ExpKernel, "ramp": RampKernel}
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
"""Shares of epsilon that the search tries for the test."""

COMPARISONS = 5e9
"""Coordinate comparisons that the scores of a whole run may take: a few seconds. Large batches of users that agree
only barely would take hours; they get a radius at which the ramp score is certified in linear time instead."""


def make_estimator(estimate: str, statistic: str, radius: float) -> Estimator:
    """The estimate by name, at its default width."""
    if estimate == "winsorized":
        return Winsorized(radius=radius)
    return Debiased(statistic="median" if statistic == "median" else "trimmed_mean", radius=radius)


@dataclass(frozen=True)
class Setting:
    """What the search may not change.

    Attributes:
        users: n.
        dimension: d.
        user_deviation: v, standard deviation of one coordinate of one user's average gradient (utility only).
        certificate: of the loss.
        domain_radius: D.
        epsilon: of the run.
        delta: of the run.
        failure: probability with which an honest run may fail a test.
        statistic, estimate, kernel, test: the variant.
        radius: fixed by the user, or None.
        batch: fixed by the user, or None.
        phases: fixed by the user, or None.
        learning_rate: fixed by the user, or None.
    """

    users: int
    dimension: int
    user_deviation: float
    certificate: Certificate
    domain_radius: float
    epsilon: float
    delta: float
    failure: float
    statistic: str
    estimate: str
    kernel: str
    test: str
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
class Phase:
    """One phase: ``steps`` batches, then one test and one release.

    Attributes:
        steps: T.
        learning_rate: eta.
        test: the concentration test, calibrated for these steps.
        l2_sensitivity: of the average iterate.
        deviation: sigma, the standard deviation of the released noise per coordinate.
    """

    steps: int
    learning_rate: float
    test: ConcentrationTest
    l2_sensitivity: float
    deviation: float


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


def expected_kernel(kernel: str, ratio: float, dimension: int) -> float:
    """Lower bound on E phi(||q - q'||_inf / rho) for two users whose coordinates are sub-Gaussian.

    Args:
        kernel: "exp" or "ramp".
        ratio: rho / v.
        dimension: d.

    With tail P(||q - q'||_inf > u) <= min(1, d erfc(u / 2v)), integrated against the kernel's slope.
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
    """A score that all ``steps`` batches reach with probability ``1 - failure`` if users are sub-Gaussian.

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
    """Smallest rho / v at which the guaranteed score reaches ``score``; None if none does."""
    low, high = 0.0, 4096.0
    if guaranteed_score(kernel, high, batch, dimension, steps, failure) < score:
        return None
    for _ in range(30):
        middle = (low + high) / 2
        if guaranteed_score(kernel, middle, batch, dimension, steps, failure) >= score:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=4096)
def needed_score(
    test: str, kernel: str, batch: int, movement: float, epsilon: float, delta: float, steps: int, failure: float
) -> float | None:
    """Smallest constant score that passes ``steps`` queries with probability ``1 - failure``; None beyond B.

    ``movement`` is in units of rho: the test does not depend on rho itself.
    """
    chosen = TESTS[test](batch=batch, kernel=KERNELS[kernel](1.0), movement=movement, epsilon=epsilon, delta=delta)
    if chosen.threshold > batch or chosen.pass_probability(float(batch), steps) < 1 - failure:
        return None
    low, high = chosen.threshold, float(batch)
    for _ in range(20):
        middle = (low + high) / 2
        if chosen.pass_probability(middle, steps) >= 1 - failure:
            high = middle
        else:
            low = middle
    return high


def certified_ratio(batch: int, dimension: int, steps: int, failure: float) -> float:
    """The rho / v at which every user lies within rho / 4 of the batch's median, so the ramp score takes linear time.

    A union bound over users and coordinates, with 5% to spare for the median's own distance from the mean.
    """
    return 4.2 * math.sqrt(2 * math.log(2 * dimension * batch * steps / failure))


def phase_users(users: int, phases: int) -> list[int]:
    """n/2, n/4, ... users a phase; the last takes what is left."""
    sizes = [users >> (phase + 1) for phase in range(phases - 1)]
    return [*sizes, users - sum(sizes)]


def phase_risk(
    setting: Setting, start: float, steps: int, batch: int, learning_rate: float, deviation: float
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


def search(setting: Setting, phase_base: float) -> LocalizedPlan | None:
    """The plan with the smallest predicted risk; None when no batch of these users can pass its tests.

    Args:
        setting: what is given.
        phase_base: factor by which the step size shrinks from phase to phase.
    """
    best: LocalizedPlan | None = None
    for phases in phase_counts(setting):
        smallest = min(phase_users(setting.users, phases))
        batches = [setting.batch] if setting.batch else [smallest >> k for k in range(12)]
        for batch in (batch for batch in batches if MINIMUM_BATCH <= batch <= smallest):
            for share in SHARES:
                for learning_rate in learning_rates(setting):
                    plan = build(setting, batch, phases, phase_base, learning_rate, share, calibrated=False)
                    if plan is not None and (best is None or plan.predicted_risk < best.predicted_risk):
                        best, choice = plan, (batch, phases, phase_base, learning_rate, share)
    return build(setting, *choice) if best is not None else None


def phase_counts(setting: Setting) -> list[int]:
    """Numbers of phases that the search tries."""
    if setting.phases is not None:
        return [setting.phases]
    return [1, 2, 3] if setting.smoothness else [1]


def learning_rates(setting: Setting) -> list[float]:
    """Step sizes of the first phase that the search tries."""
    if setting.learning_rate is not None:
        return [setting.learning_rate]
    if setting.smoothness > 0:
        return [2.0**-k / setting.smoothness for k in range(7)]
    # A linear loss has no natural step: this one leaves the domain from gradients a millionth of their bound.
    return [1e6 * setting.domain_radius / setting.gradient_bound]


def build(
    setting: Setting,
    batch: int,
    phases: int,
    phase_base: float,
    learning_rate: float,
    share: float,
    *,
    sizes: list[int] | None = None,
    calibrated: bool = True,
) -> LocalizedPlan | None:
    """The plan for given numbers, or None if its tests cannot be passed.

    Args:
        setting: what is given.
        batch: B.
        phases: S.
        phase_base: the step size of phase s is ``learning_rate / phase_base**s``.
        learning_rate: of the first phase.
        share: of epsilon (and half of delta) that goes to the test.
        sizes: users of each phase; `phase_users` by default.
        calibrated: compose test and release exactly; otherwise by addition, which never needs less noise.
    """
    epsilon, delta = share * setting.epsilon, setting.delta / 2
    steps = [size // batch for size in sizes or phase_users(setting.users, phases)]
    rates = [learning_rate / phase_base**phase for phase in range(phases)]
    if setting.smoothness and rates[0] > 2 / setting.smoothness:
        return None
    # Everything scales with rho: sensitivities and movements are computed at rho = 1.
    unit = make_estimator(setting.estimate, setting.statistic, 1.0).sup_sensitivity(batch)
    movements = [
        2 * setting.smoothness * rate * unit if count > 1 else 0.0 for rate, count in zip(rates, steps, strict=True)
    ]
    scores = [
        needed_score(setting.test, setting.kernel, batch, movement, epsilon, delta, count, setting.failure / 2 / phases)
        for movement, count in zip(movements, steps, strict=True)
    ]
    if any(score is None for score in scores):
        return None
    radius = setting.radius
    if radius is None:
        worst = max(score for score in scores if score is not None)
        ratio = needed_ratio(setting.kernel, batch, setting.dimension, sum(steps), setting.failure / 2, worst)
        if ratio is None:
            return None
        if setting.batch is None and batch**2 / 2 * setting.dimension * sum(steps) > COMPARISONS:
            if setting.kernel != "ramp":
                return None
            ratio = max(ratio, certified_ratio(batch, setting.dimension, sum(steps), setting.failure / 2))
        radius = ratio * setting.user_deviation
    if calibrated:
        multiplier = calibrate_noise(setting.epsilon, setting.delta, 1, test_epsilon=epsilon, test_delta=delta)
    else:
        multiplier = calibrate_noise(setting.epsilon - epsilon, setting.delta - delta, 1)
    kernel = KERNELS[setting.kernel](radius)
    chain, start, risk, noise = [], setting.dimension * setting.domain_radius**2, 0.0, 0.0
    for rate, count, movement in zip(rates, steps, movements, strict=True):
        sensitivity = math.sqrt(setting.dimension) * rate * unit * radius
        deviation = multiplier * sensitivity
        test = TESTS[setting.test](batch=batch, kernel=kernel, movement=movement * radius, epsilon=epsilon, delta=delta)
        chain.append(Phase(count, rate, test, sensitivity, deviation))
        gained, noise = phase_risk(setting, start, count, batch, rate, deviation)
        # Later phases start from the released model: what the first phase did not reach stays in the sum.
        risk += gained
        start = setting.dimension * deviation**2
    score = guaranteed_score(
        setting.kernel, radius / setting.user_deviation, batch, setting.dimension, sum(steps), setting.failure / 2
    )
    passing = math.prod(phase.test.pass_probability(max(score, 1.0), phase.steps) for phase in chain)
    return LocalizedPlan(
        batch=batch,
        estimator=make_estimator(setting.estimate, setting.statistic, radius),
        kernel=kernel,
        phases=tuple(chain),
        cost=Cost(noise_multiplier=multiplier, test_epsilon=epsilon, test_delta=delta),
        predicted_risk=risk + noise,
        pass_probability=passing * (1 - setting.failure / 2),
    )
