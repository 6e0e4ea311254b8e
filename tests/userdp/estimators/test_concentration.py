"""P4 and P5 for the concentration scores: the same number on every path, and bounds that hold and are attained."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.estimators import ExpKernel, RampKernel, concentration, concentration_score, replacement_bound

KERNELS = [ExpKernel(1.0), RampKernel(1.0)]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=["exp", "ramp"])


def reference(rows, kernel):
    """The definition, in O(B^2 d) memory, with phi on its grid: sums are then exact."""
    distance = np.abs(rows[:, None, :].astype(np.float64) - rows[None, :, :]).max(axis=2)
    if isinstance(kernel, ExpKernel):
        phi = np.exp(-distance / kernel.radius)
    else:
        phi = np.clip(2 - 2 * distance / kernel.radius, 0, 1)
    return np.rint(phi * 2**30).sum() / 2**30 / len(rows)


def rounding(batch):
    """The largest difference between two scores that rounding makes, once for each."""
    return 2 * batch * 2.0**-53


def clouds(batch, dimension, seed):
    """Batches of every kind: agreeing, spread, with outliers, in clusters, in rings about the centre, equal."""
    rng = np.random.default_rng(seed)
    noise = rng.uniform(-1, 1, size=(batch, dimension))
    outliers = 0.1 * noise
    outliers[: batch // 5] += rng.normal(size=(batch // 5, 1))
    return {
        "agreeing": 0.2 * noise,
        "spread": 0.6 * noise,
        "far apart": 100 * noise,
        "outliers": outliers,
        "clusters": 0.1 * noise + rng.integers(0, 3, size=(batch, 1)) * 0.7,
        "rings": 0.3 * noise + rng.choice([0, 0.4, 1.6], size=(batch, 1)) * np.sign(noise[:, :1]),
        "equal": np.ones((batch, dimension)),
        "single precision": (0.4 * noise).astype(np.float32),
    }


@each_kernel
@pytest.mark.parametrize("tile", [2048, 7, 16])
@pytest.mark.parametrize(("batch", "dimension"), [(1, 1), (2, 3), (50, 1), (65, 4)])
def test_every_path_gives_the_score_of_the_definition(kernel, tile, batch, dimension, monkeypatch):
    monkeypatch.setattr(concentration, "TILE", tile)
    for name, rows in clouds(batch, dimension, seed=batch).items():
        score = concentration_score(rows, kernel)
        assert score == pytest.approx(reference(rows, kernel), rel=1e-15), name
        assert 1 <= score <= batch


@each_kernel
def test_scores_of_many_tiles_are_those_of_one_to_the_last_bit(kernel, monkeypatch):
    """And so a score of any number of users takes the memory of one tile, and nobody's place in the batch matters."""
    rows = np.random.default_rng(2).normal(scale=0.4, size=(2500, 3))
    scores = [concentration_score(rows, kernel), concentration_score(rows[::-1], kernel)]
    for tile in (4096, 500):
        monkeypatch.setattr(concentration, "TILE", tile)
        scores.append(concentration_score(rows, kernel))
    assert len(set(scores)) == 1


def all_pairs(rows, kernel):
    """The score without certificates."""
    whole = len(rows) * 2**30
    with np.errstate(over="ignore"):
        return (whole + 2 * concentration._pairs(rows, kernel)) / whole


def test_ramp_certificates_agree_with_computing_all_pairs():
    for name, rows in clouds(300, 3, seed=3).items():
        for kernel in (RampKernel(0.3), RampKernel(1.0), RampKernel(4.0)):
            assert concentration_score(rows, kernel) == all_pairs(rows, kernel), name


SIZES = st.one_of(st.floats(-300, 308.2).map(lambda power: 10.0**power), st.sampled_from([0.0, 0.2, 0.4, 1.0]))


