"""What is measured of users before a first step: which stages, and what is known without them."""

import math

import numpy as np

from strategies.auto.level import level
from strategies.auto.progress import Progress
from strategies.auto.several_scores import split
from strategies.auto.stages import LEAST_WIDTH, Columns, Gradient, Lengths, Moments, Sizes, Stage
from strategies.clipping.moving_centre import Centre, Curvatures, Geometry
from userdp.problems import Problem
from userdp.problems.linear_scores import LinearScores

_MOST_COLUMNS = 1000
"""Beyond, second moments are too many numbers to ask for, and plain coordinates are used."""
_LARGEST_CELL, _LONGEST = 10.0, 10.0
"""What cells, and users' gradients at the start, are taken to be at most where nothing is declared."""


def linear_model(problem: Problem) -> LinearScores | None:
    """The problem, where its coordinates can be learnt."""
    if not isinstance(problem, LinearScores) or problem.width > _MOST_COLUMNS:
        return None
    # Where phi'' has no bound, as for powers below 2, there is no whole step.
    return problem if np.isfinite(problem.first_hessian).all() else None


def measuring_stages(model: LinearScores, gradient: Gradient) -> tuple[Stage, ...]:
    """Those that learn coordinates, and how long users' gradients, asked like that one, are in them."""
    lengths = Lengths(gradient, longest_gradient(model))
    return (*level(model), Columns(_largest_cell(model)), Sizes(), Moments(model.ridge), lengths)


def longest_gradient(problem: Problem) -> float:
    """An upper guess of users' gradients at the start, in the coordinates."""
    model, bound = linear_model(problem), problem.certificate.gradient_norm
    if model is None:
        return _LONGEST if bound is None else bound
    slope = model.first_slope
    return math.sqrt(2 * model.width) * (slope if math.isfinite(slope) else _LONGEST)


def new_progress(problem: Problem, step: float) -> Progress:
    """Before the first round; ``step`` is that of plain coordinates."""
    model, longest = linear_model(problem), longest_gradient(problem)
    curvature, across = split(np.eye(1) if model is None else model.first_hessian)
    geometry = Geometry.of(
        Curvatures.of(problem), problem.domain, step, None, LEAST_WIDTH, least_radius=1e-9 * longest, resampling=None
    )
    centre = Centre(geometry, problem.dimension, longest)
    return Progress(problem.initial(), curvature, centre, learns=model is not None, across=across)


def _largest_cell(model: LinearScores) -> float:
    """Largest feature, the intercept's 1 included."""
    bound = min(model.feature_bound, model.feature_norm)
    return max(1.0, bound) if math.isfinite(bound) else _LARGEST_CELL
