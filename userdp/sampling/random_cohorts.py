"""Secret random cohorts, drawn afresh every round: amplification by sampling.

The cohorts must stay secret: against an observer who knows them only plain composition holds.
"""

import math
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Relation
from userdp.accounting.amplified import calibrate_amplified, fixed_size_epsilon, poisson_epsilon
from userdp.accounting.checks import check_rate
from userdp.accounting.sampled_gaussian import SampledRounds, unequal_rounds_epsilon
from userdp.errors import BadInput
from userdp.randomness import stream
from userdp.sampling.base import (
    EitherRelation,
    NamedSampler,
    Sampler,
    SizedSampler,
    Wanted,
    check_shares,
    check_whole,
)
from userdp.state import Stateful

Cohort = NDArray[np.int64]

SECRET = "who takes part in which round stays secret (each node knows of its own users only)"

DRAWN_TOGETHER = (
    "against whoever sees every iterate and does not know who takes part; the server is trusted, and nodes are trusted "
    "not to use what they know of their own users' draws"
)
"""The adversary of draws without replacement: they depend on each other, and nodes know those of their own users."""


class Remembered(Stateful):
    """The one cohort that the operating system drew for the current round: every call returns the same.

    Cohorts without a seed cannot be repeated, so each round is drawn once, rounds in their order: the cohort of the
    question is the accounted one, and no round gets a second cohort.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_index", "_cohort")

    def __init__(self) -> None:
        self._index = -1
        self._cohort: Cohort = np.empty(0, dtype=np.int64)

    def cohort(self, index: int, draw: Callable[[], Cohort]) -> Cohort:
        """Return the cohort of round ``index``, drawn now if it is the latest; raise `BadInput` for an earlier one."""
        if index < self._index:
            raise BadInput(
                f"the cohort of round {index} was drawn by the operating system and is gone: a round is never drawn "
                "again; continue with later rounds, or give a seed for a simulation"
            )
        if index > self._index:
            self._index, self._cohort = index, draw()
            self._cohort.setflags(write=False)
        return self._cohort


@dataclass(frozen=True)
class RandomCohorts(Sampler):
    """A sampler of cohorts that must stay secret."""

    drawn: Remembered = field(default_factory=Remembered, init=False, repr=False, compare=False)

    secret: ClassVar[bool] = True

    def _tossed(self, index: int, rate: float) -> Cohort:
        """Draw the rising indices of users who take part in round ``index``, each with a coin of its own."""
        if self.seed is not None:
            return np.flatnonzero(stream(self.seed, "sampling", index).random(self.users) < rate)

        def draw() -> Cohort:
            # The share of winning coins among 2^53 equally likely ones is the rate, rounded down: never more.
            coins = np.frombuffer(secrets.token_bytes(8 * self.users), dtype=np.uint64) >> np.uint64(11)
            return np.flatnonzero(coins < np.uint64(rate * 2**53))

        return self.drawn.cohort(index, draw)


@dataclass(frozen=True)
class PoissonBatches(EitherRelation, RandomCohorts, NamedSampler):
    """Every user takes part in every round by its own coin; an empty cohort releases noise alone.

    *Formal guarantees.* Unit: a user; relation: add-or-remove, or replace-one if so set, with n public. A user adds to
    the sum of clipped vectors a vector no longer than the clip, with probability ``rate``; the divisor is the public
    ``rate * users``, whatever the number drawn. Rounds compose by their privacy loss distribution, in both directions
    (Zhu, Dong, Wang 2022; for replace-one the worst pair is found in `userdp.accounting.amplified.poisson_epsilon`);
    rounds with an empty cohort cost as much as any other. Assumption: the coins are secret.
    """

    users: int
    rate: float  # probability to take part, in (0, 1]
    rounds: int
    seed: int | None = 0  # of SIMULATED draws; None: the operating system draws, once per round, rounds in order

    accountant: ClassVar[str] = (
        "privacy loss distribution of the Poisson-sampled Gaussian mechanism, composed over rounds"
    )
    assumption: ClassVar[str] = f"the number that divides is a public constant, and {SECRET}"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(users=self.users, rounds=self.rounds)
        check_rate(self.rate)

    @classmethod
    def of(cls, wanted: Wanted) -> Self:
        rate, relation = wanted.batch / wanted.users, wanted.relation or "add_or_remove"
        return cls(wanted.users, rate, wanted.rounds, wanted.secret_seed, relation=relation)

    @property
    def expected_batch(self) -> float:
        """The product ``rate * users``."""
        return self.rate * self.users

    def cohort(self, index: int) -> Cohort:
        return self._tossed(self.checked_round(index), self.rate)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return epsilon amplified by sampling."""
        return poisson_epsilon(noise_multiplier, self.rate, self.counted_rounds(rounds), delta, self.relation)


