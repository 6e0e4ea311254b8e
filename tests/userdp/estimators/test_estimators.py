"""P1, P2 and P4 for the estimators: invariances, and sensitivities that no neighbour exceeds and some case attains."""

import math
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies.baselines.heavy_tailed.depth import geometric_median
from strategies.baselines.heavy_tailed.estimators import deep_centre
from strategies.baselines.heavy_tailed.reference.estimators import group_means, simple_clip_mean
from strategies.baselines.outlier_removal.neighbour_mean import IndicatorKernel, NeighbourMean, neighbour_counts
from strategies.baselines.smoothed_truncation import noisily_truncated, smoothed_truncation_mean, truncated_samples
from userdp.arrays.sparse_rows import clip_rows
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import (
    Debiased,
    ExpKernel,
    RampKernel,
    Winsorized,
    concentration_score,
    coordinate_median,
    robust,
    smallest_trim,
    trimmed_mean,
)

RADIUS = 1.0
FAR = 1e3
BATCHES = (7, 8, 9, 10, 11, 12, 13, 14, 30)
ENTRIES = st.floats(-100, 100, allow_nan=False).map(lambda v: round(v, 3))
MATRICES = hnp.arrays(np.float64, st.tuples(st.integers(7, 13), st.integers(1, 3)), elements=ENTRIES)


def scaled_estimators(scale=1.0):
    """Every estimator, with its units multiplied by a scale."""
    return {
        "median": coordinate_median,
        "trimmed mean": lambda rows: trimmed_mean(rows, 3),
        "debiased median": Debiased("median", 2.0 * scale),
        "debiased trimmed mean": Debiased("trimmed_mean", 2.0 * scale, 0.5 * scale),
        "winsorised": Winsorized(2.0 * scale),
        "winsorised narrow": Winsorized(2.0 * scale, 0.5 * scale),
    }


def apply(name, rows, scale=1.0):
    return scaled_estimators(scale)[name](rows)


all_estimators = pytest.mark.parametrize("name", list(scaled_estimators()))
quick = settings(max_examples=60)


@pytest.mark.sweep(1)
@all_estimators
@quick
@given(rows=MATRICES, seed=st.integers(0, 2**32 - 1), size=st.floats(1e-3, 50))
def test_estimates_are_1_lipschitz_in_the_sup_norm(name, rows, seed, size):
    moves = np.random.default_rng(seed).choice([-size, 0.0, size / 3, size], size=rows.shape)
    moved = np.abs(apply(name, rows + moves) - apply(name, rows)).max()
    assert moved <= np.abs(moves).max() + 1e-10


@pytest.mark.sweep(1)
@all_estimators
@quick
@given(rows=MATRICES, seed=st.integers(0, 2**32 - 1))
def test_estimates_do_not_depend_on_the_order_of_users_bit_for_bit(name, rows, seed):
    shuffled = np.random.default_rng(seed).permutation(rows)
    assert np.array_equal(apply(name, shuffled), apply(name, rows))


def test_chunks_of_coordinates_give_the_same_bits(monkeypatch):
    rows = np.random.default_rng(2).normal(size=(20, 33)).astype(np.float32)
    whole = [estimate(rows) for estimate in (coordinate_median, Winsorized(1.0), Debiased("median", 0.1))]
    monkeypatch.setattr(robust, "_PART_ENTRIES", 100)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    chunked = [estimate(rows) for estimate in (coordinate_median, Winsorized(1.0), Debiased("median", 0.1))]
    assert all(np.array_equal(a, b) and a.dtype == np.float64 for a, b in zip(whole, chunked, strict=True))


@pytest.mark.parametrize("estimate", [coordinate_median, Winsorized(1.0), Debiased("median", 0.1)])
def test_many_rows_take_little_memory_beside_themselves(estimate, monkeypatch):
    """A part for each of two threads, its bins and marks, and what a few columns are sorted in."""
    monkeypatch.setattr(robust, "_PART_ENTRIES", 1 << 17)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    rows = np.random.default_rng(2).normal(size=(1 << 14, 96))
    estimate(rows)  # compiles
    tracemalloc.start()
    try:
        estimate(rows)
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes / 3
    finally:
        tracemalloc.stop()


def test_estimates_leave_their_rows_alone():
    rows = np.random.default_rng(3).normal(size=(9, 4))
    before = rows.copy()
    Winsorized(0.1)(rows), Debiased("trimmed_mean", 0.1)(rows)
    assert np.array_equal(rows, before)


