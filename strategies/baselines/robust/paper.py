"""The plan with the paper's constants (Ghazi, Kumar, Liu, Manurangsi 2025), its conditions, and our corrections.

As printed (Theorem 3.1, the lemma on localization, Algorithms 1 and 5), with n users of m samples, d columns, a
gradient bound G, a smoothness beta and a box of radius D: batches of ``B = 100 log(mnd / delta) / epsilon`` users;
phases ``s = 1, ..., S = ceil(log(n / B))``, here of base 2, of ``n / 2^s`` users, with steps ``eta (log m)^-s`` and
``eta = (D / G) min(B sqrt(m / n), sqrt(m) epsilon / sqrt(d log(1 / delta) log(nmd)))``; a radius of ``G log(nmd /
omega) / sqrt(m)``, ``omega = (nmd)^-3``; half of epsilon and of delta for the test (B.7; the ``delta / (2Tmnd)`` that
Algorithm 1 hands on is not used), whose Laplace noises have the scales 2 and 4 over its epsilon.

Where ``n / 2^S`` is less than a batch, which it is unless n / B is a power of two, the last phase has no step in print.
Here it takes one whole batch: ``n / 2^(S - 1) >= B`` users are left.
"""

import math
from collections.abc import Mapping
from functools import partial

from strategies import Number
from strategies.baselines.robust.plans import LocalizedPlan, LocalizedSetting, assembled, movements
from strategies.robust import KERNELS, TESTS
from userdp.accounting import Cost, calibrate_noise
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import smallest_trim

CONDITIONS: Mapping[str, str] = {
    "condition_budget": "Theorem 3.1, for its rate: epsilon <= O(1), here 1",
    "condition_n": "Theorem 3.1, for its rate: n >= log(nd / delta)^2 / epsilon",
    "condition_m": "Theorem 3.1, for its rate: m <= n^O(log log n), here n^(log log n)",
    "condition_beta": "Theorem 3.1, for its rate: beta <= (G / D) (sqrt(n) epsilon / (sqrt(m) log(nmd / delta)) + "
    "sqrt(d log(1 / delta) log(nmd)) / (sqrt(m) epsilon))",
    "condition_batch": "Theorem 3.1, for its rate: B >= 100 log(mnd / delta) / epsilon",
    "condition_step": "lemma on query sensitivity: 6 beta eta B <= 1; the test's noise covers more",
    "condition_log_m": "B.9, for the rate: sums of steps shrink if log m > 2",
}
"""Plan numbers that say whether a condition of the paper holds; privacy is proven without them."""

CORRECTIONS: Mapping[str, str] = {
    "correction_radius": "1 / tau, where the print has tau (B.8)",
    "correction_eta": "eta, and what Theorem 3.1 has, which asks neither 6 beta eta B <= 1 (lemma on query "
    "sensitivity) nor eta <= 2 / beta (lemma on contractivity)",
    "correction_trim": "users that the trimmed mean drops at each end: Assumption 3.2 (i) holds from a third on",
    "correction_test": "what test noise is for: Algorithm 4 is for queries that move by 1 (Lemma A.3), a score moves "
    "by up to 2 (equation (4))",
    "correction_noise": "noise over the proven l2 sensitivity of a phase, exact: sigma_s in print lacks a root of "
    "log(nmd), has an open constant, and Proposition A.2 is for epsilon < 1",
    "correction_start": "a phase starts at the released model, projected on the box: gradients elsewhere are not "
    "bounded",
    "correction_last_phase": "users of the last phase, and those in print, n / 2^S, less than a batch",
}
"""Plan numbers that say where the plan is not the print, and why; privacy needs each, the last one is for T > 0."""

PRINTED = "0.9 B + 2 log(T / delta) / epsilon of the first phase: the threshold with strategy.threshold = 'printed'"


