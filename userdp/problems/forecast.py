"""The forecast of a plan, before any data are seen: the noise of all rounds together, and its excess risk.

It is made for a stand-in: a loss equally curved in all directions, with the trace of the problem's Hessian, whose best
model is as far from the start as the declared bounds allow. That is a scale to compare noise with, no property of any
population; it decides warnings alone.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from userdp.problems.base import Landscape, Problem
from userdp.problems.noise_paths import ExcessShare, NoisePath

HOPELESS = 2.0  # Predicted excess risk over the initial model's largest; from here on a run needs ``anyway``
DOUBTFUL = 1 / 4  # For the noise's part, from which on a plan warns: few initial models are at their worst

IDLE = 0.75
"""The same for the part that steps leave undone, from which on a plan warns that they are too few or too short; and for
the whole, from which on it warns that the initial model may be as good."""

STANDSTILL = 1e-6  # Of the domain's radius; a model that cannot move further counts as unmoved

_AUTO = "leave out [strategy] (or take the class Auto), which chooses all of this by itself"
_CHANGE = f"{_AUTO}, or bring more users, raise privacy.epsilon, or lower the step size"
_ASSUMED = ", were features and targets without declared bounds of size one"
_MORE = "bring more users or raise privacy.epsilon"  # The remedy where the strategy chooses everything else itself


@dataclass(frozen=True)
class Forecast:
    """The expected noise and excess risk of the released model."""

    meanings: ClassVar[Mapping[str, str]] = {
        "predicted_excess": "expected excess risk on a stand-in for data as declared: a scale, no promise",
        "start_excess": "most that the initial model's excess risk can be, and so the best constant's",
        "model_noise": "expected l2 norm of the noise in the released model, all rounds together",
        "reach": "largest l2 distance that the model can go",
    }
    # expected l2 norm of the noise in the model, all rounds together; None where it depends on the data
    noise: float | None
    reach: float  # largest l2 distance that the model can go
    stays: bool = False  # whether the released model is the initial one
    excess: float | None = None  # predicted excess risk, of noise and too short steps; None for an unknown loss
    start: float | None = None  # largest excess risk of the initial model; None likewise
    undone: float = 0.0  # the part of the excess that the steps leave undone, without noise
    assumed: bool = False  # whether data have no declared bounds, and the forecast takes them to be of size one
    # whether the loss has a best constant. The initial model predicts the same of everybody, too, so that constant's
    # excess risk is at most ``start`` as well
    with_constant: bool = False

    @classmethod
    def of(cls, problem: Problem, path: NoisePath) -> "Forecast":
        """Make the forecast of a path for a problem."""
        lies, p, radius = problem.landscape, problem.dimension, problem.domain.radius
        farthest = radius * math.sqrt(p)
        curvature = (lies.trace + lies.pull) / p if lies and math.isfinite(lies.trace) else 0.0
        if isinstance(path, ExcessShare):
            made, lost = cls(None, farthest), path.share * lies.start if lies else math.inf
        else:
            deviation = path.noise(curvature)
            if not curvature and 0 < path.reach < math.inf:
                # Without curvature steps lead far beyond the domain, and projection shortens noise and steps alike.
                deviation *= min(1.0, farthest / path.reach)
            made = cls(deviation * math.sqrt(p), min(path.reach, farthest), path.stays)
            lost = lies.of_noise(deviation) if lies else math.inf
        if lies is None or not (math.isfinite(lies.start) and math.isfinite(lost)):
            return made
        undone = lies.start * _undone(path, lies, curvature, p, radius)
        return replace(
            made,
            excess=lost + undone,
            start=lies.start,
            undone=undone,
            assumed=lies.assumed,
            with_constant=problem.mean_range is not None,
        )

    @property
    def hopeless(self) -> bool:
        """The model is expected to be far worse than the initial one can be, on data as declared."""
        if self.excess is None or self.start is None:
            return False
        if self.assumed and self.noise is not None:
            return False  # assumed sizes refuse no run; an ExcessShare needs no sizes
        return self.excess >= HOPELESS * self.start

    def numbers(self) -> dict[str, float | None]:
        """Return the numbers that people are shown."""
        return {
            "predicted_excess": self.excess,
            "start_excess": self.start,
            "model_noise": self.noise,
            "reach": self.reach,
        }

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings against the run, with their remedies."""
        if self.stays:
            return (
                "with one round, the average of the points at which gradients are taken is the initial model: the "
                "budget is spent and the model stays as it is. Set strategy.output = 'last', or take more "
                "strategy.rounds",
            )
        if self.excess is None or self.start is None:
            return self._louder_than_steps()
        idle = self.undone >= IDLE * self.start
        noisy = self.excess - self.undone >= DOUBTFUL * self.start or (self.excess >= IDLE * self.start and not idle)
        if noisy or self.hopeless:
            noise = "" if self.noise is None else f" (noise of norm {self.noise:.3g} in the model, all rounds together)"
            change = _MORE if self.noise is None else _CHANGE
            idle_model = "the initial model" + (", and so of the best constant," if self.with_constant else "")
            verdict = "is better than this run" if self.hopeless else "may be as good"
            return (
                f"predicted excess risk {self.excess:.3g}{noise}, where that of {idle_model} is at most "
                f"{self.start:.3g}{_ASSUMED if self.assumed else ''}. Doing nothing {verdict}: {change}",
            )
        if not idle:
            return ()
        return self._louder_than_steps() or (
            f"the steps are too few or too short: they leave about {self.undone / self.start:.0%} of the initial "
            f"model's excess risk, were there no noise at all. Take more strategy.rounds or longer steps, or {_AUTO}",
        )

    def _louder_than_steps(self) -> tuple[str, ...]:
        if self.noise is None or self.noise < self.reach:
            return ()
        return (
            f"the noise in the model (norm {self.noise:.3g}, all rounds together) is longer than the longest way "
            f"that the model can go ({self.reach:.3g}): {_CHANGE}",
        )


def _undone(path: NoisePath, lies: Landscape, curvature: float, dimension: int, radius: float) -> float:
    """Return the share of the initial model's excess risk that the steps leave, without noise."""
    steps = path.steps if isinstance(path, ExcessShare) else path
    distance = min(math.sqrt(2 * lies.start / (dimension * curvature)) if curvature else math.inf, radius)
    if steps is None or not 0 < distance < math.inf:
        return 0.0
    share = steps.left(distance, curvature, dimension) / distance
    return share**2 if curvature else share


def standstill(problem: Problem, settings: object, rounds: int, numbers: Mapping[str, Any]) -> Iterator[str]:
    """Warn where certified bounds are so large, and a default step so small, that the model would not move."""
    radius, gradient = problem.domain.radius, problem.certificate.first_gradient
    if gradient is None or math.isinf(radius):
        return
    steps = rounds * numbers.get("local_steps", 1)
    for name in ("learning_rate", "local_rate"):
        rate = numbers.get(name)
        chosen = getattr(settings, name, rate) is not None
        if not chosen and isinstance(rate, float) and steps * rate * gradient < STANDSTILL * radius:
            yield (
                f"strategy.{name} is {rate:.3g} by default, as the problem's bounds allow a smoothness of "
                f"{problem.certificate.smoothness or math.inf:.3g}: the model would stay where it starts. Set "
                f"strategy.{name}, or lower problem.radius"
            )
