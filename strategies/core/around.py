"""What a run does before and after a strategy's own rounds, and what that adds to plan, guarantee and ledger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from strategies.core.snapshots import Snapshot
from strategies.core.step import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee
from userdp.arrays.types import Vector

WHOLE_RUN = {
    "replace_one_epsilon": "epsilon",
    "replace_one_delta": "delta",
    "sample_level_epsilon": "epsilon",
    "user_level_epsilon": "epsilon",
}
"""Numbers of a plan that price the whole run, and what of each part around it is added to them."""


class Part(Protocol):
    """Rounds that are not the strategy's own, with a budget of their own; models are in the loss's own parameters."""

    rounds: int
    epsilon: float
    delta: float

    def request(self, index: int, initial: Vector) -> Request:
        """What is asked in round ``index`` (from 0) of these."""

    def charge(self, request: Request) -> None:
        """Charge the round."""

    def check_drawn(self, drawn: Cost) -> None:
        """Refuse releases that cost more than the round was charged."""

    def step(self, index: int, x: Vector, initial: Vector, gathered: Gathered, noise: Noise) -> Step:
        """What becomes of its replies; ``noise`` makes the source of a purpose."""

    def guarantee(self, own: Guarantee) -> Guarantee:
        """What is promised with this on top."""

    def numbers(self) -> dict[str, Any]:
        """Of the plan."""

    def spent(self, own: Callable[[], float]) -> Callable[[], float]:
        """What has been spent NOW, with this on top."""

    def warnings(self) -> tuple[str, ...]:
        """What speaks against it, for the plan."""

    def keep(self, taken: Snapshot) -> None:
        """Write down what a killed run needs to go on."""

    def recall(self, kept: Snapshot) -> None:
        """Go on from what was written down."""


@dataclass(frozen=True)
class Around:
    """The parts around a strategy.

    Attributes:
        before: a `strategies.core.preparation.Preparation`, which finds coordinates and a clip.
        after: a `strategies.core.last_comparison.LastComparison` of the model with the initial one.
    """

    before: Part | None = None
    after: Part | None = None

    def place(self, server_round: int, rounds: int) -> tuple[Part | None, int]:
        """Whose round ``server_round`` (from 1, of so many) is, None for the strategy, and its index among those."""
        first = 0 if self.before is None else self.before.rounds
        if server_round <= first:
            return self.before, server_round - 1
        if self.after is not None and server_round == rounds:
            return self.after, 0
        return None, server_round - first - 1

    def plan(
        self, rounds: int, guarantee: Guarantee, numbers: Mapping[str, Any]
    ) -> tuple[int, Guarantee, dict[str, Any]]:
        """(rounds, guarantee, numbers) of the whole run, from the strategy's own."""
        told = dict(numbers)
        for part in self.parts:
            rounds, guarantee = rounds + part.rounds, part.guarantee(guarantee)
            for name, kind in WHOLE_RUN.items():
                if name in told:
                    told[name] += getattr(part, kind)
            told |= part.numbers()
        return rounds, guarantee, told

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against what comes before and after."""
        return tuple(warning for part in self.parts for warning in part.warnings())

    def spent(self, own: Callable[[], float]) -> Callable[[], float]:
        """What all ledgers say NOW."""
        for part in self.parts:
            own = part.spent(own)
        return own

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts there are, in their order."""
        return tuple(part for part in (self.before, self.after) if part is not None)
