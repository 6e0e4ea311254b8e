"""Conversions and compositions of guarantees, as the proofs of papers take them; all refuse what is out of range."""

import math
from functools import lru_cache

from scipy.optimize import brentq

from userdp.accounting import Cost, check_delta, check_guarantee, check_least, check_positive, delta_of
from userdp.errors import BadInput


def share_of_group(epsilon: float, delta: float, group: int) -> tuple[float, float]:
    """Invert `group_privacy`: compute the (epsilon, delta) for one record that gives this one for ``group`` records."""
    check_guarantee(epsilon, delta)
    check_least("group", group)
    each = epsilon / group
    if epsilon == 0:
        return 0.0, delta / group
    # expm1(each) / expm1(epsilon), in a form that does not overflow.
    return each, delta * math.exp(each - epsilon) * math.expm1(-each) / math.expm1(-epsilon)


def zcdp_to_epsilon_simple(rho: float, delta: float) -> float:
    """Compute ``rho + 2 sqrt(rho ln(1/delta))``, which `rho_for` inverts (Bun, Steinke 2016, Proposition 1.3)."""
    if not 0 <= rho < math.inf:
        raise BadInput(f"rho = {rho}: must be zero or a positive number")
    check_delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def advanced_composition(epsilon: float, delta: float, steps: int, slack: float) -> tuple[float, float]:
    """Compose ``steps`` adaptive (epsilon, delta)-DP mechanisms (Dwork, Roth 2014, Theorem 3.20).

    ``(sqrt(2 k ln(1/slack)) epsilon + k epsilon (e^epsilon - 1), k delta + slack)``, for the proofs of papers that use
    it; `delta_of` of a `Cost` composes the same mechanisms exactly.
    """
    check_guarantee(epsilon, delta)
    check_delta(slack)
    check_least("steps", steps)
    total = math.sqrt(2 * steps * math.log(1 / slack)) * epsilon + steps * epsilon * math.expm1(epsilon)
    return total, min(1.0, steps * delta + slack)


def step_budget(epsilon: float, delta: float, steps: int) -> tuple[float, float]:
    """Compute a step's budget whose `advanced_composition` stays within (epsilon, delta), for epsilon <= 1.

    ``(epsilon / (2 sqrt(2 k ln(2/delta))), delta / (2 k))`` with slack delta / 2. Proof: the first summand is epsilon /
    2. With e0 the step's epsilon, ``e0 <= 1 / (2 sqrt(2 ln 2)) < 0.43`` gives ``e^e0 - 1 <= 1.25 e0``, so the second is
    at most ``1.25 epsilon^2 / (8 ln(2/delta)) < epsilon / 4``. The deltas add up to delta.
    """
    if not 0 < epsilon <= 1:
        raise BadInput(f"epsilon = {epsilon}: this split of a budget over steps holds from 0 to 1 only")
    check_delta(delta)
    check_least("steps", steps)
    return epsilon / (2 * math.sqrt(2 * steps * math.log(2 / delta))), delta / (2 * steps)


@lru_cache(maxsize=1024)
def calibrate_steps(epsilon: float, delta: float, participations: int, failure_delta: float) -> float:
    """Compute the largest epsilon (rounded down) of mechanisms that compose to (epsilon, delta)-DP.

    Each mechanism is (result, failure_delta)-DP. Raises `BadInput` for a failure_delta of ``delta / participations`` or
    more.
    """
    check_least("participations", participations)
    check_delta(delta)
    check_positive(epsilon=epsilon)
    if not 0 <= participations * failure_delta < delta:
        raise BadInput(f"{participations} mechanisms of delta {failure_delta:g} leave nothing of delta = {delta:g}")

    def excess(log_step: float) -> float:
        cost = Cost(pure_epsilon=math.exp(log_step), failure_delta=failure_delta)
        return delta_of(cost, participations, epsilon) - delta

    # One step alone may spend everything, and simple composition always holds.
    low, high = math.log(epsilon / participations), math.log(2 * epsilon)
    step = low if excess(low) >= 0 else float(brentq(excess, low, high, xtol=1e-13))
    return math.exp(step) * (1 - 1e-9)  # so that rounding of the root spends no more than the budget
