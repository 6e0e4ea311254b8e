"""A public centre of clips; it and the radius follow releases."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Box, Problem
from userdp.state import Stateful

LOG_DISTANCE = STATISTICS["log_distance"]  # The statistic of users' distances from the centre
_LEAST_SPREAD = 0.15  # Least assumed spread of users, over their measured distance
_CORNER = 1e9  # The step on a linear loss: across any domain


@dataclass(frozen=True)
class Geometry:
    """The constants of a `Centre`: public numbers, on which no privacy rests."""

    rate: float  # step size
    low: float  # least curvature
    high: float  # largest curvature
    factor: float  # radius over the typical distance of users from the centre
    least_radius: float  # lower bound on radii
    resampling: int | None  # users of a cohort, where each round has fresh ones; None where all take part

    @classmethod
    def of(cls, problem: Problem, rate: float, factor: float | None, wide: float, *, trains: bool, **more: Any) -> Self:
        """Choose the constants for steps of size ``rate``.

        On a loss that is linear in a bounded domain every step goes to a corner. Where users train and send updates, no
        certificate bounds the curvature. ``factor`` is by default 1 on quadratic and linear losses, and ``wide`` on
        others; ``more`` holds the other attributes.
        """
        low, most = (0.0, None) if trains else (problem.certificate.strong_convexity, problem.curvature)
        if most == 0 and math.isfinite(problem.domain.radius):
            rate = _CORNER
        # A larger step than 1 / smoothness says that the curvature along the path is lower than certified.
        high = max(low, min(math.inf if most is None else most, 1 / rate))
        return cls(rate=rate, low=low, high=high, factor=factor or (1.0 if low == high else wide), **more)


class Centre(Stateful):
    """The server's memory, computed from releases: centre, radius of the next round, and the centre's error."""

    remembered: ClassVar[tuple[str, ...]] = ("point", "radius", "_error", "_spread")
    given: ClassVar[tuple[str, ...]] = ("geometry",)

    def __init__(self, geometry: Geometry, dimension: int, radius: float) -> None:
        self.geometry = geometry
        self.point: Vector = np.zeros(dimension)
        self.radius = radius
        self._error: float | None = None
        self._spread = 0.0

    def distance(self, measured: float) -> float:
        """Return the users' typical distance from the centre, from their released mean log distance."""
        return self.radius * math.exp(min(max(measured, LOG_DISTANCE.low), LOG_DISTANCE.high))

    def gradient(self, released: Vector, deviation: float, distance: float) -> tuple[Vector, float]:
        """Return (the estimate of the gradient after a release with noise of that deviation, the filter's gain)."""
        shrunk = max(1.0, distance / self.radius)
        innovation, noise = shrunk * released, shrunk * deviation * math.sqrt(len(released))
        if self.geometry.resampling is not None:  # fresh users bring their own sampling error
            noise = math.hypot(noise, distance / math.sqrt(self.geometry.resampling))
        error = self._error_before(float(np.linalg.norm(innovation)), noise)
        gain = error**2 / (error**2 + noise**2)
        self._spread = max(_LEAST_SPREAD * distance, math.sqrt(max(0.0, distance**2 - error**2)))
        self._error = math.sqrt(gain) * noise
        return self.point + gain * innovation, gain

    def _error_before(self, length: float, noise: float) -> float:
        """Return the centre's error: as predicted, unless the innovation's length contradicts it."""
        doubt = math.sqrt(2 / len(self.point))  # relative standard deviation of the noise's squared norm
        if self._error is None:
            return math.sqrt(max(length**2 - noise**2, doubt * noise**2))
        return math.sqrt(max(self._error**2, length**2 - (1 + 2 * doubt) * noise**2))

    def predict(self, gradient: Vector, move: Vector) -> None:
        """Set centre and radius of the next round, after a move of the model."""
        geometry = self.geometry
        self.point = gradient + geometry.low * move
        self._error = math.hypot(self._error or 0.0, (geometry.high - geometry.low) / 2 * float(np.linalg.norm(move)))
        # The floor only keeps a population without any spread from underflow.
        self.radius = max(geometry.factor * math.hypot(self._error, self._spread), geometry.least_radius)

    def computation(self) -> Computation:
        """Return the query of gradients clipped about the centre, and of their distance from it."""
        return Computation("user_gradient", "sum", clip_norm=self.radius, centre=self.point, statistic="log_distance")

    def follow(
        self, released: Vector, deviation: float, measured: float, x: Vector, domain: Box
    ) -> tuple[Vector, dict[str, float]]:
        """Step along the released gradient, update centre and radius, and return (the model, the facts)."""
        radius, distance = self.radius, self.distance(measured)
        gradient, gain = self.gradient(released, deviation, distance)
        following = domain.project(x - self.geometry.rate * gradient)
        self.predict(gradient, following - x)
        return following, {"radius": radius, "noise_deviation": deviation, "distance": distance, "gain": gain}
