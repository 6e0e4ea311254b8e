"""Rounds that release the noisy mean of a cohort's vectors, and follow it; most strategies consist of these."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies.core.about import Fact
from strategies.core.results import Noise, Step
from strategies.core.scheme import Number, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee, Relation
from userdp.arrays.types import Vector
from userdp.errors import RunFailed
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.mechanisms.prefix_sums import PrefixSums
from userdp.nodes.computations import Computation
from userdp.nodes.statistics import statistic
from userdp.problems import Box
from userdp.sampling import AllocatedBatches, DisjointBatches, Sampler
from userdp.state import Stateful

CLIP_FACTS: Mapping[str, Fact] = {
    "clipped_share_private": Fact("private", "share of the round's users that the clip shortened; simulations only"),
    "median_length_private": Fact(
        "private",
        "median l2 norm of the round's users before the clip, about a centre if the strategy has one; simulations only",
    ),
    "noise_over_signal_private": Fact(
        "private",
        "length that the round's noise is expected to have, over that of the clipped mean before it; simulations only",
    ),
}
"""The facts of `clip_facts`, by name."""


def clip_facts(gathered: Gathered, clip: float, mean: Vector, noise: float) -> dict[str, float]:
    """Return figures to tune a clip by; none where nodes sent no lengths.

    They are exact figures of users' data, which no guarantee covers, so they are private facts of simulations alone:
    `strategies.core.base.UserLevelStrategy` removes ``Computation.lengths`` from requests elsewhere.

    Args:
        gathered: the answers.
        clip: l2 norm in force.
        mean: of the clipped vectors, before noise.
        noise: expected l2 norm of the noise on the mean.
    """
    if gathered.lengths is None:
        return {}
    known = gathered.lengths[~np.isnan(gathered.lengths)]
    signal = float(np.linalg.norm(mean))
    return {
        "clipped_share_private": float(np.mean(known > clip)) if len(known) else math.nan,
        "median_length_private": float(np.median(known)) if len(known) else math.nan,
        "noise_over_signal_private": noise / signal if signal > 0 else math.inf,
    }


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


@dataclass(frozen=True)
class ClipNotes:
    """The facts of rounds that clip: the deviation of the round's noise, and figures to tune the clip by."""

    clip: float  # l2 norm in force
    noise: float  # expected l2 norm of the noise on the mean
    name: str | None = "noise_deviation"  # of the fact of the deviation; None for no such fact

    def __call__(self, gathered: Gathered, mean: Vector, deviation: float) -> Mapping[str, float]:
        """See `MeanRounds.noted`."""
        facts = {} if self.name is None else {self.name: deviation}
        return facts | clip_facts(gathered, self.clip, mean, self.noise)


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
        """See `Scheme`; if a node of a masked sum fell silent, nothing is released."""
        if gathered.lost:
            return Step(*memory.output(x, x), {"lost": 1.0})
        mean = gathered.values / self.divisor if self.mean is None else self.mean(gathered.values)
        released, deviation = mean, gathered.noise / self.divisor
        if self.mechanism is not None:
            released = (memory.mechanism or self.mechanism).release(mean, noise(0))
            deviation = self.mechanism.standard_deviation
        moved = self.domain.project(memory.step(x, self.gradient(index, released), deviation))
        return Step(*memory.output(x, moved), self.noted(gathered, mean, deviation))


def check_covered(
    asked: Computation,
    mechanism: GaussianMechanism | LaplaceMechanism,
    divisor: float,
    relation: Relation,
    *,
    number: bool = False,
) -> None:
    """Compare how far a user, protected as a whole, can move the mean with the sensitivity of its mechanism.

    A statistic beside the users' vectors has noise of its own; ``number`` says that the mean is the statistic's. Raises
    `RunFailed`: a user could move the mean by more.
    """
    if isinstance(mechanism, LaplaceMechanism):
        moved, covered = asked.sensitivity(relation, order=1, weight=0.0), mechanism.sensitivity
    else:
        moved, covered = asked.sensitivity(relation, weight=0.0), mechanism.l2_sensitivity
    if number:
        moved = None if asked.statistic is None else statistic(asked.statistic).sensitivity(relation)
    if moved is None or moved / divisor > covered * (1 + 1e-9):
        most = "any length" if moved is None else f"{moved / divisor:.6g}"
        raise RunFailed(
            f"a user can move the mean of {asked.name} by {most}, and its noise is made for {covered:.6g}: clip what "
            "users send to the norm that the mechanism is made for, and divide by a public number"
        )


def sampler_numbers(sampler: Sampler, guarantee: Guarantee, noise_multiplier: float) -> dict[str, Number]:
    """Return a plan's numbers about its sampler: participations, and the guarantee for replacing a user.

    ``noise_multiplier`` is that of the guarantee: noise over sensitivity, under the sampler's relation.
    """
    numbers: dict[str, Number] = {}
    if isinstance(sampler, DisjointBatches):
        numbers["participations"] = sampler.epochs
    if isinstance(sampler, AllocatedBatches):
        numbers["participations"] = sampler.participations
    if guarantee.relation != "replace_one":
        replaced = sampler.replaced(noise_multiplier, guarantee.delta)
        numbers["replace_one_epsilon"], numbers["replace_one_delta"] = replaced
    return numbers
