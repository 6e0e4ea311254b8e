"""The average target: training starts at the best constant model, and predicted counts are balanced at the end."""

import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies.auto.progress import CERTAIN, Progress
from strategies.auto.releases import Movement, Release
from strategies.auto.several_scores import split
from strategies.auto.stages import Stage
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.moments import EVENTS_AND_TIME, by_period
from userdp.problems import GeneralisedLinear, OneHot, OneHotPoisson, Poisson, Problem, Softmax
from userdp.problems.families import CloglogFamily, LogisticFamily
from userdp.problems.linear_scores import LinearScores

log = logging.getLogger("userdp")

LEAST_PART = 1e-3  # Least distance of rates, counts and shares from their ends, unless noise is larger
MARGIN = 1.5  # Factor on the curvature at the mean target, where curvature varies with the score

UNDECIDED = 0.1
"""Part of the samples assumed undecided between all classes: in a group with much of a rare class, curvature grows
while the class is learnt there."""

COUNTED = 8.0  # A user's largest count in the second mean, over the first plus two deviations of its noise
SKEWED = 0.3  # Assumed bias of counts' mean by clips, in typical slopes: large slopes are cut, small ones not
BALANCED = 15.0  # Clip of a slope for the balance, in typical slopes: large counts are few, a number is cheap
LONGEST_BALANCE = 1.0  # Largest move of everybody's score for the balance


RARE_CLASS = 0.1
"""Share of a class, below that of equally frequent ones, from which on a plan warns that noise would hide it."""

LATE = 2.0  # Assumed length of slopes of people with an event late or far from the average, over that of average ones

BEND = math.pi / 8
"""The mean rate of normal log-odds with variance v has log-odds of about their mean over ``sqrt(1 + BEND v)``."""


def rare_classes(problem: Problem, deviation: float) -> tuple[str, ...]:
    """Warn where noise of that standard deviation on classes' shares hides a class of one in ten, or of the even share.

    Two classes are those of rates. Other problems have none, and no warning.
    """
    classes, least = _classes(problem), CERTAIN * deviation
    if not classes or least < min(RARE_CLASS, 1 / classes):
        return ()
    return (
        f"noise on the classes' shares ({deviation:.2g}) hides a class of fewer than {100 * least:.2g} % of the "
        "samples: if there is one, the model may tell nothing of it; bring more users or raise privacy.epsilon",
    )


def _classes(problem: Problem) -> int:
    if isinstance(problem, Softmax):
        return problem.outputs
    if not isinstance(problem, GeneralisedLinear | OneHot) or by_period(problem) is not None:
        return 0
    return 2 if isinstance(problem.family, LogisticFamily | CloglogFamily) else 0


def _told_apart(share: float, deviation: float) -> None:
    """Warn in the log where noise hides the released share of the rarest class."""
    if share < CERTAIN * deviation:
        found, noise = f"{max(share, 0.0):.2g}", f"{deviation:.2g}"
        log.warning(
            "the share of the rarest class, released as %s, is hidden by its noise of %s: the model may tell "
            "nothing of that class; bring more users or raise privacy.epsilon",
            found,
            noise,
        )


def _mean_target(low: float, high: float) -> Computation:
    """Ask each user's mean target, from -1/2 at ``low`` to 1/2 at ``high``, and its spread."""
    return Computation("mean_target", "sum", 0.5, parameters={"low": low, "high": high})


