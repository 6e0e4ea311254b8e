"""The slopes of the excess risk on logarithmic axes, for settings where theory predicts one.

Take n users with m independent samples of variance sigma^2 in each of d coordinates, and let s^2 be the squared error
of a coordinate of an estimated mean. *Sampling* alone gives ``s^2 = sigma^2 / (n m)``. *Privacy.* A user's mean lies
within ``r = sigma sqrt(d / m)`` of the truth, up to a logarithm. Replacing a user moves a mean of such users by
``2 r / n``, so for epsilon up to about ln(1 / delta) the Gaussian mechanism adds

    s^2 = (2 r / n)^2 2 ln(1 / delta) / epsilon^2 ~ sigma^2 d / (n^2 m epsilon^2).

Up to logarithms no private estimate is better than the sum of both (Levy, Sun, Amin, Kale, Kulesza, Mohri, Suresh,
"Learning with User-Level Privacy", 2021, for vectors of length 1). Noise for a clip around zero is proportional to the
largest gradient instead of r: the same slopes, but none in m. The excess risk of the quadratic loss is ``d s^2 / 2`` if
the mean lies inside the domain: where privacy costs more than sampling, the slopes are -2 in epsilon and n, -1 in m and
+2 in d.

Other losses, populations and metrics have no prediction: no slope is better than a wrong one. The rates of the linear
loss, ``d / sqrt(n m) + d^(3/2) / (n epsilon sqrt(m))`` (Ghazi, Kumar, Liu, Manurangsi, "Linear-Time User-Level DP-SCO
via Robust Statistics", 2025), are for the worst instance at each n, m and epsilon, and a comparison fixes the instance.
"""

import json
import math
from typing import Any

import numpy as np

from simulations.comparison.config import Cell, Comparison
from simulations.config.run_config import RunConfig

_PRIVACY = (
    "where privacy costs more than sampling, the excess risk follows d² / (n² m epsilon²), for n users with m samples "
    "each in dimension d; with a clip around zero m does not help"
)
_POWERS = {"privacy.epsilon": -2.0, "data.users": -2.0, "data.dimension": 2.0, "data.samples_per_user": -1.0}
_CLIPS = 4.0  # standard deviations from the mean at which the bound of the data hardly moves the mean


def expected_slope(config: RunConfig, key: str) -> float | None:
    """Return the power of a setting that the excess risk should follow if privacy dominates and all else is fixed.

    There is no prediction for a loss other than the quadratic; for data that are not normal, with the same number of
    samples for every user, all honest, unclipped, and around a mean inside the domain; for m if users differ from each
    other by more than their samples; for an epsilon above ln(1 / delta); for a unit other than users. The strategy does
    not matter.
    """
    data, problem = config.data, config.problem
    if key not in _POWERS or config.privacy.unit != "user" or problem.kind != "quadratic" or problem.bound is None:
        return None
    if getattr(data, "population", None) != "gaussian" or data.samples_tail is not None:
        return None
    if key == "privacy.epsilon" and config.privacy.delta and config.privacy.epsilon > -math.log(config.privacy.delta):
        return None
    population = data.recipe
    if population.outliers or (key == "data.samples_per_user" and population.heterogeneity):
        return None
    largest = population.spread if population.mean is None else float(np.abs(population.mean).max())
    reach = largest + _CLIPS * math.hypot(population.deviation, population.heterogeneity)
    return _POWERS[key] if largest <= problem.radius and reach <= problem.bound else None


def expected_slopes(comparison: Comparison) -> dict[str, dict[str, dict[str, Any]]]:
    """Return problem -> key of the grid -> {"power", "reason"}, if all runs of the problem have the same prediction."""
    # Strategies and seeds do not matter: one run for each problem and point of the grid.
    points: dict[str, dict[str, Cell]] = {}
    for cell in comparison.cells:
        points.setdefault(cell.problem, {})[json.dumps(dict(cell.grid))] = cell
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for problem, cells in points.items():
        runs = [cell.reference() for cell in cells.values()]
        for key in comparison.grid_keys:
            (first, *others) = {expected_slope(run, key) for run in runs}
            if first is not None and not others:
                found.setdefault(problem, {})[key] = {"power": first, "reason": _PRIVACY}
    return found
