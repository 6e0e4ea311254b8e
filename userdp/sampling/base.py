"""The base of every sampler: one object draws the cohorts and prices them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import AnyLedger, Guarantee, Privacy, Relation, RoundLedger, Unit, add_or_remove_to_replace_one
from userdp.accounting.amplified import calibrate_amplified
from userdp.accounting.checks import check_relation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.mechanisms import GaussianMechanism
from userdp.state import Stateful


class Sampler(ABC):
    """Draws the cohort of each round, and accounts a Gaussian sum over each with the scheme that it draws.

    Noise multipliers are noise over ``sensitivity_factor`` times the clip, the most that one user can move a sum of
    clipped rows under the sampler's own relation. Strategies take factor, noise and ledger from here, so that relations
    are never mixed and the accounted scheme is the drawn one. Samplers raise `BadInput` for an argument out of range.

    A new sampler defines the attributes here that have no value, `relation`, `expected_batch`, `cohort`, which calls
    `checked_round`, and `epsilon`, which calls `counted_rounds`.
    """

    users: int  # n; under add-or-remove a public constant that stays when a user joins or leaves
    rounds: int  # number of rounds
    seed: int | None  # seed of cohorts; None if the operating system draws them
    unit: ClassVar[Unit] = "user"  # of the guarantee; one for users covers their samples, never the other way
    accountant: ClassVar[str]  # the method that computes epsilons, for `Guarantee.accountant`
    assumption: ClassVar[str]  # the accounting's assumption about the cohorts, one sentence
    secret: ClassVar[bool] = False  # whether it assumes that nobody can tell who takes part
    of_samples: ClassVar[bool] = False  # whether single samples are drawn, and its proof is about these
    adversary: ClassVar[str | None] = None  # the adversary of the guarantee, if weaker than the strategy's; else None
    drawn: Stateful | None = None  # the draws of the operating system so far; a checkpoint keeps it

    @property
    @abstractmethod
    def relation(self) -> Relation:
        """The neighbouring relation of every epsilon."""

    @property
    def sensitivity_factor(self) -> float:
        """The most that one user moves a sum of vectors of norm at most 1: 2 if replaced, 1 if added or removed."""
        return 2 if self.relation == "replace_one" else 1

    @property
    @abstractmethod
    def expected_batch(self) -> float:
        """The (average) users per round: public, the divisor of strategies."""

    @abstractmethod
    def cohort(self, index: int) -> NDArray[np.int64]:
        """Return the rising user indices of round ``index``, from 0; raise `BadInput` for no such round."""

    @abstractmethod
    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return epsilon after ``rounds`` rounds (default: all); raise `BadInput` for an argument out of range."""

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """Return the noise over sensitivity of the whole release of round ``index``; by default equal in all rounds."""
        return noise_multiplier

    def calibrate(self, epsilon: float, delta: float) -> float:
        """Return the least noise multiplier (to 1e-4, rounded up) for the budget; `BadInput` out of range."""
        return calibrate_amplified(lambda noise: self.epsilon(noise, delta), epsilon, delta, self.rounds)

    def mean_mechanism(self, clip_norm: float, noise_multiplier: float) -> GaussianMechanism:
        """Return the mechanism of the mean of a cohort's vectors of l2 norm at most ``clip_norm``."""
        return GaussianMechanism(self.sensitivity_factor * clip_norm / self.expected_batch, noise_multiplier)

    def ledger(self, noise_multiplier: float, privacy: Privacy) -> AnyLedger:
        """Return the ledger; raise `BadInput` for rounds over budget, or seeded secret cohorts under secure noise."""
        if self.secret and privacy.noise == "secure" and self.seed is not None:
            raise BadInput(
                "privacy.noise = 'secure': who takes part must stay secret and would come from the seed; use a "
                "sampling that needs no secrecy, or noise = 'seeded' for a simulation"
            )
        return RoundLedger(self, noise_multiplier, privacy)

    def guarantee(
        self, noise_multiplier: float, delta: float, adversary: str, assumptions: tuple[str, ...]
    ) -> Guarantee:
        """Return the guarantee of all rounds, for the sampler's unit and under its relation."""
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

    def replaced(self, noise_multiplier: float, delta: float) -> tuple[float, float]:
        """Return an (epsilon, delta) of all rounds for replacing a user, to compare schemes.

        A sampler that prices adding or removing alone converts it, and then delta grows.
        """
        epsilon = self.epsilon(noise_multiplier, delta)
        return (epsilon, delta) if self.relation == "replace_one" else add_or_remove_to_replace_one(epsilon, delta)

    def numbers(self, noise_multiplier: float, guarantee: Guarantee) -> dict[str, float]:
        """Return a plan's numbers of the draws: participations, and what ``guarantee`` means for replacing a user."""
        numbers: dict[str, float] = {}
        if self.planned_participations is not None:
            numbers["participations"] = self.planned_participations
        if guarantee.relation != "replace_one":
            replaced = self.replaced(noise_multiplier, guarantee.delta)
            numbers["replace_one_epsilon"], numbers["replace_one_delta"] = replaced
        return numbers

    @property
    def planned_participations(self) -> int | None:
        """The most rounds that a user takes part in, where the plan fixes it; else None."""
        return None

    def checked_round(self, index: int) -> int:
        """Return ``index``; raise `BadInput` for no such round."""
        if not 0 <= index < self.rounds:
            raise BadInput(f"there is no batch {index}: there are {self.rounds}, counted from 0")
        return index

    def counted_rounds(self, rounds: int | None) -> int:
        """Return ``rounds``, or all of them for None; raise `BadInput` for more than there are."""
        if rounds is None:
            return self.rounds
        if not 0 <= rounds <= self.rounds:
            raise BadInput(f"rounds = {rounds}: the sampler has {self.rounds}")
        return rounds


