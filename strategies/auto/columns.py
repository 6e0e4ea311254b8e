"""The stages of `Auto` for columns that are many and rare: one level for all samples, and a scale for each column."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies.auto.column_coordinates import ColumnCoordinates
from strategies.auto.level import LEAST_PART, MARGIN, level
from strategies.auto.progress import Progress
from strategies.auto.releases import Movement, Release
from strategies.auto.stages import GENEROSITY, Gradient, Lengths, Stage
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.statistics import STATISTICS
from userdp.problems import OneHot, Problem, SparseLinear
from userdp.problems.base import ASSUMED_SIZE

_NORM = STATISTICS["log_norm"]

KNOWN = 3.0  # Standard deviations of noise that the size of the sum of columns must exceed to be used


def column_coordinates(problem: Problem) -> ColumnCoordinates | None:
    """Return the coordinates of columns before the first release; the sum of one-hot columns is known to be one."""
    if isinstance(problem, SparseLinear):
        return ColumnCoordinates.plain(problem.dimension, problem.sparsity, 0.0)
    return ColumnCoordinates.plain(problem.dimension, 1, 1.0) if isinstance(problem, OneHot) else None


def column_stages(model: SparseLinear | OneHot, gradient: Gradient) -> tuple[Stage, ...]:
    """Return the stages before the first step, and the length of users' gradients, queried like ``gradient``."""
    begins: tuple[Stage, ...]
    if isinstance(model, SparseLinear):
        begins = (SumOfColumns(model), ColumnSizes(model.feature_norm**2))
    else:
        begins = (*level(model), ColumnSizes(1.0))
    slope = model.family.bounded(ASSUMED_SIZE).slope_bound(0.0)
    return (*begins, ColumnMoments(model.ridge), Lengths(gradient, 2 * slope))


@dataclass(frozen=True)
class SumOfColumns(Stage, share=0.1):
    """The slope by the sum of all columns, and the size of that sum: training starts at one level for all samples.

    *Formal guarantees.* *Claim.* The round costs its share of the budget. *Why.* Each user sends two numbers in
    intervals of width one about zero, which follow from its own data alone: replacing one moves their sum by sqrt(2) at
    most, and adding or removing one by sqrt(1/2). The mean over the public n is released with noise for that. The level
    and the curvature follow from the released numbers: post-processing.
    """

    movement: ClassVar[Movement] = Movement.of_box(2.0)
    model: SparseLinear

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its mean slope, and the root mean square of its samples' sums."""
        slope, length = self._bounds
        parameters = {"slope": slope, "length": length}
        return Computation("sum_of_columns", "sum", self.movement.added, parameters=parameters)

    @property
    def _bounds(self) -> tuple[float, float]:
        """The largest slope at a score of zero, and the largest sum of a sample's columns."""
        slope = self.model.family.bounded(ASSUMED_SIZE).slope_bound(0.0)
        return slope, self.model.feature_norm * math.sqrt(self.model.sparsity)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; moves to the score of the mean target, as if all samples had the same sum."""
        released, deviation = release.mean(sums, self.movement)
        (slope, length), family = self._bounds, self.model.family
        size = min(float(released[1]) + 0.5, 1.0)
        if size < KNOWN * deviation:
            return {"noise_deviation": deviation}
        # At a score of zero slopes are linear in the target.
        zero, one = family.slopes(np.zeros(2), np.array([0, 1], np.float32)).tolist()
        mean = (zero - 2 * slope * float(released[0]) / size) / (zero - one)
        least = max(2 * slope * deviation / size / (zero - one), LEAST_PART) if family.open_ends else 0.0
        mean = min(max(mean, family.low + least), family.high - least)
        progress.begin(self.model.domain.project(progress.start + family.score_of(mean) / (size * length)))
        progress.curvature = min(MARGIN * family.curvature_at(mean), family.curvature_bound(math.inf))
        _of(progress).common = size * length
        return {"mean_target": mean, "noise_deviation": deviation}


@dataclass(frozen=True)
class ColumnSizes(Stage, share=0.01):
    """The sizes of users' second moments, by column."""

    largest: float  # the largest possible one; those more than e^5 times smaller count as that

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; only the logarithm of each user's norm will be released."""
        return Computation("column_moments", "sum", self.largest, statistic="log_norm")

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; users' moments are clipped to a multiple of the typical norm."""
        logarithm, deviation = release.logarithm(sums[-1:], _NORM)
        typical = self.largest * math.exp(logarithm)
        progress.size = min(GENEROSITY * typical, self.largest)
        return {"moment_size": typical, "noise_deviation": deviation}


@dataclass(frozen=True)
class ColumnMoments(Stage, share=0.1):
    """The second moment of every column.

    *Formal guarantees.* *Claim.* The round costs its share of the budget. *Why.* Each user sends the mean squares of
    its columns, clipped to l2 norm F. They are not negative, so two users' vectors have no negative inner product, and
    replacing one moves the sum by sqrt(2) F at most; adding or removing one moves it by F. F follows from an earlier
    release. The mean over the public n is released with noise for that, and scales follow from it: post-processing.
    """

    ridge: float  # of the loss, whose curvature is known

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends the mean square of each column."""
        return Computation("column_moments", "sum", progress.size)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; divides columns by the roots of their moments, and shrinks those that noise hides."""
        released, deviation = release.mean(sums, Movement.of_acute(progress.size))
        progress.hidden = _of(progress).learn(released, deviation, self.ridge / progress.curvature)
        return {"noise_deviation": deviation, "hidden_columns": float(progress.hidden.sum())}


def _of(progress: Progress) -> ColumnCoordinates:
    assert progress.columns is not None
    return progress.columns
