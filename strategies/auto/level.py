"""What users' targets are on average: from whose best constant model training starts, and what counts end at."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies.auto.progress import Progress
from strategies.auto.releases import Movement, Release
from strategies.auto.several_scores import split
from strategies.auto.stages import Stage
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.problems import GeneralisedLinear, Poisson, Softmax
from userdp.problems.linear_scores import LinearScores

LEAST_PART = 1e-3
"""Rates, counts and classes' shares are not taken to be nearer to an end of their range than this part of it, or than
their noise."""

MARGIN = 1.5
"""What the curvature at the mean target is multiplied by, where curvature is another at each score."""

UNDECIDED = 0.1
"""Part of the samples that is taken to be undecided between all classes: in a group that has much of a rare class,
curvature grows while the class is learnt there."""

COUNTED = 8.0
"""Means of counts, as first released with two standard deviations of noise on top, that a user's count in the second
mean may be."""

SKEWED = 0.3
"""Typical slopes by which clips are taken to move the mean of counts: large ones are cut and small ones are not."""

BALANCED = 15.0
"""Typical slopes that a user's may be when the mean of counts is balanced: those of few large counts, and one number
costs little noise."""

LONGEST_BALANCE = 1.0
"""What the score of all is moved by at most when it is balanced."""


@dataclass(frozen=True)
class Counts(Stage):
    """About how large counts are: their mean is asked next, up to a few times that.

    Who declares a bound far above the counts would otherwise pay for it in noise.

    Attributes:
        problem: of counts.
    """

    movement: ClassVar[Movement] = Movement.of_box(1.0)
    problem: Poisson

    def computation(self, progress: Progress) -> Computation:
        """Of each user the mean count, from -1/2 at none to 1/2 at the bound."""
        return _mean_target(self.problem.family.low, self.problem.family.high)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """What larger counts are taken for from now on, in their mean alone."""
        released, deviation = release.mean(sums, self.movement)
        share = min(max(float(released[0]) + 0.5, 0.0), 1.0)
        bound = self.problem.family.high
        progress.highest = bound * min(COUNTED * (share + 2 * deviation), 1.0)
        return {"mean_target": share * bound, "noise_deviation": deviation}


@dataclass(frozen=True)
class Level(Stage):
    """The mean target: training starts at the model that predicts it of everybody, and the best constant is known.

    Attributes:
        problem: of targets in a range.
    """

    movement: ClassVar[Movement] = Movement.of_box(1.0)
    problem: GeneralisedLinear

    def computation(self, progress: Progress) -> Computation:
        """Of each user the mean target, from -1/2 at the least one to 1/2 at the largest."""
        return _mean_target(*self._range(progress))

    def _range(self, progress: Progress) -> tuple[float, float]:
        """From what to what targets are told apart."""
        family = self.problem.family
        return family.low, min(family.high, progress.highest)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """Start there; the curvature of rates and counts follows their mean."""
        released, deviation = release.mean(sums, self.movement)
        family, (low, high) = self.problem.family, self._range(progress)
        least = max(deviation, LEAST_PART) if family.open_ends else 0.0
        mean = low + min(max(float(released[0]) + 0.5, least), 1 - least) * (high - low)
        progress.begin(self.problem.constant_model(np.array([mean])))
        curvature = family.curvature_at(mean)
        progress.curvature = min(MARGIN * curvature, family.curvature_bound(math.inf))
        # By how much the score of a mean changes with it: one over the curvature of the canonical losses.
        slope = 1 / curvature if family.open_ends else 1.0
        progress.level_deviation = slope * deviation * (high - low)
        return {"mean_target": mean, "noise_deviation": deviation}


@dataclass(frozen=True)
class Balance(Stage):
    """Predicted counts are in sum what the counts are: one number a user, whose clip leaves large counts nearly whole.

    Clips of gradients cut the few large counts and no small one, so that a model predicts too little of everybody. A
    clip wide enough for all coordinates would cost too much noise; the derivative by the intercept alone is one of
    them.

    Attributes:
        problem: of counts.
    """

    problem: Poisson

    def computation(self, progress: Progress) -> Computation:
        """Of each user the derivative by the intercept, clipped; all users weigh the same."""
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
        """Move the intercept as far as noise lets tell, and the constant with it."""
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


def _mean_target(low: float, high: float) -> Computation:
    """Of each user the mean target, from -1/2 at ``low`` to 1/2 at ``high``."""
    return Computation("mean_target", "sum", 0.5, parameters={"low": low, "high": high})


@dataclass(frozen=True)
class ClassShares(Stage):
    """How frequent the classes are: training starts at the model that tells everybody these shares.

    Attributes:
        problem: of classes.
    """

    movement: ClassVar[Movement] = Movement.of_shares()
    problem: Softmax

    def computation(self, progress: Progress) -> Computation:
        """Of each user which share of its samples is of each class."""
        return Computation("class_shares", "sum", 1.0, arrays={"classes": np.arange(float(self.problem.outputs))})

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """Start there; curvature across classes, and how much longer clips are than usual, follow the shares."""
        released, deviation = release.mean(sums, self.movement)
        shares = np.maximum(released, max(deviation, LEAST_PART))
        shares /= shares.sum()
        progress.begin(self.problem.constant_model(shares))
        curved = (1 - UNDECIDED) * self.problem.hessian_at(shares) + UNDECIDED * self.problem.first_hessian
        progress.curvature, progress.across = split(curved)
        progress.uneven = math.sqrt(unevenness(shares))
        # A class's score is the logarithm of its share.
        progress.level_deviation = deviation / float(shares.min())
        return {"rarest_class": float(shares.min()), "noise_deviation": deviation}


def unevenness(shares: Vector) -> float:
    """Root mean square over geometric mean of the lengths of samples' slopes where classes have shares s (K,).

    The slopes of class c are s less 1 at c. Where one class is far more frequent than others, its samples' are short
    and those of the others are not: clips made for the typical length would let nobody learn of the rare classes.
    """
    squares = 1 - 2 * shares + float(shares @ shares)
    return math.sqrt(float(shares @ squares)) / math.exp(0.5 * float(shares @ np.log(squares)))


def level(model: LinearScores) -> tuple[Stage, ...]:
    """The stages that find the best constant; none where no model predicts the same of everybody."""
    if isinstance(model, Softmax):
        return (ClassShares(model),) if model.intercept else ()
    if not isinstance(model, GeneralisedLinear) or model.mean_range is None:
        return ()
    return (Counts(model), Level(model)) if isinstance(model, Poisson) else (Level(model),)


def balance(model: LinearScores) -> tuple[Stage, ...]:
    """The stage after the last step; none but for counts, of which few are large."""
    return (Balance(model),) if isinstance(model, Poisson) and model.mean_range is not None else ()