@dataclass(frozen=True)
class EitherRelation(Sampler):
    """A sampler that prices its rounds under either relation; the draws are the same."""

    relation: Relation = field(default="add_or_remove", kw_only=True)

    def __post_init__(self) -> None:
        check_relation(self.relation)

    def replaced(self, noise_multiplier: float, delta: float) -> tuple[float, float]:
        """See `Sampler.replaced`; the exact price at the same delta."""
        # Noise over the most that a user moves the sum: twice as far when replaced as when added.
        own = noise_multiplier if self.relation == "replace_one" else noise_multiplier / 2
        return replace(self, relation="replace_one").epsilon(own, delta), delta


@dataclass(frozen=True)
class Wanted:
    """The cohorts that settings ask for, of rounds with equal noise, and their seeds."""

    users: int
    rounds: int  # at least so many are drawn
    cohort: int | None = None  # users per round; None for all of them
    relation: Relation | None = None  # None for the sampler's default
    participations: int | None = None  # rounds of each user; None for the sampler's default
    seed: int = 0  # of public cohorts
    secret_seed: int | None = 0  # of secret cohorts; None if the operating system draws them

    @property
    def batch(self) -> int:
        """The users per round; raises `PopulationTooSmall` for more than there are."""
        batch = self.users if self.cohort is None else self.cohort
        check_batch(batch, self.users)
        return batch


class NamedSampler(Sampler):
    """A sampler that ``strategy.sampling`` can name; noise is equal in all rounds.

    `userdp.testing.check_sampler` compares what it draws with what it prices; one from another package or a file is
    compared before each run, and does not run if its price is too low.
    """

    sized_by: ClassVar[Literal["cohort", "participations"]] = "cohort"  # the setting that says how many users it draws

    @classmethod
    @abstractmethod
    def of(cls, wanted: Wanted) -> Self:
        """Make the sampler of these settings; raise `BadInput` or `PopulationTooSmall` if there is none."""


class SizedSampler(Sampler):
    """A sampler of cohorts of ``batch`` users; raises `PopulationTooSmall` for fewer users than that."""

    batch: int

    @property
    def expected_batch(self) -> float:
        return float(self.batch)

    def _check_sizes(self, **numbers: int) -> None:
        check_whole(users=self.users, batch=self.batch, **numbers)
        check_batch(self.batch, self.users)


def check_batch(batch: int, users: int) -> None:
    """Raise `PopulationTooSmall` if a batch takes more users than there are."""
    if batch > users:
        raise PopulationTooSmall(
            f"a batch takes {batch} users and there are {users}: lower the batch or bring more users"
        )


def check_whole(**numbers: int | None) -> None:
    """Raise `BadInput` if one of these numbers is below 1; None is allowed."""
    if any(number is not None and number < 1 for number in numbers.values()):
        named = ", ".join(f"{name} = {number}" for name, number in numbers.items())
        raise BadInput(f"{named}: each must be at least 1")


def check_shares(shares: tuple[float, ...], count: int) -> None:
    """Raise `BadInput` unless there are so many positive shares of a budget, with a sum of at most 1."""
    if len(shares) != count or not min(shares) > 0 or not sum(shares) <= 1 + 1e-9:
        raise BadInput(f"shares = {shares}: there must be {count} positive numbers that sum to 1")
