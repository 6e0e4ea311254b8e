"""The common parts of strategies on single samples: protected unit, released model, steps."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies import Given, MeanRounds, NoisySteps, Number, Outline, PlainDescent, Price, StrategyOptions
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.nodes import Computation
from userdp.sampling import Sampler

Output = Literal["average", "last"]

MEANINGS: Mapping[str, str] = {
    "samples": "N, the public number of samples",
    "group": "samples of one user that the noise must cover",
    "sample_level_epsilon": "epsilon for one single sample",
    "user_level_epsilon": "epsilon for a whole user, under the same relation",
    "accounted_epsilon": "what noise by the paper's formula really costs, by an accountant",
}
"""Numbers of these plans."""


class OutputAverage(PlainDescent):
    """A `PlainDescent` that adds up the points at which gradients were taken.

    Its model is their mean or the last iterate. A run has ``length`` rounds, whose points are its own and whose model
    the next one starts at; one run if not given.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_points", "_sum")
    given: ClassVar[tuple[str, ...]] = (*PlainDescent.given, "_output", "_dimension", "_length")

    def __init__(self, rate: float, output: Output, dimension: int, length: int | None = None) -> None:
        super().__init__(rate)
        self._output, self._dimension, self._length = output, dimension, length
        self._points, self._sum = 0, np.zeros(dimension)

    def output(self, x: Vector, following: Vector) -> tuple[Vector, Vector]:
        """See `Descent`; a run's last step leads to its model."""
        self._points += 1
        self._sum += x
        model = following if self._output == "last" else self._sum / self._points
        if self._points != self._length:
            return following, model
        self._points, self._sum = 0, np.zeros(self._dimension)
        return model, model


class SampleLevelOptions(StrategyOptions):
    """Settings of every strategy here."""

    output: Output = Field(
        "average",
        description="The model: mean of the points at which gradients were taken (the papers'), which after one round "
        "is the start; or the last iterate, with which one round of rate 1 on a quadratic loss is private mean "
        "estimation.",
    )
    smoothness: float | None = Field(None, gt=0, description="L, of the expected loss; certified if not given.")

    def known_smoothness(self, given: Given, sets: str) -> float:
        """L, for the numbers that ``sets`` names; `BadInput` if it is neither declared nor certified."""
        smoothness = self.smoothness or given.problem.certificate.smoothness
        if not smoothness:
            raise BadInput(
                f"strategy.smoothness must be declared: {given.strategy} sets {sets} by it, and "
                "the problem certifies no positive bound"
            )
        return smoothness

    def half_step(self, given: Given) -> float:
        """1 / (2 smoothness); half where no smoothness is known."""
        return 1 / (2 * (self.smoothness or given.problem.certificate.smoothness or 1.0))

    def outlined(
        self,
        given: Given,
        mechanism: GaussianMechanism,  # of a round's mean, or of each of its groups' means
        rate: float,  # step size
        *,
        rounds: int,  # how many
        signal: float,  # l2 norm that a gradient can have
        numbers: Mapping[str, Number],  # of the plan
        warnings: tuple[str, ...] = (),  # of the plan
        cohort: int | None = None,  # users per round; all of them if not given
        users_needed: int = 1,  # see `Outline`
        groups: int = 1,  # means that a round releases together, whose centre is followed
    ) -> Outline:
        """Return the outline of a descent along these means."""
        deviation = mechanism.standard_deviation
        return Outline(
            rounds=rounds,
            cohort=given.users if cohort is None else cohort,
            users_needed=users_needed,
            path=self.course(rounds, rate, deviation / math.sqrt(groups), signal),
            noise=deviation * math.sqrt(given.dimension / groups),
            signal=signal,
            numbers=numbers,
            warnings=warnings,
        )

    def followed(
        self,
        given: Given,
        sampler: Sampler,  # who takes part
        mechanism: GaussianMechanism,
        rate: float,
        *,
        price: Price,
        query: Callable[[int], Computation],
        divisor: float,
        **outline: Any,  # see `outlined`
    ) -> MeanRounds:
        """Return the rounds of a descent along these means."""
        return MeanRounds(
            price=price,
            outline=self.outlined(given, mechanism, rate, **outline),
            new_memory=partial(OutputAverage, rate, self.output, given.dimension),
            domain=given.problem.domain,
            sampler=sampler,
            query=query,
            divisor=divisor,
            mechanism=mechanism,
        )

    def course(self, rounds: int, rate: float, deviation: float, longest: float) -> NoisySteps:
        """Return the path of the model, for gradients of at most that l2 norm with that noise on each coordinate."""
        averaged = self.output == "average"
        return NoisySteps(steps=rounds, rate=rate, deviation=deviation, longest=longest, averaged=averaged)


def whole_rounds(wanted: float, most: int | None = None) -> int:
    """Round ``wanted`` up to a whole number of rounds, at least 1 and at most ``most``."""
    return max(1, min(math.ceil(wanted), most if most is not None else math.ceil(wanted)))


def rounds_by_theory(rounds: int | None, wanted: Callable[[], float], most: int) -> tuple[int, tuple[str, ...]]:
    """(the rounds that are set, else as many as wanted and at most ``most``; a warning if more are wanted)."""
    if rounds is not None:
        return rounds, ()
    asked = wanted()
    count = whole_rounds(asked, most)
    if asked <= count:
        return count, ()
    warning = (
        f"theory asks for {math.ceil(asked):,} rounds, and strategy.max_rounds caps them at {count:,}: "
        "what theory says of the result does not hold. Raise strategy.max_rounds, or set strategy.rounds"
    )
    return count, (warning,)


def declared(given: Given, fact: str) -> int:
    """Return a public fact that the strategy needs. Raises `BadInput`: it is not declared."""
    value = getattr(given.public, fact)
    if value is None:
        raise BadInput(f"data.{fact} must be declared: {given.strategy} needs this public number in its guarantee")
    return int(value)


def samples_of(given: Given) -> int:
    """N, samples of all users together. Raises `BadInput`: it is not declared."""
    return declared(given, "samples")


def most_of(given: Given) -> int | None:
    """Samples of a user that count at user level; None at sample level. `BadInput` if that limit is not declared."""
    return declared(given, "max_samples") if given.privacy.unit == "user" else None


def records_of(given: Given) -> int:
    """Return the number of protected users, or of samples, which must be declared (`BadInput`)."""
    return given.users if given.privacy.unit == "user" else samples_of(given)


def corner_of(given: Given) -> float:
    """Return the l2 distance from the centre of the domain to its corners."""
    return float(given.problem.domain.radius * math.sqrt(given.dimension))


def clipped_sum(given: Given, clip: float) -> Computation:
    """The sum of users' gradients, each sample's clipped to ``clip`` and each user's sum to what that allows."""
    return Computation(
        "clipped_sample_sum",
        reduce="sum",
        clip_norm=clip * (given.public.max_samples or math.inf),
        parameters={"sample_clip_norm": clip},
    )
