"""The mean without outliers: its steps of proof and its sensitivity on brute-force neighbours, its scores."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.baselines.outlier_removal.neighbour_mean import IndicatorKernel, NeighbourMean, neighbour_counts
from userdp.estimators import replacement_bound


def crowd(rng, batch):
    """Most users in a ball, some in a clump that is near enough to matter, one replaced by anybody."""
    d = rng.integers(1, 4)
    rows = rng.uniform(-1, 1, (batch, d)) * rng.choice([0.3, 0.7, 1.0]) / math.sqrt(d)
    odd = rng.integers(0, batch // 3 + 2)
    direction = rng.normal(size=d)
    direction /= np.linalg.norm(direction)
    rows[:odd] = direction * rng.uniform(1, 3.3) + rng.normal(size=(odd, d)) * rng.choice([0.0, 0.05, 0.3])
    if rng.random() < 0.5:
        rows[odd:] = -direction * rng.choice([0.0, 0.5, 1.0])
    other = rows.copy()
    other[rng.integers(batch)] = rng.choice([0.0, 1.0]) * rng.uniform(-4, 4, d)
    return rows, other


def aligned(rows, radius=1.0):
    return neighbour_counts(rows, radius).max() >= 2 * len(rows) / 3


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from([12, 13, 18, 30]))
def test_replacing_one_user_of_an_aligned_batch_moves_the_mean_by_at_most_what_is_stated(seed, batch):
    rows, other = crowd(np.random.default_rng(seed), batch)
    estimator = NeighbourMean(1.0)
    if aligned(rows) and aligned(other):
        moved = np.linalg.norm(estimator(rows) - estimator(other))
        assert moved <= estimator.l2_sensitivity(batch) * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from([12, 13, 18, 30]))
def test_the_steps_of_the_proof(seed, batch):
    rows, other = crowd(np.random.default_rng(seed), batch)
    if not (aligned(rows) and aligned(other)):
        return
    weights = [NeighbourMean(1.0).weights(values) for values in (rows, other)]
    kept = np.concatenate([values[weight > 0] for values, weight in zip((rows, other), weights, strict=True)])
    assert np.linalg.norm(kept[:, None] - kept, axis=2).max() <= 4 + 1e-9
    assert min(weight.sum() for weight in weights) >= 2 * batch / 3 - 1e-9
    common = np.all(rows == other, axis=1)
    change = np.abs(weights[0] - weights[1])[common]
    assert (change > 0).sum() <= batch / 3
    assert change.max() <= 1 / (batch / 6 - 1.5) + 1e-9


def worst_known(batch):
    """Neighbours that attain 0.5625 of the bound in large batches, on a line, at radius 1.

    A third of the users stands at 3, as far out as the bound takes them to be, each with one neighbour too few to
    count; the others are just aligned about 0, and most of them at -1. One user comes from -1 to 1 and completes the
    neighbours of the third at 3.
    """
    far = batch // 3
    near = (batch + 1) // 2 - far + 1
    rows = np.repeat([3.0, 1.0, 0.0, -1.0], [far, near, 1, batch - far - near - 1])[:, None]
    other = rows.copy()
    other[-1] = 1.0
    return rows, other


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("batch", "share"), [(60, 0.51), (600, 0.558), (3000, 0.561)])
def test_neighbours_attain_more_than_half_of_what_is_stated(batch, share):
    rows, other = worst_known(batch)
    assert aligned(rows)
    assert aligned(other)
    estimator = NeighbourMean(1.0)
    moved = np.linalg.norm(estimator(rows) - estimator(other))
    assert share * estimator.l2_sensitivity(batch) <= moved <= estimator.l2_sensitivity(batch)
    risen = (estimator.weights(other) - estimator.weights(rows))[rows[:, 0] == 3]
    np.testing.assert_allclose(risen, 1 / (batch / 6 - 1.5))  # as far as a weight can move, by step 2 of the proof


def test_the_stated_sensitivity_by_hand():
    """Twelve of 36 users change their weights by 2/9 each, one is replaced; all 4 radii away, over a weight of 24."""
    assert NeighbourMean(1.0).l2_sensitivity(36) == pytest.approx(4 * (12 / 4.5 + 2) / 24)
    assert 1e9 * NeighbourMean(0.5).l2_sensitivity(10**9) == pytest.approx(12)


def test_the_stated_effect_of_one_user_on_the_score_is_attained():
    rows = np.zeros((30, 2))
    other = rows.copy()
    other[7] = 3.0
    kernel = IndicatorKernel(1.0)
    assert kernel.score(rows) - kernel.score(other) == pytest.approx(replacement_bound(30))


def test_an_unaligned_batch_attains_the_stated_bound_on_its_score_but_for_one_user():
    """Sixty users evenly around a circle, each with 19 neighbours on either side: 39 with itself, where 40 align."""
    turns = 2 * np.pi * np.arange(60) / 60
    rows = np.column_stack([np.cos(turns), np.sin(turns)]) / (2 * np.sin(np.pi * 19.5 / 60))
    kernel = IndicatorKernel(1.0)
    assert not aligned(rows)
    assert kernel.score(rows) == 39
    assert kernel.unaligned_bound(60) == 40


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_counts_and_means_do_not_depend_on_the_unit(size):
    """Neither squares that vanish nor squares that overflow make neighbours, or part them."""
    rows = np.concatenate([np.linspace(-1, 1, 14), [2.5, 1e3, 1e9, -1e9]])[:, None]
    small, plain = NeighbourMean(size), NeighbourMean(1.0)
    assert small.weights(size * rows)[15:].sum() == 0
    np.testing.assert_allclose(small.weights(size * rows), plain.weights(rows))
    np.testing.assert_allclose(small(size * rows) / size, plain(rows), atol=1e-12)
    assert IndicatorKernel(size).score(size * rows) == IndicatorKernel(1.0).score(rows)


@pytest.mark.parametrize("place", [2.0**19, 2.0**52, -1e300, 1.7e308])
def test_rows_so_large_that_sums_are_rounded_by_more_than_the_radius_keep_the_bound(place):
    rng, estimator = np.random.default_rng(0), NeighbourMean(1.0)
    unit = np.spacing(abs(place))
    for _ in range(50):
        rows = place + (unit * rng.integers(0, 2, size=(30, 1)) if unit <= 1 else np.zeros((30, 1)))
        rows[:9] = rng.choice([0.0, place, -place], size=(9, 1))
        other = rows.copy()
        other[-1] = rng.choice([0.0, place, -place])
        moved = np.abs(estimator(rows) - estimator(other)).max()
        assert moved <= estimator.l2_sensitivity(30) * (1 + 1e-6)


@pytest.mark.slow
def test_the_crowds_above_are_mostly_aligned_and_come_near_the_bound():
    ratios, count, estimator = [], 0, NeighbourMean(1.0)
    for seed in range(1500):
        rows, other = crowd(np.random.default_rng(seed), 18)
        if aligned(rows) and aligned(other):
            count += 1
            ratios.append(np.linalg.norm(estimator(rows) - estimator(other)) / estimator.l2_sensitivity(18))
    assert count > 800
    assert 0.1 < max(ratios) <= 1


@pytest.mark.slow
@settings(max_examples=200)
@given(st.integers(0, 2**32), st.sampled_from([12, 13, 30]))
def test_the_score_of_an_unaligned_batch_and_the_effect_of_one_user_on_it(seed, batch):
    rng = np.random.default_rng(seed)
    rows, other = crowd(rng, batch)
    kernel = IndicatorKernel(rng.choice([0.5, 1.0, 2.0]))
    scores = [kernel.score(values) for values in (rows, other)]
    assert abs(scores[0] - scores[1]) <= 2 * (batch - 1) / batch + 1e-9
    for values, score in zip((rows, other), scores, strict=True):
        assert aligned(values, kernel.radius) or score < kernel.unaligned_bound(batch)
    pairs = np.linalg.norm(rows[:, None] - rows, axis=2)
    assert scores[0] == pytest.approx(kernel.values(pairs).sum() / batch)


def test_counts_of_many_users_are_those_of_all_pairs():
    rows = np.random.default_rng(0).normal(size=(1500, 2))
    expected = (np.linalg.norm(rows[:, None] - rows, axis=2) <= 0.8).sum(axis=1)
    np.testing.assert_array_equal(neighbour_counts(rows, 0.8), expected)


def test_far_users_have_no_weight_and_the_rest_full_weight():
    rows = np.concatenate([np.zeros((15, 2)), np.full((5, 2), 1e300)])
    np.testing.assert_array_equal(NeighbourMean(1.0).weights(rows), [1.0] * 15 + [0.0] * 5)
    np.testing.assert_array_equal(NeighbourMean(1.0)(rows), [0.0, 0.0])
    scattered = np.arange(20.0)[:, None] * 100
    np.testing.assert_array_equal(NeighbourMean(1.0)(scattered), [0.0])


def test_the_score_of_counts_may_move_by_all_of_it():
    assert IndicatorKernel(1.0).movement_bound(10, 0.0) == 0
    assert IndicatorKernel(1.0).movement_bound(10, 0.1) == 9
