"""The strategy's own rounds, as its scheme has them."""

from typing import Any

from strategies.core.program import OwnRounds
from strategies.core.results import Noise, Step
from strategies.core.scheme import Scheme
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee, Privacy
from userdp.arrays.types import Vector
from userdp.state import Stateful


class SchemeRounds(OwnRounds):
    """The rounds of a scheme, within the strategy's budget."""

    def __init__(self, scheme: Scheme, privacy: Privacy) -> None:
        self._privacy = privacy
        self.begin(scheme)

    def begin(self, scheme: Scheme) -> None:
        self.scheme, self.memory, self.rounds = scheme, scheme.new_memory(), scheme.outline.rounds
        self.ledger = scheme.price.ledger(self._privacy) if scheme.price.guarantee.holds else None

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