@dataclass(frozen=True)
class FixedSizeBatches(RandomCohorts, SizedSampler, NamedSampler):
    """A uniformly random cohort of a fixed size each round, no user twice in it.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. Replacing a user moves the sum of clipped
    vectors by at most TWICE the clip, in the rounds that drew it: with probability ``batch / users``, independently.
    Renyi privacy of sampling without replacement, composed over rounds (Wang, Balle, Kasiviswanathan 2019, Theorem 27).
    Assumption: the cohorts are secret, also from other nodes: draws are not independent, and a node that knows the
    draws of its own u users faces a rate of up to ``batch / (users - u)`` for the others.
    """

    users: int
    batch: int  # users per round
    rounds: int
    seed: int | None = 0  # of SIMULATED draws; None: the operating system draws, once per round, rounds in order

    relation: ClassVar[Relation] = "replace_one"
    accountant: ClassVar[str] = (
        "Renyi privacy of the Gaussian mechanism sampled without replacement, composed over rounds"
    )
    assumption: ClassVar[str] = (
        "n is public, and who takes part in which round stays secret, from other nodes too (what a large node knows of "
        "its own users' draws raises the others' rate)"
    )
    adversary: ClassVar[str | None] = DRAWN_TOGETHER

    def __post_init__(self) -> None:
        self._check_sizes(rounds=self.rounds)

    @classmethod
    def of(cls, wanted: Wanted) -> Self:
        return cls(wanted.users, wanted.batch, wanted.rounds, wanted.secret_seed)

    def cohort(self, index: int) -> Cohort:
        self.checked_round(index)
        if self.seed is None:
            return self.drawn.cohort(index, self._drawn)
        rng = stream(self.seed, "sampling", index)
        return np.sort(rng.choice(self.users, self.batch, replace=False, shuffle=False))

    def _drawn(self) -> Cohort:
        return np.sort(secrets.SystemRandom().sample(range(self.users), self.batch)).astype(np.int64)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return epsilon amplified by sampling, for replacing a user."""
        return fixed_size_epsilon(noise_multiplier, self.batch / self.users, self.counted_rounds(rounds), delta)


@dataclass(frozen=True)
class MixedBatches(EitherRelation, RandomCohorts):
    """Each round has its own probability that a user takes part, 1 for all users, and its own share of the budget.

    A round's noise multiplier is ``noise_multiplier rate / sqrt(share)``, so that the mean over its ``rate n`` expected
    users has the noise of a mean over all users with that share. If cohorts were as good as all users, the rounds
    together would cost as much as one Gaussian of ``noise_multiplier``; the excess is the price of cohorts.

    *Formal guarantees.* Unit: a user; relation: add-or-remove, or replace-one if so set, with n public. A user adds to
    the sum of round k a vector of norm at most C, with probability ``rates[k]``, independently of other rounds. Given
    earlier releases, on which query and clip may depend, round k is therefore dominated by the pair that
    `userdp.accounting.amplified.poisson_epsilon` states for the relation (for q_k = 1 a plain Gaussian); dominated
    pairs compose adaptively into the pair of the products (Zhu, Dong, Wang 2022, Theorems 10 and 11). The privacy loss
    of the products is the convolution of the rounds', each rounded pessimistically, in both orders. Several vectors of
    one round, scaled by their own clips and noises, are one vector whose squared length over the noise adds up. The
    divisors ``rate n`` are public. Assumption: the coins are secret; that all users take part in a round of rate 1 says
    nothing about them.
    """

    users: int
    rates: tuple[float, ...]  # (rounds,) probabilities to take part, in (0, 1]
    shares: tuple[float, ...]  # (rounds,) shares of the budget, positive, summing to 1 (or less)
    seed: int | None = 0  # of SIMULATED draws; None: the operating system draws, once per round, rounds in order

    accountant: ClassVar[str] = (
        "privacy loss distributions of Gaussian mechanisms with all users and with Poisson cohorts, composed"
    )
    assumption: ClassVar[str] = f"the numbers that divide are public constants, and {SECRET}"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(users=self.users, rounds=self.rounds)
        for rate in self.rates:
            check_rate(rate, "rates")
        check_shares(self.shares, self.rounds)

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """The number of rates."""
        return len(self.rates)

    @property
    def expected_batch(self) -> float:
        """The users per round, on average over coins and rounds."""
        return self.users * sum(self.rates) / self.rounds

    def expected(self, index: int) -> float:
        """Return the expected users of round ``index``, the divisor of its sums."""
        return self.users * self.rates[self.checked_round(index)]

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """See `Sampler.multiplier`, for rounds that together cost ``noise_multiplier``."""
        return noise_multiplier * self.rates[self.checked_round(index)] / math.sqrt(self.shares[index])

    def cohort(self, index: int) -> Cohort:
        """See `Sampler.cohort`; all users in a round of rate 1."""
        rate = self.rates[self.checked_round(index)]
        return np.arange(self.users) if rate == 1 else self._tossed(index, rate)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of the rounds so far."""
        counted = self.counted_rounds(rounds)
        return _epsilon(self.rates[:counted], self.shares[:counted], noise_multiplier, delta, self.relation)

    def calibrate(self, epsilon: float, delta: float) -> float:
        # With this noise plain composition of all rounds costs as much as one Gaussian of multiplier one.
        plain = math.sqrt(sum(share / rate**2 for rate, share in zip(self.rates, self.shares, strict=True)))
        return plain * calibrate_amplified(lambda noise: self.epsilon(plain * noise, delta), epsilon, delta, 1)


@lru_cache(maxsize=1024)
def _epsilon(
    rates: tuple[float, ...], shares: tuple[float, ...], noise_multiplier: float, delta: float, relation: Relation
) -> float:
    alike = Counter(zip(rates, shares, strict=True))
    alone = ((noise_multiplier * rate / math.sqrt(share), rate, count) for (rate, share), count in alike.items())
    return unequal_rounds_epsilon([SampledRounds(*each) for each in alone], delta, relation)
