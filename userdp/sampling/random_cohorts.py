"""Secret random cohorts, drawn afresh every round: amplification by sampling.

The cohorts must stay secret: an observer who knows who took part gets plain composition only.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Relation
from userdp.accounting.amplified import calibrate_amplified, fixed_size_epsilon, poisson_epsilon
from userdp.errors import BadInput
from userdp.randomness import stream
from userdp.sampling.base import Sampler
from userdp.sampling.disjoint import check_batch
from userdp.state import Stateful

Cohort = NDArray[np.int64]

SECRET = "who takes part in which round stays secret (each node knows of its own users only)"

DRAWN_TOGETHER = (
    "against whoever sees every iterate and does not know who takes part; the server is trusted, and nodes are trusted "
    "not to use what they know of their own users' draws"
)
"""Whom draws without replacement protect from: they depend on each other, and nodes know those of their own users."""


class Remembered(Stateful):
    """The one cohort that the operating system drew for the round under way: asked for again, it is the same.

    Cohorts without a seed cannot be repeated, so each round is drawn once, rounds in their order: the cohort that is
    asked is then the one that is accounted, and no round gets a second cohort.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_index", "_cohort")

    def __init__(self) -> None:
        self._index = -1
        self._cohort: Cohort = np.empty(0, dtype=np.int64)

    def cohort(self, index: int, draw: Callable[[], Cohort]) -> Cohort:
        """That of round ``index``, drawn now if it is a later round than the last.

        Raises:
            BadInput: an earlier round, whose cohort is gone.
        """
        if index < self._index:
            raise BadInput(
                f"the cohort of round {index} was drawn by the operating system and is gone: a round is never drawn "
                "again; go on with later rounds, or give a seed for a simulation"
            )
        if index > self._index:
            self._index, self._cohort = index, draw()
            self._cohort.setflags(write=False)
        return self._cohort


def tossed(users: int, rate: float) -> Cohort:
    """Rising indices of the users whose coin fell, by the operating system."""
    # Of 2^53 equally likely coins as many as the rate has, rounded down: the chance is never larger.
    coins = np.frombuffer(secrets.token_bytes(8 * users), dtype=np.uint64) >> np.uint64(11)
    return np.flatnonzero(coins < np.uint64(rate * 2**53))


def simulated(users: int, rate: float, seed: int, index: int) -> Cohort:
    """The same for round ``index``, by coins of the seed."""
    return np.flatnonzero(stream(seed, "sampling", index).random(users) < rate)


@dataclass(frozen=True)
class PoissonBatches(Sampler):
    """Every user takes part in every round by its own coin; a cohort may be empty, and then noise is released alone.

    *Formal guarantees.* Unit: a user; relation: ADD-OR-REMOVE. Adding a user moves the sum of clipped vectors by at
    most the clip, with probability ``rate``; the divisor is the public ``rate * users``, whatever the number drawn.
    Rounds compose by their privacy loss distribution, in both directions (Zhu, Dong, Wang 2022); rounds in which
    nobody was drawn cost as much as any other. Assumption: the coins are secret.

    Attributes:
        users: n, a public constant.
        rate: chance to take part, in (0, 1].
        rounds: how many.
        seed: of SIMULATED coins; None to have the operating system toss them, once a round, rounds in their order.

    Raises:
        BadInput: an argument out of range.
    """

    users: int
    rate: float
    rounds: int
    seed: int | None = 0
    drawn: Remembered = field(default_factory=Remembered, init=False, repr=False, compare=False)

    relation: ClassVar[Relation] = "add_or_remove"
    accountant: ClassVar[str] = (
        "privacy loss distribution of the Poisson-sampled Gaussian mechanism, composed over rounds"
    )
    assumption: ClassVar[str] = f"the number that divides is a public constant, and {SECRET}"
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.users, self.rounds) < 1:
            raise BadInput(f"users = {self.users}, rounds = {self.rounds}: each must be at least 1")
        if not 0 < self.rate <= 1:
            raise BadInput(f"rate = {self.rate}: the chance to take part in a round must lie in (0, 1]")

    @property
    def expected_batch(self) -> float:
        """``rate * users``."""
        return self.rate * self.users

    def cohort(self, index: int) -> Cohort:
        """Rising indices of the users whose coin fell for round ``index``."""
        self._checked(index)
        if self.seed is None:
            return self.drawn.cohort(index, partial(tossed, self.users, self.rate))
        return simulated(self.users, self.rate, self.seed, index)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Amplified by sampling, for adding or removing a user."""
        return poisson_epsilon(noise_multiplier, self.rate, self._counted(rounds), delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """To 1e-4 relative."""
        return calibrate_amplified(lambda noise: self.epsilon(noise, delta), epsilon, delta, self.rounds)


@dataclass(frozen=True)
class FixedSizeBatches(Sampler):
    """A uniformly random cohort of a fixed size each round, nobody twice in it.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. Replacing a user moves the sum of clipped
    vectors by at most TWICE the clip, in the rounds that drew it: with probability ``batch / users``, independently.
    Renyi privacy of sampling without replacement, composed over rounds (Wang, Balle, Kasiviswanathan 2019, Theorem 27).
    Assumption: the cohorts are secret, also from other nodes: draws are not independent, and a node that knows which of
    its own u users were drawn faces a rate of up to ``batch / (users - u)`` for the others.

    Attributes:
        users: n, public.
        batch: users a round.
        rounds: how many.
        seed: of SIMULATED cohorts; None to have the operating system draw them, once a round, rounds in their order.

    Raises:
        BadInput: a number below one.
        PopulationTooSmall: fewer users than one batch.
    """

    users: int
    batch: int
    rounds: int
    seed: int | None = 0
    drawn: Remembered = field(default_factory=Remembered, init=False, repr=False, compare=False)

    relation: ClassVar[Relation] = "replace_one"
    accountant: ClassVar[str] = (
        "Renyi privacy of the Gaussian mechanism sampled without replacement, composed over rounds"
    )
    assumption: ClassVar[str] = (
        "n is public, and who takes part in which round stays secret, from other nodes too (what a large node knows of "
        "its own users' draws raises the others' rate)"
    )
    secret: ClassVar[bool] = True
    adversary: ClassVar[str | None] = DRAWN_TOGETHER

    def __post_init__(self) -> None:
        if min(self.users, self.batch, self.rounds) < 1:
            raise BadInput(
                f"users = {self.users}, batch = {self.batch}, rounds = {self.rounds}: each must be at least 1"
            )
        check_batch(self.batch, self.users)

    @property
    def expected_batch(self) -> float:
        """``batch``."""
        return float(self.batch)

    def cohort(self, index: int) -> Cohort:
        """(batch,) rising user indices of round ``index``."""
        self._checked(index)
        if self.seed is None:
            return self.drawn.cohort(index, self._drawn)
        rng = stream(self.seed, "sampling", index)
        return np.sort(rng.choice(self.users, self.batch, replace=False, shuffle=False))

    def _drawn(self) -> Cohort:
        return np.sort(secrets.SystemRandom().sample(range(self.users), self.batch)).astype(np.int64)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Amplified by sampling, for replacing a user."""
        return fixed_size_epsilon(noise_multiplier, self.batch / self.users, self._counted(rounds), delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """To 1e-4 relative."""
        return calibrate_amplified(lambda noise: self.epsilon(noise, delta), epsilon, delta, self.rounds)
