"""What random allocation costs: every user takes part in exactly k secret rounds of T, uniformly chosen.

*Formal guarantees.* Unit: a user; relation: add-or-remove; noise multipliers are noise over the clip. Against an
observer of all T releases, who chooses each round's query by what was released before.

*One round of m.* Without the user the releases are Z, standard normal round by round after scaling (the distribution
Q); with it (P) round i, uniform, is moved by a vector v_i of norm at most ``s = 1 / noise_multiplier`` that depends on
earlier releases. So ``R = dP/dQ = (W_1 + ... + W_m) / m`` with ``W_i = exp(<v_i, Z_i> - |v_i|^2 / 2)``, and for
``c = e^epsilon`` the two hockey-stick divergences are ``E_Q (R - c)_+`` and ``E_Q (1 - c R)_+``: convex in each W_i.

1. Given the past, W_i is log-normal with mean one, and it grows in convex order with |v_i| (a geometric Brownian motion
   is a martingale). Replacing W_m by an independent W of ``|v| = s`` therefore raises both, and leaves functions that
   are convex in W_{m-1}, and so on: independent W's are the worst (in the end the theorem of Feldman, Shenfeld 2025,
   arXiv 2502.08202).
2. Each W is spread onto multiples of a step h, each cell's mass onto its two ends with the cell's mean kept. This is
   larger in convex order, hence so are both divergences, and the sum is now an exact convolution of numbers.
3. Sums of the grid's length and more are not followed. Under P, where one W is weighted by its size, their mass counts
   in full; under Q it is put where the grid ends, which is smaller than it is: both only raise the divergences.
4. Rounding is bounded and added to both divergences (`_BlockLaw._slack`): that of Fourier transforms in l1, that of
   sums in proportion to them, that of masses by how far it moves them.

*k rounds of T.* A uniform subset of size k is one round from each of k blocks, independently, if the blocks are a
uniformly random partition of the rounds into sizes ``T // k`` and ``T // k + 1``. Given the partition, ``R`` is the
product of the blocks' means, still convex in each W_i; so step 1 makes it the product of independent ones, which is the
composition of k allocations of one round; and what holds for each partition holds for their mixture.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from userdp.accounting.amplified import calibrate_amplified
from userdp.accounting.costs import Cost, epsilon_of
from userdp.arrays.types import Vector
from userdp.errors import BadInput

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Numbers = NDArray[np.floating[Any]]
"""float64, or long doubles."""

_CELLS = 1 << 17
"""Of a sum of likelihood ratios; any number is valid."""

_TAIL = 1e-4
"""Share of delta with which sums may lie beyond their grid, and losses beyond theirs."""

_ROUNDED = 1e-3
"""Share of delta that rounding in float64 may cost; where it would cost more, numbers are wider."""

_WIDTH = 1e-3
"""Of a cell of the privacy loss; narrower for faint losses, wider for large ones. Any width is valid."""

_MOST_LOSSES = 1 << 15
"""Cells of the privacy loss of a block."""

_UNIT = float(np.finfo(np.float64).eps) / 2
"""Roundoff of float64."""

_SUMMED = 4 * _CELLS * _UNIT
"""What a sum of as many terms as there are cells can be off, relatively; and again for the smaller one taken off it."""

_LARGEST_LOSS = 50.0
"""Of one participation; beyond, grids of ratios say nothing, and nobody is protected."""


@lru_cache(maxsize=4096)
def allocation_epsilon(noise_multiplier: float, rounds: int, participations: int, delta: float) -> float:
    """Epsilon of ``rounds`` Gaussian sums, for adding or removing a user who takes part in ``participations`` of them.

    Never above that of plain composition of the participations, since sampling costs no privacy.

    Args:
        noise_multiplier: noise over the clip.
        rounds: T, all of which are released.
        participations: k, at most T, uniformly chosen and secret.
        delta: in (0, 1).

    Raises:
        BadInput: an argument out of range.
    """
    check_participations(participations, rounds)
    if delta == 0:
        raise BadInput("delta = 0: Gaussian noise promises no pure privacy, use a delta such as 1e-6")
    plain = epsilon_of(Cost(noise_multiplier=noise_multiplier), participations, delta)
    if participations == rounds or _largest_loss(noise_multiplier, delta) > _LARGEST_LOSS:
        return plain
    composed = _composed(noise_multiplier, rounds, participations, delta)
    return plain if composed is None else min(plain, float(composed.get_epsilon_for_delta(delta)))


@lru_cache(maxsize=1024)
def calibrate_allocation(rounds: int, participations: int, epsilon: float, delta: float) -> float:
    """Smallest noise multiplier (rounded up) for which all rounds together are (epsilon, delta)-DP.

    Raises:
        BadInput: an argument out of range.
    """
    check_participations(participations, rounds)
    return calibrate_amplified(
        lambda noise: allocation_epsilon(noise, rounds, participations, delta), epsilon, delta, participations
    )


def check_participations(participations: int, rounds: int) -> None:
    """Refuse to allocate fewer rounds than one, or more than there are.

    Raises:
        BadInput: so it is.
    """
    if not 1 <= participations <= rounds:
        raise BadInput(f"participations = {participations}: must lie between 1 and the number of rounds, {rounds}")


def _largest_loss(noise_multiplier: float, delta: float) -> float:
    """Of one participation that is known, but for a share of delta."""
    return 0.5 / noise_multiplier**2 + float(scipy.stats.norm.isf(_TAIL * delta)) / noise_multiplier


def _composed(
    noise_multiplier: float, rounds: int, participations: int, delta: float
) -> "PrivacyLossDistribution | None":
    """Both directions of the k blocks; None where grids are too coarse to say anything at this delta."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415 -- slow to import

    size, larger = divmod(rounds, participations)
    typical = math.sqrt(math.expm1(min(1.0, noise_multiplier**-2)) / size)
    width = max(min(_WIDTH, typical / 20), 2 * _largest_loss(noise_multiplier, delta) / _MOST_LOSSES)

    composed: PrivacyLossDistribution | None = None
    for length, times in ((size, participations - larger), (size + 1, larger)):
        if not times:
            continue
        law = _BlockLaw(noise_multiplier, length, delta)
        block = PrivacyLossDistribution(law.remove(width), law.add(width))
        if -math.expm1(times * math.log1p(-block.get_delta_for_epsilon(2 * _LARGEST_LOSS))) > delta:
            return None  # so much mass counts as an infinite loss
        composed = block.self_compose(times) if composed is None else composed.compose(block.self_compose(times))
    return composed