def paper_plan(setting: LocalizedSetting) -> LocalizedPlan:
    """Return the plan with the paper's constants and private tests.

    Raises `PopulationTooSmall` if the paper's batches cannot be filled, or cannot pass a test, and `BadInput` if steps
    would not shrink, or the printed threshold is not private.
    """
    n, batch, base = setting.users, _batch(setting, setting.users), setting.phase_base
    if base <= 1:
        raise BadInput(
            f"strategy.constants = 'paper': its steps are divided by log m = {base:.3g} a phase, m = {setting.samples} "
            "samples of the user with fewest: set strategy.phase_base above 1, or bring at least 3 samples per user"
        )
    phases = _phases(setting, batch)
    sizes = [n >> phase for phase in range(1, phases + 1)]
    steps = [max(1, size // batch) for size in sizes]
    first = setting.options.learning_rate or eta(setting, batch) / base
    rates = [first / base**phase for phase in range(phases)]
    epsilon, delta = setting.epsilon / 2, setting.delta / 2
    kernel = KERNELS[setting.options.kernel](setting.options.radius or _radius(setting))
    shape = {"equal": True} if setting.options.test == "above_threshold" else {}
    chosen = partial(TESTS[setting.options.test], batch=batch, kernel=kernel, epsilon=epsilon, delta=delta, **shape)
    tests = []
    for moved, count in zip(movements(setting, batch, rates, steps), steps, strict=True):
        test = chosen(movement=moved * kernel.radius)
        if setting.options.threshold == "printed":
            printed = printed_threshold(setting, batch, count)
            if printed < test.least_threshold:
                raise BadInput(
                    f"strategy.threshold = 'printed': {printed:,.1f} of {batch} is below {test.least_threshold:,.1f}, "
                    f"so users who disagree could pass with a probability above {delta:.3g}; "
                    "use threshold = 'exact', or a larger strategy.batch"
                )
            test = chosen(movement=moved * kernel.radius, raised=printed)
        if test.pass_probability(batch, count) < 1 - setting.options.failure / 2 / phases:
            raise PopulationTooSmall(
                f"data.users = {n}: batches of {batch} users cannot pass a private test, whose threshold is "
                f"{test.threshold:,.1f}; use strategy.constants = 'calibrated', a larger strategy.batch or a smaller "
                "strategy.learning_rate"
            )
        tests.append(test)
    multiplier = calibrate_noise(setting.epsilon, setting.delta, 1, pure_epsilon=epsilon, failure_delta=delta)
    cost = Cost(noise_multiplier=multiplier, pure_epsilon=epsilon, failure_delta=delta)
    return assembled(setting, tests, rates, steps, kernel, cost)


def eta(setting: LocalizedSetting, batch: int) -> float:
    """Return eta, of which phase s steps ``eta (log m)^-s``, within the conditions of two lemmas."""
    printed = printed_eta(setting, batch)
    if setting.smoothness == 0:
        return printed
    return min(printed, 2 / setting.smoothness, 1 / (6 * setting.smoothness * batch))


def printed_eta(setting: LocalizedSetting, batch: int) -> float:
    """Return Theorem 3.1's eta."""
    n, d, m = setting.users, setting.dimension, setting.samples
    private = math.sqrt(m) * setting.epsilon / math.sqrt(d * math.log(1 / setting.delta) * _log_size(setting))
    return setting.domain_radius / setting.gradient_bound * min(batch * math.sqrt(m / n), private)


def printed_threshold(setting: LocalizedSetting, batch: int, steps: int) -> float:
    """Return Theorem 3.1's upsilon for a phase of so many steps."""
    return 0.9 * batch + 2 * math.log(steps / setting.delta) / setting.epsilon


def paper_users(setting: LocalizedSetting) -> int:
    """Return the fewest users that make two of the paper's batches, which grow with the logarithm of the users."""
    users = 2 * _batch(setting, 1)
    while users < 2 * _batch(setting, users):
        users = 2 * _batch(setting, users)
    return users


def paper_numbers(setting: LocalizedSetting, plan: LocalizedPlan) -> dict[str, Number]:
    """Return the conditions of the paper, held or by how much not, our corrections, and the printed threshold."""
    return {**_conditions(setting, plan), **_corrections(setting, plan)}


def _conditions(setting: LocalizedSetting, plan: LocalizedPlan) -> dict[str, Number]:
    n, m, d, epsilon, delta = setting.users, setting.samples, setting.dimension, setting.epsilon, setting.delta
    beta, size, root = setting.smoothness, _log_size(setting), math.sqrt(m)
    steepness = setting.gradient_bound / setting.domain_radius
    by_noise = math.sqrt(d * math.log(1 / delta) * size) / (root * epsilon)
    longest = plan.phases[0].learning_rate * setting.phase_base
    return {
        "condition_budget": _at_most(epsilon, 1.0),
        "condition_n": _at_least(n, math.log(n * d / delta) ** 2 / epsilon),
        "condition_m": _at_most(m, n ** math.log(math.log(n))),
        "condition_beta": _at_most(
            beta, steepness * (math.sqrt(n) * epsilon / (root * (size + math.log(1 / delta))) + by_noise)
        ),
        "condition_batch": _at_least(plan.batch, 100 * (size + math.log(1 / delta)) / epsilon),
        "condition_step": _at_most(6 * beta * longest * plan.batch, 1.0),
        "condition_log_m": _at_least(math.log(m), 2.0),
    }


def _corrections(setting: LocalizedSetting, plan: LocalizedPlan) -> dict[str, Number]:
    batch, phases = plan.batch, len(plan.phases)
    test = plan.phases[0].test
    assert test is not None
    numbers: dict[str, Number] = {"correction_radius": plan.kernel.radius}
    printed, used = printed_eta(setting, batch), eta(setting, batch)
    if setting.options.learning_rate is None and used < printed:
        numbers["correction_eta"] = f"{used:.3g} for {printed:.3g}"
    if setting.options.statistic == "trimmed_mean" and setting.options.trim is None:
        numbers["correction_trim"] = smallest_trim(batch)
    numbers["correction_test"] = f"{test.sensitivity:.4g} for 1"
    numbers["correction_noise"] = plan.cost.noise_multiplier
    numbers["correction_start"] = "projected"
    if setting.users >> phases < batch:
        numbers["correction_last_phase"] = f"{_told(batch)} for {_told(setting.users >> phases)}"
    numbers["printed_threshold"] = printed_threshold(setting, batch, plan.phases[0].steps)
    return numbers


def _phases(setting: LocalizedSetting, batch: int) -> int:
    """Return S, or the given number of phases. Raises `PopulationTooSmall` where batches cannot be filled."""
    n, phases = setting.users, setting.options.phases
    if n < 2 * batch:
        raise PopulationTooSmall(
            f"data.users = {n}: the paper's constants need two batches of {batch} users at least; "
            f"bring {paper_users(setting)} users, or use strategy.constants = 'calibrated'"
        )
    printed = math.ceil(math.log2(n / batch))
    if phases is not None and phases > printed:
        raise PopulationTooSmall(
            f"strategy.phases = {phases}: the last phase would have {n >> phases} of data.users = {n}, "
            f"and batches of {batch} take {printed} phases at most; use at most {printed}, or bring "
            f"{batch << phases} users"
        )
    return phases or printed


def _batch(setting: LocalizedSetting, users: int) -> int:
    size = users * setting.samples * setting.dimension
    return setting.options.batch or math.ceil(100 * math.log(size / setting.delta) / setting.epsilon)


def _radius(setting: LocalizedSetting) -> float:
    return setting.gradient_bound * 4 * _log_size(setting) / math.sqrt(setting.samples)  # log(nmd / omega), omega above


def _log_size(setting: LocalizedSetting) -> float:
    return math.log(setting.users * setting.samples * setting.dimension)


def _at_least(value: float, bound: float) -> str:
    if value >= bound:
        return f"held: {_told(value)} >= {_told(bound)}"
    return f"not held: {_told(value)}, too small by a factor of {bound / value:.3g}"


def _at_most(value: float, bound: float) -> str:
    if value <= bound * (1 + 1e-12):
        return f"held: {_told(value)} <= {_told(bound)}"
    return f"not held: {_told(value)}, too large by a factor of {value / bound:.3g}"


def _told(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= value < 1e9 else f"{value:.4g}"
