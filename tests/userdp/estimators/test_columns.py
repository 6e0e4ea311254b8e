"""Order statistics and means of columns: those of sorted ones, to the last bit, in any order, however wild they are."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.estimators import columns, coordinate_median, trimmed_mean
from userdp.estimators.columns import clipped_mean, order_statistics

LARGEST = np.finfo(np.float64).max
SEEDS = st.integers(0, 2**32 - 1)


def kinds(count, seed):
    """A column of each kind: of one density or another, with ties, of every size, in rising order, constant."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=count)
    half = np.where(rng.random(count) < 0.5, 1.0, normal)
    return {
        "normal": normal,
        "far from zero": 1e9 + normal,
        "uniform": rng.uniform(-1, 1, count),
        "long tails": rng.standard_cauchy(count) ** 3,
        "huge": normal * 1e307,
        "too large for float32 now and then": normal * 1e38,
        "largest": rng.choice([-LARGEST, LARGEST, 0.0], count),
        "tiny": normal * 1e-310,
        "of every size": normal * 10.0 ** rng.integers(-300, 300, count),
        "coins": rng.integers(0, 2, count).astype(float),
        "signs of zero": rng.choice([-0.0, 0.0], count),
        "half of them equal": half,
        "few values": rng.integers(0, 9, count) / 7,
        "rising": np.sort(normal),
        "constant": np.full(count, 0.1),
        "zero": np.zeros(count),
        "one apart": np.where(np.arange(count) == 3, 1e300, 0.0),
    }


@settings(max_examples=50)
@given(seed=SEEDS, count=st.integers(256, 700), rank=st.floats(0, 1), span=st.floats(0, 1))
def test_any_ranks_of_columns_side_by_side(seed, count, rank, span):
    rows = np.column_stack(list(kinds(count, seed).values()))
    first = round(rank * (count - 1))
    last = first + round(span * (count - 1 - first))
    ordered = np.sort(rows, axis=0)
    low, high = order_statistics(rows, first, last)
    assert np.array_equal(low, ordered[first])
    assert np.array_equal(high, ordered[last])


@pytest.mark.parametrize("count", [7, 300, 1000, 5000])
def test_a_clipped_mean_errs_by_less_than_is_stated(count):
    for name, column in kinds(count, seed=count).items():
        ordered = np.sort(column)
        for dropped in (0, count // 3, (count - 3) // 2):
            low, high = ordered[[dropped]], ordered[[count - 1 - dropped]]
            kept = [Fraction(value) for value in ordered[dropped : count - dropped].tolist()]
            mean = Fraction(float(clipped_mean(column[:, None], low, high, dropped)[0]))
            bound = (2 + Fraction(count, 128)) / 2**53 * max(abs(kept[0]), abs(kept[-1]))
            assert abs(mean - sum(kept) / len(kept)) <= bound + Fraction(1, 2**1074), (name, dropped)


def test_a_clipped_mean_clips():
    rows = np.array([[-5.0, 0.5], [0.25, 0.5], [7.0, 0.5]])
    assert clipped_mean(rows, np.array([-1.0, 0.0]), np.array([1.0, 0.25])).tolist() == [0.25 / 3, 0.25]


@settings(max_examples=30)
@given(seed=SEEDS, entries=st.sampled_from([1, 5000]))
def test_means_do_not_depend_on_the_order_of_rows_nor_on_the_parts_in_which_they_are_added(seed, entries):
    rows = np.column_stack(list(kinds(300, seed).values()))
    low, high = order_statistics(rows, 30, 269)
    mean = clipped_mean(rows, low, high, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_ENTRIES", entries)
        shuffled = np.random.default_rng(seed).permutation(rows)
        assert np.array_equal(clipped_mean(shuffled, low, high, 30), mean)
        assert np.array_equal(np.stack(order_statistics(shuffled, 30, 269)), np.stack([low, high]))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 301, 1000])
def test_medians_and_trimmed_means_match_plain_numpy(count):
    rows = np.random.default_rng(4).normal(size=(count, 30)).astype(np.float32)
    assert np.array_equal(coordinate_median(rows), np.median(rows.astype(np.float64), axis=0))
    ordered = np.sort(rows.astype(np.float64), axis=0)
    for trim in {0, min(100, count // 3), (count - 1) // 2}:
        np.testing.assert_allclose(trimmed_mean(rows, trim), ordered[trim : count - trim].mean(axis=0), rtol=1e-12)
