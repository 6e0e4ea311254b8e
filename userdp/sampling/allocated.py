"""Secret rounds, equally many for every user: amplification by random allocation."""

import secrets
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.allocation import allocation_epsilon, check_participations
from userdp.accounting.amplified import calibrate_amplified
from userdp.accounting.replaced_allocation import replaced_allocation_epsilon
from userdp.errors import BadInput
from userdp.randomness import stream
from userdp.sampling.base import EitherRelation, NamedSampler, Wanted, check_whole
from userdp.sampling.random_cohorts import SECRET, Cohort
from userdp.state import Stateful

_WORDS = 1 << 64


class _Draw(Stateful):
    """The rounds drawn so far: the last cohort, and the rounds that every user has left after it."""

    remembered: ClassVar[tuple[str, ...]] = ("index", "cohort", "left")

    def __init__(self) -> None:
        self.index = -1
        self.cohort: Cohort = np.empty(0, dtype=np.int64)
        self.left: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class AllocatedBatches(EitherRelation, NamedSampler):
    """Every user takes part in exactly ``participations`` rounds, uniformly chosen, by its own coins.

    Poisson sampling without users drawn too often or too rarely; it needs less noise than that and disjoint batches.

    *Formal guarantees.* Unit: a user; relation: add-or-remove, or replace-one if so set, with n public. A user adds to
    the sums of clipped vectors of its own rounds vectors no longer than the clip, and changes no other user's rounds;
    the divisor is the public ``users participations / rounds``, whatever the number drawn. All rounds are accounted
    together, as in `userdp.accounting.allocation` and, for replace-one, `userdp.accounting.replaced_allocation`. They
    are charged in full with the first round: an earlier release is a part of the whole. Assumption: the rounds of each
    user are secret. With c of d rounds to go, a user takes part in the next with probability c / d, which makes every
    set of rounds equally likely.
    """

    users: int
    participations: int  # k, rounds of every user
    rounds: int  # T, at least k
    seed: int | None = 0  # of SIMULATED allocations; None if the operating system draws them, rounds in their order
    drawn: _Draw = field(default_factory=_Draw, init=False, repr=False, compare=False)

    accountant: ClassVar[str] = "privacy loss distribution of the Gaussian mechanism under random allocation of rounds"
    assumption: ClassVar[str] = f"the number that divides is a public constant, and {SECRET}"
    secret: ClassVar[bool] = True
    sized_by: ClassVar[Literal["cohort", "participations"]] = "participations"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(users=self.users, rounds=self.rounds)
        check_participations(self.participations, self.rounds)

    @classmethod
    def of(cls, wanted: Wanted) -> Self:
        """See `NamedSampler`; one participation by default."""
        asked = wanted.users, wanted.participations or 1, wanted.rounds, wanted.secret_seed
        return cls(*asked, relation=wanted.relation or "add_or_remove")

    @property
    def expected_batch(self) -> float:
        """The quotient ``users participations / rounds``."""
        return self.users * self.participations / self.rounds

    @property
    def planned_participations(self) -> int:
        return self.participations

    def cohort(self, index: int) -> Cohort:
        """See `Sampler.cohort`; if the operating system draws, only the last or the next round is allowed."""
        self.checked_round(index)
        draw = self.drawn
        if self.seed is None and index not in (draw.index, draw.index + 1):
            raise BadInput(
                f"round {index} cannot follow round {draw.index}: rounds that the operating system allocates are "
                "drawn once and in their order; start the run anew, or give a seed for "
                "a simulation"
            )
        if index < draw.index or draw.index < 0:
            draw.index, draw.left = -1, np.full(self.users, self.participations)
        while draw.index < index:
            draw.index += 1
            drawn = self._below(self.rounds - draw.index, draw.index) < draw.left
            draw.left -= drawn
            draw.cohort = np.flatnonzero(drawn)
            draw.cohort.setflags(write=False)
        return draw.cohort

    def _below(self, most: int, index: int) -> NDArray[np.int64]:
        """Draw (n,) whole numbers below ``most``, all equally likely."""
        if self.seed is not None:
            return stream(self.seed, "sampling", index).integers(0, most, size=self.users)
        words = _words(self.users)
        # Words beyond the last whole multiple would make small numbers likelier: they are drawn again.
        while (again := np.flatnonzero(words > np.uint64(_WORDS - 1 - _WORDS % most))).size:
            words[again] = _words(again.size)
        return (words % np.uint64(most)).astype(np.int64)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of all rounds, from the first one on."""
        if self.counted_rounds(rounds) == 0:
            return 0.0
        price = replaced_allocation_epsilon if self.relation == "replace_one" else allocation_epsilon
        return price(noise_multiplier, self.rounds, self.participations, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        # Plain composition is that of a user's own rounds.
        return calibrate_amplified(lambda noise: self.epsilon(noise, delta), epsilon, delta, self.participations)


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64).copy()
