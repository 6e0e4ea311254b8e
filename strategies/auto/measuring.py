"""The stages before a first step, and the server's memory before them."""

import math

import numpy as np

from strategies.auto.coordinates import split
from strategies.auto.level import level
from strategies.auto.progress import Progress
from strategies.auto.stages import LEAST_WIDTH, Columns, Gradient, Lengths, Moments, Sizes, Stage
from strategies.clipping.moving_centre import Centre, Geometry
from userdp.problems import Problem
from userdp.problems.linear_scores import LinearScores

_MOST_COLUMNS = 1000
"""Most columns whose second moments are asked; problems of more use plain coordinates."""
_LARGEST_CELL, _LONGEST = 10.0, 10.0
"""Assumed bounds on cells, and on users' gradients at the start, where nothing is declared."""


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
