"""Privacy amplification by shuffling, for noisy means of secret random groups of samples.

N records are split uniformly at random into k groups of one size m; group j releases ``Q_j = sum / m + N(0, s^2 I)``,
where each summand has l2 norm at most R. Relation: one record is replaced. There are two ways to account (Q_1..Q_k):

**parallel.** A record is in one group, so it moves (Q_1..Q_k), as one vector, by at most 2R/m. The release is rho-zCDP
for ``s^2 = (2R/m)^2 / (2 rho)``, for every partition, secret or not, of equal sizes or not.

**by shuffling.** Feldman, McMillan, Talwar, "Hiding Among the Clones" (2021), Theorem III.8: if k records are permuted
uniformly at random, and each then enters its own randomiser that is (e, d)-DP for replacing ITS WHOLE input, the
outputs are more private than (e, d). That theorem does not speak of groups, and for a FIXED partition the claim is
false: if the other records of each group make the groups' means tell the groups apart, the permutation hides nothing.
It is true for a partition that is *secret, uniform, drawn anew for each release, and into groups of one size*. Proof:
let x be the record that differs. Take x as representative of its group, and a uniformly random record of every other
group as that group's. Given the SET of representatives and the other records of each group, every assignment of the
representatives to the groups is equally likely: a partition together with such a choice has probability proportional to
the product of 1/size over the groups other than x's, the same for every assignment because the sizes are equal. With
unequal sizes, x is more likely in a large group and the theorem does not apply. Group j's randomiser is then ``y ->
(rest_j + y) / m + noise``, and replacing y moves it by at most 2R/m. If some records are in no group, condition on
whether x is; if not, nothing depends on it. A mixture over the conditions is no less private. An observer who knows the
groups of other records is not covered.

Any function of Q_1..Q_k alone is post-processing.
"""

import math
from typing import Literal

import scipy

from strategies.baselines.composition import zcdp_to_epsilon_simple
from userdp.accounting import calibrate_noise, check_delta, check_least, check_positive, rho_for
from userdp.errors import BadInput

GroupAccounting = Literal["parallel", "calibrated_shuffle", "paper_shuffle"]
GROUP_ACCOUNTING: tuple[GroupAccounting, ...] = ("parallel", "calibrated_shuffle", "paper_shuffle")

Form = Literal["exact", "tight", "paper"]
"""The conversion from (epsilon, delta) to rho: "exact" by the least Gaussian noise, others as in `rho_for`."""

_SPLITS = (0.1, 0.5, 0.9, 0.99)  # Shares of delta tried for the amplification; the rest is for the randomisers.


def amplifies(epsilon: float, groups: int, slack: float) -> bool:
    """Return whether the amplification theorem covers such randomisers: ``epsilon <= ln(k / (16 ln(4/slack)))``."""
    return groups >= 16 * math.exp(epsilon) * math.log(4 / slack)


def shuffled(epsilon: float, delta: float, groups: int, slack: float) -> tuple[float, float]:
    """Compute the (epsilon, delta) of ``groups`` (epsilon, delta)-DP randomisers on shuffled records.

    Feldman, McMillan, Talwar 2021, Theorem III.8, if `amplifies`; otherwise the promise of each randomiser is returned.
    ``slack`` is their delta' in (0, 1), the part of delta that the amplification takes.
    """
    if not (0 <= epsilon < math.inf and 0 <= delta < 1):
        raise BadInput(f"epsilon = {epsilon}, delta = {delta}: not a guarantee")
    _check(groups, slack)
    if not amplifies(epsilon, groups, slack):
        return epsilon, delta
    growth = math.exp(epsilon)
    spread = 8 * math.sqrt(growth * math.log(4 / slack) / groups) + 8 * growth / groups
    amplified = min(epsilon, math.log1p(math.tanh(epsilon / 2) * spread))
    return amplified, min(1.0, slack + (math.exp(amplified) + 1) * (1 + 1 / (2 * growth)) * groups * delta)


def paper_group_range(epsilon: float, delta: float) -> tuple[float, float]:
    """Compute the range of groups for which `paper_group_rho` is proven.

    The lower end is ``16 e ln(8/delta)``, implicit in the paper's proof, which applies the amplification theorem to
    randomisers of epsilon up to 1. The upper end is ``64 e^4 ln(4/delta) / epsilon^2``, the condition of the paper's
    theorem solved for k.
    """
    return 16 * math.e * math.log(8 / delta), 64 * math.exp(4) * math.log(4 / delta) / epsilon**2


