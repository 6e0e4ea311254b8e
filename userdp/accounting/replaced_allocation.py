"""Random allocation of rounds, for replacing a user: the price of `userdp.accounting.allocation` under replace-one.

*Formal guarantees.* Unit: a user. Relation: replace-one. The observer sees all T releases, and chooses each round's
query from earlier releases; which rounds a user takes part in does not depend on its data. Rows over their noise are no
longer than s, half of one over the noise multiplier (noise over twice the clip).

*One round of m.* Let Z be the releases over their noise without the user: normal, independent. The user moves a uniform
round t by g_t, its replacement by g'_t, both functions of earlier releases. With ``L_t = exp(<g_t, Z_t> - |g_t|^2 /
2)`` and L'_t alike, the divergence at ``c = e^epsilon`` is ``E max(0, mean_t (L_t - c L'_t))``.

1. Given the past, and later rounds replaced by the extremal ones of this step, it is ``E F(L_t, L'_t)`` in round t with
   ``F(x, y)`` an average of functions ``phi(u x - v y)``, phi convex and u, v >= 0. For those the worst g_t and g'_t
   are opposite and of length s, whatever the past (`userdp.accounting.amplified.poisson_epsilon`, step 2). From the
   last round to the first, all rounds become independent: ``L = exp(s Z - s^2 / 2)``, ``L' = exp(-s Z - s^2 / 2)``.
2. So the divergence is ``E max(0, mean_t Y_t)`` with independent ``Y_t = L_t - c L'_t``. Each Y is raised to the lowest
   point of a grid with step h, and each cell's mass moves to the cell's two ends and keeps its mean. Both raise the
   expectation of convex, rising functions.
3. The Y are exchangeable, so it is ``E[Y_1; Y_1 + S > 0]`` with S the sum of the others, an exact convolution of
   numbers. Partial sums below the grid are raised to its lowest point. Those above are not followed: with the
   probability of that, ``E max(0, Y_1) <= 1`` is lost at most, which counts in full, as does ``E[Y_1; Y_1 beyond the
   grid]``, which is at most ``E[L_1]`` there.
4. Rounding is bounded, and added (`_Sum.divergence`).

*k rounds of T.* Given the random partition of `userdp.accounting.allocation`, likelihood ratios are products over
blocks, which in each round are of the form of step 1 still. So the pair is the composition of k pairs of one round of a
block. The divergence is convex in c: between the numbers c that it is computed for, its chord bounds it (Doroshenko et
al. 2022). A block of m + 1 rounds costs no more than one of m, as a mean of m + 1 is an average of means of m.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import scipy
from scipy.special import ndtr

from userdp.accounting.allocation import (
    Numbers,
    cell_masses,
    largest_loss,
    plain_epsilon,
    power,
    transform_error,
)
from userdp.arrays.types import Vector

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_TAIL = 1e-4  # The share of delta with which a round may lie above the grid of sums.
_ROUNDED = 1e-2  # The share of delta that rounding in float64 may cost; beyond, long doubles are used.
_LOST = 2e-3  # The share of delta that may count as infinite losses.
_STEP = 0.2  # The step of a grid in deviations of Y, if points suffice; any is valid.
_FEWEST, _MOST = 1 << 10, 1 << 14  # Points of a grid on either side of zero, and one
_CELLS, _GROWTH = 8, 0.03  # Losses at which divergences are computed: so many a deviation, and their relative distance
_UNIT = float(np.finfo(np.float64).eps) / 2  # The roundoff of float64.
_ROOT = 1e-6  # The relative width of the bracket around epsilon; the safe end is returned.


@lru_cache(maxsize=4096)
def replaced_allocation_epsilon(noise_multiplier: float, rounds: int, participations: int, delta: float) -> float:
    """Compute epsilon of ``rounds`` Gaussian sums, for replacing a user with secret random participations.

    ``noise_multiplier`` is noise over twice the clip. All rounds are released; the user takes part in
    ``participations`` of them. The result never exceeds plain composition. Raises `BadInput` for an argument out of
    range.
    """
    plain, final = plain_epsilon(noise_multiplier, rounds, participations, delta)
    if final:
        return plain
    size, larger = divmod(rounds, participations)
    if participations == 1:
        return _Block(noise_multiplier, size, delta).epsilon(plain)
    width = _Block(noise_multiplier, size + 1, delta).deviation / _CELLS
    composed: PrivacyLossDistribution | None = None
    for length, times in ((size, participations - larger), (size + 1, larger)):
        if times:
            block = _Block(noise_multiplier, length, delta / participations).losses(width).self_compose(times)
            composed = block if composed is None else composed.compose(block)
    assert composed is not None
    return min(plain, float(composed.get_epsilon_for_delta(delta)))


@dataclass(frozen=True)
class _Block:
    """One of ``size`` rounds, with divergences that are accurate beside ``delta``."""

    noise_multiplier: float
    size: int
    delta: float

    @property
    def deviation(self) -> float:
        """The deviation of the block's privacy loss, about."""
        return math.sqrt(4 * math.sinh(min(1.0, 0.25 * self.noise_multiplier**-2)) / self.size)

    def epsilon(self, most: float) -> float:
        """Compute the smallest epsilon (rounded up) at ``delta``, no more than ``most``."""
        low, high = 0.0, most
        while high - low > _ROOT * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.divergence(middle) <= self.delta else (middle, high)
        return high

    def losses(self, width: float) -> "PrivacyLossDistribution":
        """Return privacy losses, on multiples of ``width``, that are the same in both orders."""
        from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots  # noqa: PLC0415 -- slow to import
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415 -- as above

        places, found, end = [0], [self.divergence(0.0)], largest_loss(self.noise_multiplier, self.delta)
        while found[-1] > _LOST * self.delta and places[-1] * width < end:
            places.append(places[-1] + max(1, round(_GROWTH * places[-1])))
            found.append(min(found[-1], self.divergence(places[-1] * width)))
        place, above = np.array(places), np.array(found)
        # The pair is symmetric: the divergence at 1 / c is 1 - 1 / c and that at c over c.
        below = (1 - (1 - above) * np.exp(-width * place))[:0:-1]
        rounded = np.concatenate([-place[:0:-1], place])
        return PrivacyLossDistribution(
            create_pmf_pessimistic_connect_dots(width, rounded, np.concatenate([below, above]))
        )

    def divergence(self, loss: float) -> float:
        """Bound the hockey-stick divergence of the extremal pair at an epsilon >= 0, by at most 1."""
        summed = _Sum(0.5 / self.noise_multiplier, self.size, math.exp(loss), _TAIL * self.delta)
        return min(1.0, summed.divergence(_ROUNDED * self.delta))


