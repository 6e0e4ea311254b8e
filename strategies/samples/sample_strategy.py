"""Strategies that work on single samples: whom they protect, the model they give, and their steps."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.scheme import Scheme, Step
from strategies.core.ways import Course
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.papers.heavy_tailed.descent import whole_rounds
from userdp.state import Stateful

Output = Literal["average", "last"]


class SampleLevelOptions(StrategyOptions):
    """Settings of every strategy here."""

    output: Output = Field(
        "average",
        description="The model: mean of the points at which gradients were taken (the papers'), which after one round "
        "is the start; or the last iterate, with which one round of rate 1 on a quadratic loss is private mean "
        "estimation.",
    )
    smoothness: float | None = Field(
        None, gt=0, description="L, of the expected loss; the problem's certified bound if not given."
    )


@dataclass(frozen=True)
class Rounds:
    """How many rounds there are, and how many theory asks for.

    Attributes:
        count: there are.
        wanted: by theory; None where the number is given.
    """

    count: int
    wanted: float | None = None

    @classmethod
    def chosen(cls, given: int | None, wanted: Callable[[], float], most: int) -> "Rounds":
        """Those given, or as many as wanted, rounded up, at least one and at most ``most``."""
        if given is not None:
            return cls(given)
        asked = wanted()
        return cls(whole_rounds(asked, most), asked)

    def warnings(self) -> tuple[str, ...]:
        """That there are fewer than theory asks for, if so."""
        if self.wanted is None or self.wanted <= self.count:
            return ()
        return (
            f"theory asks for {math.ceil(self.wanted):,} rounds, and strategy.max_rounds caps them at {self.count:,}: "
            "what theory says of the result does not hold. Raise strategy.max_rounds, or set strategy.rounds",
        )


@dataclass(frozen=True, kw_only=True)
class SampleScheme(Scheme):
    """A `Scheme` of noisy means over samples.

    Attributes:
        chosen: how many rounds.
        clip: l2 norm that each sample is clipped to, or the mean of a batch.
        divisor: public number of samples that sums are divided by.
        mechanism: of what is released in a round.
        rate: step size.
    """

    chosen: Rounds
    clip: float
    divisor: float
    mechanism: GaussianMechanism
    rate: float

    @property
    def rounds(self) -> int:
        """How many there are."""
        return self.chosen.count


class OutputAverage(Stateful):
    """The memory of a descent: the points at which gradients were taken, added up.

    Args:
        output: which model is given: their mean, or the last iterate.
        dimension: p.
        length: rounds of a run, whose points are its own and whose model the next one starts at; one run if not given.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_points", "_sum")
    given: ClassVar[tuple[str, ...]] = ("_output", "_dimension", "_length")

    def __init__(self, output: Output, dimension: int, length: int | None = None) -> None:
        self._output, self._dimension, self._length = output, dimension, length
        self._points, self._sum = 0, np.zeros(dimension)

    def after(self, x: Vector, following: Vector) -> tuple[Vector, Vector]:
        """(p,) where the next gradient is taken, and (p,) the model, after a step from x (p,) to ``following`` (p,)."""
        self._points += 1
        self._sum += x
        model = following if self._output == "last" else self._sum / self._points
        if self._points != self._length:
            return following, model
        self._points, self._sum = 0, np.zeros(self._dimension)
        return model, model


class SampleStrategy(UserLevelStrategy):
    """Rounds over samples, which protect one of them, or a user by what all its samples can do together.

    A strategy here defines the four methods of every strategy; its scheme makes an `OutputAverage`, and its `_step`
    ends in `_descend`.
    """

    family: ClassVar[str] = "sample-level"
    needs: ClassVar[str] = "any loss; public number of samples"
    units: ClassVar[tuple[str, ...]] = ("sample", "user")
    meanings: ClassVar[Mapping[str, str]] = {
        "samples": "N, the public number of samples",
        "group": "samples of one user that the noise must cover",
        "sample_level_epsilon": "epsilon for one single sample",
        "user_level_epsilon": "epsilon for a whole user, under the same relation",
        "accounted_epsilon": "what noise by the paper's formula really costs, by an accountant",
    }
    options: SampleLevelOptions
    memory: OutputAverage

    @property
    def samples(self) -> int:
        """N, samples of all users together.

        Raises:
            BadInput: it is not declared.
        """
        return self.public.declared("samples", self.name)

    @property
    def most(self) -> int | None:
        """Samples of a user that count, where users are protected; None where samples are, which needs no limit.

        Raises:
            BadInput: users are protected, and no limit is declared.
        """
        return self.public.declared("max_samples", self.name) if self.privacy.unit == "user" else None

    @property
    def group(self) -> int:
        """Samples that the promise covers at once."""
        return self.most or 1

    def smoothness(self, sets: str) -> float:
        """L, for numbers that cannot be set without it; ``sets`` says which.

        Raises:
            BadInput: it is neither declared nor certified.
        """
        smoothness = self.options.smoothness or self.problem.certificate.smoothness
        if not smoothness:
            raise BadInput(
                f"strategy.smoothness must be declared: {self.name} sets {sets} by it, and "
                "the problem certifies no positive bound"
            )
        return smoothness

    @property
    def half_step(self) -> float:
        """1 / (2 smoothness); half where no smoothness is known."""
        return 1 / (2 * (self.options.smoothness or self.problem.certificate.smoothness or 1.0))

    @property
    def corner(self) -> float:
        """From the centre of the domain to its corners."""
        return float(self.problem.domain.radius * math.sqrt(self.problem.dimension))

    def _course(self, rounds: int, rate: float, deviation: float, longest: float = math.inf) -> Course:
        """How the model moves by gradients of that l2 norm at most, with that noise on each coordinate."""
        averaged = self.options.output == "average"
        return Course(steps=rounds, rate=rate, deviation=deviation, longest=longest, averaged=averaged)

    def noise_norm(self, mechanism: GaussianMechanism) -> float:
        """l2 norm that the noise of a release of p numbers is expected to have."""
        return mechanism.standard_deviation * math.sqrt(self.problem.dimension)

    def _descend(self, x: Vector, gradient: Vector, rate: float, facts: dict[str, float]) -> Step:
        """Against a private gradient: every iterate is a released value, as is any average of them."""
        following, model = self.memory.after(x, self.problem.domain.project(x - rate * gradient))
        return Step(following, model, facts)
