"""The rounds of a run: the strategy's own, a preparation before them, a last comparison after them, in their order."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from strategies.core.options import Found, PreparedOptions
from strategies.core.public_facts import PublicFacts
from strategies.core.results import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import AnyLedger, Guarantee, Ledger, Privacy
from userdp.arrays.types import Vector
from userdp.mechanisms import LaplaceMechanism
from userdp.nodes.computations import Computation
from userdp.problems.base import MeasuredCurvature, Problem
from userdp.problems.in_coordinates import Coordinates, InCoordinates
from userdp.state import State, Stateful, put_back, state_of

SHARE = 0.05  # Share of epsilon that a last comparison takes
HELD_OUT = "held out"
_DOUBT = 0.05  # Probability of a wrong choice at the margin that the plan states

WHOLE_RUN = {
    "replace_one_epsilon": "epsilon",
    "replace_one_delta": "delta",
    "sample_level_epsilon": "epsilon",
    "user_level_epsilon": "epsilon",
}
"""Numbers of a plan that price the whole run -> the attribute of extra rounds that is added to them."""


class Rounds(ABC):
    """Rounds of a run, which ask and take; they have a memory, a ledger and noise of their own.

    Their state is what a killed run needs to resume.
    """

    name: ClassVar[str]  # names them in a checkpoint
    rounds: int
    ledger: AnyLedger | None  # charged for these rounds; None where nothing is promised
    memory: Stateful | None = None

    @abstractmethod
    def ask(self, index: int, constant: Vector) -> Request | None:
        """Return the request of round ``index``, from 0; ``constant`` (p,) is the model to compare with."""

    @abstractmethod
    def take(self, index: int, x: Vector, constant: Vector, gathered: Gathered, noise: Noise) -> Step:
        """Return the step that follows from a round's replies at the model x."""

    @property
    def drawn(self) -> Stateful | None:
        """The cohorts that the operating system drew; None if they follow from a seed."""
        return None

    def state(self) -> State:
        """Return what these rounds remember. Raises `BadInput`: a memory does not declare all of it."""
        ledger = None if self.ledger is None else self.ledger.state()
        return {"memory": state_of(self.memory), "ledger": ledger, "drawn": state_of(self.drawn)}

    def restore(self, state: State) -> None:
        """Resume, before the first of these rounds, from what `state` returned."""
        put_back(self.memory, state["memory"])
        if self.ledger is not None:
            self.ledger.restore(state["ledger"])
        put_back(self.drawn, state["drawn"])


class OwnRounds(Rounds):
    """The strategy's own rounds, as the others see them."""

    name: ClassVar[str] = "own"

    @abstractmethod
    def begin(self) -> None:
        """Plan these rounds anew, with what a preparation found, and with a fresh memory and a fresh ledger."""

    @abstractmethod
    def promised(self) -> tuple[Guarantee, dict[str, Any]]:
        """Return the guarantee and the numbers of these rounds."""

    @abstractmethod
    def stream(self, index: int) -> int:
        """Return the number of the streams of noise of round ``index``; see `Scheme.stream`."""


class ExtraRounds(Rounds):
    """Rounds beside the strategy's own, with a budget of their own; models are in the loss's own parameters."""

    kind: ClassVar[str]  # what the accountant's text calls these rounds
    accountant: ClassVar[str]  # the accountant of these rounds alone
    trusted: ClassVar[tuple[str, ...]] = ()  # assumptions that they add to the guarantee
    epsilon: float
    delta: float
    ledger: AnyLedger

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Return the numbers that the plan states of these rounds."""

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
        memory: the results so far.
    """

    name = kind = "preparation"

    def __init__(self, problem: Problem, public: PublicFacts, privacy: Privacy, seed: int) -> None:
        self.problem, self.public, self.privacy, self.seed = problem, public, privacy, seed
        self.epsilon, self.delta = privacy.epsilon, privacy.delta

    @classmethod
    @abstractmethod
    def share(cls, problem: Problem) -> float:
        """Return the share of epsilon and delta that the preparation takes for a loss."""

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

    name, kind = "comparison", "last comparison"
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

    def ask(self, index: int, constant: Vector) -> Request:
        """See `Rounds`; users compare the model that is sent with the best constant, or else the initial model."""
        return Request(np.arange(self.users), Computation("improved", "sum", 0.5, arrays={"initial": constant}))

    def take(self, index: int, x: Vector, constant: Vector, gathered: Gathered, noise: Noise) -> Step:
        """See `Rounds`; keeps the model, or goes back to the constant."""
        total = float(self.mechanism.release(gathered.values, noise(0))[0])
        chosen = x if total >= 0 else constant
        return Step(chosen, chosen, {"improved_share": 0.5 + total / self.users, "went_back": float(total < 0)})


@dataclass(frozen=True)
class Program:
    """The rounds of a run in their order, and the one place that numbers the noise of all of them."""

    own: OwnRounds
    before: Preparation | None = None
    after: LastComparison | None = None  # of the model with the initial one

    @property
    def extra(self) -> tuple[ExtraRounds, ...]:
        """The rounds beside the strategy's own."""
        return tuple(part for part in (self.before, self.after) if part is not None)

    @property
    def rounds(self) -> int:
        """The number of all rounds."""
        return self.own.rounds + sum(part.rounds for part in self.extra)

    def place(self, server_round: int) -> tuple[Rounds, int]:
        """Return whose round this is, counted from 1, and its index among them."""
        first = 0 if self.before is None else self.before.rounds
        if self.before is not None and server_round <= first:
            return self.before, server_round - 1
        if self.after is not None and server_round == self.rounds:
            return self.after, 0
        return self.own, server_round - first - 1

    def stream(self, name: str, index: int) -> int:
        """Return the number of the streams of noise of round ``index`` of the rounds of that name.

        Those of the strategy's own rounds come first. `HELD_OUT` names answers of held-out users, counted from 1.
        """
        if name == OwnRounds.name:
            return self.own.stream(index)
        return (self.rounds + 1 if name == Preparation.name else 2 * self.rounds) + index

    def plan(self) -> tuple[Guarantee, dict[str, Any]]:
        """Return the guarantee and the numbers of the whole run."""
        guarantee, stated = self.own.promised()
        for part in self.extra:
            guarantee = part.guarantee(guarantee)
            for name, kind in WHOLE_RUN.items():
                if name in stated:
                    stated[name] += getattr(part, kind)
            stated |= part.numbers()
        return guarantee, stated

    @property
    def promises(self) -> tuple[Guarantee, ...]:
        """The guarantee of the strategy's own rounds and those of the others, which compose to that of the run."""
        own, _ = self.own.promised()
        return (own, *(part.alone(own) for part in self.extra))

    @property
    def spent(self) -> Callable[[], float] | None:
        """A function that adds up what all ledgers are charged NOW; None without a guarantee."""
        if self.own.ledger is None:
            return None
        return partial(_total, (self.own.ledger.spent(), *(part.ledger.spent() for part in self.extra)))


def _total(amounts: tuple[Callable[[], float], ...]) -> float:
    return sum(amount() for amount in amounts)
