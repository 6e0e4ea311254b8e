"""Plans of the localised robust SGD from public facts, searched or with the paper's constants, and their refusals.

The search is over phases, steps a phase, step size and the split of the budget between test and release. It minimises a
bound on the excess risk made of textbook parts, for a phase of T steps of size eta on batches of B users whose average
gradients deviate by v per coordinate and start within squared distance R of the optimum: ``R / (2 eta T)`` for the
optimisation (or the contraction of a strongly convex loss, if smaller), ``eta d v^2 / B`` for sampling, and the smaller
of ``beta d sigma^2 / 2`` and ``G d sigma`` for the noise of the last release.

A later phase starts at squared distance d sigma^2, the noise of the phase before it. A linear loss has one phase, and
is projected onto the domain only when it is released: its gradient is the same everywhere, and a longer step drowns the
release's noise.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from strategies.localized.phases import Phase
from strategies.robust.passing import (
    KERNELS,
    TESTS,
    AgreementOptions,
    certified_ratio,
    guaranteed_score,
    needed_ratio,
    needed_score,
)
from userdp.accounting import Cost, calibrate_noise
from userdp.errors import PopulationTooSmall
from userdp.estimators import MINIMUM_BATCH, Estimator, Kernel
from userdp.mechanisms import GaussianMechanism
from userdp.mechanisms.concentration_tests import smallest_passing
from userdp.problems.base import Certificate

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)  # The shares of epsilon that the search tries for the test

COMPARISONS = 5e9
"""The most coordinate comparisons for the scores of a whole run: a few seconds.

Large batches of users that barely agree would take hours; they get a radius with a ramp score in linear time.
"""

_MOST_USERS = 10**9


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
    """The result of the search."""

    batch: int  # B, users a step
    estimator: Estimator  # with its radius rho
    kernel: Kernel  # with the same radius
    phases: tuple[Phase, ...]
    cost: Cost  # of one user's one participation
    predicted_risk: float  # the minimised bound
    pass_probability: float  # bound on passing all tests, if the declared deviation is true


def phase_users(users: int, phases: int) -> list[int]:
    """Return n/2, n/4, ... users a phase; the last phase gets the rest."""
    sizes = [users >> (phase + 1) for phase in range(phases - 1)]
    return [*sizes, users - sum(sizes)]


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


def theory_radius(setting: LocalizedSetting, batch: int, steps: int, score: float) -> float | None:
    """Return the smallest rho at which honest users reach ``score`` and scores take little time; None if none."""
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
    """Return the plan with the smallest predicted risk; None when no batch of these users can pass its tests."""
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
    """Return the numbers of phases that the search tries."""
    if setting.phases is not None:
        return [setting.phases]
    return [1, 2, 3] if setting.smoothness else [1]


def learning_rates(setting: LocalizedSetting) -> list[float]:
    """Return the step sizes of the first phase that the search tries."""
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
    """Return the plan for given numbers; None if its tests cannot be passed, or its batch is too small.

    ``learning_rate`` is that of the first phase, and ``share`` that of epsilon (and half of delta) for the test.
    ``sizes`` are the users of each phase, by default `phase_users`. If ``calibrated``, test and release compose
    exactly; otherwise by addition, which never needs less noise.
    """
    if batch < setting.options.minimum_batch:
        return None
    epsilon, delta = share * setting.epsilon, setting.delta / 2
    steps = [size // batch for size in sizes or phase_users(setting.users, phases)]
    rates = [learning_rate / setting.phase_base**phase for phase in range(phases)]
    # Everything scales with rho: sensitivities and movements are computed at rho = 1.
    unit = setting.options.estimator(batch, 1.0).sup_sensitivity(batch)
    beta = setting.smoothness
    movements = [2 * beta * rate * unit if count > 1 else 0.0 for rate, count in zip(rates, steps, strict=True)]
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
    kernel, estimator = KERNELS[setting.kernel](radius), setting.options.estimator(batch, radius)
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


def paper_plan(setting: LocalizedSetting) -> LocalizedPlan:
    """Return the plan with the paper's constants (Ghazi et al. 2025, Theorem 3.1) and private tests.

    Raises `PopulationTooSmall` if the paper's batches cannot be filled, or cannot pass a test.
    """
    n, d, m, epsilon = setting.users, setting.dimension, setting.samples, setting.epsilon
    batch = _batch(setting, n)
    if n < 2 * batch:
        raise PopulationTooSmall(
            f"data.users = {n}: the paper's constants need two batches of {batch} users at least; "
            f"bring {paper_users(setting)} users, or use strategy.constants = 'calibrated'"
        )
    phases = setting.phases or int(math.log2(n / batch))
    if n >> phases < batch:
        raise PopulationTooSmall(
            f"strategy.phases = {phases}: the last phase would have {n >> phases} of data.users = {n}, fewer than "
            f"a batch of {batch}; use at most {int(math.log2(n / batch))} phases, or bring {batch << phases} users"
        )
    bound, log_size = setting.gradient_bound, math.log(n * m * d)
    radius = setting.radius or bound * math.log(n * m * d / setting.failure) / math.sqrt(m)
    step = min(batch * math.sqrt(m / n), math.sqrt(m) * epsilon / math.sqrt(d * math.log(1 / setting.delta) * log_size))
    rate = setting.domain_radius / bound * step
    if setting.smoothness:
        # The proof's condition on the step, with the score's full sensitivity: later scores move by less than 2.
        rate = min(rate, 2 / setting.smoothness, 1 / (6 * setting.smoothness * batch))
    rate = setting.learning_rate or rate
    sizes = [n >> (phase + 1) for phase in range(phases)]
    plan = build(replace(setting, radius=radius), batch, phases, rate, 0.5, sizes=sizes)
    if plan is None:
        raise PopulationTooSmall(
            f"data.users = {n}: batches of {batch} users (the paper's size) cannot pass a private test; "
            "use strategy.constants = 'calibrated', a larger strategy.batch or a smaller strategy.learning_rate"
        )
    return plan


def paper_users(setting: LocalizedSetting) -> int:
    """Return the fewest users that make two of the paper's batches, which grow with the logarithm of the users."""
    users = 2 * _batch(setting, 1)
    while users < 2 * _batch(setting, users):
        users = 2 * _batch(setting, users)
    return users