@dataclass(frozen=True)
class Counts(Stage, share=0.01, weight=0.6):
    """The rough size of counts, up to a few times of which the next mean is asked: a bound far above costs noise."""

    movement: ClassVar[Movement] = Movement.of_box(1.0)
    problem: Poisson | OneHotPoisson

    def computation(self, progress: Progress) -> Computation:
        return _mean_target(self.problem.family.low, self.problem.family.high)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; larger counts are lowered to the result from now on, in their mean alone."""
        share, deviation = release.fraction(sums[:1], self.movement)
        bound = self.problem.family.high
        progress.highest = bound * min(COUNTED * (share + 2 * deviation), 1.0)
        return {"mean_target": share * bound, "noise_deviation": deviation}


@dataclass(frozen=True)
class Level(Stage, share=0.05, weight=3.0):
    """The mean target: training starts at the model that predicts it for everybody, the best constant.

    *Formal guarantees.* *Claim.* The spread costs nothing beside the mean target. *Why.* Of a mean target that is a
    part t of its range a user sends ``(t - 1/2, 2 t (1 - t))``, of its own targets alone. The squared norm of that is
    ``(1 - u + u^2) / 4`` with ``u = (2 t - 1)^2``, at most 1/4: replacing a user moves the sum by 1 at most, and adding
    or removing one by 1/2, as of the mean target alone. All else follows from the noisy mean: post-processing.

    *What for.* For rates the spread tells how far users' mean targets lie apart, and so how long the gradients of a
    rare class are. Clips made for the typical user would cut them alone, and the model would predict too little.
    """

    movement: ClassVar[Movement] = Movement.of_ball(0.5)
    problem: GeneralisedLinear | OneHot

    def computation(self, progress: Progress) -> Computation:
        return _mean_target(*self._range(progress))

    def _range(self, progress: Progress) -> tuple[float, float]:
        family = self.problem.family
        return family.low, min(family.high, progress.highest)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; the curvature of rates and counts follows their mean."""
        released, deviation = release.mean(sums, self.movement)
        family, (low, high) = self.problem.family, self._range(progress)
        least = max(deviation, LEAST_PART) if family.open_ends else 0.0
        mean = low + min(max(float(released[0]) + 0.5, least), 1 - least) * (high - low)
        progress.begin(self.problem.constant_model(np.array([mean])))
        if _classes(self.problem):
            _told_apart(0.5 - abs(float(released[0])), deviation)
        curvature = family.curvature_at(mean)
        progress.curvature = min(MARGIN * curvature, family.curvature_bound(math.inf))
        progress.curved = curvature
        if isinstance(family, LogisticFamily):
            between = min(max(curvature - float(released[1]) / 2, 0.0), curvature)  # variance of users' mean targets
            progress.rare, progress.bend = between / min(mean, 1 - mean), BEND
        # The variance of targets of rates and counts is the curvature at their mean.
        progress.slope = math.sqrt(curvature) if family.open_ends else 0.0
        # Derivative of the score by the mean: one over the curvature of the canonical losses.
        slope = 1 / curvature if family.open_ends else 1.0
        doubt = math.hypot(deviation, progress.vague * float(released[0]))  # the share of those heard is noisy, too
        progress.level_deviation = slope * doubt * (high - low)
        return {"mean_target": mean, "noise_deviation": deviation}


@dataclass(frozen=True)
class Hazard(Level, share=0.05, weight=3.0):
    """The constant hazard of a loss by period: events over periods at risk, of which a mean target tells nothing.

    *Formal guarantees.* *Claim.* The time at risk costs nothing beside the events. *Why.* A user sends whether it has
    an event, less 1/2, times sqrt(3) / 2, and the share of periods at risk, less 1/2, times 1/2
    (`userdp.nodes.moments.events_and_time`): the squared norm is ``3/16 + 1/16 = 1/4`` at most, as of a mean target
    alone. All else follows from the two noisy means: post-processing.
    """

    problem: GeneralisedLinear

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends whether it has an event, and its time at risk."""
        return Computation("events_and_time", "sum", 0.5)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; clips are no shorter than gradients of users with an event, who are few."""
        released, deviation = release.mean(sums, self.movement)
        periods, family = self.problem.hazards, self.problem.family
        errors = np.hypot(deviation, progress.vague * released) / EVENTS_AND_TIME
        events, time = np.clip(released / EVENTS_AND_TIME + 0.5, np.maximum(errors, [LEAST_PART, 1 / periods]), 1.0)
        hazard = min(float(events / time) / periods, 1 - LEAST_PART)
        progress.begin(self.problem.constant_model(np.array([hazard, 1.0])))
        curvature = family.curvature_at(hazard)
        progress.curvature = min(MARGIN * curvature, family.curvature_bound(math.inf))
        progress.curved = curvature
        # Given what came before, the slopes of a user's periods have mean zero: their squares add up.
        progress.slope = math.sqrt(curvature / periods)
        progress.rare = LATE / (periods * math.sqrt(time))
        progress.level_deviation = hazard / curvature * math.hypot(*(errors / (events, time)))
        return {"mean_target": hazard, "noise_deviation": deviation}