LARGEST = np.finfo(np.float64).max
SIZES = st.sampled_from([0.0, 5e-324, -5e-324, 1.0, -1.0, 2.0**52, 1e154, -1e154, 1.7e308, -1.7e308, LARGEST, -LARGEST])


@quick
@given(values=hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 3)), elements=SIZES))
def test_means_of_finite_numbers_are_finite_and_what_they_should_be(values):
    for axis in (0, 1):
        mean, size = robust.finite_mean(values, axis), values.shape[axis]
        scaled = values / 2**60
        assert np.isfinite(mean).all()
        np.testing.assert_allclose(mean / 2**60, scaled.sum(axis=axis) / size, atol=1e-12 * np.abs(scaled).max())


def test_the_mean_of_the_largest_floats_is_the_largest_float():
    for count in range(1, 50):
        assert robust.finite_mean(np.full((1, count), LARGEST), axis=1) == LARGEST
        assert coordinate_median(np.full((count, 1), -LARGEST)) == -LARGEST


@pytest.mark.sweep(1)
@pytest.mark.parametrize("size", [2.0**-1000, 1.0, 2.0**1019])
def test_centres_and_truncated_means_of_any_size_are_finite(size):
    points = np.random.default_rng(0).uniform(-10, 10, size=(12, 3))
    for centre in (geometric_median, lambda rows: deep_centre(rows).point):
        np.testing.assert_allclose(centre(size * points) / size, centre(points), atol=1e-6)
    for samples in (points, np.full((1000, 3), 20.0)):
        mean = simple_clip_mean(size * samples, 17 * size, math.inf, np.random.default_rng(0))
        np.testing.assert_allclose(mean / size, clip_rows(samples, 17.0).mean(axis=0), rtol=1e-9)
        groups = group_means(size * samples, np.arange(12).reshape(2, 6), 17 * size, math.inf, np.random.default_rng(0))
        np.testing.assert_allclose(groups[0] / size, clip_rows(samples[:6], 17.0).mean(axis=0), rtol=1e-9)
    assert np.isfinite(smoothed_truncation_mean(np.full((1000, 2), 20.0 * size), 10 * size, 1.0)).all()


@pytest.mark.sweep(2)
@all_estimators
@quick
@given(rows=hnp.arrays(np.float64, st.tuples(st.integers(7, 13), st.integers(1, 2)), elements=SIZES))
def test_estimates_of_finite_rows_are_finite_and_lie_among_them(name, rows):
    for scale in (1.0, 1e-200, 1e300):
        estimate = apply(name, rows, scale)
        assert np.isfinite(estimate).all()
        assert (estimate / 2 <= np.maximum(rows.max(axis=0), 0) / 2 * (1 + 1e-12)).all()
        assert (estimate / 2 >= np.minimum(rows.min(axis=0), 0) / 2 * (1 + 1e-12)).all()


