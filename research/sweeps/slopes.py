"""Slopes of logarithms: the power with which an error follows a number, and how sure that is."""

import math

import numpy as np

from userdp.arrays.types import Rows, Vector


def slope(at: Vector, found: Vector) -> tuple[float, float]:
    """Return the slope of log ``found`` in log ``at``, (k,) both, and its standard error by least squares."""
    fit, covariance = np.polyfit(np.log(at), np.log(found), 1, cov=True)
    return float(fit[0]), float(math.sqrt(covariance[0, 0]))


def slope_of_runs(at: Vector, runs: Rows) -> tuple[float, float]:
    """Return the slope of the log mean error in log ``at`` (k,), and its standard error over seeds, by the jackknife.

    ``runs`` (k, s) are the errors of s seeds; each seed is left out once, at every point.
    """

    def fitted(errors: Rows) -> float:
        return float(np.polyfit(np.log(at), np.log(errors.mean(axis=1)), 1)[0])

    seeds = runs.shape[1]
    without = np.array([fitted(np.delete(runs, seed, axis=1)) for seed in range(seeds)])
    return fitted(runs), float(math.sqrt((seeds - 1) * without.var()))
