"""The strategy's own rounds, as the scheme of its recipe has them."""

from dataclasses import replace
from typing import Any

from strategies.core.options import PreparedOptions
from strategies.core.program import OwnRounds, Preparation
from strategies.core.public_facts import Given
from strategies.core.results import Noise, Step
from strategies.core.scheme import AnyRecipe, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.errors import RunFailed
from userdp.noise import rounding_slack
from userdp.problems.in_coordinates import Coordinates
from userdp.state import Stateful
from userdp.streams import assumptions


class SchemeRounds(OwnRounds):
    """The rounds of a scheme, within the strategy's budget.

    With a preparation they are at first those of a stand-in for its results.

    Args:
        recipe: makes the scheme.
        given: what it is made from.
        before: the preparation; None for none.
        drawn: whether nobody gave the seed.
        others: most vectors that a sum of other rounds adds up; None without such sums.

    Attributes:
        recipe: with the settings that a preparation found.
        given: with the problem in the coordinates that a preparation found.
        coordinates: these; None for the model's own.
        slack: how much rounding adds to sensitivities, relatively: of these rounds and of the others.
    """

    coordinates: Coordinates | None = None

    def __init__(
        self, recipe: AnyRecipe, given: Given, before: Preparation | None, *, drawn: bool, others: int | None
    ) -> None:
        self.recipe, self.given = recipe, given
        self._before, self._drawn, self._others = before, drawn, others
        self._take_over(self._new_scheme())

    def begin(self) -> None:
        """See `OwnRounds`. Raises `RunFailed`: with what a preparation found they would promise something else."""
        scheme = self._new_scheme()
        if scheme.price.guarantee != self.scheme.price.guarantee:
            raise RunFailed(
                f"{self.given.strategy} would promise something else with what its preparation found: run without a "
                "preparation"
            )
        self._take_over(scheme)

    def _new_scheme(self) -> Scheme:
        if self._before is not None and isinstance(self.recipe, PreparedOptions):
            problem, self.coordinates, found = self._before.settle(self.recipe)
            self.recipe = self.recipe.model_copy(update=found)
            self.given = replace(self.given, problem=problem)
        self.recipe = self.recipe.settled(self.given)
        scheme = self.recipe.scheme(self.given)
        return replace(scheme, price=replace(scheme.price, guarantee=self._stated(scheme.price.guarantee)))

    def _take_over(self, scheme: Scheme) -> None:
        """Take over a scheme, with a fresh memory and a fresh ledger."""
        privacy, price = self.given.privacy, scheme.price
        self.scheme, self.memory, self.rounds = scheme, scheme.new_memory(), scheme.outline.rounds
        self.ledger = price.ledger(privacy) if price.guarantee.holds else None
        others = 0.0 if self._others is None else rounding_slack(self._others)
        self.slack = max(price.rounding_slack(self.given.users), others) if self.given.secure else 0.0

    def _stated(self, guarantee: Guarantee) -> Guarantee:
        """Return a scheme's guarantee with what it rests on beside the strategy: public facts, and the source of noise.

        Every guarantee of a run is made from this one.
        """
        if not guarantee.holds:
            return guarantee
        public, privacy = self.given.public, self.given.privacy
        if public.user_is is not None:
            guarantee = replace(guarantee, adversary=f"{guarantee.adversary}; {public.user_is}")
        source = assumptions(privacy.noise, privacy.unit, drawn=self._drawn)
        return guarantee.assuming(*public.assumptions, *source)

    def promised(self) -> tuple[Guarantee, dict[str, Any]]:
        return self.scheme.price.guarantee, dict(self.scheme.outline.numbers)

    def stream(self, index: int) -> int:
        return self.scheme.stream(index)

    def ask(self, index: int, constant: Vector) -> Request | None:
        return self.scheme.ask(index, self.memory)

    def take(self, index: int, x: Vector, constant: Vector, gathered: Gathered, noise: Noise) -> Step:
        return self.scheme.take(index, x, gathered, self.memory, noise)

    @property
    def drawn(self) -> Stateful | None:
        sampler = self.scheme.sampler
        return None if sampler is None or sampler.seed is not None else sampler.drawn
