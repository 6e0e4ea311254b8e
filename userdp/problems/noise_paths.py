"""The paths by which noise reaches a model, as far as forecasts need to know them."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

_MOST_STEPS = 10_000  # Most steps that are computed one by one


@dataclass(frozen=True, kw_only=True)
class NoisySteps:
    """Noisy steps against gradients."""

    steps: int
    rate: float  # length of a step over that of the gradient
    deviation: float  # standard deviation of the noise on each coordinate of a gradient
    longest: float = math.inf  # largest l2 norm of a gradient, or of what is released in its place
    # whether the mean of the models at which gradients were taken is released, instead of the last model
    averaged: bool = False
    local_steps: int = 1  # gradient steps of each user for one of the server's
    local_rate: float | None = None  # the step size of these
    shared_noise: bool = False  # whether all steps share one noise vector, rather than drawing new ones

    def contraction(self, curvature: float) -> float:
        """Return the share of the distance to the best model that a step removes, along such a direction."""
        if self.local_rate is None:
            return min(self.rate * curvature, 1.0)
        kept = max(0.0, 1 - self.local_rate * curvature) ** self.local_steps
        return min(self.rate * (1 - kept), 1.0)

    def noise(self, curvature: float) -> float:
        """Return the standard deviation of the released model along a direction of that curvature."""
        contraction, steps = self.contraction(curvature), min(self.steps, _MOST_STEPS)
        weights, weight, total = [], 0.0, 0.0
        # From the last step to the first: the weight of a step's noise in the released model.
        for left in range(steps):
            weight = (1 - contraction) ** left
            total += weight
            weights.append((total - weight) / steps if self.averaged else weight)
        size = sum(weights) if self.shared_noise else math.sqrt(sum(each * each for each in weights))
        return self.rate * self.deviation * size

    def left(self, distance: float, curvature: float, dimension: int) -> float:
        """Return what remains of a distance in each of ``dimension`` coordinates, without noise."""
        most = self._longest_step / math.sqrt(dimension)
        remaining, total, steps = distance, 0.0, min(self.steps, _MOST_STEPS)
        for _ in range(steps):
            total += remaining
            wanted = self.contraction(curvature) * remaining if curvature else math.inf
            remaining = max(0.0, remaining - min(wanted, most))
        return total / steps if self.averaged else remaining

    @property
    def _longest_step(self) -> float:
        return self.rate * self.longest

    @property
    def stays(self) -> bool:
        """The released model is the initial one: the mean of that point alone."""
        return self.averaged and self.steps == 1

    @property
    def reach(self) -> float:
        """The largest l2 distance that all steps together can go."""
        steps = (self.steps - 1) / 2 if self.averaged else self.steps
        return steps * self._longest_step


@dataclass(frozen=True, kw_only=True)
class NoisyRelease:
    """A model that is released once, with its own noise; what remains of earlier noise is not counted."""

    stays: ClassVar[bool] = False
    deviation: float  # standard deviation of the noise on each coordinate of the model
    reach: float = math.inf  # largest l2 distance that the model can go

    def noise(self, curvature: float) -> float:
        """See `NoisySteps`."""
        return self.deviation

    def left(self, distance: float, curvature: float, dimension: int) -> float:
        """See `NoisySteps`."""
        return max(0.0, distance - self.reach / math.sqrt(dimension))


@dataclass(frozen=True, kw_only=True)
class NoisyPhase:
    """Steps without noise; their average is released with noise."""

    steps: int
    rate: float  # length of a step over that of the gradient
    deviation: float  # standard deviation of the noise on each coordinate of the average
    longest: float = math.inf  # largest size of a coordinate of a gradient

    def left(self, distance: float, curvature: float) -> float:
        """Return what remains of a distance to the best model in the average, along such a direction."""
        if not distance:
            return 0.0
        done = np.arange(1, min(self.steps, _MOST_STEPS) + 1)
        # Without curvature the whole distance is downhill, as far as steps reach.
        by_curvature = (1 - min(self.rate * curvature, 1.0)) ** done if curvature else np.zeros(len(done))
        if math.isinf(self.longest):
            return float(distance * by_curvature.mean())
        by_length = 1 - done * (self.rate * self.longest / distance)
        return float(distance * np.maximum(by_curvature, by_length).mean())


@dataclass(frozen=True)
class Phases:
    """Phases, each from the model that the one before released."""

    stays: ClassVar[bool] = False
    phases: tuple[NoisyPhase, ...]
    reach: float = math.inf

    def noise(self, curvature: float) -> float:
        """See `NoisySteps`; later phases reduce earlier noise."""
        deviation = 0.0
        for phase in self.phases:
            deviation = math.hypot(phase.left(deviation, curvature), phase.deviation)
        return deviation

    def left(self, distance: float, curvature: float, dimension: int) -> float:
        """See `NoisySteps`."""
        for phase in self.phases:
            distance = phase.left(distance, curvature)
        return distance


@dataclass(frozen=True, kw_only=True)
class ExcessShare:
    """A model whose clips are found during the run: the share of the initial model's excess risk that noise leaves."""

    share: float
    steps: NoisySteps | None = None  # the steps without noise, if they may be too short; None if coordinates are learnt


NoisePath = NoisySteps | NoisyRelease | Phases | ExcessShare  # The path of noise to a strategy's model
