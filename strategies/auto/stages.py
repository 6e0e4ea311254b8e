"""The stages of `Auto`: the users' computation of a round, how far one user moves its sum, and what follows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from strategies.auto.column_coordinates import SHOWN, column_scales
from strategies.auto.progress import Progress, whitening
from strategies.auto.releases import Movement, Release
from strategies.clipping.recentred_clipping import LOG_DISTANCE
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.moments import symmetric
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Box

_NORM = STATISTICS["log_norm"]

MEASURED = 0.04  # Share of a gradient round's budget for the lengths of users' gradients
SMALLEST = 1e-3  # Smallest size of a column, over the largest possible cell; smaller ones count as empty
COLUMN_WIDTH = 2.0  # Of a column's log size, over that of its presence, for which noise matters more
SIZES = (0.05, 4.0)  # The range of users' second-moment norms that is resolved, over d, in scaled columns
GENEROSITY = 1.25  # Largest norm with full weight, over the users' typical one
LEAST_WIDTH, MOST_WIDTH = 1.5, 6.0  # Radius of the clip over the typical length, for loud and faint noise

BEARABLE, BEARABLE_OF_ALL = 0.005, 0.05
"""Squared noise of the remaining rounds that a wider clip may cost: over a user's squared typical length, and over the
mean square of its coordinates, for the noise of many columns hides each of them more."""

CAUTION = 3.0
"""Factor on measured curvature: a mean of roots is below the root of the mean, the more so the fewer samples users
have, and noise turns the gradient along which the step is taken."""

LONGEST_COUNT_STEP = 1.0  # Longest step in the coordinates for counts, whose curvature grows with the score


def clip_width(noise: float, dimension: int, rounds: int) -> float:
    """Choose the radius of a clip over the users' typical length: wide if noise permits, for narrow clips bias.

    Args:
        noise: standard deviation, in each coordinate, over the radius.
        dimension: p.
        rounds: over which it averages.
    """
    if noise == 0:
        return MOST_WIDTH
    bearable = min(BEARABLE, BEARABLE_OF_ALL / dimension)
    return min(max(math.sqrt(bearable * rounds / dimension) / noise, LEAST_WIDTH), MOST_WIDTH)


class Stage(ABC):
    """A round of one purpose.

    Attributes:
        share: of the budget of a run, or of the coefficients' part of it; None for an equal part of what others leave.
        weight: in the budget of a preparation, where it can be one of its rounds.
    """

    share: ClassVar[float | None]
    weight: ClassVar[float]

    def __init_subclass__(cls, *, share: float | None = None, weight: float = 0.0, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.share, cls.weight = share, weight

    @abstractmethod
    def computation(self, progress: Progress) -> Computation:
        """Return the computation of every user."""

    @abstractmethod
    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """Release from the users' sum, update the progress, and return the facts of the round."""


@dataclass(frozen=True)
class Columns(Stage, share=0.05, weight=5.0):
    """The sizes of columns."""

    largest: float

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends, for each column, whether it is there and the logarithm of its size."""
        parameters = {"low": SMALLEST * self.largest, "high": self.largest, "width": COLUMN_WIDTH}
        reach = self._movement(len(progress.scales)).added
        return Computation("column_scales", "sum", reach, parameters=parameters, arrays={"scales": progress.scales})

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; columns are divided by their sizes from now on."""
        released, deviation = release.mean(sums, self._movement(len(progress.scales)))
        progress.scales = column_scales(released, deviation, SMALLEST * self.largest, self.largest, COLUMN_WIDTH)
        return {"noise_deviation": deviation}

    def _movement(self, d: int) -> Movement:
        return Movement.of_box(d * (1 + COLUMN_WIDTH**2))


@dataclass(frozen=True)
class Sizes(Stage, share=0.01, weight=1.0):
    """The sizes of users' second moments, in the scaled columns."""

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends the logarithm of the norm."""
        low, high = (part * len(progress.scales) for part in SIZES)
        arrays = {"scales": progress.scales}
        return Computation("moment_size", "sum", 0.5, parameters={"low": low, "high": high}, arrays=arrays)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; users beyond a norm weigh less from now on."""
        share, deviation = release.fraction(sums, Movement.of_box(1.0))
        low, high = (part * len(progress.scales) for part in SIZES)
        typical = low * (high / low) ** share
        progress.size = GENEROSITY * typical
        return {"moment_size": typical, "noise_deviation": deviation}


@dataclass(frozen=True)
class Moments(Stage, share=0.15, weight=15.0):
    """The second moments of the scaled columns."""

    ridge: float  # of the loss, whose curvature is known
    weighed: bool = False  # whether samples weigh, and not users, as by period

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its matrix of second moments, clipped to the size, which is its weight."""
        parameters = {"size": progress.size} if self.weighed else {}
        arrays = {"scales": progress.scales}
        return Computation("second_moments", "sum", progress.size, parameters=parameters, arrays=arrays)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; turns and stretches the coordinates until all second moments are about one."""
        released, deviation = release.mean(sums, Movement.of_acute(progress.size))
        ridge = np.diag(self.ridge / progress.curvature / progress.scales**2)
        moments = symmetric(released)
        progress.hidden = np.diag(moments) < SHOWN * deviation
        found = whitening(moments + ridge, deviation)
        progress.whitened = found.repeated(len(progress.across))
        progress.coordinates = found.matrix / progress.scales[:, None]
        return {"noise_deviation": deviation, "floored": float(found.floored)}


