"""The first measure of `Auto`: what users' targets are on average, from whose best constant model training starts."""

import math
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
from userdp.problems import GeneralisedLinear, Softmax
from userdp.problems.linear_scores import LinearScores

LEAST_PART = 1e-3
"""Rates, counts and classes' shares are not taken to be nearer to an end of their range than this part of it, or than
their noise."""

MARGIN = 1.5
"""What the curvature at the mean target is multiplied by, where curvature is another at each score."""

UNDECIDED = 0.1
"""Part of the samples that is taken to be undecided between all classes: in a group that has much of a rare class,
curvature grows while the class is learnt there."""


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
        family = self.problem.family
        return Computation("mean_target", "sum", 0.5, parameters={"low": family.low, "high": family.high})

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """Start there; the curvature of rates and counts follows their mean."""
        released, deviation = release.mean(sums, self.movement)
        family = self.problem.family
        least = max(deviation, LEAST_PART) if family.open_ends else 0.0
        mean = family.low + min(max(float(released[0]) + 0.5, least), 1 - least) * (family.high - family.low)
        progress.begin(self.problem.constant_model(np.array([mean])))
        curvature = family.curvature_at(mean)
        progress.curvature = min(MARGIN * curvature, family.curvature_bound(math.inf))
        # By how much the score of a mean changes with it: one over the curvature of the canonical losses.
        slope = 1 / curvature if family.open_ends else 1.0
        progress.level_deviation = slope * deviation * (family.high - family.low)
        return {"mean_target": mean, "noise_deviation": deviation}


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
    """The stage that finds the best constant; none where no model predicts the same of everybody."""
    if isinstance(model, Softmax):
        return (ClassShares(model),) if model.intercept else ()
    return (Level(model),) if isinstance(model, GeneralisedLinear) and model.mean_range is not None else ()
