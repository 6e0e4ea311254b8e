"""Localised robust SGD with the constants of the paper (Ghazi et al. 2025, Theorem 3.1) and tests that are private."""

import math
from dataclasses import replace

from strategies.localized.search import LocalizedPlan, LocalizedSetting, build
from userdp.errors import PopulationTooSmall


def paper_plan(setting: LocalizedSetting) -> LocalizedPlan:
    """The paper's batch, radius, step and phases.

    Raises:
        PopulationTooSmall: the paper's batches cannot be filled, or cannot pass a test.
    """
    n, d, m, epsilon = setting.users, setting.dimension, setting.samples, setting.epsilon
    batch = _batch(setting, n)
    if n < 2 * batch:
        raise PopulationTooSmall(
            f"data.users = {n}: the paper's constants take batches of {batch} users and two batches at least; "
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
            f"data.users = {n}: batches of {batch} users (the paper's size) cannot pass a test that is private; "
            "use strategy.constants = 'calibrated', a larger strategy.batch or a smaller strategy.learning_rate"
        )
    return plan


def paper_users(setting: LocalizedSetting) -> int:
    """The fewest users that make two of the paper's batches, which grow with the logarithm of the users."""
    users = 2 * _batch(setting, 1)
    while users < 2 * _batch(setting, users):
        users = 2 * _batch(setting, users)
    return users


def _batch(setting: LocalizedSetting, users: int) -> int:
    size = users * setting.samples * setting.dimension
    return setting.batch or math.ceil(100 * math.log(size / setting.delta) / setting.epsilon)