def paper_group_rho(epsilon: float, delta: float, groups: int) -> float:
    """Compute the rho that each group may spend, by the closed form of Zhao, Wu, Liu, Wang, Fan, Li (their Theorem 6).

    ``epsilon^2 k / (64 e^4 ln(8/delta) (1 + 2 sqrt(ln(12 k/delta)))^2)``. It spends about a tenth of the budget, and is
    below `rho_for` unless k is near 1e5. Raises `BadInput` for a k outside `paper_group_range`.
    """
    _check(groups, delta)
    if not 0 < epsilon <= 1:
        raise BadInput(f"epsilon = {epsilon}: the paper's shuffle accounting holds from 0 to 1 only")
    low, high = paper_group_range(epsilon, delta)
    if not low <= groups <= high:
        raise BadInput(
            f"groups = {groups}: the paper's shuffle accounting at epsilon = {epsilon:.4g}, delta = {delta:.3g} holds "
            f"from {math.ceil(low)} to {math.floor(high)} groups; use the accounting 'parallel', which always holds"
        )
    bracket = 1 + 2 * math.sqrt(math.log(12 * groups / delta))
    return epsilon**2 * groups / (64 * math.exp(4) * math.log(8 / delta) * bracket**2)


def calibrated_group_rho(epsilon: float, delta: float, groups: int, form: Form = "tight") -> float:
    """Compute the largest rho of each group that the amplification theorem, solved numerically, allows.

    Each group's release is (e, d)-DP with ``d = (delta - delta') / (1.5 k (e^epsilon + 1))``, so that `shuffled` with
    slack delta' never exceeds delta. e is the largest that it maps to epsilon or less, and rho follows from (e, d) by
    ``form``. Raises `BadInput` for too few groups for any amplification, and prints the least number.
    """
    _check(groups, delta)
    check_positive(epsilon=epsilon)
    found = max(_calibrated(epsilon, delta, groups, share * delta, form) for share in _SPLITS)
    if found == 0:
        least = math.ceil(16 * math.log(4 / (_SPLITS[-1] * delta)))
        raise BadInput(
            f"groups = {groups}: shuffling amplifies from {least + 1} groups on at delta = {delta:.3g}; use the "
            "accounting 'parallel', which always holds"
        )
    return found


def _calibrated(epsilon: float, delta: float, groups: int, slack: float, form: Form) -> float:
    ceiling = math.log(groups / (16 * math.log(4 / slack))) if groups > 16 * math.log(4 / slack) else 0.0
    if ceiling <= 0:
        return 0.0
    ceiling *= 1 - 1e-12
    # The amplified epsilon is at most epsilon, and at most that of the randomisers.
    each = (delta - slack) / ((math.exp(min(epsilon, ceiling)) + 1) * 1.5 * groups)

    def excess(randomiser: float) -> float:
        return shuffled(randomiser, each, groups, slack)[0] - epsilon

    if excess(ceiling) > 0:
        ceiling = float(scipy.optimize.brentq(excess, 0.0, ceiling, xtol=1e-15, rtol=1e-12)) * (1 - 1e-11)
    return _converted(ceiling, each, form)


def _converted(epsilon: float, delta: float, form: Form) -> float:
    return rho_for(epsilon, delta, form) if form != "exact" else 1 / (2 * calibrate_noise(epsilon, delta, 1) ** 2)


def group_rho(
    epsilon: float,
    delta: float,
    groups: int,
    accounting: GroupAccounting | Literal["auto"] = "auto",
    form: Form = "tight",
) -> float:
    """Compute the rho that each of k groups may spend if (Q_1..Q_k) is to be (epsilon, delta)-DP for one record.

    ``accounting`` is one of `GROUP_ACCOUNTING`, or "auto" for the largest rho of those that hold. All but "parallel"
    need a secret uniform partition into groups of one size, drawn anew for each release. ``form`` converts a budget to
    rho; "paper_shuffle" has its own. Raises `BadInput` outside the region in which the accounting named holds.
    """
    if accounting == "auto":
        found = [_converted(epsilon, delta, form)]
        for kind in GROUP_ACCOUNTING[1:]:
            try:
                found.append(group_rho(epsilon, delta, groups, kind, form))
            except BadInput:
                continue  # it does not hold here
        return max(found)
    if accounting == "parallel":
        _check(groups, delta)
        return _converted(epsilon, delta, form)
    if accounting == "calibrated_shuffle":
        return calibrated_group_rho(epsilon, delta, groups, "tight" if form == "paper" else form)
    if accounting == "paper_shuffle":
        return paper_group_rho(epsilon, delta, groups)
    raise BadInput(f"accounting = {accounting!r}: must be 'auto', {', '.join(map(repr, GROUP_ACCOUNTING))}")


def shuffled_guarantee(rho: float, delta: float, groups: int) -> tuple[float, float]:
    """Compute the (epsilon, delta) that the proof of `paper_group_rho` derives from a rho.

    Its randomisers are at ``delta / (12 k)``, amplified with slack ``delta / 2``.
    """
    _check(groups, delta)
    each = delta / (12 * groups)
    return shuffled(zcdp_to_epsilon_simple(rho, each), each, groups, delta / 2)


def _check(groups: int, delta: float) -> None:
    check_least("groups", groups)
    check_delta(delta)
