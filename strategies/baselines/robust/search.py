"""The search for the plan of the localised robust SGD with the least bound on its excess risk, and its refusals.

The search is over phases, steps per phase, step size and the split of the budget between test and release. A linear
loss has one phase, and is projected onto the domain only when it is released: its gradient is the same everywhere, and
a longer step drowns the release's noise.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from strategies.baselines.robust.plans import LocalizedPlan, LocalizedSetting, assembled, movements
from strategies.robust import KERNELS, TESTS, needed_ratio, needed_score
from userdp.accounting import Cost, calibrate_noise
from userdp.estimators import MINIMUM_BATCH
from userdp.mechanisms import smallest_passing

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)  # The shares of epsilon that the search tries for the test

COMPARISONS = 5e9
"""Coordinate comparisons for all scores of a run beyond which ramp scores get a radius at which they take linear time.

They take some ten seconds. No plan is refused for more: scores are computed in tiles, in bounded memory.
"""

_MOST_USERS = 10**9
_USUAL_STEPS, _ALL_STEPS = 7, 27
"""The step sizes that the search tries are halves of each other: the usual ones, and shorter ones while these help.

The shortest is 1.5e-8 of the longest; the paper's own is longer than that from epsilon = 0.01 on.
"""


def phase_users(users: int, phases: int) -> list[int]:
    """Return n/2, n/4, ... users per phase; the last phase gets the rest."""
    sizes = [users >> (phase + 1) for phase in range(phases - 1)]
    return [*sizes, users - sum(sizes)]


def theory_radius(setting: LocalizedSetting, batch: int, steps: int, score: float) -> float | None:
    """Return the smallest rho at which honest users reach ``score`` (ramp scores: in linear time); None if none."""
    failure = setting.options.failure / 2
    ratio = needed_ratio(setting.options.kernel, batch, setting.dimension, steps, failure, score)
    if ratio is None:
        return None
    many = batch**2 / 2 * setting.dimension * steps > COMPARISONS
    if many and setting.options.kernel == "ramp" and setting.options.batch is None:
        ratio = max(ratio, certified_ratio(batch, setting.dimension, steps, failure))
    return ratio * setting.user_deviation


def certified_ratio(batch: int, dimension: int, steps: int, failure: float) -> float:
    """Return the rho / v that puts every user within rho / 4 of the batch's median: ramp scores take linear time.

    A union bound over users and coordinates, with 5% to spare for the median's own distance from the mean.
    """
    return 4.2 * math.sqrt(2 * math.log(2 * dimension * batch * steps / failure))


def search(setting: LocalizedSetting) -> LocalizedPlan | None:
    """Return the plan with the smallest predicted risk; None when no batch of these users can pass its tests."""
    best: LocalizedPlan | None = None
    for phases in phase_counts(setting):
        smallest = min(phase_users(setting.users, phases))
        batches = [setting.options.batch] if setting.options.batch else [smallest >> k for k in range(12)]
        for batch in (batch for batch in batches if MINIMUM_BATCH <= batch <= smallest):
            for share in SHARES:
                for learning_rate, plan in _by_step(setting, batch, phases, share):
                    if best is None or plan.predicted_risk < best.predicted_risk:
                        best, choice = plan, (batch, phases, learning_rate, share)
    return build(setting, *choice) if best is not None else None


def _by_step(setting: LocalizedSetting, batch: int, phases: int, share: float) -> Iterator[tuple[float, LocalizedPlan]]:
    """Yield (step size, plan) from the longest step on: the usual ones, then shorter ones while risk falls."""
    least = math.inf
    for place, learning_rate in enumerate(learning_rates(setting)):
        plan = build(setting, batch, phases, learning_rate, share, calibrated=False)
        if plan is None:
            continue
        yield learning_rate, plan
        if place >= _USUAL_STEPS and plan.predicted_risk >= least:
            return
        least = min(least, plan.predicted_risk)


def phase_counts(setting: LocalizedSetting) -> list[int]:
    """Return the numbers of phases that the search tries."""
    if setting.options.phases is not None:
        return [setting.options.phases]
    return [1, 2, 3] if setting.smoothness else [1]


def learning_rates(setting: LocalizedSetting) -> list[float]:
    """Return the step sizes of the first phase that the search tries."""
    if setting.options.learning_rate is not None:
        return [setting.options.learning_rate]
    if setting.smoothness > 0:
        return [2.0**-k / setting.smoothness for k in range(_ALL_STEPS)]
    # A linear loss has no natural step: this one leaves the domain from gradients a millionth of their bound.
    return [1e6 * setting.domain_radius / setting.gradient_bound]


def build(
    setting: LocalizedSetting,
    batch: int,
    phases: int,
    learning_rate: float,
    share: float,
    *,
    calibrated: bool = True,
) -> LocalizedPlan | None:
    """Return the plan for given numbers; None if its tests cannot be passed, or its batch is too small.

    ``learning_rate`` is that of the first phase, and ``share`` that of epsilon (and half of delta) for the test. If
    ``calibrated``, test and release compose exactly; otherwise by addition, which never needs less noise.
    """
    if batch < setting.options.minimum_batch:
        return None
    epsilon, delta = share * setting.epsilon, setting.delta / 2
    steps = [size // batch for size in phase_users(setting.users, phases)]
    rates = [learning_rate / setting.phase_base**phase for phase in range(phases)]
    moved = movements(setting, batch, rates, steps)
    options = setting.options
    failure = options.failure / 2 / phases
    scores = [
        needed_score(options.test, options.kernel, batch, movement, epsilon, delta, count, failure)
        for movement, count in zip(moved, steps, strict=True)
    ]
    passable = [score for score in scores if score is not None]
    if len(passable) < phases:
        return None
    radius = setting.options.radius or theory_radius(setting, batch, sum(steps), max(passable))
    if radius is None:
        return None
    if calibrated:
        multiplier = calibrate_noise(setting.epsilon, setting.delta, 1, pure_epsilon=epsilon, failure_delta=delta)
    else:
        multiplier = calibrate_noise(setting.epsilon - epsilon, setting.delta - delta, 1)
    kernel = KERNELS[setting.options.kernel](radius)
    chosen = partial(TESTS[setting.options.test], batch=batch, kernel=kernel, epsilon=epsilon, delta=delta)
    tests = [chosen(movement=movement * radius) for movement in moved]
    cost = Cost(noise_multiplier=multiplier, pure_epsilon=epsilon, failure_delta=delta)
    return assembled(setting, tests, rates, steps, kernel, cost)


def refusal(setting: LocalizedSetting) -> str:
    """Return which number of the setting, for which `search` found no plan, has to change, and to what."""
    tests = f"{setting.options.kernel} + {setting.options.test}"
    budget = f"at epsilon = {setting.epsilon:g}, delta = {setting.delta:g}"
    needed = fewest_users(setting)
    if needed is not None and needed > setting.users:
        return (
            f"data.users = {setting.users}: too few for {tests} {budget}: these settings take {needed} users. Bring "
            "more users, raise privacy.epsilon, use kernel = 'ramp' with test = 'min_score', or use dp_fed_sgd"
        )
    if setting.options.batch is None:
        return (
            f"data.users = {setting.users}: no number of users would pass the tests of {tests} {budget}: lower "
            "strategy.learning_rate, use kernel = 'ramp' with test = 'min_score', or use dp_fed_sgd"
        )
    enough = enough_batch(setting)
    advice = "use dp_fed_sgd" if enough is None else f"use strategy.batch = {enough}"
    return (
        f"strategy.batch = {setting.options.batch}: honest users would not pass the tests of {tests} {budget}: "
        f"{advice}, leave strategy.batch out, or raise privacy.epsilon"
    )


def fewest_users(setting: LocalizedSetting) -> int | None:
    """Return the fewest users, instead of the setting's own, with which `search` finds a plan; None if none."""
    least = (setting.options.batch or MINIMUM_BATCH) << ((setting.options.phases or 1) - 1)
    most = least if setting.options.batch else _MOST_USERS  # more users than a batch takes would only add steps
    users = smallest_passing(partial(_passes, setting), least, most)
    return users if users <= most else None


def enough_batch(setting: LocalizedSetting) -> int | None:
    """Return a larger batch, instead of the setting's own, with which these users have a plan; None if there is none.

    By bisection: it is the smallest such batch where passing grows with the batch.
    """
    low = (setting.options.batch or MINIMUM_BATCH) - 1
    high = min(phase_users(setting.users, min(phase_counts(setting))))
    if high <= low or not _passes(setting.with_batch(high), setting.users):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        passes = _passes(setting.with_batch(middle), setting.users)
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
        batch = setting.options.batch or largest
        if MINIMUM_BATCH <= batch <= largest and build(setting, batch, phases, rate, SHARES[-1], calibrated=False):
            return True
    return False
