"""The ledger counts participations or rounds, and computes the privacy spent."""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.costs import Cost, epsilon_of
from userdp.accounting.guarantee import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.state import State

_SLACK = 1e-6  # The relative excess of epsilon that counts as rounding.
_EXCESS = 1e-9  # The relative excess of a round's releases over its charge that counts as rounding.


def check_drawn(drawn: Cost, charged: Cost) -> None:
    """Refuse (`RunFailed`) releases that cost more than the round was charged."""
    parts = {
        "Gaussian noise, 1 / multiplier^2,": (drawn.noise_multiplier**-2, charged.noise_multiplier**-2),
        "epsilon": (drawn.pure_epsilon + drawn.shared_epsilon, charged.pure_epsilon + charged.shared_epsilon),
        "failure probability": (drawn.failure_delta, charged.failure_delta),
    }
    for name, (spent, paid) in parts.items():
        if not spent <= paid * (1 + _EXCESS):
            raise RunFailed(
                f"the releases of a round have a cost of {spent:.6g} ({name}) where {paid:.6g} is charged: stopped "
                "before they are used; calibrate the noise by the sampler that the round is charged to"
            )


def _check_plan(count: int, unit: str, planned: float, privacy: Privacy) -> None:
    if not planned <= privacy.epsilon * (1 + _SLACK):
        raise BadInput(
            f"the plan of {count} {unit} would cost epsilon = {planned:.6g}, more than "
            f"privacy.epsilon = {privacy.epsilon:g}: add noise, or plan fewer {unit}"
        )


class Ledger:
    """Counts each user's participations against a plan, and stops the run before anybody exceeds it.

    *Formal guarantees.* Unit: a user, under the relation of ``cost``. A user's data enter only the mechanisms that the
    user took part in, each costing ``cost``; those compose sequentially, while disjoint users compose in parallel. So
    the spend is the epsilon of the LARGEST number of participations of any user. Counts must not follow from data.

    Args:
        users: n, public, at least 1.
        cost: of one participation.
        participations: most participations planned for any user.
        privacy: the budget, which the plan must keep (`BadInput`); its delta is the one epsilons are reported at.
        drawn: cost of a participation's releases for an observer who knows all cohorts, if ``cost`` relies on their
            secrecy; ``cost`` if not given.
    """

    def __init__(
        self, users: int, cost: Cost, participations: int, privacy: Privacy, *, drawn: Cost | None = None
    ) -> None:
        if users < 1:
            raise BadInput(f"users = {users}: the ledger needs at least one")
        _check_plan(participations, "participations", epsilon_of(cost, participations, privacy.delta), privacy)
        self.cost, self._drawn = cost, cost if drawn is None else drawn
        self.participations, self.privacy = participations, privacy
        self._participated = np.zeros(users, dtype=np.int32)

    @property
    def users(self) -> int:
        """The number of users, n."""
        return len(self._participated)

    @property
    def planned(self) -> Cost:
        """The cost of all planned participations of a user together."""
        count, cost = self.participations, self.cost
        pure = count * cost.pure_epsilon + cost.shared_epsilon
        return Cost(cost.noise_multiplier / math.sqrt(count), pure, count * cost.failure_delta)

    @property
    def most_participations(self) -> int:
        """The participations so far of the user who took part most often."""
        return int(self._participated.max())

    def charge(self, user_indices: NDArray[np.integer]) -> None:
        """Count one participation for each occurrence of a user; nothing is counted if any would exceed the plan.

        Raises `RunFailed` for such a user, `BadInput` for an index outside 0..n-1.
        """
        indices = np.asarray(user_indices)
        if indices.size == 0:
            return
        if indices.dtype.kind not in "iu" or indices.min() < 0 or indices.max() >= self.users:
            raise BadInput(f"users to charge must be whole numbers from 0 to {self.users - 1}")
        named, times = indices, np.ones(1, dtype=np.int64)
        if np.any(indices[1:] <= indices[:-1]):  # cohorts rise, and need no sorting
            named, times = np.unique(indices, return_counts=True)
        after = self._participated[named] + times
        if after.max() > self.participations:
            raise RunFailed(
                f"a user would take part {after.max()} times where {self.participations} are planned: stopped before "
                "spending more than the budget; check the sampler against the plan"
            )
        self._participated[named] = after

    def check_drawn(self, drawn: Cost) -> None:
        """Refuse (`RunFailed`) releases of a round that cost more than the participation charged for it."""
        check_drawn(drawn, self._drawn)

    def epsilon(self) -> float:
        """Compute the epsilon spent so far, at the budget's delta."""
        return self.spent()()

    def spent(self) -> Callable[[], float]:
        """Return a function that computes the present `epsilon`, whatever is charged later; it can be slow."""
        return partial(epsilon_of, self.cost, self.most_participations, self.privacy.delta)

    def state(self) -> State:
        """Return a copy of the (n,) counts, and the plan that they were counted against, for a checkpoint."""
        return {"participated": self._participated.copy(), "participations": self.participations}

    def restore(self, state: State) -> None:
        """Continue from a checkpoint's counts; `BadInput` refuses those of other users or of another plan."""
        counts = np.array(state["participated"], dtype=np.int32)
        if counts.shape != (self.users,) or state["participations"] != self.participations:
            raise BadInput(
                f"the checkpoint's ledger is for {counts.size} users and {state['participations']} participations, the "
                f"run plans {self.users} and {self.participations}: resume with the settings it was made with"
            )
        if counts.min() < 0 or counts.max() > self.participations:
            raise BadInput("the checkpoint's ledger holds counts outside its plan: no run of this plan wrote it")
        self._participated = counts


