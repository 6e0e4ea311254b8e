"""What a run does to users' data, fixed before any are seen: who takes part, how loud the noise is, what that costs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategies.core.step import Noise, Step
from strategies.core.ways import Way
from strategies.wire.replies import Gathered, Request
from userdp.accounting import AnyLedger, Guarantee, Privacy
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.state import Stateful

Number = float | int | str
"""A value that a plan prints."""


def no_memory() -> None:
    """The memory of a server that needs nothing but the model."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A scheme in numbers, for people; `strategies.core.plan.Plan` explains the fields.

    Attributes:
        rounds: exchanges with the nodes.
        cohort: users a round (the largest, where it varies).
        users_needed: the fewest users with which the scheme would still be accepted.
        path: how noise reaches the model, for the forecast; None for no forecast.
        noise: expected l2 norm of the noise of a release; None where the strategy does not state it.
        signal: l2 norm that the thing it is added to can have; None where the strategy does not state it.
        pass_probability: lower bound on passing every test; None without a test.
        numbers: everything else worth printing, name -> value.
        warnings: sentences.
    """

    rounds: int
    cohort: int
    users_needed: int
    path: Way | None = None
    noise: float | None = None
    signal: float | None = None
    pass_probability: float | None = None
    numbers: Mapping[str, Number] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """The private part of a strategy as one value, and what it does in a round.

    All that follows from data reads it and nothing changes it: clip, weights, sampler, noise and accounting cannot
    disagree. A `strategies.core.recipe.Recipe` makes it. `ask` and `take` are a round; what the server remembers
    between rounds is one object, made by ``new_memory``.

    Attributes:
        guarantee: what all rounds together promise.
        ledger: makes the ledger that the rounds are charged to; not asked where nothing is promised.
        outline: the scheme in numbers.
        new_memory: makes what the server remembers between rounds, as it is before the first; nothing by default. Its
            class declares what a checkpoint holds.
        check_start: refuses initial models (`BadInput`), beyond those outside the problem's domain.
        summands: vectors that one release adds up at most, which says how sums are rounded; n where it is not given.
        spread: largest norm of such a vector over the sensitivity of the sum (see `userdp.noise.rounding_slack`).
        rounding: how much more a release's sensitivity can grow by rounding, relatively, where it is no such sum.
    """

    guarantee: Guarantee
    ledger: Callable[[Privacy], AnyLedger]
    outline: Outline
    new_memory: Callable[[], Stateful | None] = no_memory
    check_start: Callable[[Vector], None] | None = None
    summands: int | None = None
    spread: float = 1.0
    rounding: float = 0.0

    @abstractmethod
    def ask(self, index: int, memory: Any) -> Request | None:
        """The request of round ``index`` (from 0); None skips the round."""

    @abstractmethod
    def take(self, index: int, x: Vector, gathered: Gathered, memory: Any, noise: Noise) -> Step:
        """Release what the replies of round ``index`` say, with noise, and follow it.

        Args:
            index: of the round, from 0.
            x: (p,) the model at which nodes answered.
            gathered: their replies.
            memory: what ``new_memory`` made.
            noise: opens the round's noise.
        """

    def checked_start(self, problem: Problem, x: Vector) -> Vector:
        """(p,) the initial model.

        Raises:
            BadInput: it lies outside the domain, or the scheme refuses it.
        """
        if x.shape != (problem.dimension,) or not np.array_equal(problem.domain.project(x), x):
            raise BadInput(
                f"initial_arrays must hold {problem.dimension} finite numbers within the problem's domain, on "
                "which its certificate was computed"
            )
        if self.check_start is not None:
            self.check_start(x)
        return x


Law = Callable[[Sequence[Rows]], Vector]
"""From what a round and those before it gather, rows or their sum, to (K,) probabilities of the round's outcomes."""


def law_of(scheme: Scheme) -> Law | None:
    """The ``law`` of a scheme whose rounds begin with one of finitely many outcomes, which is released; audits ask."""
    return getattr(scheme, "law", None)


def no_ledger(privacy: Privacy) -> AnyLedger:
    """The ledger of a scheme that promises nothing: there is none to ask for.

    Raises:
        BadInput: always.
    """
    raise BadInput("no privacy guarantee: there is no budget to charge rounds to")