@dataclass(frozen=True)
class Balance(Stage, share=0.05):
    """A move of the intercept after which predicted counts add up to the counts.

    Clips of gradients cut the few large counts and no small one, so that a model predicts too little for everybody. A
    clip wide enough for all coordinates would cost too much noise; the derivative by the intercept is one coordinate.
    """

    problem: Poisson

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its clipped derivative by the intercept, and all users weigh the same."""
        alone = np.zeros((len(progress.scales), len(progress.scales)))
        alone[-1, -1] = 1.0
        return Computation(
            "weighted_gradient",
            "sum",
            self._reach(progress),
            parameters={"size": sys.float_info.max},
            arrays={"scales": progress.scales, "coordinates": alone},
        )

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; moves intercept and constant as far as noise permits."""
        reach, known = self._reach(progress), progress.known
        assert known is not None
        released, deviation = release.mean(sums[-1:], Movement.of_ball(reach))
        before = progress.slope_variance(known, SKEWED)
        gain = before / (before + deviation**2)
        curvature = progress.curvature / MARGIN
        shift = min(max(-gain * float(released[0]) / curvature, -LONGEST_BALANCE), LONGEST_BALANCE)
        moved = progress.model.copy()
        moved[-1] += shift
        inside = self.problem.domain.project(moved)
        progress.z = progress.z + float(inside[-1] - moved[-1] + shift) * progress.along
        progress.settle(gain * deviation**2 / curvature**2)
        return {"radius": reach, "gain": gain, "noise_deviation": deviation}

    def _reach(self, progress: Progress) -> float:
        return BALANCED * progress.slope_deviation


@dataclass(frozen=True)
class ClassShares(Stage, share=0.05, weight=3.0):
    """The frequencies of the classes: training starts at the model that predicts them for everybody."""

    movement: ClassVar[Movement] = Movement.of_acute()
    problem: Softmax

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends the share of each class among its samples."""
        return Computation("class_shares", "sum", 1.0, arrays={"classes": np.arange(float(self.problem.outputs))})

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; the curvature across classes, and the width of clips, follow the shares."""
        released, deviation = release.mean(sums, self.movement)
        _told_apart(float(released.min()), deviation)
        shares = np.maximum(released, max(deviation, LEAST_PART))
        shares /= shares.sum()
        progress.begin(self.problem.constant_model(shares))
        curved = (1 - UNDECIDED) * self.problem.hessian_at(shares) + UNDECIDED * self.problem.first_hessian
        progress.curvature, progress.across = split(curved)
        progress.uneven = math.sqrt(unevenness(shares))
        progress.slope = math.sqrt(1 - float(shares @ shares))
        # A class's score is the logarithm of its share.
        progress.level_deviation = deviation / float(shares.min())
        return {"rarest_class": float(shares.min()), "noise_deviation": deviation}


def unevenness(shares: Vector) -> float:
    """Return the root mean square over the geometric mean of samples' slopes, for classes of shares s (K,).

    The slopes of class c are s less 1 at c. Where one class is far more frequent than others, slopes of its samples are
    short and those of the others are not: clips made for the typical length would cut the rare classes.
    """
    squares = 1 - 2 * shares + float(shares @ shares)
    return math.sqrt(float(shares @ squares)) / math.exp(0.5 * float(shares @ np.log(squares)))


def level(model: LinearScores | OneHot) -> tuple[Stage, ...]:
    """Return the stages that find the best constant; none if no model predicts the same of everybody."""
    if isinstance(model, Softmax):
        return (ClassShares(model),) if model.intercept else ()
    if not isinstance(model, GeneralisedLinear | OneHot) or model.mean_range is None:
        return ()
    if (hazards := by_period(model)) is not None:
        return (Hazard(hazards),)
    return (Counts(model), Level(model)) if isinstance(model, Poisson | OneHotPoisson) else (Level(model),)


def balance(model: LinearScores) -> tuple[Stage, ...]:
    """Return the stage after the last step; none except for counts, few of which are large."""
    return (Balance(model),) if isinstance(model, Poisson) and model.mean_range is not None else ()