@dataclass(frozen=True)
class _Sum:
    """The sum of ``size`` independent ``Y = L - c L'`` on a grid, which a Y exceeds with a chance of ``lost`` at most.

    The grid has the points ``j step`` for whole numbers j from -n to n.
    """

    length: float  # s
    size: int  # m
    ratio: float  # c
    lost: float

    def divergence(self, allowed: float) -> float:
        """Bound ``E max(0, mean Y)``; rounding in float64 costs at most ``allowed``, or long doubles are used.

        *Claim.* Rounding is covered. *Proof.* Let u be the unit roundoff, L the transforms' length, f as in
        `userdp.accounting.allocation`, and ``longest`` the l2 norm of the law of Y.

        1. A computed convolution is within ``3 (f + u) longest`` of the exact one in l2 on all L cells (there, 1), so
           within sqrt(L) times that in l1; raising mass, or dropping it, adds nothing. A sum of m - 1 has at most 2 (m
           - 2) such errors (there, 2). So probabilities of sums are within ``slack``: they are raised by that where Y_1
           is positive and lowered where it is negative.
        2. Sums over a grid's n points, and products, are within a factor ``1 +- 4 (2 n + 1) u``.
        3. Distribution functions at cells' ends are within some u of the exact ones, relatively and on the side where
           they are small. So the law of Y is that of another one, at a distance (the integral of the difference of both
           functions) of some ``u E|Y| <= u (1 + c)``, and so is the mass that a cell splits otherwise. The divergence
           is 1-Lipschitz in the mean of the Y. This is the ``2^-46 (1 + c)``, 128 u.
        """
        law, values, beyond = self._cells()
        points, longest = len(law), math.sqrt(float(law @ law))
        gain, rest = np.maximum(values, 0) * law, np.maximum(-values, 0) * law
        summed, bound = 4 * points * _UNIT, math.inf
        for real in (np.float64, np.longdouble):
            others = _power(law.astype(real), self.size - 1).astype(np.float64)
            # The probability that the others' sum is above minus each value.
            positive = np.concatenate([[0.0], np.cumsum(others[::-1])[:-1]])
            slack = transform_error(real, 2 * (points + 1)) * math.sqrt(2) * self.size * longest
            unfollowed = beyond + max(0.0, 1 - others.sum()) + points * _UNIT
            exact = gain @ positive * (1 + summed) - rest @ positive * (1 - summed) + unfollowed
            raised, lowered = np.minimum(1, positive + slack), np.maximum(0, positive - slack)
            bound = gain @ raised * (1 + summed) - rest @ lowered * (1 - summed) + unfollowed + slack
            if bound - exact <= allowed:
                break
        return float(bound + 2.0**-46 * (1 + self.ratio))

    def _cells(self) -> tuple[Vector, Vector, float]:
        """Return (2 n + 1,) masses of Y, the values that they are at, and ``E[L; Y beyond the grid]``."""
        s, c, deviation = self.length, self.ratio, math.sqrt(math.expm1(min(1.5, self.length**2)))
        typical = self.size + 6 * deviation * math.sqrt(self.size)
        rare = math.exp(-s * float(scipy.special.ndtri(self.lost / self.size)) - s**2 / 2)
        largest = max(rare + typical, c * typical)
        wanted = largest / (_STEP * deviation * math.hypot(1, c))
        half = min(max(1 << math.ceil(math.log2(wanted)), _FEWEST), _MOST) - 1
        step, places = largest / half, np.arange(-half, half + 1)
        values = np.asarray(places * step)
        # Y = w - c exp(-s^2) / w for w = exp(s Z - s^2 / 2). The larger of w and c exp(-s^2) / w is solved for first.
        larger = (np.abs(values) + np.hypot(values, 2 * math.sqrt(c) * math.exp(-(s**2) / 2))) / 2
        logarithm = np.where(values > 0, np.log(larger), math.log(c) - s**2 - np.log(larger))
        normal = logarithm / s + s / 2
        masses = cell_masses(normal)
        means = (cell_masses(normal - s) - c * cell_masses(normal + s)) / step
        # A cell from j to j + 1 steps, of mass m and mean u, puts u - j m at its end, the rest at its start.
        ends = np.clip(means - places[:-1] * masses, 0, masses)
        law = np.concatenate([[ndtr(normal[0])], ends])
        law[:-1] += masses - ends
        return law, values, float(ndtr(s - normal[-1]))


def _power(law: Numbers, times: int) -> Numbers:
    """Return the law of the sum of ``times`` independent ones: raised to the grid's end below, and dropped above."""
    if times:
        return power(law, times, _convolved)
    alone = np.zeros_like(law)
    alone[len(law) // 2] = 1
    return alone


def _convolved(first: Numbers, second: Numbers) -> Numbers:
    length, half = 2 * (len(first) + 1), len(first) // 2
    transformed = scipy.fft.rfft(first, length) * scipy.fft.rfft(second, length)
    whole = np.maximum(scipy.fft.irfft(transformed, length), 0.0)
    kept = whole[half : half + len(first)].copy()
    kept[0] += whole[:half].sum()
    return kept