@pytest.mark.slow
@settings(max_examples=200)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=4),
    centre=SIZES,
    seed=st.integers(0, 2**32 - 1),
    batch=st.integers(2, 40),
    radius=st.sampled_from([1.0, 0.7, 1e-250, 1e250]),
)
def test_certificates_give_exactly_what_all_pairs_give_for_rows_of_any_size(sizes, centre, seed, batch, radius):
    """Groups of rows that are equal, a few floats apart or within a radius, about a centre that may be huge itself."""
    rng = np.random.default_rng(seed)
    places = np.clip(np.array([*sizes, centre]) * min(1.0, radius), -1.7e308, 1.7e308)
    rows = rng.choice(places, size=(batch, 2)) * rng.choice([-1.0, 1.0], size=(batch, 1))
    rows[: batch // 2 + 1] = -places[-1]
    rows = np.where(rng.random(rows.shape) < 0.3, np.nextafter(rows, 0), rows)
    rows += np.where(rng.random(rows.shape) < 0.3, radius * rng.uniform(-0.6, 0.6, rows.shape), 0.0)
    kernel = RampKernel(radius)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concentration, "TILE", 16)
        assert concentration_score(rows, kernel) == all_pairs(rows, kernel)


def test_rows_whose_deviations_are_rounded_by_more_than_the_radius_still_agree():
    """Deviations from a centre at -2^54 are multiples of 4: two rows half a radius apart come out 4 radii apart."""
    rows = np.full((100, 1), -(2.0**54))
    rows[:20], rows[20:40] = 2.0**50 + 2, 2.0**50 + 2.5
    deviations = np.abs(rows + 2.0**54)[:, 0]
    assert deviations[20] - deviations[0] == 4
    assert concentration_score(rows, RampKernel(1.0)) == all_pairs(rows, RampKernel(1.0)) == (40**2 + 60**2) / 100