class Scheme(Protocol):
    """The cohort of each round, and the price of the rounds; samplers are such schemes."""

    @property
    def rounds(self) -> int:
        """The number of rounds planned."""

    def cohort(self, index: int) -> NDArray[np.int64]:
        """Return the users of round ``index``."""

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Compute epsilon after ``rounds`` rounds."""

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """Compute noise over sensitivity of round ``index``'s releases, given that of all rounds."""


class RoundLedger:
    """Counts rounds, if cost falls on rounds rather than on participations: sampled cohorts, correlated noise.

    *Formal guarantees.* Unit and relation: those of ``scheme``. Every round counts, including one with an empty cohort,
    since sampling hides that nobody was drawn. A round is charged only with the cohort that the scheme drew for it, so
    the accounting describes the rounds that took place.

    Args:
        scheme: draws the cohorts and prices the rounds.
        noise_multiplier: noise over sensitivity, under the scheme's relation.
        privacy: the budget, which the plan must keep (`BadInput`); its delta is the one epsilons are reported at.
    """

    def __init__(self, scheme: Scheme, noise_multiplier: float, privacy: Privacy) -> None:
        _check_plan(scheme.rounds, "rounds", scheme.epsilon(noise_multiplier, privacy.delta), privacy)
        self.privacy, self._scheme, self._noise_multiplier = privacy, scheme, noise_multiplier
        self._charged = 0

    @property
    def rounds(self) -> int:
        """The number of rounds charged so far."""
        return self._charged

    def charge(self, user_indices: NDArray[np.integer]) -> None:
        """Count one round; `RunFailed` if all rounds are spent, or the users are not the cohort drawn for it."""
        if self._charged >= self._scheme.rounds:
            planned = self._scheme.rounds
            raise RunFailed(f"a round more than the {planned} planned: stopped before spending more than the budget")
        if not np.array_equal(np.asarray(user_indices), self._scheme.cohort(self._charged)):
            raise RunFailed(
                f"the users of round {self._charged + 1} are not those that the sampler drew: stopped, because the "
                "accounting does not cover other users"
            )
        self._charged += 1

    def check_drawn(self, drawn: Cost) -> None:
        """Refuse (`RunFailed`) Gaussian releases of the last round with less noise than the scheme prices.

        Pure epsilons are not compared: schemes price them together with the Gaussians.
        """
        planned = self._scheme.multiplier(self._charged - 1, self._noise_multiplier)
        check_drawn(Cost(noise_multiplier=drawn.noise_multiplier), Cost(noise_multiplier=planned))

    def epsilon(self) -> float:
        """Compute the epsilon spent so far, at the budget's delta."""
        return self.spent()()

    def spent(self) -> Callable[[], float]:
        """See `Ledger.spent`."""
        return partial(self._scheme.epsilon, self._noise_multiplier, self.privacy.delta, self._charged)

    def state(self) -> State:
        """Return the count, and the plan that it was counted against, for a checkpoint."""
        return {"charged": self._charged, "rounds": self._scheme.rounds}

    def restore(self, state: State) -> None:
        """Continue from a checkpoint's count; `BadInput` refuses that of another plan."""
        if state["rounds"] != self._scheme.rounds:
            raise BadInput(
                f"the checkpoint's ledger is for {state['rounds']} rounds, the run plans {self._scheme.rounds}: "
                "resume with the settings it was made with"
            )
        if not 0 <= state["charged"] <= state["rounds"]:
            raise BadInput("the checkpoint's ledger holds a count outside its plan: no run of this plan wrote it")
        self._charged = state["charged"]


AnyLedger = Ledger | RoundLedger  # The ledgers of a strategy