def _batch(setting: LocalizedSetting, users: int) -> int:
    size = users * setting.samples * setting.dimension
    return setting.batch or math.ceil(100 * math.log(size / setting.delta) / setting.epsilon)


def refusal(setting: LocalizedSetting) -> str:
    """Return which number of the setting, for which `search` found no plan, has to change, and to what."""
    tests = f"{setting.kernel} + {setting.test}"
    budget = f"at epsilon = {setting.epsilon:g}, delta = {setting.delta:g}"
    needed = fewest_users(setting)
    if needed is not None and needed > setting.users:
        return (
            f"data.users = {setting.users}: too few for {tests} {budget}: these settings take {needed} users. Bring "
            "more users, raise privacy.epsilon, use kernel = 'ramp' with test = 'min_score', or use dp_fed_sgd"
        )
    enough = enough_batch(setting)
    advice = "use dp_fed_sgd" if enough is None else f"use strategy.batch = {enough}"
    if setting.batch is not None:
        return (
            f"strategy.batch = {setting.batch}: honest users would not pass the tests of {tests} {budget}: {advice}, "
            "leave strategy.batch out, or raise privacy.epsilon"
        )
    return (
        f"data.users = {setting.users}: no batch of a size whose scores can be computed in time passes the tests of "
        f"{tests} {budget}: use kernel = 'ramp', or {advice}"
    )


def fewest_users(setting: LocalizedSetting) -> int | None:
    """Return the fewest users, instead of the setting's own, with which `search` finds a plan; None if none."""
    least = (setting.batch or MINIMUM_BATCH) << ((setting.phases or 1) - 1)
    most = least if setting.batch else _MOST_USERS  # more users than a batch takes would only add steps
    users = smallest_passing(partial(_passes, setting), least, most)
    return users if users <= most else None


def enough_batch(setting: LocalizedSetting) -> int | None:
    """Return a larger batch, instead of the setting's own, with which these users have a plan; None if there is none.

    By bisection: it is the smallest such batch where passing grows with the batch.
    """
    low = (setting.batch or MINIMUM_BATCH) - 1
    high = min(phase_users(setting.users, min(phase_counts(setting))))
    if high <= low or not _passes(replace(setting, batch=high), setting.users):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        passes = _passes(replace(setting, batch=middle), setting.users)
        low, high = (low, middle) if passes else (middle, high)
    return high


def _passes(setting: LocalizedSetting, users: int) -> bool:
    """Return whether these users can pass the easiest test, in some number of phases.

    That is in one step, at the largest share of the budget and the smallest step size: a setting that fails there fails
    in every plan that `search` would try.
    """
    setting, rate = replace(setting, users=users), min(learning_rates(setting))
    for phases in phase_counts(setting):
        largest = min(phase_users(users, phases))
        batch = setting.batch or largest
        if MINIMUM_BATCH <= batch <= largest and build(setting, batch, phases, rate, SHARES[-1], calibrated=False):
            return True
    return False
