"""The users, or the batch, that a plan of the localised robust SGD needs, and its refusals, which name them.

A test is easiest to pass in one step, at the largest share of the budget and the smallest step size; a setting that
fails there fails in every plan that `strategies.localized.search.search` would try.
"""

from dataclasses import replace
from functools import partial

from strategies.localized.search import SHARES, LocalizedSetting, build, learning_rates, phase_counts, phase_users
from userdp.estimators import MINIMUM_BATCH
from userdp.mechanisms.concentration_tests import smallest_passing

_MOST_USERS = 10**9


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
    """Return whether these users can pass the easiest test, in some number of phases."""
    setting, rate = replace(setting, users=users), min(learning_rates(setting))
    for phases in phase_counts(setting):
        largest = min(phase_users(users, phases))
        batch = setting.batch or largest
        if MINIMUM_BATCH <= batch <= largest and build(setting, batch, phases, rate, SHARES[-1], calibrated=False):
            return True
    return False
