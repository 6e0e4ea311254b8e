"""Rounds before and after a strategy's own: a preparation, and a last comparison with the initial model."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from strategies.core.options import Found, PreparedOptions
from strategies.core.public_facts import PublicFacts
from strategies.core.results import Noise, Step
from strategies.core.snapshots import Snapshot
from strategies.wire.replies import Gathered, Request
from userdp.accounting import AnyLedger, Guarantee, Ledger, Privacy
from userdp.arrays.types import Vector
from userdp.mechanisms import LaplaceMechanism
from userdp.nodes.computations import Computation
from userdp.problems.base import MeasuredCurvature, Problem
from userdp.problems.in_coordinates import Coordinates, InCoordinates
from userdp.state import Stateful, put_back, state_of

SHARE = 0.05  # Share of epsilon that a last comparison takes
_DOUBT = 0.05  # Probability of a wrong choice at the margin that the plan states

WHOLE_RUN = {
    "replace_one_epsilon": "epsilon",
    "replace_one_delta": "delta",
    "sample_level_epsilon": "epsilon",
    "user_level_epsilon": "epsilon",
}
"""Numbers of a plan that price the whole run -> the attribute of extra rounds that is added to them."""


class ExtraRounds(ABC):
    """Rounds beside the strategy's own, with a budget of their own; models are in the loss's own parameters."""

    kind: ClassVar[str]  # what the accountant's text calls these rounds
    accountant: ClassVar[str]  # the accountant of these rounds alone
    trusted: ClassVar[tuple[str, ...]] = ()  # assumptions that they add to the guarantee
    rounds: int
    epsilon: float
    delta: float
    ledger: AnyLedger  # charged for these rounds

    @abstractmethod
    def request(self, index: int, initial: Vector) -> Request:
        """Return the request of round ``index``, from 0."""

    @abstractmethod
    def step(self, index: int, x: Vector, initial: Vector, gathered: Gathered, noise: Noise) -> Step:
        """Return the step that follows from a round's replies."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Return the numbers that the plan states of these rounds."""

    @abstractmethod
    def keep(self, taken: Snapshot) -> None:
        """Write down what a killed run needs to resume."""

    @abstractmethod
    def recall(self, kept: Snapshot) -> None:
        """Resume from what `keep` wrote."""

    def guarantee(self, own: Guarantee) -> Guarantee:
        """Return the strategy's guarantee with the cost of these rounds added."""
        if not own.holds:
            return own
        delta = f", delta = {self.delta:.3g}" if self.delta else ""
        accountant = f"{own.accountant}; a {self.kind} of epsilon = {self.epsilon:.3g}{delta} is added"
        whole = replace(own, epsilon=own.epsilon + self.epsilon, delta=own.delta + self.delta, accountant=accountant)
        return whole.assuming(*self.trusted)

    def alone(self, own: Guarantee) -> Guarantee:
        """Return the guarantee of these rounds alone, beside the strategy's."""
        return replace(own, epsilon=self.epsilon, delta=self.delta, accountant=self.accountant)

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings that the plan shows of these rounds."""
        return ()


class Preparation(ExtraRounds):
    """Rounds before a strategy's own that find, privately, the coordinates and the clip with which it then works.

    *Formal guarantees.* *Claim.* With a strategy that keeps to the rest of epsilon and delta, the whole run keeps to
    both, at user level, under the strategy's relation. *Why.* The rounds here keep to a share of both for replacing one
    user, and so for adding or removing one, which moves no sum by more. What they find is released. A strategy that
    promises something for every loss and every clip promises it for these, too, and its noise over its sensitivity was
    calibrated before they were found. Epsilons and deltas add up (basic composition, adaptive). All users are asked,
    even where cohorts are secret: that everybody answers does not reveal who is drawn.

    *Assumptions.* Those of the strategy. The server is trusted. n is public.

    Attributes:
        privacy: the budget of these rounds.
        memory: the results so far, made by `new_memory`.
    """

    kind: ClassVar[str] = "preparation"
    memory: Any

    def __init__(self, problem: Problem, public: PublicFacts, privacy: Privacy, seed: int) -> None:
        self.problem, self.public, self.privacy, self.seed = problem, public, privacy, seed
        self.epsilon, self.delta = privacy.epsilon, privacy.delta
        self.memory = self.new_memory()

    @classmethod
    @abstractmethod
    def share(cls, problem: Problem) -> float:
        """Return the share of epsilon and delta that the preparation takes for a loss."""

    @abstractmethod
    def new_memory(self) -> Stateful:
        """Return the memory before the first round."""

    @abstractmethod
    def found(self) -> tuple[Coordinates | None, Found]:
        """Return the coordinates (None: the model's own) and what is known in them; a stand-in before the end."""

    def settle(self, options: PreparedOptions) -> tuple[Problem, Coordinates | None, dict[str, float]]:
        """Return the problem as the strategy sees it, the coordinates, and the settings that follow."""
        coordinates, found = self.found()
        problem = self.problem
        if coordinates is not None:
            problem = InCoordinates(problem, coordinates, MeasuredCurvature(1 / found.rate))
        return problem, coordinates, options.found(found)

    def numbers(self) -> dict[str, Any]:
        return {"preparation_rounds": self.rounds, "preparation_epsilon": self.epsilon, "preparation_delta": self.delta}

    def keep(self, taken: Snapshot) -> None:
        taken.add("found", state_of(self.memory))
        taken.add("found_ledger", self.ledger.state())

    def recall(self, kept: Snapshot) -> None:
        self.memory = self.new_memory()
        put_back(self.memory, kept.get("found"))
        self.ledger.restore(kept.get("found_ledger"))


class LastComparison(ExtraRounds):
    """One last round: a noisy count of the users whom the new model serves better than the initial one.

    *Formal guarantees.* *Claim.* With a strategy that keeps to (1 - share) epsilon and delta, the whole run keeps to
    epsilon and delta, under the strategy's relation and unit. *Why.* Each user's answer is 1/2 or -1/2, and 0 if it is
    missing or not finite. Replacing a user or one of its samples, or adding or removing them, changes one answer, and
    so the sum by at most 1. Laplace noise of scale 1 / (share epsilon) makes it purely (share epsilon)-differentially
    private. The compared models were released before, so the count composes with the strategy by addition, whatever
    its mechanisms. The choice of the released model is post-processing. All users are asked, even where cohorts were
    secret: that everybody answers does not reveal who was drawn.

    *Assumptions.* Those of the strategy. The server is trusted.
    """

    kind: ClassVar[str] = "last comparison"
    accountant: ClassVar[str] = "Laplace mechanism"
    trusted: ClassVar[tuple[str, ...]] = ("the server is trusted with the count of users whom the model serves better",)
    rounds, delta = 1, 0.0

    def __init__(self, epsilon: float, users: int) -> None:
        self.epsilon, self.users = epsilon, users
        self.mechanism = LaplaceMechanism(1.0, epsilon)  # of the sum of all answers
        self.ledger: Ledger = Ledger(users, self.mechanism.cost, 1, Privacy(epsilon, 0.0))

    @classmethod
    def within(cls, privacy: Privacy, users: int) -> "tuple[Privacy, LastComparison]":
        """Divide a budget into (the rest for the strategy, the comparison)."""
        own = SHARE * privacy.epsilon
        return replace(privacy, epsilon=privacy.epsilon - own), cls(own, users)

    def numbers(self) -> dict[str, Any]:
        # Noise reverses a sum of n times the margin with probability _DOUBT.
        margin = math.log(1 / (2 * _DOUBT)) / (self.epsilon * self.users)
        return {"comparison_epsilon": self.epsilon, "comparison_margin": margin}

    def request(self, index: int, initial: Vector) -> Request:
        """See `ExtraRounds`; users compare the model that is sent with the initial one."""
        return Request(np.arange(self.users), Computation("improved", "sum", 0.5, arrays={"initial": initial}))

    def step(self, index: int, x: Vector, initial: Vector, gathered: Gathered, noise: Noise) -> Step:
        """See `ExtraRounds`; keeps the model, or goes back to the initial one."""
        total = float(self.mechanism.release(gathered.values, noise(0))[0])
        chosen = x if total >= 0 else initial
        return Step(chosen, chosen, {"improved_share": 0.5 + total / self.users, "went_back": float(total < 0)})

    def keep(self, taken: Snapshot) -> None:
        taken.add("compared", self.ledger.most_participations > 0)

    def recall(self, kept: Snapshot) -> None:
        if kept.get("compared"):
            self.ledger.charge(np.arange(self.users))


@dataclass(frozen=True)
class Around:
    """The extra rounds of a run."""

    before: ExtraRounds | None = None  # a `Preparation`, which finds coordinates and a clip
    after: ExtraRounds | None = None  # a `LastComparison` of the model with the initial one

    def place(self, server_round: int, rounds: int) -> tuple[ExtraRounds | None, int]:
        """Return the part (None: the strategy's own) of a round of so many, from 1, and its index in it."""
        first = 0 if self.before is None else self.before.rounds
        if server_round <= first:
            return self.before, server_round - 1
        if self.after is not None and server_round == rounds:
            return self.after, 0
        return None, server_round - first - 1

    def plan(
        self, rounds: int, guarantee: Guarantee, numbers: Mapping[str, Any]
    ) -> tuple[int, Guarantee, dict[str, Any]]:
        """Return (rounds, guarantee, numbers) of the whole run, from the strategy's own."""
        stated = dict(numbers)
        for part in self.parts:
            rounds, guarantee = rounds + part.rounds, part.guarantee(guarantee)
            for name, kind in WHOLE_RUN.items():
                if name in stated:
                    stated[name] += getattr(part, kind)
            stated |= part.numbers()
        return rounds, guarantee, stated

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all extra rounds, for the plan."""
        return tuple(warning for part in self.parts for warning in part.warnings())

    def promises(self, own: Guarantee) -> tuple[Guarantee, ...]:
        """Return the strategy's own guarantee and those of the extra rounds, which compose to that of the run."""
        return (own, *(part.alone(own) for part in self.parts))

    def spent(self, own: Callable[[], float]) -> Callable[[], float]:
        """Return a function that adds up what all ledgers are charged NOW."""
        return partial(_total, (own, *(part.ledger.spent() for part in self.parts)))

    @property
    def parts(self) -> tuple[ExtraRounds, ...]:
        """The extra rounds that the run has, in their order."""
        return tuple(part for part in (self.before, self.after) if part is not None)


def _total(amounts: tuple[Callable[[], float], ...]) -> float:
    return sum(amount() for amount in amounts)
