"""Rounds of `Auto` for losses of which nothing is certified: adaptive steps along gradients of random cohorts."""

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
"""How far the first step moves each parameter; later ones are shorter, down to none. Initial parameters of modules are
about 0.1 to 1, whatever inputs, targets and losses are measured in."""

_UNCLIPPED, _SPEED = 0.7, 0.3
"""Share of users that the clip is to leave as they are, and how fast it follows (Andrew et al. 2021)."""

_LEAST_STEPS, _MOST_STEPS, _PATIENCE = 20, 100, 20.0
"""Steps: the third over the root of the noise of all of them together, over a user's gradient."""

_GRADIENTS = 100_000
"""Users' gradients in all rounds together, about, where there are users enough."""

_FAINT = 2.5
"""Noise multiplier of a round from which on larger cohorts would save at most a twentieth of the noise."""


LOUD = 0.5
"""Noise of all steps together, over a user's gradient, from which on a plan doubts: what users share is shorter."""


def uncertified(problem: Problem) -> bool:
    """Whether nothing is known of the loss by which steps could be chosen."""
    certificate = problem.certificate
    return not certificate.convex and certificate.smoothness is None


@dataclass(frozen=True)
class Pace:
    """How many steps there are, and the chance of each user to take part in one; from public facts.

    Attributes:
        steps: T.
        chance: 1 for all users.
    """

    steps: int
    chance: float

    @classmethod
    def of(cls, users: int, dimension: int, noise_multiplier: float, *, drawn: bool) -> "Pace":
        """That of ``users`` whose budget is worth one Gaussian of ``noise_multiplier``, noise over a clip.

        Where noise is loud, more steps are as good as none and move further at random. Cohorts are as large as keeps
        their noise near that of all users, but not so large that they would all compute for hours.
        """
        noise = noise_multiplier * math.sqrt(dimension) / users
        steps = min(max(round(_PATIENCE / math.sqrt(noise)), _LEAST_STEPS), _MOST_STEPS)
        if not drawn:
            return cls(min(steps, max(_LEAST_STEPS, _GRADIENTS // users)), 1.0)
        # Many rounds of chance q cost about T q^2 (e^(1 / z^2) - 1), in units of 1 / noise_multiplier^2.
        faint = 1 / (noise_multiplier * math.sqrt(steps * math.expm1(_FAINT**-2)))
        return cls(steps, min(1.0, faint, _GRADIENTS / (users * steps)))


def adaptive_stages(steps: int, domain: Box) -> tuple[Stage, ...]:
    """The clip, and the steps."""
    return (ClipScale(), *(AdaptiveStep(_RATE * (1 - number / steps), domain) for number in range(steps)))


@dataclass(frozen=True)
class ClipScale(Stage):
    """How long users' gradients are at the start, between e^-10 and e^10."""

    def computation(self, progress: Progress) -> Computation:
        """Of each user the gradient, of which only the length will be released."""
        return Computation("user_gradient", "sum", 1.0, statistic="log_size")

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """The first clip, in whose units gradients are followed."""
        released, deviation = release.mean(sums[-1:], Movement.of_interval(_SIZE.low, _SIZE.high))
        typical = math.exp(min(max(float(released[0]), _SIZE.low), _SIZE.high))
        progress.radius = LEAST_WIDTH * typical
        progress.follow_with(following_optimiser(len(progress.start)), typical)
        return {"length": typical, "noise_deviation": deviation}


@dataclass(frozen=True)
class AdaptiveStep(Stage):
    """A step of Adam whose second moments are corrected for the noise; see `ServerOptimiser`.

    Attributes:
        rate: how far it moves a parameter whose gradient keeps its sign.
        domain: of the model.
    """

    rate: float
    domain: Box

    def computation(self, progress: Progress) -> Computation:
        """Of each user the gradient, clipped, and whether the clip left it as it is."""
        return Computation("user_gradient", "sum", progress.radius, statistic="unclipped")

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """Move; the clip follows."""
        radius = progress.radius
        gradient, deviation = release.mean(sums[:-1], Movement.of_ball(radius), 1 - MEASURED)
        measured, _ = release.mean(sums[-1:], Movement.of_interval(-0.5, 0.5), MEASURED)
        direction = progress.directed(gradient, deviation)
        progress.start = self.domain.project(progress.start + self.rate * direction)
        unclipped = min(max(float(measured[0]) + 0.5, 0.0), 1.0)
        progress.radius = radius * math.exp(_SPEED * (_UNCLIPPED - unclipped))
        return {"radius": radius, "unclipped_share": unclipped, "noise_deviation": deviation}
