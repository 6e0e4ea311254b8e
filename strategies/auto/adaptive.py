"""Rounds of `Auto` for losses without a certificate: adaptive steps along gradients of random cohorts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from strategies.auto.progress import Progress, following_optimiser
from strategies.auto.releases import Movement, Release
from strategies.auto.stages import LEAST_WIDTH, MEASURED, Stage
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Box, Problem

_SIZE = STATISTICS["log_size"]

_RATE = 0.02
"""Length of the first step for each parameter; later ones are shorter, down to none. Initial parameters of modules are
about 0.1 to 1, whatever inputs, targets and losses are measured in."""

_UNCLIPPED, _SPEED = 0.7, 0.3
"""Target share of unclipped users, and the speed at which the clip follows it (Andrew et al. 2021)."""

_LEAST_STEPS, _MOST_STEPS, _PATIENCE = 20, 100, 20.0
"""Steps: the third over the root of the noise of all of them together, over a user's gradient."""

_GRADIENTS = 100_000
"""Users' gradients in all rounds together, about, if users suffice."""

_FAINT = 2.5
"""Noise multiplier of a round from which on larger cohorts would save at most a twentieth of the noise."""

LOUD = 0.5
"""Noise of all steps together, over a user's gradient, from which on a plan warns: shared gradients are shorter."""


def uncertified(problem: Problem) -> bool:
    """Return whether the loss has no certificate by which steps could be chosen."""
    certificate = problem.certificate
    return not certificate.convex and certificate.smoothness is None


@dataclass(frozen=True)
class Pace:
    """The number of steps, and each user's probability to take part in one; from public facts."""

    steps: int
    chance: float

    @classmethod
    def of(cls, users: int, dimension: int, noise_multiplier: float, *, drawn: bool) -> "Pace":
        """Choose the pace of ``users`` whose budget is worth one Gaussian of ``noise_multiplier``, noise over a clip.

        Under loud noise more steps gain nothing and move further at random. Cohorts are so large that their noise is
        near that of all users, but not so large that they would all compute for hours.
        """
        noise = noise_multiplier * math.sqrt(dimension) / users
        steps = min(max(round(_PATIENCE / math.sqrt(noise)), _LEAST_STEPS), _MOST_STEPS)
        if not drawn:
            return cls(min(steps, max(_LEAST_STEPS, _GRADIENTS // users)), 1.0)
        # Many rounds of probability q cost about T q^2 (e^(1 / z^2) - 1), in units of 1 / noise_multiplier^2.
        faint = 1 / (noise_multiplier * math.sqrt(steps * math.expm1(_FAINT**-2)))
        return cls(steps, min(1.0, faint, _GRADIENTS / (users * steps)))


def adaptive_stages(steps: int, domain: Box) -> tuple[Stage, ...]:
    """Return the stages of the clip and the steps."""
    return (ClipScale(), *(AdaptiveStep(_RATE * (1 - number / steps), domain) for number in range(steps)))


@dataclass(frozen=True)
class ClipScale(Stage):
    """The length of users' gradients at the start, between e^-10 and e^10."""

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; only the length of each user's gradient will be released."""
        return Computation("user_gradient", "sum", 1.0, statistic="log_size")

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; sets the first clip, and the unit in which gradients are followed."""
        logarithm, deviation = release.logarithm(sums[-1:], _SIZE)
        typical = math.exp(logarithm)
        progress.radius = LEAST_WIDTH * typical
        progress.follow_with(following_optimiser(len(progress.start)), typical)
        return {"length": typical, "noise_deviation": deviation}


@dataclass(frozen=True)
class AdaptiveStep(Stage):
    """A step of Adam whose second moments are corrected for the noise; see `ServerOptimiser`.

    Attributes:
        rate: how far it moves a parameter whose gradient keeps its sign.
    """

    rate: float
    domain: Box

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its clipped gradient, and whether the clip left it unchanged."""
        return Computation("user_gradient", "sum", progress.radius, statistic="unclipped")

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; the clip follows."""
        radius = progress.radius
        gradient, deviation = release.mean(sums[:-1], Movement.of_ball(radius), 1 - MEASURED)
        unclipped, _ = release.fraction(sums[-1:], Movement.of_interval(-0.5, 0.5), MEASURED)
        direction = progress.directed(gradient, deviation)
        progress.start = self.domain.project(progress.start + self.rate * direction)
        progress.radius = radius * math.exp(_SPEED * (_UNCLIPPED - unclipped))
        return {"radius": radius, "unclipped_share": unclipped, "noise_deviation": deviation}
