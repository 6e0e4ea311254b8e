"""Conversions between privacy guarantees: groups, neighbouring relations, zero-concentrated privacy.

All functions raise `BadInput` for an argument out of range, such as a delta outside (0, 1).
"""

import math
from functools import lru_cache
from typing import Literal

import scipy

from userdp.accounting.checks import check_delta, check_guarantee, check_least, check_positive
from userdp.accounting.costs import calibrate_noise
from userdp.accounting.guarantee import Guarantee
from userdp.errors import BadInput

_UPWARDS = 1 + 1e-6  # The conversions back to rho find it to a smaller relative error.


def group_privacy(epsilon: float, delta: float, group: int) -> tuple[float, float]:
    """Compute the (epsilon, delta) of an (epsilon, delta)-DP mechanism when ``group`` records change together.

    ``(k epsilon, delta (1 + e^epsilon + ... + e^{(k-1) epsilon}))``, by chaining k neighbours (Dwork, Roth 2014,
    Theorem 2.2 and its proof).
    """
    check_guarantee(epsilon, delta)
    check_least("group", group)
    if delta == 0:
        return group * epsilon, 0.0
    try:
        factor = group if epsilon == 0 else math.expm1(group * epsilon) / math.expm1(epsilon)
    except OverflowError:
        return group * epsilon, 1.0
    return group * epsilon, min(1.0, delta * factor)


def add_or_remove_to_replace_one(epsilon: float, delta: float) -> tuple[float, float]:
    """Convert to replace-one, which removes one record and adds another: ``(2 epsilon, (1 + e^epsilon) delta)``."""
    return group_privacy(epsilon, delta, 2)


def promises_something(delta: float, users: int) -> bool:
    """Return whether a delta protects one of ``users`` users at all.

    A delta of 1 / users or more allows a mechanism that releases the data of a random user, at any epsilon (Dwork, Roth
    2014, section 2.3.1).
    """
    return delta < 1 / users


def zcdp_to_epsilon(rho: float, delta: float) -> float:
    """Compute an epsilon for which rho-zCDP implies (epsilon, delta)-DP.

    The least over alpha > 1 of ``rho alpha + ln(1/(alpha delta)) / (alpha - 1) + ln(1 - 1/alpha)`` (Canonne, Kamath,
    Steinke 2020, Proposition 12). Every alpha is valid, so a coarse search costs tightness only.
    """
    if not 0 <= rho < math.inf:
        raise BadInput(f"rho = {rho}: must be zero or a positive number")
    check_delta(delta)
    if rho == 0:
        return 0.0

    def epsilon(log_excess: float) -> float:
        excess = math.exp(log_excess)
        log_alpha = math.log1p(excess)
        return rho * (1 + excess) - (math.log(delta) + log_alpha) / excess + log_excess - log_alpha

    # The optimum lies near the one of the simpler bound rho alpha + ln(1/delta) / (alpha - 1).
    start = 0.5 * math.log(math.log(1 / delta) / rho)
    found = scipy.optimize.minimize_scalar(
        epsilon, bounds=(start - 5, start + 5), method="bounded", options={"xatol": 1e-10}
    )
    simple = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return max(0.0, min(float(found.fun), simple))


@lru_cache(maxsize=256)
def largest_rho(epsilon: float, delta: float) -> float:
    """Compute the largest rho (rounded down) for which `zcdp_to_epsilon` is at most ``epsilon``.

    This spends the whole budget by the tight conversion. `rho_for` inverts the simpler one, and leaves a tenth of the
    budget unspent, or more of a small one.
    """
    low = rho_for(epsilon, delta)  # certainly small enough
    high = 2 * low
    while zcdp_to_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high > low * (1 + 1e-9):
        middle = (low + high) / 2
        low, high = (middle, high) if zcdp_to_epsilon(middle, delta) <= epsilon else (low, middle)
    # A margin, so that rounding never makes calibrated noise exceed the budget.
    return low * (1 - 1e-9)


def rho_for(epsilon: float, delta: float, form: Literal["tight", "paper"] = "tight") -> float:
    """Compute the rho for which rho-zCDP implies (epsilon, delta)-DP by ``epsilon = rho + 2 sqrt(rho ln(1/delta))``.

    "tight" inverts that formula exactly, ``(sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))^2``; "paper" is the
    simpler and smaller ``epsilon^2 / (1 + 2 sqrt(ln(1/delta)))^2`` of heavy-tailed DP-SCO, for epsilon at most 1.
    """
    check_positive(epsilon=epsilon)
    check_delta(delta)
    root = math.sqrt(math.log(1 / delta))
    if form == "tight":
        # epsilon / (sqrt(L + epsilon) + sqrt(L)) is the difference of the roots without cancellation.
        return (epsilon / (math.sqrt(root * root + epsilon) + root)) ** 2
    if form != "paper":
        raise BadInput(f"form = {form!r}: must be 'tight' or 'paper'")
    if epsilon > 1:
        raise BadInput(f"epsilon = {epsilon}: the paper's form holds up to 1 only; use the form 'tight'")
    return (epsilon / (1 + 2 * root)) ** 2


def rho_of(guarantee: Guarantee) -> float | None:
    """Compute the rho for which a guarantee's accounting proves rho-zCDP, rounded up; None if it proves none.

    *Formal guarantees.* *Claim.* Whatever keeps to the guarantee, by the accounting that it names, is rho-zCDP for the
    same unit and relation. *Why.* One Gaussian mechanism of multiplier z is ``1 / (2 z^2)``-zCDP (Bun, Steinke 2016,
    Proposition 1.6), and so is all that is no worse (Dong, Roth, Su 2022, Corollary B.6); (epsilon, delta) determine z.
    A sum of rho follows from the (epsilon, delta) that it was converted to, as the conversion increases with rho. Pure
    epsilon is ``epsilon^2 / 2``-zCDP (Bun, Steinke 2016, Proposition 1.4). *Assumptions.* Those of the guarantee, and
    that nothing but the accounting adds to delta, as masked sums do; secure noise, on a grid, is as concentrated as
    real noise (Canonne, Kamath, Steinke 2020). Other accountings prove (epsilon, delta) at one delta alone, which
    implies no rho.
    """
    if not guarantee.holds:
        return None
    if guarantee.delta == 0:
        return guarantee.epsilon**2 / 2
    if guarantee.epsilon == 0:
        return None
    if guarantee.is_one_gaussian:
        return _UPWARDS / (2 * calibrate_noise(guarantee.epsilon, guarantee.delta, 1) ** 2)
    return _UPWARDS * largest_rho(guarantee.epsilon, guarantee.delta) if guarantee.is_zero_concentrated else None
