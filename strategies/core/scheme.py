"""The private part of a strategy, fixed before any data are seen: cohorts, queries, noise and accounting."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from strategies.core.about import About
from strategies.core.public_facts import Given, Price
from strategies.core.results import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.noise_paths import NoisePath
from userdp.sampling import Sampler
from userdp.state import Stateful

Number = float | int | str  # A value that a plan prints


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A scheme in numbers, for people. `strategies.core.plan.Plan` explains the other fields."""

    rounds: int
    cohort: int
    users_needed: int
    path: NoisePath | None = None  # how noise reaches the model, for the forecast; None for no forecast
    noise: float | None = None
    signal: float | None = None
    pass_probability: float | None = None
    numbers: Mapping[str, Number] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def no_report(released: Vector, memory: Any) -> dict[str, Any]:
    """Return nothing: a run tells its model alone."""
    return {}


class HoldsNoise(Stateful):
    """A memory that draws, round after round, from noise that its first one opened."""

    given: ClassVar[tuple[str, ...]] = ("noise",)
    noise: Noise  # opens that of round 0, for a state that is restored; the loop gives it before


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """The private part of a strategy as one immutable value: clip, sampler, noise and accounting cannot disagree.

    A `strategies.core.recipe.Recipe` makes it. `ask` and `take` are a round; the server's memory between rounds is one
    object, made by ``new_memory``.
    """

    price: Price  # of all rounds together
    outline: Outline  # the scheme in numbers
    # makes the server's memory before the first round, None for none; its class declares what a checkpoint holds
    new_memory: Callable[[], Stateful | None] = NoneType
    # makes sections of result.json from the released model (p,) and the memory of a run that has ended
    report: Callable[[Vector, Any], dict[str, Any]] = no_report
    # draws and prices the cohorts; None where another object does. A class attribute would be a default for subclasses
    sampler: Sampler | None = field(default_factory=lambda: None)
    # from a round's index to the number that its streams of noise have among those of all rounds; itself by default
    stream: Callable[[int], int] = int
    check_start: Callable[[Vector], None] | None = None  # refuses (`BadInput`) further initial models

    @abstractmethod
    def ask(self, index: int, memory: Any) -> Request | None:
        """Return the request of round ``index`` (from 0); None skips the round."""

    @abstractmethod
    def take(self, index: int, x: Vector, gathered: Gathered, memory: Any, noise: Noise) -> Step:
        """Release a noisy function of the replies, and follow it.

        Args:
            index: of the round, from 0.
            x: (p,) the model at which nodes answered.
            gathered: their replies.
            memory: made by ``new_memory``.
            noise: opens the round's noise.
        """

    def checked_start(self, problem: Problem, x: Vector) -> Vector:
        """Return the (p,) initial model. Raises `BadInput`: it lies outside the domain, or the scheme refuses it."""
        if x.shape != (problem.dimension,) or not np.array_equal(problem.domain.project(x), x):
            raise BadInput(
                f"initial_arrays must hold {problem.dimension} finite numbers within the problem's domain, on "
                "which its certificate was computed"
            )
        if self.check_start is not None:
            self.check_start(x)
        return x


class AnyRecipe(Protocol):
    """A `strategies.core.recipe.Recipe`, as the round loop knows it."""

    about: ClassVar[About]

    @property
    def max_missing(self) -> float:
        """The largest share of a cohort that may fail to answer."""

    def settled(self, given: Given) -> Self:
        """Return these settings with those that the plan chooses."""

    def scheme(self, given: Given) -> Scheme:
        """Make the scheme, from public facts alone."""


Law = Callable[[Sequence[Rows]], Vector]  # From all rounds' rows or sums to (K,) chances of the last's outcomes


def law_of(scheme: Scheme) -> Law | None:
    """Return the ``law`` of a scheme whose rounds release one of finitely many outcomes first, for audits; or None."""
    return getattr(scheme, "law", None)