@dataclass(frozen=True)
class _BlockLaw:
    """One of ``size`` rounds, as losses of the pair (P, Q)."""

    noise_multiplier: float
    size: int
    delta: float

    def remove(self, width: float) -> "PLDPmf":
        """Of P against Q: ``E_P (1 - c / R)_+``."""
        masses, weighted, step = self._cells(_largest_loss(self.noise_multiplier, self.delta))
        slack, real = self._slack(max(_length(masses), _length(weighted)))
        law = weighted
        if self.size > 1:
            others = _power(masses.astype(real), self.size - 1)
            law = _convolved(others, weighted.astype(real)).astype(np.float64)
        ratios = np.arange(_CELLS) * (step / self.size)
        ratios[0] = ratios[1]  # a weighted W is never zero: what rounding leaves there counts as the next
        lost = max(0.0, 1 - law.sum())
        above, below = _tails(law), _tails(law / ratios)
        low, high = np.interp([_TAIL * self.delta, 1 - lost - _TAIL * self.delta], np.cumsum(law), ratios)

        def divergence(c: Vector) -> Vector:
            first = np.searchsorted(ratios, c, side="right")
            return np.asarray(above[first] * (1 + _SUMMED) - c * below[first] + lost + slack)

        return _connected(divergence, max(low, ratios[1]), high, width)

    def add(self, width: float) -> "PLDPmf":
        """Of Q against P: ``E_Q (1 - c R)_+``."""
        # Large sums are small losses here, and may end early; small ones need a fine step.
        largest = _largest_loss(self.noise_multiplier, self.delta) - self.noise_multiplier**-2
        masses, _, step = self._cells(min(largest, math.log(8 * self._typical)))
        slack, real = self._slack(_length(masses))
        kept = _power(masses.astype(real), self.size).astype(np.float64)
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
        """More than sums of W mostly are where W deviates by less than 10."""
        return 2 * self.size + 10 * math.sqrt(self.size)

    def _cells(self, largest: float) -> tuple[Vector, Vector, float]:
        """(cells,) masses of W spread onto multiples of a step, those weighted by W, and the step.

        The grid holds one W of logarithm ``largest`` beside a typical sum of the others.
        """
        shift, step = 1 / self.noise_multiplier, (math.exp(largest) + self._typical) / _CELLS
        with np.errstate(divide="ignore"):
            normal = np.log(np.arange(_CELLS + 1) * step) / shift
        masses, means = _between(normal + shift / 2), _between(normal - shift / 2) / step
        # Of a cell from j to j + 1 steps, of mass m and mean u: u - j m at its end, the rest at its start.
        places = np.arange(_CELLS)
        ends = np.clip(means - places * masses, 0, masses)
        spread = masses - ends
        spread[1:] += ends[:-1]
        return spread, spread * (places * step), step

    def _slack(self, longest: float) -> tuple[float, type[np.floating[Any]]]:
        """What rounding adds to a divergence at most, but for that of its sums, and the numbers to convolve with.

        These are float64, or long doubles where float64 would cost more than a thousandth of delta.

        *Claim.* With unit roundoff u, transforms of length L = 2 ``_CELLS``, and summands whose masses add up to one at
        most and have l2 norm ``longest`` at most, computed laws are within ``2 size`` times ``sqrt(L / 2) 3 (f + u)
        longest`` of the exact ones in l1, where ``f = log2(L) eta / (1 - log2(L) eta)`` and ``eta = u + 4 u (sqrt 2 +
        u) / (1 - 4 u)``. *Proof.*

        1. A computed transform is within f of the exact one, relatively and in l2 (Higham 2002, Theorem 24.2, with
           roots of unity to u). The exact one of a has l2 norm ``sqrt(L) |a|_2``, and entries below ``|a|_1 <= 1``. So
           a computed product of two differs from the exact one by ``sqrt(L) (f |a|_2 + f |b|_2 + sqrt(5) u |a|_2)`` at
           most, where ``sqrt(5) u`` is for complex products; the way back divides by sqrt(L) and adds ``f |a * b|_2``,
           and ``|a * b|_2`` is at most the smaller of both norms (Young). Together below ``3 (f + u) longest``; by
           Cauchy-Schwarz the l1 norm on the cells that are kept is at most sqrt(L / 2) times that. The room between
           sqrt(5) and 3 covers terms of second order, below 1e-11 of it, and masses above one by roundings.
        2. A sum of n summands (`_power`) has at most 2 (n - 1) such errors: convolving with a law keeps an error's l1
           norm, squaring doubles it, so ``T(2 n) = 2 T(n) + 1`` and ``T(n + 1) = T(n) + 1`` errors. The last,
           weighted one adds another. Taking the positive part brings a law nearer.

        Both divergences are sums over a law with weights in [0, 1] or, with what is lost, in [-1, 0]: they move by no
        more. Masses of single cells are differences of distribution functions with errors of some u: that is mass moved
        by one cell, which moves the mean distance of W by that times the step, over all cells by some u E[W] = some u,
        and divergences are 1-Lipschitz in the mean of the W's. That is the 2^-46, 128 u.
        """
        plain = _transformed(np.float64) * self.size * longest
        wide = _transformed(np.longdouble) * self.size * longest
        if plain <= _ROUNDED * self.delta or wide == plain:
            return plain + 2.0**-46, np.float64
        return wide + 2.0**-46, np.longdouble


