"""The stages before a first step, and the server's memory before them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies.auto.coordinates import split
from strategies.auto.level import level
from strategies.auto.progress import Progress
from strategies.auto.releases import Movement, Release
from strategies.auto.stages import LEAST_WIDTH, Columns, Gradient, Lengths, Moments, Sizes, Stage
from strategies.clipping.moving_centre import Centre, Geometry
from userdp.arrays.types import Vector
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation
from userdp.problems import Problem
from userdp.problems.linear_scores import LinearScores

FEWEST, MOST_NOISE = 0.1, 0.16
"""Share of usable people below which a run stops, and noise on that share above which it does not: with louder noise, a
table that half of the people fill would stop too many runs."""

_MOST_COLUMNS = 1000  # Most columns whose second moments are asked; problems of more use plain coordinates
_LARGEST_CELL, _LONGEST = 10.0, 10.0  # Bounds on cells and first gradients where nothing is declared


@dataclass(frozen=True)
class Filled(Stage):
    """The share of people whose data can be used; the run stops where hardly anybody's can.

    Later rounds average over a user's samples, and a user with one unusable sample is silent in all of them. A column
    of dates that is declared as one of numbers silences everybody, and the model would be trained on noise.

    *Formal guarantees.* *Claim.* Whether the run stops, and its message, costs nothing beyond this round's share of the
    budget. *Why.* Each user answers 1/2 or -1/2, by its own data alone, so that replacing one moves the sum by 1 at
    most, and adding or removing one by 1/2. The mean over the public n is released with noise for that. Stopping, and
    the message, follow from the released number and its planned noise alone: post-processing. A round that was charged
    before it stops is in the ledger, and no later one is released.

    A silent user, as everybody in a lost round, adds zero: as if half of them were usable. That stops no run; a user
    with unusable data answers -1/2.
    """

    movement: ClassVar[Movement] = Movement.of_box(1.0)

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user answers whether all of its samples can be used."""
        return Computation("filled", "sum", 0.5)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`. Raises `RunFailed`: the share is below one in ten, and noise does not hide that."""
        share, deviation = release.fraction(sums, self.movement)
        if share < FEWEST and deviation <= MOST_NOISE:
            raise RunFailed(
                f"there is next to nothing to learn from: {100 * share:.2g} % of the people can be heard (released, "
                f"with noise of {100 * deviation:.2g} %). Fewer than one in ten have rows in which every declared "
                "column and the target hold a cell that the model can use; a person with one other row is not heard. "
                "No model was trained. Whoever holds the data sees in the private figures (data.json) which column's "
                "cells cannot be used: check ranges, dates, positive and levels against the table, and declare with "
                "impute what missing cells count as"
            )
        return {"filled_share": share, "noise_deviation": deviation}


def doubts(deviation: float) -> tuple[str, ...]:
    """Warn where the noise of `Filled`, of that standard deviation, is too loud to stop a run."""
    if deviation <= MOST_NOISE:
        return ()
    return (
        f"the noise on the share of people who can be heard ({deviation:.2g}) hides whether anybody can: the run does "
        "not stop where a column cannot be used, and would train on noise. Look at the table's private figures before",
    )


def linear_model(problem: Problem) -> LinearScores | None:
    """Return the problem if its coordinates can be learnt, else None."""
    if not isinstance(problem, LinearScores) or problem.width > _MOST_COLUMNS:
        return None
    # Where phi'' has no bound, as for powers below 2, there is no whole step.
    return problem if np.isfinite(problem.first_hessian).all() else None


def measuring_stages(model: LinearScores, gradient: Gradient) -> tuple[Stage, ...]:
    """Return the stages that learn coordinates, and the length of users' gradients, queried like ``gradient``."""
    bound = min(model.feature_bound, model.feature_norm)
    largest_cell = max(1.0, bound) if math.isfinite(bound) else _LARGEST_CELL  # the intercept's 1 included
    return (
        *level(model),
        Columns(largest_cell),
        Sizes(),
        Moments(model.ridge),
        Lengths(gradient, longest_gradient(model)),
    )


def longest_gradient(problem: Problem) -> float:
    """Return an upper guess of the length of users' gradients at the start, in the coordinates."""
    model, bound = linear_model(problem), problem.certificate.gradient_norm
    if model is None:
        return _LONGEST if bound is None else bound
    slope = model.first_slope
    return math.sqrt(2 * model.width) * (slope if math.isfinite(slope) else _LONGEST)


def new_progress(problem: Problem, step: float) -> Progress:
    """Return the memory before the first round; ``step`` is the step size in plain coordinates."""
    model, longest = linear_model(problem), longest_gradient(problem)
    curvature, across = split(np.eye(1) if model is None else model.first_hessian)
    geometry = Geometry.of(problem, step, None, LEAST_WIDTH, trains=False, least_radius=1e-9 * longest, resampling=None)
    centre = Centre(geometry, problem.dimension, longest)
    return Progress(problem.initial(), curvature, centre, learns=model is not None, across=across)
