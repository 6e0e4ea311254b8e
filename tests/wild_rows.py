"""Rows of every size, for the rounding of robust means."""

import numpy as np


def wild(rng, shape, radius):
    """Numbers about some place that is up to two million radii away, others of every size, many of them equal."""
    place = radius * rng.choice([0.0, 1.0, 1e6, -(2.0**20), 2.0**21]) + radius * rng.uniform(-1, 1, shape)
    powers = radius * 10.0 ** rng.uniform(-30, 30, shape) * rng.choice([-1, 1], shape)
    return np.where(rng.random(shape) < rng.choice([0.0, 0.2, 0.9]), powers, rng.choice(place.ravel(), shape))