def _transformed(real: type[np.floating[Any]]) -> float:
    """Of the claim in `_BlockLaw._slack`: what stands before ``size longest``."""
    unit, length = float(np.finfo(real).eps) / 2, 2 * _CELLS
    eta = unit + 4 * unit * (math.sqrt(2) + unit) / (1 - 4 * unit)
    relative = math.log2(length) * eta / (1 - math.log2(length) * eta)
    return 2 * math.sqrt(length / 2) * 3 * (relative + unit)


def _length(masses: Vector) -> float:
    """The l2 norm, rounded up."""
    return math.sqrt(float(masses @ masses)) * (1 + _CELLS * _UNIT)


def _between(normal: Vector) -> Vector:
    """(cells,) mass of the standard normal between neighbours, from whichever tail is the smaller."""
    lower, upper = np.diff(scipy.special.ndtr(normal)), -np.diff(scipy.special.ndtr(-normal))
    return np.where(normal[1:] > 0, upper, lower)


def _tails(law: Vector) -> Vector:
    """(cells + 1,) sums of ``law`` from each place on."""
    return np.append(np.cumsum(law[::-1])[::-1], 0.0)


def _convolved(first: Numbers, second: Numbers) -> Numbers:
    """(cells,) what of the sum lies on the grid; the rest is lost."""
    transformed = scipy.fft.rfft(first, 2 * _CELLS) * scipy.fft.rfft(second, 2 * _CELLS)
    return np.maximum(scipy.fft.irfft(transformed, 2 * _CELLS)[:_CELLS], 0.0)


def _power(masses: Numbers, times: int) -> Numbers:
    """(cells,) law of the sum of ``times`` >= 1 independent ones, as far as it lies on the grid."""
    law = masses
    for digit in f"{times:b}"[1:]:
        law = _convolved(law, law)
        if digit == "1":
            law = _convolved(law, masses)
    return law


def _connected(divergence: Callable[[Vector], Vector], low: float, high: float, width: float) -> "PLDPmf":
    """Losses from the logarithms of ``low`` to ``high`` whose divergences are nowhere smaller.

    By joining points (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022).
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap  # noqa: PLC0415 -- as above

    first, last = math.floor(math.log(low) / width), math.ceil(math.log(high) / width)
    deltas = np.clip(divergence(np.exp(np.arange(first, last + 1) * width)), 0.0, 1.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(width, first, last, np.minimum.accumulate(deltas))
