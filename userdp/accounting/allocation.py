"""Random allocation: every user takes part in exactly k secret rounds of T, chosen uniformly.

*Formal guarantees.* Unit: a user. Relation: add-or-remove. Noise multipliers are noise over the clip. The observer sees
all T releases, and chooses each round's query from earlier releases.

*One round of m.* Without the user the scaled releases are Z, standard normal in every round (distribution Q). With the
user (P) one uniform round i is moved by a vector v_i of norm at most ``s = 1 / noise_multiplier`` that depends on
earlier releases. So ``R = dP/dQ = (W_1 + ... + W_m) / m`` with ``W_i = exp(<v_i, Z_i> - |v_i|^2 / 2)``. For ``c =
e^epsilon`` the two hockey-stick divergences are ``E_Q (R - c)_+`` and ``E_Q (1 - c R)_+``, convex in each W_i.

1. Given the past, W_i is log-normal with mean one, and grows in convex order with |v_i| (a geometric Brownian motion is
   a martingale). Replacing W_m by an independent W of ``|v| = s`` therefore raises both divergences, and leaves
   functions convex in W_{m-1}: independent W's are the worst case (Feldman, Shenfeld 2025, arXiv 2502.08202).
2. Each W is spread onto multiples of a step h: each cell's mass moves to the cell's two ends and keeps its mean. The
   result is larger in convex order, hence so are both divergences. The sum is now an exact convolution of numbers.
3. Sums beyond the grid are not followed. Under P, where one W is weighted by its size, their mass counts in full. Under
   Q it is put at the end of the grid, below its true place. Both only raise the divergences.
4. Rounding is bounded and added to both divergences (`_BlockLaw._slack`): Fourier transforms in l1, sums in proportion
   to themselves, masses by the distance they move.

*k rounds of T.* A uniform subset of size k is one round from each of k blocks, independently, if the blocks are a
uniformly random partition of the rounds into sizes ``T // k`` and ``T // k + 1``. Given the partition, ``R`` is the
product of the blocks' means, still convex in each W_i. Step 1 makes it the product of independent ones, which is the
composition of k allocations of one round. A bound for each partition holds for their mixture.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from userdp.accounting.costs import Cost, epsilon_of
from userdp.arrays.types import Vector
from userdp.errors import BadInput

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Numbers = NDArray[np.floating[Any]]  # float64, or long doubles

_CELLS = 1 << 17  # Cells of a sum of likelihood ratios; any number is valid.
_TAIL = 1e-4  # The share of delta with which sums or losses may lie beyond their grid.
_ROUNDED = 1e-3  # The share of delta that rounding in float64 may cost; beyond, long doubles are used.
_WIDTH = 1e-3  # The width of a loss cell: finer for faint losses, coarser for large ones; any is valid.
_MOST_LOSSES = 1 << 15  # Most cells of the privacy loss of a block.
_UNIT = float(np.finfo(np.float64).eps) / 2  # The roundoff of float64.
_SUMMED = 4 * _CELLS * _UNIT  # The relative error of a sum with one term a cell, and of the sum subtracted from it.
_LARGEST_LOSS = 50.0  # The largest loss of one participation; beyond, grids are too coarse, and nobody is protected.


@lru_cache(maxsize=4096)
def allocation_epsilon(noise_multiplier: float, rounds: int, participations: int, delta: float) -> float:
    """Compute epsilon of ``rounds`` Gaussian sums, for adding or removing a user with secret random participations.

    ``noise_multiplier`` is noise over the clip. All rounds are released; the user takes part in ``participations`` of
    them. The result never exceeds plain composition. Raises `BadInput` for an argument out of range.
    """
    plain, final = plain_epsilon(noise_multiplier, rounds, participations, delta)
    if final:
        return plain
    composed = _composed(noise_multiplier, rounds, participations, delta)
    return plain if composed is None else min(plain, float(composed.get_epsilon_for_delta(delta)))


def plain_epsilon(noise_multiplier: float, rounds: int, participations: int, delta: float) -> tuple[float, bool]:
    """Return epsilon as if everybody knew the rounds, and whether it is final: none is secret, or noise is too little.

    Raises `BadInput` for an argument out of range.
    """
    check_participations(participations, rounds)
    if delta == 0:
        raise BadInput("delta = 0: Gaussian noise promises no pure privacy, use a delta such as 1e-6")
    plain = epsilon_of(Cost(noise_multiplier=noise_multiplier), participations, delta)
    return plain, participations == rounds or largest_loss(noise_multiplier, delta) > _LARGEST_LOSS


def check_participations(participations: int, rounds: int) -> None:
    """Refuse (`BadInput`) participations below one or above the number of rounds."""
    if not 1 <= participations <= rounds:
        raise BadInput(f"participations = {participations}: must lie between 1 and the number of rounds, {rounds}")


def largest_loss(noise_multiplier: float, delta: float) -> float:
    """Return the privacy loss of one round with all users that is exceeded with a small share of ``delta``."""
    return 0.5 / noise_multiplier**2 + float(scipy.stats.norm.isf(_TAIL * delta)) / noise_multiplier


def _composed(
    noise_multiplier: float, rounds: int, participations: int, delta: float
) -> "PrivacyLossDistribution | None":
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415 -- slow to import

    size, larger = divmod(rounds, participations)
    typical = math.sqrt(math.expm1(min(1.0, noise_multiplier**-2)) / size)
    width = max(min(_WIDTH, typical / 20), 2 * largest_loss(noise_multiplier, delta) / _MOST_LOSSES)

    composed: PrivacyLossDistribution | None = None
    for length, times in ((size, participations - larger), (size + 1, larger)):
        if not times:
            continue
        law = _BlockLaw(noise_multiplier, length, delta)
        block = PrivacyLossDistribution(law.remove(width), law.add(width))
        if -math.expm1(times * math.log1p(-block.get_delta_for_epsilon(2 * _LARGEST_LOSS))) > delta:
            return None  # too much mass counts as an infinite loss
        composed = block.self_compose(times) if composed is None else composed.compose(block.self_compose(times))
    return composed


@dataclass(frozen=True)
class _BlockLaw:
    """One of ``size`` rounds, as losses of the pair (P, Q)."""

    noise_multiplier: float
    size: int
    delta: float

    def remove(self, width: float) -> "PLDPmf":
        """Compute the losses of P against Q: ``E_P (1 - c / R)_+``."""
        masses, weighted, step = self._cells(largest_loss(self.noise_multiplier, self.delta))
        slack, real = self._slack(max(_length(masses), _length(weighted)))
        law = weighted
        if self.size > 1:
            others = power(masses.astype(real), self.size - 1, _convolved)
            law = _convolved(others, weighted.astype(real)).astype(np.float64)
        ratios = np.arange(_CELLS) * (step / self.size)
        ratios[0] = ratios[1]  # a weighted W is never zero: mass that rounding leaves there counts as the next cell
        lost = max(0.0, 1 - law.sum())
        above, below = _tails(law), _tails(law / ratios)
        low, high = np.interp([_TAIL * self.delta, 1 - lost - _TAIL * self.delta], np.cumsum(law), ratios)

        def divergence(c: Vector) -> Vector:
            first = np.searchsorted(ratios, c, side="right")
            return np.asarray(above[first] * (1 + _SUMMED) - c * below[first] + lost + slack)

        return _connected(divergence, max(low, ratios[1]), high, width)

    def add(self, width: float) -> "PLDPmf":
        """Compute the losses of Q against P: ``E_Q (1 - c R)_+``."""
        # Large sums are small losses here, and may end early; small ones need a fine step.
        largest = largest_loss(self.noise_multiplier, self.delta) - self.noise_multiplier**-2
        masses, _, step = self._cells(min(largest, math.log(8 * self._typical)))
        slack, real = self._slack(_length(masses))
        kept = power(masses.astype(real), self.size, _convolved).astype(np.float64)
        law = np.append(kept, max(0.0, 1 - kept.sum()))
        ratios = np.arange(_CELLS + 1) * (step / self.size)
        summed = np.cumsum(law)
        above, below = np.append(0.0, summed), np.append(0.0, np.cumsum(law * ratios))
        low, high = np.interp([_TAIL * self.delta, 1 - _TAIL * self.delta], summed, ratios)

        def divergence(c: Vector) -> Vector:
            last = np.searchsorted(ratios, 1 / c, side="left")
            return np.asarray(above[last] * (1 + _SUMMED) - c * below[last] + slack)

        return _connected(divergence, 1 / max(high, ratios[1]), 1 / max(low, ratios[1]), width)

    @property
    def _typical(self) -> float:
        return 2 * self.size + 10 * math.sqrt(self.size)

    def _cells(self, largest: float) -> tuple[Vector, Vector, float]:
        """Return (cells,) masses of W on multiples of a step, the same weighted by W, and the step.

        The grid holds one W of logarithm ``largest`` beside a typical sum of the others.
        """
        shift, step = 1 / self.noise_multiplier, (math.exp(largest) + self._typical) / _CELLS
        with np.errstate(divide="ignore"):
            normal = np.log(np.arange(_CELLS + 1) * step) / shift
        masses, means = cell_masses(normal + shift / 2), cell_masses(normal - shift / 2) / step
        # A cell from j to j + 1 steps, of mass m and mean u, puts u - j m at its end, the rest at its start.
        places = np.arange(_CELLS)
        ends = np.clip(means - places * masses, 0, masses)
        spread = masses - ends
        spread[1:] += ends[:-1]
        return spread, spread * (places * step), step

    def _slack(self, longest: float) -> tuple[float, type[np.floating[Any]]]:
        """Bound a divergence's rounding, apart from that of its sums; also return the number type to convolve with.

        The type is float64, or long double if float64 would cost more than a thousandth of delta.

        *Claim.* Let u be the unit roundoff and L = 2 ``_CELLS`` the transforms' length; let the summands' masses add up
        to at most one, with l2 norm at most ``longest``. Then computed laws are within ``2 size`` times ``sqrt(L / 2) 3
        (f + u) longest`` of the exact ones in l1, where ``f = log2(L) eta / (1 - log2(L) eta)`` and ``eta = u + 4 u
        (sqrt 2 + u) / (1 - 4 u)``. *Proof.*

        1. A computed transform is within f of the exact one, relatively and in l2 (Higham 2002, Theorem 24.2, with
           roots of unity to u). The exact one of a has l2 norm ``sqrt(L) |a|_2``, and entries below ``|a|_1 <= 1``. So
           a computed product of two differs from the exact one by at most ``sqrt(L) (f |a|_2 + f |b|_2 + sqrt(5) u
           |a|_2)``, where ``sqrt(5) u`` is for complex products. The inverse transform divides by sqrt(L) and adds ``f
           |a * b|_2``, and ``|a * b|_2`` is at most the smaller of both norms (Young). Together this is below ``3 (f +
           u) longest``; by Cauchy-Schwarz the l1 norm on the kept cells is at most sqrt(L / 2) times that. The room
           between sqrt(5) and 3 covers second-order terms, below 1e-11 of it, and masses above one by rounding.
        2. A sum of n summands (`power`) has at most 2 (n - 1) such errors: convolving with a law keeps an error's l1
           norm, squaring doubles it, so ``T(2 n) = 2 T(n) + 1`` and ``T(n + 1) = T(n) + 1`` errors. The last, weighted
           one adds another. Taking the positive part brings a law nearer.

        Both divergences are sums over a law with weights in [0, 1] or, with the lost mass, in [-1, 0]: they move by no
        more. Masses of single cells are differences of distribution functions with errors of some u. Such an error
        moves mass by one cell, and so the mean of W by the step times that mass, over all cells by some u E[W] = some
        u; divergences are 1-Lipschitz in the mean of the W's. This is the 2^-46 = 128 u.
        """
        plain = transform_error(np.float64, 2 * _CELLS) * self.size * longest
        wide = transform_error(np.longdouble, 2 * _CELLS) * self.size * longest
        if plain <= _ROUNDED * self.delta or wide == plain:
            return plain + 2.0**-46, np.float64
        return wide + 2.0**-46, np.longdouble


def transform_error(real: type[np.floating[Any]], length: int) -> float:
    """Return the factor ``2 sqrt(L / 2) 3 (f + u)`` of `_BlockLaw._slack`, for transforms of ``length``."""
    unit = float(np.finfo(real).eps) / 2
    eta = unit + 4 * unit * (math.sqrt(2) + unit) / (1 - 4 * unit)
    relative = math.log2(length) * eta / (1 - math.log2(length) * eta)
    return 2 * math.sqrt(length / 2) * 3 * (relative + unit)


def _length(masses: Vector) -> float:
    return math.sqrt(float(masses @ masses)) * (1 + _CELLS * _UNIT)


def cell_masses(normal: Vector) -> Vector:
    """Compute the probabilities (cells,) of a standard normal between rising points (cells + 1,)."""
    lower, upper = np.diff(scipy.special.ndtr(normal)), -np.diff(scipy.special.ndtr(-normal))
    return np.where(normal[1:] > 0, upper, lower)


def _tails(law: Vector) -> Vector:
    """Return (cells + 1,) sums of ``law`` from each place on."""
    return np.append(np.cumsum(law[::-1])[::-1], 0.0)


def _convolved(first: Numbers, second: Numbers) -> Numbers:
    transformed = scipy.fft.rfft(first, 2 * _CELLS) * scipy.fft.rfft(second, 2 * _CELLS)
    return np.maximum(scipy.fft.irfft(transformed, 2 * _CELLS)[:_CELLS], 0.0)


def power(masses: Numbers, times: int, convolved: Callable[[Numbers, Numbers], Numbers]) -> Numbers:
    """Return (cells,) the law of the sum of ``times`` >= 1 independent ones, as far as it lies on the grid."""
    law = masses
    for digit in f"{times:b}"[1:]:
        law = convolved(law, law)
        if digit == "1":
            law = convolved(law, masses)
    return law


def _connected(divergence: Callable[[Vector], Vector], low: float, high: float, width: float) -> "PLDPmf":
    """Return losses that bound the divergences, by connecting dots (Doroshenko et al. 2022)."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap  # noqa: PLC0415 -- as above

    first, last = math.floor(math.log(low) / width), math.ceil(math.log(high) / width)
    deltas = np.clip(divergence(np.exp(np.arange(first, last + 1) * width)), 0.0, 1.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(width, first, last, np.minimum.accumulate(deltas))
