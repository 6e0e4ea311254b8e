"""Peeling: the largest entries of a vector, found and released with differential privacy.

Hu, Ni, Xiao, Wang 2022 (Algorithm 4), after Cai, Wang, Zhang 2021, with a proof that holds and less noise.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.composition import zcdp_to_epsilon_simple
from userdp.accounting import Cost, check_positive, largest_rho
from userdp.errors import BadInput
from userdp.noise import NoiseSource, Scores, within

PeelingAccounting = Literal["tight", "paper"]


@dataclass(frozen=True)
class Peeling:
    """Chooses ``sparsity`` entries of a vector, one after the other, by noisy size; then releases them with noise.

    *Formal guarantees.* (epsilon, delta)-DP for the unit and relation for which ``sensitivity`` bounds ``||v -
    v'||_inf`` =: lam; all d entries may move at once. With noise of scale b there are s selections and one release of s
    entries. Adding Laplace noise to the s chosen entries is pure, at ``s lam / b``; each entry is (lam / b)-DP, so
    together they are ``s (lam / b)^2 / 2``-zCDP (Bun, Steinke 2016). Each selection is (2 lam / b)-DP, for Gumbel noise
    (the exponential mechanism) and for Laplace noise (report noisy max), as sizes ``|v_j|`` move by at most lam.

    "tight" selects by Gumbel noise. An exponential mechanism at e is ``e^2 / 8``-zCDP (Cesar, Rogers 2021), so the
    whole costs ``rho = s (lam / b)^2``, `largest_rho` of (epsilon, delta). Pure costs are ``3 s lam / b``; the smaller
    b of the two is used. For few entries that is the second, which is pure and needs no delta.

    "paper" selects by Laplace noise, with ``b = 2 lam sqrt(3 s ln(1/delta)) / epsilon``. By zCDP the whole costs
    ``rho = (5/2) s (lam / b)^2 = (5/24) epsilon^2 / ln(1/delta)``, which is (epsilon, delta)-DP only for
    ``epsilon <= 0.418 ln(1/delta)``; beyond, it is refused. Raises `BadInput` for a number out of range, or a budget
    for which the paper's noise is not proven to be enough.
    """

    sparsity: int  # s >= 1, entries to release
    sensitivity: float  # lam > 0, in units of the value
    epsilon: float  # > 0
    delta: float  # in [0, 1); 0 for pure privacy, by "tight" alone
    accounting: PeelingAccounting = "tight"

    def __post_init__(self) -> None:
        if self.sparsity < 1:
            raise BadInput(f"sparsity = {self.sparsity}: at least one entry must be released")
        check_positive(sensitivity=self.sensitivity, epsilon=self.epsilon)
        if not 0 <= self.delta < 1:
            raise BadInput(f"delta = {self.delta}: must lie in [0, 1)")
        if self.accounting not in ("tight", "paper"):
            raise BadInput(f"accounting = {self.accounting!r}: must be 'tight' or 'paper'")
        if self.accounting == "paper":
            self._check_paper()

    def _check_paper(self) -> None:
        if self.delta == 0:
            raise BadInput("delta = 0: the paper's noise grows without bound; use accounting = 'tight'")
        log = math.log(1 / self.delta)
        if zcdp_to_epsilon_simple(5 / 24 * self.epsilon**2 / log, self.delta) > self.epsilon:
            # rho + 2 sqrt(rho log) <= epsilon, solved for epsilon.
            most = 24 / 5 * (1 - math.sqrt(5 / 6)) * log
            raise BadInput(
                f"epsilon = {self.epsilon:g}: the paper's noise is proven private up to 0.418 ln(1/delta) = {most:.4g} "
                f"at delta = {self.delta:g}; lower epsilon or use accounting = 'tight'"
            )

    @cached_property
    def pure(self) -> bool:
        """True where the noise is that of pure privacy: at delta = 0, and wherever it is the smaller."""
        return self.accounting == "tight" and 3 * self.sparsity / self.epsilon <= self._concentrated()

    @cached_property
    def scale(self) -> float:
        """The scale b of Gumbel and Laplace noise, in units of the value."""
        if self.accounting == "paper":
            return 2 * self.sensitivity * math.sqrt(3 * self.sparsity * math.log(1 / self.delta)) / self.epsilon
        return self.sensitivity * (3 * self.sparsity / self.epsilon if self.pure else self._concentrated())

    def _concentrated(self) -> float:
        """Return the scale over lam, by zero-concentrated privacy."""
        return math.inf if self.delta == 0 else math.sqrt(self.sparsity / largest_rho(self.epsilon, self.delta))

    @property
    def cost(self) -> Cost:
        """The cost of one release."""
        return Cost(pure_epsilon=self.epsilon, failure_delta=0.0 if self.pure else self.delta)

    def select(self, values: NDArray[np.float64], noise: NoiseSource) -> NDArray[np.int64]:
        """Return the (s,) entries chosen of (d,) values, in order; `BadInput` for fewer than s finite numbers."""
        if values.ndim != 1 or len(values) < self.sparsity:
            raise BadInput(f"values of shape {values.shape}: must be a vector of at least {self.sparsity} entries")
        left, sizes = np.arange(len(values)), np.abs(values)
        chosen = np.empty(self.sparsity, dtype=np.int64)
        for turn in range(self.sparsity):  # each choice is made among those that the others left
            position = self._largest(sizes[left], noise)
            chosen[turn] = left[position]
            left = np.delete(left, position)
        return chosen

    def _largest(self, sizes: NDArray[np.float64], noise: NoiseSource) -> int:
        if self.accounting == "paper":
            return int(np.argmax(noise.laplace(sizes, self.scale)))
        return int(noise.choose(Scores(sizes, self.sensitivity), 2 * self.sensitivity / self.scale)[0])

    def release(self, proposal: Scores, noise: NoiseSource) -> NDArray[np.float64]:
        """Return (d,): the chosen entries of d values with Laplace noise, zero elsewhere; `BadInput` as `select`.

        Raises `RunFailed` for values that one user may move by more than ``sensitivity``.
        """
        values = within(proposal, self.sensitivity).values
        noise.charge(self.cost)
        chosen = self.select(values, noise)
        released = np.zeros(len(values))
        released[chosen] = noise.laplace(values[chosen], self.scale)
        return released
