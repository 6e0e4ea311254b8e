"""What a plan expects of the model, before any data are seen: the noise of all rounds together, and what it costs.

The forecast is made for a stand-in: a loss equally curved in all directions, with the trace of the problem's Hessian,
whose best model is as far from the start as the declared bounds allow. So it is a scale to hold noise against, for no
population has to be like that; and it decides nothing but what people are told.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from strategies.core.options import StrategyOptions
from strategies.core.ways import Remaining, Way
from userdp.problems.base import Problem
from userdp.problems.landscape import Landscape

HOPELESS = 2.0
"""Predicted excess risk over the largest of the initial model, from which on a run has to be insisted on."""

DOUBTFUL = 1 / 4
"""The same for the part of it that noise makes, from which on a plan says that the initial model may be as good: few
initial models are as bad as they can be."""

IDLE = 0.75
"""The same for the part that steps leave undone, from which on a plan says that they are too short; and for all of it,
from which on the initial model may be as good, too."""

STANDSTILL = 1e-6
"""Share of the domain's radius; a model that all rounds together cannot move further does not move."""

_CHANGE = (
    "leave out [strategy], which chooses all of this by itself, or bring more users, raise privacy.epsilon, or lower "
    "the step size"
)
_ASSUMED = ", were features and targets without declared bounds of size one"
_MORE = "bring more users or raise privacy.epsilon"
"""The same where all of this was chosen already."""


@dataclass(frozen=True)
class Forecast:
    """What is expected of the released model.

    Attributes:
        noise: l2 norm that the noise in the model is expected to have, all rounds together; None where it depends on
            what is found on the way.
        reach: l2 norm of the longest way that the model can go.
        stays: whether the model that is released is the initial one.
        excess: predicted excess risk, of noise and of what the steps leave undone; None where nothing is known of the
            loss.
        start: most that the initial model's excess risk can be; the same.
        undone: what of the excess the steps leave undone, were there no noise.
        assumed: whether data have no declared bounds, and the forecast takes them to be of size one.
        with_constant: whether the loss has a best constant. The initial model says the same of everybody, too, so that
            constant's excess risk is at most ``start`` as well.
    """

    meanings: ClassVar[Mapping[str, str]] = {
        "predicted_excess": "expected excess risk on a stand-in for data as declared: a scale, no promise",
        "start_excess": "most that the initial model's excess risk can be, and so the best constant's",
        "model_noise": "expected l2 norm of the noise in the released model, all rounds together",
        "reach": "l2 norm of the longest way that the model can go",
    }
    noise: float | None
    reach: float
    stays: bool = False
    excess: float | None = None
    start: float | None = None
    undone: float = 0.0
    assumed: bool = False
    with_constant: bool = False

    @classmethod
    def of(cls, problem: Problem, way: Way) -> "Forecast":
        """For that problem."""
        lies, p, radius = problem.landscape, problem.dimension, problem.domain.radius
        farthest = radius * math.sqrt(p)
        curvature = (lies.trace + lies.pull) / p if lies and math.isfinite(lies.trace) else 0.0
        if isinstance(way, Remaining):
            made, lost = cls(None, farthest), way.share * lies.start if lies else math.inf
        else:
            deviation = way.noise(curvature)
            if not curvature and 0 < way.reach < math.inf:
                # A loss without curvature is descended far beyond the walls, which cut noise as much as the way.
                deviation *= min(1.0, farthest / way.reach)
            made = cls(deviation * math.sqrt(p), min(way.reach, farthest), way.stays)
            lost = lies.of_noise(deviation) if lies else math.inf
        if lies is None or not (math.isfinite(lies.start) and math.isfinite(lost)):
            return made
        undone = lies.start * _undone(way, lies, curvature, p, radius)
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
        """Whether the model is expected to be far worse than the initial one can be, on data as declared."""
        if self.excess is None or self.start is None:
            return False
        if self.assumed and self.noise is not None:
            return False  # sizes taken for granted refuse nothing; a share of the start's risk needs none
        return self.excess >= HOPELESS * self.start

    def numbers(self) -> dict[str, float | None]:
        """What people are shown of it."""
        return {
            "predicted_excess": self.excess,
            "start_excess": self.start,
            "model_noise": self.noise,
            "reach": self.reach,
        }

    def warnings(self) -> tuple[str, ...]:
        """What speaks against the run, and what to change."""
        if self.stays:
            return (
                "with one round, the average of the points at which gradients are taken is the initial model: the "
                "budget is spent and the model stays as it is. Set strategy.output = 'last', or take more "
                "strategy.rounds",
            )
        if self.excess is None or self.start is None:
            return self._lost_way()
        idle = self.undone >= IDLE * self.start
        noisy = self.excess - self.undone >= DOUBTFUL * self.start or (self.excess >= IDLE * self.start and not idle)
        if noisy or self.hopeless:
            noise = "" if self.noise is None else f" (noise of norm {self.noise:.3g} in the model, all rounds together)"
            change = _MORE if self.noise is None else _CHANGE
            verdict = "is better than this run" if self.hopeless else "may be as good"
            return (
                f"predicted excess risk {self.excess:.3g}{noise}, where that of {self._idle} is at most "
                f"{self.start:.3g}{_ASSUMED if self.assumed else ''}. Doing nothing {verdict}: {change}",
            )
        if not idle:
            return ()
        return self._lost_way() or (
            f"the steps are too few or too short: they leave about {self.undone / self.start:.0%} of the initial "
            "model's excess risk, were there no noise at all. Take more strategy.rounds or longer steps, or leave out "
            "[strategy], which chooses all of this by itself",
        )

    @property
    def _idle(self) -> str:
        """What needs no features."""
        return "the initial model, and so of the best constant," if self.with_constant else "the initial model"

    def _lost_way(self) -> tuple[str, ...]:
        """That noise goes further than the steps can, if so."""
        if self.noise is None or self.noise < self.reach:
            return ()
        return (
            f"the noise in the model (norm {self.noise:.3g}, all rounds together) is longer than the longest way "
            f"that the model can go ({self.reach:.3g}): {_CHANGE}",
        )


def _undone(way: Way, lies: Landscape, curvature: float, dimension: int, radius: float) -> float:
    """What share of the initial model's excess risk the steps would leave, were there no noise."""
    steps = way.course if isinstance(way, Remaining) else way
    distance = min(math.sqrt(2 * lies.start / (dimension * curvature)) if curvature else math.inf, radius)
    if steps is None or not 0 < distance < math.inf:
        return 0.0
    share = steps.left(distance, curvature, dimension) / distance
    return share**2 if curvature else share


def standstill(problem: Problem, options: StrategyOptions, rounds: int, numbers: Mapping[str, Any]) -> Iterator[str]:
    """A warning where a default step is so small, as certified bounds are so large, that nothing would move."""
    radius, gradient = problem.domain.radius, problem.certificate.first_gradient
    if gradient is None or math.isinf(radius):
        return
    steps = rounds * numbers.get("local_steps", 1)
    for name in ("learning_rate", "local_rate"):
        rate = numbers.get(name)
        chosen = getattr(options, name, rate) is not None
        if not chosen and isinstance(rate, float) and steps * rate * gradient < STANDSTILL * radius:
            yield (
                f"strategy.{name} is {rate:.3g} by default, as the problem's bounds allow a smoothness of "
                f"{problem.certificate.smoothness or math.inf:.3g}: the model would stay where it starts. Set "
                f"strategy.{name}, or lower problem.radius or problem.feature_norm"
            )
