"""What every sampler is: who takes part, and what that costs, in one object."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import (
    AnyLedger,
    Guarantee,
    Privacy,
    Relation,
    RoundLedger,
    Unit,
    add_or_remove_to_replace_one,
)
from userdp.errors import BadInput
from userdp.state import Stateful


class Sampler(ABC):
    """Draws the cohort of each round, and accounts a Gaussian sum over each with the scheme that it draws.

    Noise multipliers are noise over ``sensitivity_factor`` times the clip, which is what one user can move a sum of
    clipped rows under the sampler's own relation. Strategies take factor, noise and ledger from here, so that relations
    are never mixed and no scheme is accounted but the one drawn.

    Attributes:
        users: n; under add-or-remove a public constant that stays when a user comes or goes.
        rounds: rounds that can be drawn.
        seed: of cohorts; None where the operating system draws them.
        unit: whom the promise is for; one for users covers their samples, never the other way.
        relation: the neighbouring relation of every epsilon.
        accountant: how epsilons are computed, for `Guarantee.accountant`.
        assumption: what the accounting asks of the cohorts, one sentence.
        secret: whether it asks that nobody can tell who takes part.
        adversary: from whom it protects, where that is fewer than a strategy says; None elsewhere.
        drawn: what the operating system has drawn so far, where it does; a checkpoint keeps it.
    """

    users: int
    rounds: int
    seed: int | None
    unit: ClassVar[Unit] = "user"
    relation: ClassVar[Relation]
    accountant: ClassVar[str]
    assumption: ClassVar[str]
    secret: ClassVar[bool] = False
    adversary: ClassVar[str | None] = None
    drawn: Stateful | None = None

    @property
    def sensitivity_factor(self) -> int:
        """How far one user moves a sum of vectors of norm at most 1: 2 by replacing it, 1 by adding or removing it."""
        return 2 if self.relation == "replace_one" else 1

    @property
    @abstractmethod
    def expected_batch(self) -> float:
        """Users a round, on average where it varies: public, what strategies divide by."""

    @abstractmethod
    def cohort(self, index: int) -> NDArray[np.int64]:
        """Rising user indices of round ``index``, counted from 0; may be empty for Poisson sampling.

        Raises:
            BadInput: there is no such round.
        """

    @abstractmethod
    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Epsilon after ``rounds`` rounds (all of them if not given).

        Raises:
            BadInput: an argument out of range.
        """

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """Noise over sensitivity of all that round ``index`` releases; equal in all rounds unless a sampler differs."""
        return noise_multiplier

    @abstractmethod
    def calibrate(self, epsilon: float, delta: float) -> float:
        """Smallest noise multiplier (rounded up) for which all rounds are (epsilon, delta)-DP.

        Raises:
            BadInput: a budget out of range.
        """

    def ledger(self, noise_multiplier: float, privacy: Privacy) -> AnyLedger:
        """The ledger that the rounds must be charged to.

        Raises:
            BadInput: the rounds exceed the budget, or noise is to be secure and who takes part follows from a seed
                although it must stay secret.
        """
        if self.secret and privacy.noise == "secure" and self.seed is not None:
            raise BadInput(
                "privacy.noise = 'secure': who takes part must stay secret and would come from the seed; use a "
                "sampling that needs no secrecy, or noise = 'seeded' for a simulation"
            )
        return RoundLedger(self, noise_multiplier, privacy)

    def guarantee(
        self, noise_multiplier: float, delta: float, adversary: str, assumptions: tuple[str, ...]
    ) -> Guarantee:
        """What all rounds promise, for the sampler's unit and under its relation."""
        return Guarantee(
            unit=self.unit,
            relation=self.relation,
            epsilon=self.epsilon(noise_multiplier, delta),
            delta=delta,
            accountant=self.accountant,
            adversary=self.adversary or adversary,
            assumptions=(self.assumption, *assumptions),
            holds=True,
        )

    def replace_one(self, epsilon: float, delta: float) -> tuple[float, float]:
        """An (epsilon, delta) of this sampler's relation as one for replacing a user, to compare schemes by."""
        return (epsilon, delta) if self.relation == "replace_one" else add_or_remove_to_replace_one(epsilon, delta)

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.rounds:
            raise BadInput(f"batch {index} was asked for, there are {self.rounds}")
        return index

    def _counted(self, rounds: int | None) -> int:
        if rounds is None:
            return self.rounds
        if not 0 <= rounds <= self.rounds:
            raise BadInput(f"rounds = {rounds}: the sampler has {self.rounds}")
        return rounds
