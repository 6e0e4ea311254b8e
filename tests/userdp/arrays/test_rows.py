"""Rows are clipped one by one, dense or sparse, whatever numbers they hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import add_clipped_rows, clip_rows, dense, row_lengths

entries = st.floats(allow_nan=False, allow_infinity=False, width=64)


matrices = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=entries)


norms = st.floats(1e-6, 1e6)


@pytest.mark.slow
@settings(max_examples=200)
@given(matrices, norms)
def test_a_clipped_row_never_exceeds_the_norm_even_where_squares_overflow(rows, clip_norm):
    clipped = clip_rows(rows, clip_norm)
    assert np.isfinite(clipped).all()
    assert np.all(np.linalg.norm(clipped, axis=1) <= clip_norm * (1 + 1e-12))


@pytest.mark.slow
@settings(max_examples=200)
@given(matrices, norms)
def test_short_rows_stay_and_long_rows_keep_their_direction(rows, clip_norm):
    clipped = clip_rows(rows, clip_norm)
    scale = np.abs(rows).max(axis=1)
    for row, new, largest in zip(rows, clipped, scale, strict=True):
        if largest == 0:
            assert not new.any()
            continue
        direction = row / largest
        norm = float(np.linalg.norm(direction))
        length = min(largest, clip_norm / norm)
        # The smallest numbers have few bits: a quotient is exact to one unit of the smallest number only, which what
        # it is multiplied by may enlarge.
        few = 1e-320 + 1e-323 * length
        np.testing.assert_allclose(new, row * (length / largest), rtol=1e-9, atol=few)
        if largest <= clip_norm / norm * (1 - 1e-12):  # a product could overflow
            np.testing.assert_allclose(new, row, rtol=1e-12, atol=1e-320)


@pytest.mark.parametrize("size", [1e300, 1e155, 1e-160, 5e-324])
def test_extreme_rows_are_clipped_by_hand(size):
    rows = np.array([[size, 0.0], [0.0, -size], [0.0, 0.0]])
    length = min(size, 2.0)
    np.testing.assert_allclose(clip_rows(rows, 2.0), [[length, 0.0], [0.0, -length], [0.0, 0.0]], rtol=1e-12, atol=0)


@settings(max_examples=100)
@given(arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 5)), elements=entries), norms)
def test_what_becomes_of_a_row_depends_on_that_row_alone_to_the_last_bit(rows, clip_norm):
    alone = [(clip_rows(row[None], clip_norm), row_lengths(row[None])) for row in rows]
    np.testing.assert_array_equal(clip_rows(rows, clip_norm), np.concatenate([clipped for clipped, _ in alone]))
    np.testing.assert_array_equal(row_lengths(rows), np.concatenate([length for _, length in alone]))


@settings(max_examples=100)
@given(matrices, norms)
def test_rows_clipped_while_they_are_added_give_the_sum_of_clipped_rows(rows, clip_norm):
    total = np.full(rows.shape[1], 0.25)
    add_clipped_rows(total, rows, clip_norm, row_lengths(rows))
    np.testing.assert_allclose(
        total, 0.25 + clip_rows(rows, clip_norm).sum(axis=0), rtol=0, atol=1e-14 * (1 + clip_norm) * len(rows)
    )


def test_a_row_within_the_clip_is_not_touched():
    rows = np.random.default_rng(0).normal(size=(500, 7))
    longest = float(row_lengths(rows).max())
    np.testing.assert_array_equal(clip_rows(rows, longest), rows)


@settings(max_examples=80)
@given(
    arrays(
        np.float64, st.tuples(st.integers(1, 7), st.integers(1, 5)), elements=st.sampled_from([0.0, 0.3, -2.0, 1e5])
    ),
    st.sampled_from([1e-3, 0.5, 1e3]),
    st.sampled_from([1, 2]),
)
def test_sparse_rows_are_clipped_as_dense_ones_are(rows, clip_norm, order):
    clipped = dense(clip_rows(csr_array(rows), clip_norm, order))
    np.testing.assert_allclose(clipped, clip_rows(rows, clip_norm, order), rtol=1e-12, atol=1e-13)
    assert np.linalg.norm(clipped, order, axis=1).max() <= clip_norm * (1 + 1e-12)
