"""The rounding of robust means: against exact arithmetic, on rows of any size, and on neighbours at the edges."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.estimators import (
    Debiased,
    ExpKernel,
    IndicatorKernel,
    NeighbourMean,
    RampKernel,
    Winsorized,
    concentration_score,
    replacement_bound,
    robust,
)
from userdp.estimators.outlier_removal import in_radii

ESTIMATORS = {
    "winsorised": Winsorized,
    "debiased median": lambda radius: Debiased("median", radius),
    "debiased trimmed mean": lambda radius: Debiased("trimmed_mean", radius),
}
SEEDS = st.integers(0, 2**32 - 1)
RADII = st.sampled_from([1.0, 0.1, 3e-200, 7e200])


def wild(rng, shape, radius):
    """Numbers about some place that is up to two million radii away, others of every size, many of them equal."""
    place = radius * rng.choice([0.0, 1.0, 1e6, -(2.0**20), 2.0**21]) + radius * rng.uniform(-1, 1, shape)
    powers = radius * 10.0 ** rng.uniform(-30, 30, shape) * rng.choice([-1, 1], shape)
    return np.where(rng.random(shape) < rng.choice([0.0, 0.2, 0.9]), powers, rng.choice(place.ravel(), shape))


def exact_estimate(estimator, values):
    """The estimate of one coordinate, in fractions, with rows clipped to the estimator's reach."""
    reach, width = Fraction(robust.REACH * estimator.radius), Fraction(estimator.clip_width)
    ordered = sorted(min(max(Fraction(value), -reach), reach) for value in values.tolist())
    kept = ordered[(trim := estimator._trim(len(ordered))) : len(ordered) - trim]
    low, high = (sum(kept) / len(kept) + side * width for side in (-1, 1))
    if isinstance(estimator, Debiased):
        return min(max(sum(ordered) / len(ordered), low), high)
    return sum(min(max(value, low), high) for value in ordered) / len(ordered)


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=60)
@given(seed=SEEDS, batch=st.sampled_from([7, 8, 30, 101]), radius=RADII)
def test_a_computed_estimate_errs_by_less_than_half_of_what_is_stated(name, seed, batch, radius):
    estimator = ESTIMATORS[name](radius)
    values = wild(np.random.default_rng(seed), batch, radius)
    error = abs(Fraction(float(estimator(values[:, None])[0])) - exact_estimate(estimator, values))
    assert 2 * error <= Fraction(estimator.rounding(batch)) * Fraction(estimator.sup_sensitivity(batch))


@settings(max_examples=100)
@given(seed=SEEDS, batch=st.sampled_from([7, 30, 101]), radius=RADII)
def test_neighbours_of_whom_one_is_aligned_move_no_further_than_stated_to_the_last_bit(seed, batch, radius):
    """Two thirds stand in one ball, at both of its ends, wherever it lies; one of them goes anywhere."""
    rng = np.random.default_rng(seed)
    place = radius * rng.choice([0.0, 1.0, 1e3, 2.0**20 - 1, -1e6, 1e12])
    rows = place + radius * rng.choice([-1.0, 1.0, 0.25, np.nextafter(1.0, 0)], (batch, 1))
    rows = np.clip(rows, place - radius, place + radius)
    rows[: batch // 3] = wild(rng, (batch // 3, 1), radius)
    other = rows.copy()
    other[-1] = wild(rng, 1, radius)
    for make in ESTIMATORS.values():
        estimator = make(radius)
        moved = abs(Fraction(float(estimator(rows)[0])) - Fraction(float(estimator(other)[0])))
        # The ball's ends are floats: at a far place they are as far apart as floats are there.
        width = max(1, Fraction(float(np.ptp(rows[batch // 3 :]))) / 2 / Fraction(radius))
        assert moved <= width * Fraction(estimator.sup_sensitivity(batch)) * (1 + Fraction(estimator.rounding(batch)))


@pytest.mark.parametrize("make", [lambda: Winsorized(1.0), lambda: Debiased("median", 2.0), lambda: NeighbourMean(1.0)])
def test_rounding_is_small_grows_with_the_batch_and_does_not_depend_on_the_unit(make):
    estimator = make()
    more = (100,) if isinstance(estimator, NeighbourMean) else ()
    found = [estimator.rounding(batch, *more) for batch in (30, 100, 1000)]
    assert found == sorted(found)
    assert found[-1] < 1e-4
    scaled = Winsorized(1e-100) if isinstance(estimator, Winsorized) else None
    if scaled is not None:
        assert scaled.rounding(30) == pytest.approx(found[0])


# --- Neighbours in the l2 norm --------------------------------------------------------------------------------------


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


@settings(max_examples=100)
@given(seed=SEEDS, batch=st.sampled_from([2, 7, 30, 101]), radius=RADII)
def test_computed_scores_of_neighbours_differ_by_at_most_the_sensitivity_and_their_last_bit(seed, batch, radius):
    rng = np.random.default_rng(seed)
    rows = wild(rng, (batch, 2), radius)
    other = rows.copy()
    other[-1] = wild(rng, 2, radius)
    for kernel in (RampKernel(radius), ExpKernel(radius)):
        moved = abs(Fraction(concentration_score(rows, kernel)) - Fraction(concentration_score(other, kernel)))
        assert moved <= Fraction(replacement_bound(batch)) * (1 + batch * Fraction(2) ** -52)


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


@pytest.mark.parametrize("batch", [7, 8, 11, 30, 1001])
@pytest.mark.parametrize(
    "estimator",
    [Debiased("median", 0.5), Debiased("trimmed_mean", 0.5, 2.0), Winsorized(3.0), Winsorized(3.0, 1.0)],
    ids=str,
)
def test_rounding_is_charged_by_the_formula_of_its_proof_for_each_of_two_neighbours(estimator, batch):
    kept = 2 - batch % 2 if getattr(estimator, "statistic", "") == "median" else batch - 2 * (batch // 3 + 1)
    farthest = 2.0**20 * estimator.radius
    error = 2.0**-53 * (1 + 2.0**-19) * ((batch + kept + 1) * farthest + estimator.clip_width)
    assert estimator.error(batch) >= error * (1 - 1e-12)
    assert estimator.rounding(batch) >= 2 * error / estimator.sup_sensitivity(batch) * (1 - 1e-12)


@pytest.mark.parametrize("batch", [12, 31, 500])
@pytest.mark.parametrize("dimension", [1, 100, 10**6])
def test_rounding_of_a_mean_of_neighbours_is_charged_for_each_of_two(batch, dimension):
    mean = NeighbourMean(2.0)
    error = 2.0**-53 * (4 * (2 * batch + 4) + 2 * 2.0**20 * math.sqrt(dimension)) * 2.0
    least = 2.0**-19 + batch * 2.0**-54 + 2 * error / mean.l2_sensitivity(batch)
    assert mean.rounding(batch, dimension) >= least


@pytest.mark.parametrize("batch", [2, 7, 100])
def test_the_largest_score_of_users_who_do_not_agree_has_room_for_the_grid_of_phi(batch):
    room = ExpKernel(1.0).unaligned_bound(batch) - batch * (2 + math.exp(-1)) / 3
    assert room >= batch * 2.0**-31 / 3
    for radius in (0.1, 1.0, 3.0, 1e6):
        kernel = ExpKernel(radius)
        assert kernel.unaligned_bound(batch) >= batch * (2 + kernel.values(np.array([radius]))[0]) / 3
