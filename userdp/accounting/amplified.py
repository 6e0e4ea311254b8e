"""Epsilons of sampled Gaussian rounds: the privacy that secret random cohorts add.

Noise multipliers are noise over l2 sensitivity UNDER THE RELATION OF THE PRICE: the clip for add-or-remove, twice the
clip for replace-one. The Poisson-sampled Gaussian of dp-accounting takes noise over the clip under both.

Sampling never costs privacy: given the cohorts, a round is a Gaussian mechanism or does not see the user at all, and a
mixture over public randomness of (epsilon, delta)-DP mechanisms is (epsilon, delta)-DP. So each epsilon is the smaller
of the amplified one and that of plain composition, which is exact at rate 1. ``rounds`` counts all rounds released,
including those with an empty cohort. Functions raise `BadInput` for an argument out of range.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import gammaln

from userdp.accounting.checks import check_rate, check_relation
from userdp.accounting.costs import Cost, calibrate_noise, epsilon_of
from userdp.accounting.guarantee import Relation
from userdp.errors import BadInput

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_WHOLE_ORDERS = tuple(sorted({*range(2, 129), *np.geomspace(128, 2048, 280).astype(int).tolist()}))
_ORDERS = np.unique(np.concatenate([_WHOLE_ORDERS, np.geomspace(2, 128, 420)]))
"""At most 1.6 per cent apart: at small rates divergences leap at some order, and the best order lies just below."""

_MOST_EXACT = 512  # The highest exact moment of the likelihood ratio; further terms take a simple bound.
_LEAST_NOISE = 0.05  # Calibration stops at this noise, which protects nobody.
_TOLERANCE = 2e-5  # The relative width of the bracket around a calibrated noise multiplier; the safe end is returned.


@lru_cache(maxsize=4096)
def poisson_epsilon(
    noise_multiplier: float, rate: float, rounds: int, delta: float, relation: Relation = "add_or_remove"
) -> float:
    """Compute epsilon of ``rounds`` Gaussian sums over Poisson cohorts; ``rate`` is the probability of taking part.

    The privacy loss distribution (Zhu, Dong, Wang 2022) is rounded pessimistically (Doroshenko et al. 2022).

    *Formal guarantees.* *Claim.* Let q be the rate, and noise N(0, I), so that rows are no longer than s: one over the
    noise multiplier for add-or-remove, half of that for replace-one. A round that adds or removes a user is dominated
    by the pair of N(0, 1) and ``(1 - q) N(0, 1) + q N(s, 1)``, in both orders (Zhu, Dong, Wang 2022). A round that
    replaces one, in any dimension, is dominated by ``(1 - q) N(0, 1) + q N(s, 1)`` against ``(1 - q) N(0, 1) + q
    N(-s, 1)``, which two opposite rows of length s attain. *Why.*

    1. Given earlier releases and the coins of others, whose sum is a common shift, the outputs are ``(1 - q) N(0, I) +
       q N(g, I)`` and the same with g', where g and g' are no longer than s. Divergences are jointly convex: the worst
       coins bound their mixture. With ``L = exp(<g, Z> - |g|^2 / 2)``, L' alike and Z normal, the divergence at ``c =
       e^epsilon`` is ``E max(0, (1 - q)(1 - c) + q (L - c L'))``: of the form ``E F(L, L')`` with ``F(x, y) = phi(u x -
       v y)`` for a convex phi and u, v >= 0. So F_11 >= 0, F_22 >= 0 and F_12 <= 0, if phi is smooth, as it is up to
       any small error.
    2. Let a = |g|, b = |g'|, r = <g, g'>. (log L, log L') is normal with covariance S, ``S_11 = a^2, S_22 = b^2, S_12 =
       r``, and mean ``-(a^2, b^2) / 2``. Hence ``d E F(L, L') = (dS_11 E[L^2 F_11] + 2 dS_12 E[L L' F_12] + dS_22
       E[L'^2 F_22]) / 2`` (heat equation; the means' terms cancel). So E F falls as r grows: r = -a b is the worst,
       where its derivative by a, ``a E[L^2 F_11] - b E[L L' F_12]``, is not negative, nor is that by b. The worst are a
       = b = s on opposite sides. For any divergence, so the pair dominates.
    3. Dominated pairs compose adaptively into the pair of products (ibid., Theorem 10). Several vectors of one round,
       each over its noise, are one row.

    *Assumptions.* The coins are secret, and do not depend on the user's data.
    """
    check_relation(relation)
    plain = _plain(noise_multiplier, rate, rounds, delta)
    if rounds == 0 or rate == 1:
        return plain
    grid = loss_cell(noise_multiplier, rate / noise_multiplier)
    composed = poisson_round(noise_multiplier, rate, grid, relation).self_compose(rounds)
    return min(plain, float(composed.get_epsilon_for_delta(delta)))


@lru_cache(maxsize=4096)
def fixed_size_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """Compute epsilon of ``rounds`` Gaussian sums over cohorts of a fixed size, for replacing one user.

    ``noise_multiplier`` is noise over TWICE the clip, ``rate`` the cohort over n. Renyi privacy of sampling without
    replacement (Wang, Balle, Kasiviswanathan 2019, Theorem 27) is converted by Canonne, Kamath, Steinke 2020.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon  # noqa: PLC0415 -- slow to import

    plain = _plain(noise_multiplier, rate, rounds, delta)
    if rounds == 0 or rate == 1 or math.isinf(plain):
        return plain
    orders, divergences = _fixed_size_round(noise_multiplier, rate)
    epsilon, _ = compute_epsilon(orders, rounds * divergences, delta)
    return min(plain, float(epsilon))


def calibrate_amplified(price: Callable[[float], float], epsilon: float, delta: float, rounds: int) -> float:
    """Compute the smallest noise multiplier (rounded up) whose price is at most ``epsilon``.

    ``price`` maps a noise multiplier to epsilon; it must fall, and never exceed that of plain composition.
    """
    low = high = calibrate_noise(epsilon, delta, rounds)
    while price(low) <= epsilon:
        if low <= _LEAST_NOISE:
            return low
        high, low = low, max(low / 2, _LEAST_NOISE)

    def excess(log_noise: float) -> float:
        return math.log(price(math.exp(log_noise)) / epsilon)

    noise = math.exp(scipy.optimize.brentq(excess, math.log(low), math.log(high), xtol=_TOLERANCE, rtol=_TOLERANCE))
    while price(noise) > epsilon:
        noise = min(high, noise * (1 + _TOLERANCE))
    return noise


def _plain(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float:
    check_rate(rate)
    if delta == 0:
        raise BadInput("delta = 0: Gaussian noise promises no pure privacy, use a delta such as 1e-6")
    return epsilon_of(Cost(noise_multiplier=noise_multiplier), rounds, delta)


@lru_cache(maxsize=16)
def poisson_round(noise_multiplier: float, rate: float, cell: float, relation: Relation) -> "PrivacyLossDistribution":
    """Return the privacy losses of one round of `poisson_epsilon`, rounded up to multiples of ``cell``."""
    from dp_accounting import NeighboringRelation  # noqa: PLC0415 -- slow to import
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # noqa: PLC0415 -- as above

    replaced = relation == "replace_one"
    return from_gaussian_mechanism(
        noise_multiplier * (2 if replaced else 1),  # over the effect of one row, under both relations
        sampling_prob=rate,
        value_discretization_interval=cell,
        neighboring_relation=NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def loss_cell(noise_multiplier: float, typical_loss: float) -> float:
    """Choose the width of a cell of the privacy loss: 1e-3, coarser for little noise, finer for faint rounds.

    Any width is valid. With little noise the losses, and the epsilons they add up to, are of the order of 1 / z^2.
    """
    return min(1e-3 * max(1.0, 0.25 / noise_multiplier**2), typical_loss / 5)


@lru_cache(maxsize=64)
def _fixed_size_round(noise_multiplier: float, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return orders, and the Renyi divergences of one round at them.

    At a whole order a ``1/(a-1) ln(1 + sum_{j=2..a} C(a, j) q^j min(4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))), 2 M(j)))``
    with M the moments of the Gaussian's likelihood ratio and B those of the ratio minus one (Theorem 27). The cumulant
    ``(a - 1) R(a)`` is convex, so between whole orders its chord bounds it (Corollary 10).
    """
    drawn = np.arange(2, _WHOLE_ORDERS[-1] + 1)
    terms = math.log(2) + drawn * (drawn - 1) / (2 * noise_multiplier**2)
    centred = _log_centred_moments(noise_multiplier)
    exact = drawn[drawn <= 2 * len(centred)]
    halves = (centred[exact // 2 - 1] + centred[(exact + 1) // 2 - 1]) / 2
    terms[: len(exact)] = np.minimum(terms[: len(exact)], math.log(4) + halves)
    cumulants = np.logaddexp(0, _log_sums(_log_binomials() + (terms + drawn * math.log(rate))))
    return _ORDERS, np.interp(_ORDERS, _WHOLE_ORDERS, cumulants) / (_ORDERS - 1)


def _log_centred_moments(noise_multiplier: float) -> NDArray[np.float64]:
    """Compute ``ln E (L - 1)^l`` for l = 2, 4, ..., with L the likelihood ratio of N(1, z^2) to N(0, z^2).

    The trapezoid rule's error for such an integrand, with a step well below its width, is that of rounding; differences
    of plain moments would cancel. Moments stop at ``l = 40 z^2``: beyond, the ratio is at least e^40 where it counts,
    and the simple bound is smaller.
    """
    most = min(_MOST_EXACT, int(40 * noise_multiplier**2) // 2 * 2)
    powers = np.arange(2, most + 1, 2)
    margin = math.sqrt(most) + 12
    t = np.arange(-margin, most / noise_multiplier + margin, 0.2)
    loss = t / noise_multiplier - 0.5 / noise_multiplier**2
    with np.errstate(divide="ignore"):  # a ratio of exactly one adds nothing
        logs = np.maximum(loss, 0) + np.log(-np.expm1(-np.abs(loss)))
    density = -(t**2) / 2 + math.log(0.2 / math.sqrt(2 * math.pi))
    return _log_sums(powers[:, None] * logs + density)


def _log_sums(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the logarithm of each row's sum of exponentials; the rows are overwritten."""
    largest = logs.max(axis=1)
    logs -= largest[:, None]
    return np.asarray(largest + np.log(np.exp(logs, out=logs).sum(axis=1)))


@cache
def _log_binomials() -> NDArray[np.float64]:
    """Compute ln C(a, j), one row a whole order a, for j from 2 to the last order; minus infinity where j > a."""
    order, drawn = np.array(_WHOLE_ORDERS)[:, None], np.arange(2, _WHOLE_ORDERS[-1] + 1)
    logs = gammaln(order + 1) - gammaln(drawn + 1) - gammaln(np.maximum(order - drawn, 0) + 1)
    return np.asarray(np.where(drawn <= order, logs, -np.inf))