@pytest.mark.parametrize("place", [2.0**19, 2.0**30, 2.0**52, -(2.0**52), 2.0**53, 1e300])
@pytest.mark.parametrize("batch", [30, 300])
def test_rows_so_large_that_sums_are_rounded_by_more_than_the_radius_keep_the_sensitivity(place, batch):
    """Two thirds agree within the radius, at a place where a mean of them is rounded to the floats there."""
    rng = np.random.default_rng(batch)
    unit = max(np.spacing(abs(place)), 0.25)
    agreeing = place + unit * rng.integers(0, max(1, int(2 * RADIUS / unit)) + 1, size=(batch, 200))
    if unit > 2 * RADIUS:
        agreeing[:] = place
    assert (np.ptp(agreeing, axis=0) <= 2 * RADIUS).all()
    agreeing[: batch // 3 - 1] = rng.choice([0.0, -place, place, 2 * place], size=(batch // 3 - 1, 200))
    replaced = agreeing.copy()
    replaced[-1] = rng.choice([0.0, place, 2 * place], size=200)
    for estimator in settings_of(batch):
        moved = np.abs(estimator(agreeing) - estimator(replaced)).max()
        assert moved <= estimator.sup_sensitivity(batch) + 2 * 2.0**-27 * RADIUS, estimator


def neighbours(batch, trials, seed):
    """(B, trials) pairs; each column is a one-dimensional instance of which the first batch is aligned.

    Values sit at the edges of the ball [-1, 1], inside it, just outside it, or far away, where colluding outliers
    and the replaced user do the most harm.
    """
    rng = np.random.default_rng(seed)
    inside = rng.choice([-1.0, 1.0, 0.0, np.nan], p=[0.4, 0.4, 0.1, 0.1], size=(batch, trials))
    # Some columns have one jump between the edges, where the interlacing bound is tight.
    inside = np.where(rng.random(trials) < 0.5, np.sort(inside, axis=0), inside)
    inside = np.where(np.isnan(inside), rng.uniform(-1, 1, size=inside.shape), inside)
    places = np.array([-FAR, -3.0, -1.001, 1.001, 3.0, FAR])
    outside = rng.choice(places, size=(batch, trials))
    outside = np.where(rng.random(trials) < 0.3, FAR, outside)
    outliers = rng.integers(0, batch // 3 + 1, size=trials)
    rows = np.where(np.arange(batch)[:, None] < outliers, outside, inside)
    replaced = rows.copy()
    who = rng.integers(0, 2, size=trials) * (batch - 1)  # an outlier (if there are any) or a row of the ball
    replaced[who, np.arange(trials)] = rng.choice(np.append(places, [-1.0, 1.0, 0.0]), size=trials)
    return rows, replaced


def settings_of(batch):
    return [
        Debiased("median", RADIUS),
        Debiased("median", RADIUS, width=0.3),
        Debiased("trimmed_mean", RADIUS),
        Winsorized(RADIUS),
        Winsorized(RADIUS, width=1.0),
        Winsorized(RADIUS, width=0.2),
        Winsorized(RADIUS, width=5.0),
        Winsorized(RADIUS, trim=(batch - 1) // 2),
    ]


@pytest.mark.sweep(5)
@pytest.mark.parametrize("batch", BATCHES)
def test_no_neighbour_of_an_aligned_batch_exceeds_the_sensitivity(batch):
    rows, replaced = neighbours(batch, 20_000, seed=batch)
    for estimator in settings_of(batch):
        moved = np.abs(estimator(rows) - estimator(replaced)).max()
        assert moved <= estimator.sup_sensitivity(batch) * (1 + 1e-12), estimator


def attaining_pair(estimator, batch):
    """(B, 1) neighbours, the first aligned at radius 1, built to attain the bound."""
    if isinstance(estimator, Debiased) and estimator.statistic == "median":
        low = (batch - 1) // 2
        common = np.repeat([-1.0, 1.0], [low, batch - 1 - low])
        if batch % 2 == 0:
            common[low] = 0.0
    elif isinstance(estimator, Debiased):
        trim = smallest_trim(batch)
        common = np.repeat([-1.0, 1.0], [trim, batch - 1 - trim])
    else:
        trim, outliers = smallest_trim(batch), batch // 3
        common = np.repeat([-1.0, 1.0, FAR], [trim, batch - trim - outliers, outliers - 1])
    assert len(common) == batch - 1
    return np.append(common, -FAR)[:, None], np.append(common, FAR)[:, None]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("estimator", "share"),
    [
        (Debiased("median", RADIUS), 1.0),
        (Debiased("trimmed_mean", RADIUS), 1.0),
        (Winsorized(RADIUS), 1.0),
        (Winsorized(RADIUS, width=1.0), 0.6),
    ],
    ids=["debiased-median", "debiased-trimmed", "winsorised", "winsorised-narrow"],
)
def test_some_neighbour_attains_the_sensitivity(estimator, share, batch):
    rows, replaced = attaining_pair(estimator, batch)
    moved = float(np.abs(estimator(rows) - estimator(replaced)).max())
    assert share * estimator.sup_sensitivity(batch) - 1e-9 <= moved <= estimator.sup_sensitivity(batch) + 1e-9


def test_the_smallest_batch_of_the_proof_is_exact():
    for batch in range(7, 200):
        for estimator in (Winsorized(1.0), Debiased("median", 1.0), Debiased("trimmed_mean", 1.0)):
            estimator.check(batch)
        assert 2 * smallest_trim(batch) < batch
        assert (batch - 1) // 2 >= smallest_trim(batch)
    assert 2 * smallest_trim(6) >= 6
    with pytest.raises(PopulationTooSmall, match="at least 7"):
        Winsorized(1.0).check(6)


@pytest.mark.parametrize("kernel", [ExpKernel(RADIUS), RampKernel(RADIUS)])
@pytest.mark.parametrize("estimator", [Winsorized(RADIUS), Debiased("median", RADIUS)])
def test_one_user_moves_later_models_and_scores_within_the_bounds(kernel, estimator):
    """Contractive steps on separable quadratics: the models stay as near as the first step left them."""
    rng = np.random.default_rng(5)
    batch, dimension, smoothness = 12, 4, 2.0
    step_size = 2 / smoothness
    reach = step_size * estimator.sup_sensitivity(batch)
    movement = 2 * smoothness * reach
    x = y = np.zeros(dimension)
    for step in range(30):
        curvature = rng.uniform(0, smoothness, size=(batch, dimension))
        centre = rng.uniform(-0.4, 0.4, size=(batch, dimension))
        own, other = curvature * x - centre, curvature * y - centre
        if step == 0:
            other[3] = FAR
        else:
            change = abs(concentration_score(own, kernel) - concentration_score(other, kernel))
            assert change <= kernel.movement_bound(batch, movement)
        x = np.clip(x - step_size * estimator(own), -0.5, 0.5)
        y = np.clip(y - step_size * estimator(other), -0.5, 0.5)
        assert np.abs(x - y).max() <= reach
        assert step > 0 or np.abs(x - y).max() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Winsorized(0.0), "radius = 0.0"),
        (lambda: Winsorized(float("nan")), "radius = nan"),
        (lambda: Winsorized(1.0, width=-1.0), "width = -1.0"),
        (lambda: Winsorized(1.0, trim=0), "trim = 0"),
        (lambda: Winsorized(1.0, trim=3)(np.zeros((9, 1))), "below a third of 9 users: the proof needs at least 4"),
        (lambda: Debiased("trimmed_mean", 1.0, trim=3).sup_sensitivity(9), "below a third"),
        (lambda: Debiased("mode", 1.0), "'median' or 'trimmed_mean'"),
        (lambda: Debiased("median", 1.0, trim=4), "the median takes none"),
        (lambda: Debiased("median", float("inf")), "radius = inf"),
        (lambda: coordinate_median(np.zeros(3)), "shape"),
        (lambda: coordinate_median(np.zeros((0, 3))), "shape"),
        (lambda: coordinate_median(np.array([[np.nan]])), "not finite"),
        (lambda: Winsorized(1.0)(np.full((9, 2), np.inf)), "not finite"),
        (lambda: trimmed_mean(np.zeros((4, 1)), 2), "trim = 2"),
        (lambda: trimmed_mean(np.zeros((4, 1)), -1), "trim = -1"),
        *[
            (partial(kernel, radius), "radius =")
            for kernel in (IndicatorKernel, RampKernel, ExpKernel)
            for radius in (0.0, -1.0, math.nan, math.inf, 2.0**-961, 2.0**961)
        ],
        (lambda: RampKernel(1e-300), "radius = 1e-300: .* between 1e-289 and 1e"),
        (lambda: ExpKernel(1e300), r"radius = 1e\+300"),
        (lambda: RampKernel(1.0).movement_bound(5, -1.0), "movement = -1.0"),
        (lambda: ExpKernel(1.0).movement_bound(5, float("nan")), "movement = nan"),
        (lambda: concentration_score(np.array([[1.0], [np.nan]]), ExpKernel(1.0)), "not finite"),
        (lambda: concentration_score(np.zeros((0, 2)), RampKernel(1.0)), "shape"),
        *[
            (partial(neighbour_counts, rows, 1.0), "non-empty|not finite")
            for rows in (np.zeros((0, 2)), np.full((20, 2), np.nan), np.zeros(20))
        ],
        (lambda: NeighbourMean(1.0).weights(np.zeros((11, 2))), "at least 12 users"),
        *[
            (partial(noisily_truncated, np.zeros(1), beta), "inverse_variance = .*: must be a positive number")
            for beta in (0.0, -1.0, math.nan)
        ],
        (lambda: truncated_samples(np.zeros(1), math.inf, 1.0), "scale = inf"),
    ],
)
def test_bad_settings_and_rows_are_refused_in_one_sentence(make, message):
    with pytest.raises(BadInput, match=message):
        make()


@pytest.mark.parametrize("estimator", [Winsorized(1.0, trim=10), Debiased("trimmed_mean", 1.0, trim=10)])
def test_a_batch_smaller_than_its_trim_allows_is_refused_with_the_number_needed(estimator):
    assert estimator.minimum_batch == 21
    with pytest.raises(PopulationTooSmall, match="at least 21"):
        estimator(np.zeros((20, 1)))
    assert estimator(np.zeros((21, 1))) == 0
