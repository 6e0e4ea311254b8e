"""The rounding of a mean without outliers: against exact arithmetic, and on neighbours at the edges."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wild_rows import wild

from strategies.baselines.outlier_removal.neighbour_mean import IndicatorKernel, NeighbourMean, in_radii
from userdp.estimators import replacement_bound

SEEDS = st.integers(0, 2**32 - 1)
RADII = st.sampled_from([1.0, 0.1, 3e-200, 7e200])


def edges(rng, batch, dimension):
    """(B, d) points in radii whose distances are 1, 2 and 4, as nearly as floats can be, on either side of it."""
    direction = rng.normal(size=dimension)
    direction /= np.linalg.norm(direction)
    steps = rng.choice([0.0, 1.0, -1.0, 2.0, 3.0], batch, p=[0.3, 0.3, 0.3, 0.05, 0.05])
    points = steps[:, None] * direction
    return points * (1 + rng.choice([-1, 0, 1], (batch, 1)) * 2.0**-52)


@settings(max_examples=100)
@given(seed=SEEDS, batch=st.sampled_from([12, 18, 31]), dimension=st.integers(1, 4))
def test_users_within_a_radius_of_one_as_computed_are_neighbours_as_computed(seed, batch, dimension):
    """Else somebody beside the centre of an aligned batch could lose its weight by rounding."""
    rng = np.random.default_rng(seed)
    rows = edges(rng, batch, dimension) + rng.choice([0.0, 1.0, 1e5])
    points, weights = torch.from_numpy(in_radii(rows, 1.0)), NeighbourMean(1.0).weights(rows)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    for near in distances <= 1:
        if near.sum() >= 2 * batch / 3:
            assert (weights[near] == 1.0).all()


@settings(max_examples=100)
@given(seed=SEEDS, batch=st.sampled_from([12, 18, 31]), dimension=st.integers(1, 4), radius=RADII)
def test_neighbours_that_are_both_aligned_move_the_mean_no_further_than_stated(seed, batch, dimension, radius):
    rng, kernel, estimator = np.random.default_rng(seed), IndicatorKernel(radius), NeighbourMean(radius)
    rows = radius * (edges(rng, batch, dimension) + rng.choice([0.0, 1.0, 1e5]))
    other = rows.copy()
    other[-1] = rng.choice([rows[0], np.full(dimension, radius * 1e30)])
    bound = kernel.unaligned_bound(batch)
    assert abs(kernel.score(rows) - kernel.score(other)) <= replacement_bound(batch) * (1 + batch * 2.0**-52)
    if kernel.score(rows) >= bound and kernel.score(other) >= bound:  # so both are aligned
        moved = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(estimator(rows), estimator(other), strict=True))
        stated = Fraction(estimator.l2_sensitivity(batch)) * (1 + Fraction(estimator.rounding(batch, dimension)))
        assert moved <= stated**2


def exact_weighted_mean(rows, weights):
    total = sum(map(Fraction, weights.tolist()))
    columns = [[Fraction(entry) for entry in column] for column in rows.T.tolist()]
    return [
        sum(Fraction(w) * entry for w, entry in zip(weights.tolist(), column, strict=True)) / total
        for column in columns
    ]


@settings(max_examples=60)
@given(seed=SEEDS, batch=st.sampled_from([12, 60]), place=st.sampled_from([0.0, 1.0, 2.0**20 - 4, -1e5]))
def test_a_computed_weighted_mean_errs_by_less_than_half_of_what_is_stated(seed, batch, place):
    rng, estimator = np.random.default_rng(seed), NeighbourMean(1.0)
    rows = place + edges(rng, batch, 3) + rng.uniform(-1e-3, 1e-3, (batch, 3))
    rows[: batch // 4] = wild(rng, (batch // 4, 3), 1.0)
    weights = estimator.weights(rows)
    if weights.any():
        exact = exact_weighted_mean(in_radii(rows, 1.0), weights)
        error = math.sqrt(sum((Fraction(a) - b) ** 2 for a, b in zip(estimator(rows).tolist(), exact, strict=True)))
        stated = estimator.rounding(batch, 3) - 2.0**-19 - batch * 2.0**-54  # the part of it that is for the mean
        assert 2 * error <= stated * estimator.l2_sensitivity(batch)


def test_users_on_either_side_of_a_centre_whose_distance_is_rounded_beyond_two_radii_are_neighbours():
    """Within 1 of the centre as computed, and beyond 2 of each other: a few in ten thousand points are."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(3000):
        direction, centre = rng.normal(size=4), rng.uniform(-1, 1, 4)
        steps = np.array([[0.0], [1.0], [-1.0]]) * (1 + rng.integers(-2, 3, (3, 1)) * 2.0**-53)
        rows = centre + steps * direction / np.linalg.norm(direction)
        points = torch.from_numpy(rows)
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        if distances[0].max() <= 1 and distances[1, 2] > 2:
            found += 1
            crowd = np.repeat(rows, [2, 14, 14], axis=0)
            assert IndicatorKernel(1.0).score(crowd) > 2
            assert (NeighbourMean(1.0).weights(crowd) == 1.0).all()
    assert found


@pytest.mark.parametrize("batch", [12, 31, 500])
@pytest.mark.parametrize("dimension", [1, 100, 10**6])
def test_rounding_of_a_mean_of_neighbours_is_charged_for_each_of_two(batch, dimension):
    mean = NeighbourMean(2.0)
    error = 2.0**-53 * (4 * (2 * batch + 4) + 2 * 2.0**20 * math.sqrt(dimension)) * 2.0
    least = 2.0**-19 + batch * 2.0**-54 + 2 * error / mean.l2_sensitivity(batch)
    assert mean.rounding(batch, dimension) >= least


def test_rounding_is_small_and_grows_with_the_batch():
    found = [NeighbourMean(1.0).rounding(batch, 100) for batch in (30, 100, 1000)]
    assert found == sorted(found)
    assert found[-1] < 1e-4
