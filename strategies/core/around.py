"""What a run does before and after a strategy's own rounds, and what that adds to plan, guarantee and ledger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from strategies.core.last_comparison import LastComparison, check_comparison
from strategies.core.preparation import Preparation, prepared
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.scheme import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, Privacy
from userdp.arrays.types import Vector
from userdp.errors import BadInput

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


@dataclass(frozen=True)
class Around:
    """The parts around a strategy.

    Attributes:
        before: finds coordinates and a clip.
        after: compares the model with the initial one.
    """

    before: Preparation | None = None
    after: LastComparison | None = None

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
        for part in self._parts:
            rounds, guarantee = rounds + part.rounds, part.guarantee(guarantee)
            for name, kind in WHOLE_RUN.items():
                if name in told:
                    told[name] += getattr(part, kind)
            told |= part.numbers()
        return rounds, guarantee, told

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against what comes before."""
        return () if self.before is None else self.before.warnings()

    def spent(self, own: Callable[[], float]) -> Callable[[], float]:
        """What all ledgers say NOW."""
        for part in self._parts:
            own = part.spent(own)
        return own

    @property
    def _parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.before, self.after) if part is not None)


def divided(
    recipe: Recipe, given: Given, preparation: type[Preparation] | None, compare_with_initial: bool
) -> tuple[Privacy, Around]:
    """(the budget left for the strategy's own rounds, what comes before and after them).

    Raises:
        BadInput: the strategy, or its nodes, cannot have the one or the other.
    """
    before = after = None
    wanted = compare_with_initial or preparation is not None
    if wanted and not given.wire.asks_more:
        raise BadInput(
            "compare_with_initial and preparation ask users for more than a step of training, which clients of an "
            "ordinary Flower app cannot tell: leave them out"
        )
    if wanted and given.privacy.trust == "sum":
        raise BadInput(
            "privacy.trust = 'sum': compare_with_initial and preparation ask for sums without noise, with which the "
            "server would have to be trusted; leave them out"
        )
    privacy = given.privacy
    if compare_with_initial:
        check_comparison(given.strategy, recipe.about.without_comparison)
        privacy, after = LastComparison.within(privacy, given.users)
    if preparation is not None:
        privacy, before = prepared(preparation, recipe, replace(given, privacy=privacy))
    return privacy, Around(before, after)
