"""How strategies come to their models, as far as noise is concerned: what forecasts are made from."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

_MOST_STEPS = 10_000
"""Steps of a course that are worked out one by one."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Noisy steps against gradients.

    Attributes:
        steps: how many there are.
        rate: length of a step over that of the gradient.
        deviation: standard deviation of the noise on each coordinate of a gradient.
        longest: l2 norm that a gradient, or what is released in its place, can have.
        averaged: whether the mean of the models at which gradients were taken is released, instead of the last model.
        local_steps: gradient steps that each user takes for one of the server's.
        local_rate: of those.
        lasting: whether the noise is that of one vector which all steps share, rather than new in each.
    """

    steps: int
    rate: float
    deviation: float
    longest: float = math.inf
    averaged: bool = False
    local_steps: int = 1
    local_rate: float | None = None
    lasting: bool = False

    def pull(self, curvature: float) -> float:
        """How much of its distance to the best model a step takes away, along a direction of that curvature."""
        if self.local_rate is None:
            return min(self.rate * curvature, 1.0)
        kept = max(0.0, 1 - self.local_rate * curvature) ** self.local_steps
        return min(self.rate * (1 - kept), 1.0)

    def noise(self, curvature: float) -> float:
        """Standard deviation of the released model along a direction of that curvature."""
        pull, steps = self.pull(curvature), min(self.steps, _MOST_STEPS)
        weights, weight, total = [], 0.0, 0.0
        # From the last step to the first: what one unit of noise in that step comes to in the end.
        for left in range(steps):
            weight = (1 - pull) ** left
            total += weight
            weights.append((total - weight) / steps if self.averaged else weight)
        size = sum(weights) if self.lasting else math.sqrt(sum(each * each for each in weights))
        return self.rate * self.deviation * size

    def left(self, distance: float, curvature: float, dimension: int) -> float:
        """What is left of a distance in each of ``dimension`` coordinates, were there no noise."""
        most = self._longest_step / math.sqrt(dimension)
        remaining, total, steps = distance, 0.0, min(self.steps, _MOST_STEPS)
        for _ in range(steps):
            total += remaining
            wanted = self.pull(curvature) * remaining if curvature else math.inf
            remaining = max(0.0, remaining - min(wanted, most))
        return total / steps if self.averaged else remaining

    @property
    def _longest_step(self) -> float:
        return self.rate * self.longest

    @property
    def stays(self) -> bool:
        """Whether the model that is released is the initial one: the mean of one point, which is that."""
        return self.averaged and self.steps == 1

    @property
    def reach(self) -> float:
        """l2 norm of the longest way that all steps together can go."""
        steps = (self.steps - 1) / 2 if self.averaged else self.steps
        return steps * self._longest_step


@dataclass(frozen=True, kw_only=True)
class Landing:
    """A model that is released with noise of its own, once: what is left of earlier noise is not counted.

    Attributes:
        deviation: standard deviation of the noise on each coordinate of the model.
        reach: l2 norm of the longest way that the model can go.
    """

    stays: ClassVar[bool] = False
    deviation: float
    reach: float = math.inf

    def noise(self, curvature: float) -> float:
        """The deviation."""
        return self.deviation

    def left(self, distance: float, curvature: float, dimension: int) -> float:
        """What is beyond the reach."""
        return max(0.0, distance - self.reach / math.sqrt(dimension))


@dataclass(frozen=True, kw_only=True)
class NoisyPhase:
    """Steps without noise, whose average is released with noise.

    Attributes:
        steps: how many there are.
        rate: length of a step over that of the gradient.
        deviation: standard deviation of the noise on each coordinate of the average.
        longest: size that a coordinate of a gradient can have.
    """

    steps: int
    rate: float
    deviation: float
    longest: float = math.inf

    def kept(self, distance: float, curvature: float) -> float:
        """What the average has left of a distance to the best model, along a direction of that curvature."""
        if not distance:
            return 0.0
        done = np.arange(1, min(self.steps, _MOST_STEPS) + 1)
        # Without curvature the whole way is downhill, as far as steps reach.
        by_curvature = (1 - min(self.rate * curvature, 1.0)) ** done if curvature else np.zeros(len(done))
        if math.isinf(self.longest):
            return float(distance * by_curvature.mean())
        by_length = 1 - done * (self.rate * self.longest / distance)
        return float(distance * np.maximum(by_curvature, by_length).mean())


@dataclass(frozen=True)
class Phases:
    """Phases, each from the model that the one before released.

    Attributes:
        phases: the first one first.
        reach: l2 norm of the longest way that the model can go.
    """

    stays: ClassVar[bool] = False
    phases: tuple[NoisyPhase, ...]
    reach: float = math.inf

    def noise(self, curvature: float) -> float:
        """Standard deviation of the released model: later phases take earlier noise back as far as they get."""
        deviation = 0.0
        for phase in self.phases:
            deviation = math.hypot(phase.kept(deviation, curvature), phase.deviation)
        return deviation

    def left(self, distance: float, curvature: float, dimension: int) -> float:
        """What is left of a distance in each coordinate, were there no noise."""
        for phase in self.phases:
            distance = phase.kept(distance, curvature)
        return distance


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """A model whose clips are found on the way: what noise leaves of the initial model's excess risk.

    Attributes:
        share: of it.
        course: its steps, without noise, where they may leave something undone; None where coordinates are found, too.
    """

    share: float
    course: Course | None = None


Way = Course | Landing | Phases | Remaining
"""How a strategy comes to its model."""