def on_the_edge_of_the_paths(batch, near, huge, radius):
    """Rows of which just under half of the pairs are undecided, some of them huge and equal, and a row that tips it."""
    undecided = next(u for u in range(batch) if 4 * (u * (u + 1) // 2) > batch * (batch - 1))
    far = round(0.105 * batch)
    rows = np.tile(near, (batch, 1))
    rows[:undecided, -1] += np.where(np.arange(undecided) % 2, 0.3, -0.3) * radius
    rows[undecided : undecided + far] = huge
    replaced = rows.copy()
    replaced[-1, -1] += 0.3 * radius
    return rows, replaced


HUGE = {
    "2^53 radii": ([0.0], [2.0**53]),
    "2^60 radii": ([0.0], [2.0**60]),
    "1e308": ([0.0], [1e308]),
    "opposite ends": ([0.0, 0.0], [1.7e308, -1.7e308]),
    "differences overflow": ([-1.5e308, 0.0], [1.5e308, 0.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1000, 10_000])
@pytest.mark.parametrize("name", HUGE)
def test_one_user_who_changes_the_path_moves_the_score_of_huge_equal_rows_within_the_bound(name, batch):
    near, huge = (np.array(row) for row in HUGE[name])
    rows, replaced = on_the_edge_of_the_paths(batch, near, huge, 1.0)
    scores = [concentration_score(values, RampKernel(1.0)) for values in (rows, replaced)]
    assert abs(scores[0] - scores[1]) <= replacement_bound(batch) + rounding(batch)


def test_agreeing_users_need_no_distance_of_pairs(monkeypatch):
    monkeypatch.setattr(concentration, "_pairs", None)
    monkeypatch.setattr(concentration, "_undecided_pairs", None)
    rows = np.random.default_rng(0).uniform(-1, 1, size=(5000, 3))
    assert concentration_score(rows, RampKernel(4.4)) == 5000
    rows[0] = 1e6
    assert concentration_score(rows, RampKernel(4.4)) == pytest.approx((4999**2 + 1) / 5000, rel=1e-12)


@each_kernel
@pytest.mark.parametrize("batch", [2, 3, 10])
def test_the_replacement_bound_is_attained(kernel, batch):
    rows = np.zeros((batch, 2))
    replaced = rows.copy()
    replaced[0] = 1e6
    change = concentration_score(rows, kernel) - concentration_score(replaced, kernel)
    assert change == pytest.approx(replacement_bound(batch), rel=1e-12)
    assert replacement_bound(batch) == 2 * (batch - 1) / batch


@each_kernel
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(2, 20), move=st.floats(0, 1.5))
def test_moving_every_user_moves_the_score_by_no_more_than_the_bound(kernel, seed, batch, move):
    rng = np.random.default_rng(seed)
    rows = rng.choice([0.0, 0.2, 0.5, 0.9], size=(batch, 2))
    moved = rows + rng.choice([-move, move], size=rows.shape)
    change = abs(concentration_score(rows, kernel) - concentration_score(moved, kernel))
    assert change <= kernel.movement_bound(batch, 2 * move * (1 + 2.0**-50)) + rounding(batch)


@each_kernel
@pytest.mark.parametrize("movement", [0.01, 0.3, 0.5])
def test_the_movement_bound_is_attained(kernel, movement):
    """Pairwise distances all equal, where the kernel is steepest, then all larger by the movement."""
    batch = 12
    steepest = 0.0 if isinstance(kernel, ExpKernel) else kernel.radius / 2
    before = concentration_score(steepest * np.eye(batch), kernel)
    after = concentration_score((steepest + movement) * np.eye(batch), kernel)
    assert before - after == pytest.approx(kernel.movement_bound(batch, movement), rel=1e-6)


def test_the_movement_bound_covers_the_grid_of_phi():
    """A movement too small to matter takes every pair over the edge between two multiples of 2^-30."""
    batch, edge, movement = 12, 0.5 + 2.0**-32, 2.0**-40
    scores = [concentration_score((edge + side * movement / 2) * np.eye(batch), RampKernel(1.0)) for side in (-1, 1)]
    assert scores[0] - scores[1] == pytest.approx((batch - 1) * 2.0**-30)
    assert 2 * (batch - 1) * movement < scores[0] - scores[1] <= RampKernel(1.0).movement_bound(batch, movement)
    assert (batch - 1) * 2.0**-30 <= ExpKernel(1.0).movement_bound(batch, movement)


def test_movement_bounds_by_hand():
    assert ExpKernel(2.0).movement_bound(11, 2.0) == pytest.approx(10 * (1 - math.exp(-1)))
    assert RampKernel(2.0).movement_bound(11, 0.5) == pytest.approx(5.0)
    assert RampKernel(2.0).movement_bound(11, 7.0) == 10.0
    assert ExpKernel(2.0).movement_bound(11, 0.0) == RampKernel(2.0).movement_bound(11, 0.0) == 0.0


def is_aligned(numbers, radius):
    """True if an interval of the radius holds two thirds of the numbers."""
    ordered = np.sort(numbers)
    count = -(-2 * len(ordered) // 3)  # two thirds, rounded up
    return bool((ordered[count - 1 :] - ordered[: len(ordered) - count + 1] <= 2 * radius).any())


@each_kernel
def test_unaligned_batches_score_no_more_than_the_bound(kernel):
    rng = np.random.default_rng(8)
    unaligned, best = 0, 0.0
    for _ in range(1500):
        batch = int(rng.integers(3, 25))
        places = rng.choice([0.0, 1.0001, 1.9, 2.0001, 3.1, 50.0], size=int(rng.integers(2, 5)))
        numbers = rng.choice(places, size=batch) + rng.choice([0.0, 1e-3]) * rng.normal(size=batch)
        if is_aligned(numbers, kernel.radius):
            continue
        unaligned += 1
        share = concentration_score(numbers[:, None], kernel) / kernel.unaligned_bound(batch)
        best = max(best, share)
    assert unaligned > 300
    assert 0.5 < best <= 1


def test_unaligned_bounds_are_two_thirds_and_a_little_more_for_exp():
    assert RampKernel(5.0).unaligned_bound(300) == 200
    assert ExpKernel(5.0).unaligned_bound(1000) == pytest.approx(789.3, abs=0.1)