@dataclass(frozen=True)
class Lengths(Stage, share=0.02, weight=2.0):
    """The lengths of users' gradients at the start."""

    gradient: "Gradient | Recentred"  # the query of gradient rounds
    longest: (
        float  # an upper guess, of many columns by their reach; gradients more than e^5 times shorter count as that
    )

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; only the length of each user's gradient will be released."""
        return self.gradient.asked(progress, self._longest(progress), "log_norm")

    def _longest(self, progress: Progress) -> float:
        return self.longest if progress.columns is None else self.longest * progress.columns.reach

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; clips are multiples of the released length."""
        logarithm, deviation = release.logarithm(sums[-1:], _NORM)
        typical = self._longest(progress) * math.exp(logarithm)
        progress.length = progress.uneven * typical
        progress.centre.radius = max(typical, progress.centre.geometry.least_radius)
        return {"length": typical, "noise_deviation": deviation}


@dataclass(frozen=True)
class Gradient(Stage):
    """A step along the gradient in the coordinates, as estimated from all releases so far."""

    left: int  # the number of gradient rounds that follow
    domain: Box
    longest_step: float | None = None  # None for steps of any length
    noise: float = math.inf  # standard deviation, in each coordinate of the mean, over the radius; see `clip_width`

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its clipped gradient, and the logarithm of its length."""
        return self.asked(progress, self._radius(progress), "log_distance")

    def asked(self, progress: Progress, clip_norm: float, statistic: str) -> Computation:
        """Return the query of a gradient, clipped to that norm, with that statistic."""
        if progress.columns is not None:
            arrays = {"scales": progress.columns.scales}
            return Computation("scaled_gradient", "sum", clip_norm, arrays=arrays, statistic=statistic)
        return Computation(
            "weighted_gradient",
            "sum",
            clip_norm,
            parameters={"size": progress.size},
            arrays={"scales": progress.scales, "coordinates": progress.coordinates},
            statistic=statistic,
        )

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; takes a whole step over the curvature, and the next clip follows the released length."""
        radius = self._radius(progress)
        released, deviation = release.mean(sums[:-1], Movement.of_ball(radius), 1 - MEASURED)
        measured, _ = release.logarithm(sums[-1:], LOG_DISTANCE, MEASURED)
        typical = radius * math.exp(measured)
        progress.learn(released, deviation)
        assert progress.known is not None
        step = self._held(progress.towards(progress.known))
        following = progress.inside(progress.z + step, self.domain)
        progress.move, progress.z = following - progress.z, following
        progress.length = progress.uneven * typical
        if self.left == 0:
            progress.finish(release.users, balanced=self.longest_step is not None)
        return {"radius": radius, "length": typical, "noise_deviation": deviation}

    def _radius(self, progress: Progress) -> float:
        """Return the clip: wide enough for the gradients of the rarer class, too."""
        rare = GENEROSITY * progress.rare * math.sqrt(float(progress.space.seen.sum()))
        width = clip_width(self.noise / progress.heard, len(progress.start), self.left + 1)
        return max(width * progress.length, rare)

    def _held(self, move: Vector) -> Vector:
        length = float(np.linalg.norm(move))
        if self.longest_step is None or length <= self.longest_step:
            return move
        return np.asarray(move * (self.longest_step / length))


@dataclass(frozen=True)
class Recentred(Stage):
    """A step along the gradient, clipped about its prediction; see `RecentredClipping`."""

    domain: Box
    measured: bool = False  # whether the step waits for its `StepLength`

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its gradient, clipped about the centre, and the logarithm of its distance."""
        return progress.centre.computation()

    def asked(self, progress: Progress, clip_norm: float, statistic: str) -> Computation:
        """Return the query of a gradient about zero, clipped to that norm, with that statistic."""
        return Computation("user_gradient", "sum", clip_norm, statistic=statistic)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; centre and radius follow the step."""
        centre = progress.centre
        gradient, deviation = release.mean(sums[:-1], Movement.of_ball(centre.radius), 1 - MEASURED)
        measured, _ = release.logarithm(sums[-1:], LOG_DISTANCE, MEASURED)
        if not self.measured:
            progress.start, facts = centre.follow(gradient, deviation, measured, progress.start, self.domain)
            return facts
        radius, distance = centre.radius, centre.distance(measured)
        progress.gradient, gain = centre.gradient(gradient, deviation, distance)
        return {"radius": radius, "noise_deviation": deviation, "distance": distance, "gain": gain}


@dataclass(frozen=True)
class StepLength(Stage, share=0.015):
    """The length of a step along the gradient: one over the users' curvature in its direction."""

    domain: Box
    most: float  # certified bound on any curvature

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends the root of its curvature along the gradient, over that of the bound."""
        length = float(np.linalg.norm(progress.gradient))
        direction = progress.gradient / length if length > 0 else np.zeros_like(progress.gradient)
        arrays = {"direction": direction}
        return Computation("curvature_along", "sum", 0.5, parameters={"most": self.most}, arrays=arrays)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; centre and radius follow the step, which noise shortens rather than lengthens."""
        share, deviation = release.fraction(sums, Movement.of_box(1.0))
        root = min(share + deviation, 1.0)
        curvature = CAUTION * self.most * root**2
        following = self.domain.project(progress.start - progress.gradient / curvature)
        centre = progress.centre
        centre.geometry = replace(centre.geometry, low=0.0, high=curvature)
        centre.predict(progress.gradient, following - progress.start)
        progress.start = following
        return {"curvature": curvature, "noise_deviation": deviation}
