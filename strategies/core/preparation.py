"""Rounds before a strategy's own that find, privately, the coordinates and the clip with which it then works."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from strategies.core.options import Found, PreparedOptions, StrategyOptions
from strategies.core.public_facts import Given, PublicFacts
from strategies.core.snapshots import Snapshot
from strategies.core.step import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import AnyLedger, Cost, Guarantee, Privacy
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.in_coordinates import Coordinates, InCoordinates
from userdp.problems.landscape import MeasuredCurvature
from userdp.state import Stateful, put_back, state_of


class Preparation(ABC):
    """The part that a strategy holds.

    *Formal guarantees.* *Claim.* With a strategy that keeps to the rest of epsilon and delta, the whole run keeps to
    both, at user level, under the strategy's relation. *Why.* The rounds here keep to a share of both for replacing one
    user, and so for adding or removing one, which moves no sum by more. What they find is released. A strategy that
    promises something for every loss and every clip promises it for these, too, and its noise over its sensitivity was
    calibrated before they were found. Epsilons and deltas add up (basic composition, adaptive). All users are asked,
    also where cohorts are drawn in secret: that everybody answers tells nobody who is drawn.

    *Assumptions.* Those of the strategy. The server is trusted. n is public.

    Args:
        problem: the loss, in the model's own parameters.
        public: facts.
        privacy: what is to be kept to here.
        seed: of the noise's streams.

    Attributes:
        rounds: how many there are.
        epsilon: of all of them together.
        delta: that goes with it.
        ledger: that the rounds are charged to.
        memory: what is found so far, made by `new_memory`.
    """

    rounds: int
    memory: Any

    def __init__(self, problem: Problem, public: PublicFacts, privacy: Privacy, seed: int) -> None:
        self.problem, self.public, self.privacy, self.seed = problem, public, privacy, seed
        self.epsilon, self.delta = privacy.epsilon, privacy.delta
        self.ledger: AnyLedger = self._make_ledger()
        self.memory = self.new_memory()

    @classmethod
    @abstractmethod
    def share(cls, problem: Problem) -> float:
        """Of epsilon and delta, that it takes for that loss."""

    @abstractmethod
    def _make_ledger(self) -> AnyLedger:
        """That the rounds here are charged to."""

    @abstractmethod
    def new_memory(self) -> Stateful:
        """What is found, before the first round."""

    @abstractmethod
    def request(self, index: int, initial: Vector) -> Request:
        """What is asked in round ``index`` (from 0) of these."""

    @abstractmethod
    def step(self, index: int, x: Vector, initial: Vector, gathered: Gathered, noise: Noise) -> Step:
        """What follows from a round's replies: at which model the next one asks, and no new model to hand out."""

    @abstractmethod
    def found(self) -> tuple[Coordinates | None, Found]:
        """The coordinates, None for the model's own, and what is known in them: a stand-in before the last round."""

    def settle(self, options: PreparedOptions) -> tuple[Problem, Coordinates | None, dict[str, float]]:
        """The problem as the strategy is to see it, the coordinates, and the settings that follow."""
        coordinates, found = self.found()
        problem = self.problem
        if coordinates is not None:
            problem = InCoordinates(problem, coordinates, MeasuredCurvature(1 / found.rate))
        return problem, coordinates, options.found(found)

    def charge(self, request: Request) -> None:
        """Charge a round."""
        self.ledger.charge(request.users)

    def check_drawn(self, drawn: Cost) -> None:
        """Refuse releases with less noise than a round was charged for."""
        self.ledger.check_drawn(drawn)

    def guarantee(self, own: Guarantee) -> Guarantee:
        """What the strategy promises, and this on top."""
        if not own.holds:
            return own
        epsilon, delta = self.epsilon, self.delta
        accountant = f"{own.accountant}; a preparation of epsilon = {epsilon:.3g}, delta = {delta:.3g} is added"
        return replace(own, epsilon=own.epsilon + epsilon, delta=own.delta + delta, accountant=accountant)

    def numbers(self) -> dict[str, Any]:
        """Of the plan."""
        return {
            "preparation_rounds": self.rounds,
            "preparation_epsilon": self.epsilon,
            "preparation_delta": self.delta,
        }

    def warnings(self) -> tuple[str, ...]:
        """Of the plan."""
        return ()

    def spent(self, own: Callable[[], float]) -> Callable[[], float]:
        """What both ledgers say NOW."""
        return partial(_sum, own, self.ledger.spent())

    def keep(self, taken: Snapshot) -> None:
        """Write down what a killed run needs to go on."""
        taken.add("found", state_of(self.memory))
        taken.add("found_ledger", self.ledger.state())

    def recall(self, kept: Snapshot) -> None:
        """Go on from what was written down."""
        self.memory = self.new_memory()
        put_back(self.memory, kept.get("found"))
        self.ledger.restore(kept.get("found_ledger"))


def _sum(one: Callable[[], float], other: Callable[[], float]) -> float:
    return one() + other()


def prepared(kind: type[Preparation], options: StrategyOptions, given: Given) -> tuple[Privacy, Preparation]:
    """(the budget left for the strategy, its preparation).

    Raises:
        BadInput: there is nothing to find for the strategy.
    """
    problem, privacy = given.problem, given.privacy
    share = kind.share(problem)
    own = replace(privacy, epsilon=share * privacy.epsilon, delta=share * privacy.delta)
    left = replace(privacy, epsilon=privacy.epsilon - own.epsilon, delta=privacy.delta - own.delta)
    # Only then anything is calibrated: most strategies are asked in vain.
    if isinstance(options, PreparedOptions):
        made = kind(problem, given.public, own, given.seed)
        if options.found(made.found()[1]):
            return left, made
    raise BadInput(
        f"preparation = 'learn': nothing that {given.strategy} needs can be found on the way for problem.kind = "
        f"{problem.name!r}; leave it out"
    )
