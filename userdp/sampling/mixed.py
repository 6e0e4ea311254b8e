"""Rounds with all users and rounds with secret random cohorts, of unequal shares, under one price."""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np

from userdp.accounting import Relation
from userdp.accounting.amplified import calibrate_amplified
from userdp.accounting.sampled_gaussian import SampledRounds, unequal_rounds_epsilon
from userdp.errors import BadInput
from userdp.sampling.base import Sampler
from userdp.sampling.random_cohorts import SECRET, Cohort, Remembered, simulated, tossed


@dataclass(frozen=True)
class MixedBatches(Sampler):
    """Each round has a chance of its own that a user takes part, 1 for all users, and a share of its own.

    A round's noise multiplier is ``noise_multiplier rate / sqrt(share)``, so that the mean over its ``rate n`` expected
    users has the noise that one over all users would have for that share. Were cohorts as good as all users, the rounds
    together would cost what one Gaussian of ``noise_multiplier`` costs; by how much it is larger is what cohorts cost.

    *Formal guarantees.* Unit: a user; relation: ADD-OR-REMOVE. Adding a user moves the sum of round k, of vectors of
    norm at most C, by at most C, with probability ``rates[k]``, independently of other rounds. Given earlier releases,
    on which query and clip may depend, round k is therefore dominated by the pair of ``N(0, z_k^2)`` and
    ``(1 - q_k) N(0, z_k^2) + q_k N(1, z_k^2)`` (for q_k = 1 a plain Gaussian), in the one order for adding and in the
    other for removing; dominated pairs compose adaptively into the pair of the products (Zhu, Dong, Wang 2022, Theorems
    10 and 11). The privacy loss of the products is the convolution of the rounds', each rounded pessimistically, and in
    both orders. Several vectors of one round, scaled by their own clips and noises, are one vector whose squared length
    over the noise adds up. The divisors ``rate n`` are public. Assumption: the coins are secret; that all users take
    part in a round of rate 1 tells nothing of them.

    Attributes:
        users: n, a public constant.
        rates: (rounds,) chances to take part, in (0, 1].
        shares: (rounds,) of the budget, positive, summing to 1 (or less).
        seed: of SIMULATED coins; None to have the operating system toss them, once a round, rounds in their order.

    Raises:
        BadInput: an argument out of range.
    """

    users: int
    rates: tuple[float, ...]
    shares: tuple[float, ...]
    seed: int | None = 0
    drawn: Remembered = field(default_factory=Remembered, init=False, repr=False, compare=False)

    relation: ClassVar[Relation] = "add_or_remove"
    accountant: ClassVar[str] = (
        "privacy loss distributions of Gaussian mechanisms with all users and with Poisson cohorts, composed"
    )
    assumption: ClassVar[str] = f"the numbers that divide are public constants, and {SECRET}"
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.users < 1 or not self.rates:
            raise BadInput(f"users = {self.users}, rounds = {self.rounds}: each must be at least 1")
        if not all(0 < rate <= 1 for rate in self.rates):
            raise BadInput(f"rates = {self.rates}: the chance to take part in a round must lie in (0, 1]")
        numbered = len(self.shares) == self.rounds and all(share > 0 for share in self.shares)
        if not numbered or not sum(self.shares) <= 1 + 1e-9:
            raise BadInput(f"shares = {self.shares}: there must be {self.rounds} positive numbers that sum to 1")

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """As many as there are rates."""
        return len(self.rates)

    @property
    def expected_batch(self) -> float:
        """Users a round, on average over coins and rounds."""
        return self.users * sum(self.rates) / self.rounds

    def expected(self, index: int) -> float:
        """Users of round ``index``, on average: what its sums are divided by."""
        return self.users * self.rates[self._checked(index)]

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """Noise over sensitivity in round ``index``, when all rounds together are worth ``noise_multiplier``."""
        return noise_multiplier * self.rates[self._checked(index)] / math.sqrt(self.shares[index])

    def cohort(self, index: int) -> Cohort:
        """Rising indices of the users whose coin fell for round ``index``; of all users where they need none."""
        rate = self.rates[self._checked(index)]
        if rate == 1:
            return np.arange(self.users)
        if self.seed is None:
            return self.drawn.cohort(index, lambda: tossed(self.users, rate))
        return simulated(self.users, rate, self.seed, index)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Of the rounds so far, for adding or removing a user."""
        counted = self._counted(rounds)
        return _epsilon(self.rates[:counted], self.shares[:counted], noise_multiplier, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """To 1e-4 relative."""
        # Noise of which plain composition of all rounds costs what one Gaussian of multiplier one costs.
        plain = math.sqrt(sum(share / rate**2 for rate, share in zip(self.rates, self.shares, strict=True)))
        return plain * calibrate_amplified(lambda noise: self.epsilon(plain * noise, delta), epsilon, delta, 1)


@lru_cache(maxsize=1024)
def _epsilon(rates: tuple[float, ...], shares: tuple[float, ...], noise_multiplier: float, delta: float) -> float:
    alike = Counter(zip(rates, shares, strict=True))
    steps = [
        SampledRounds(noise_multiplier * rate / math.sqrt(share), rate, count) for (rate, share), count in alike.items()
    ]
    return unequal_rounds_epsilon(steps, delta)
