"""Rounds that release the noisy mean of a cohort's vectors, and follow it; most strategies consist of these."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from strategies.core.results import Noise, Step
from strategies.core.scheme import Scheme
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.mechanisms.prefix_sums import PrefixSums
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.problems import Box
from userdp.sampling import Sampler
from userdp.state import Stateful


class Descent(Stateful, ABC):
    """The memory of a server that steps by released gradients, at a step size."""

    given: ClassVar[tuple[str, ...]] = ("rate",)
    # a mechanism that remembers former rounds and releases in the place of the rounds' own; it is one of the ``parts``
    mechanism: PrefixSums | None = None

    def __init__(self, rate: float) -> None:
        self.rate = rate

    @abstractmethod
    def step(self, x: Vector, gradient: Vector, deviation: float) -> Vector:
        """Return the (p,) next model, before it is projected on the domain.

        Args:
            x: (p,) the model at which the gradient was taken.
            gradient: (p,) released.
            deviation: of the noise on each of its coordinates, public.
        """

    def output(self, x: Vector, following: Vector) -> tuple[Vector, Vector]:
        """Return the (p,) point of the next gradient and the (p,) released model, after a step from ``x``."""
        return following, following


class PlainDescent(Descent):
    """Steps against each gradient."""

    def step(self, x: Vector, gradient: Vector, deviation: float) -> Vector:
        return x - self.rate * gradient


def as_is(index: int, released: Vector) -> Vector:
    """Return the released mean, to be followed like a gradient."""
    return released


def negative(index: int, released: Vector) -> Vector:
    """Return the gradient that a released mean of users' updates stands for."""
    return -released


def deviation_noted(gathered: Gathered, mean: Vector, deviation: float) -> Mapping[str, float]:
    """Return the deviation of the round's noise as its only fact."""
    return {"noise_deviation": deviation}


@dataclass(frozen=True, kw_only=True)
class MeanRounds(Scheme):
    """A `Scheme` of noisy means over a public divisor, each followed by a step; ``new_memory`` makes a `Descent`."""

    domain: Box
    sampler: Sampler  # draws the cohorts
    query: Callable[[int], Computation]  # from a round's index to the users' computation
    divisor: float  # public number that the users' sum is divided by
    # of the mean, or of what a mechanism with a memory makes of it; None where users or nodes add the noise
    mechanism: GaussianMechanism | LaplaceMechanism | None
    mean: Callable[[Vector], Vector] | None = None  # from the sum to the mean; None for a division by ``divisor``
    # from a round's index and what it releases to the vector that is followed; costs nothing
    gradient: Callable[[int, Vector], Vector] = as_is
    # from the replies, the mean before its noise and the deviation of the noise to the round's facts
    noted: Callable[[Gathered, Vector, float], Mapping[str, float]] = deviation_noted

    def ask(self, index: int, memory: Descent) -> Request:
        """See `Scheme`. Raises `RunFailed`: a user could move the mean by more than the noise is made for."""
        asked, promised = self.query(index), self.price.guarantee
        # Clips of single samples, and means of another kind, have proofs of their own.
        plain = self.mean is None and not self.sampler.of_samples
        if self.mechanism is not None and plain and promised.holds and promised.unit == "user":
            check_covered(asked, self.mechanism, self.divisor, promised.relation)
        return Request(self.sampler.cohort(index), asked)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Descent, noise: Noise) -> Step:
        """See `Scheme`; if a node of a masked sum fell silent, or memory skips a round, nothing is released."""
        if (mechanism := memory.mechanism if gathered.skipped else None) is not None:
            mechanism.skip()
        if mechanism is not None or gathered.lost:
            return Step(*memory.output(x, x), {"lost": 1.0})
        mean = gathered.values / self.divisor if self.mean is None else self.mean(gathered.values)
        released, deviation = mean, gathered.noise / self.divisor
        if self.mechanism is not None:
            released = (memory.mechanism or self.mechanism).release(mean, noise(0))
            deviation = self.mechanism.standard_deviation
        moved = self.domain.project(memory.step(x, self.gradient(index, released), deviation))
        return Step(*memory.output(x, moved), self.noted(gathered, mean, deviation))
