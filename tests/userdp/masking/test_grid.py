"""The grid of masked sums: no row grows, no sum wraps around, neighbours differ by what is said."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from userdp.arrays.sparse_rows import clip_rows
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid

quick = settings(max_examples=60, deadline=None)
NUMBERS = st.floats(-1e6, 1e6)


@quick
@given(arrays(np.float64, (4, 3), elements=NUMBERS), st.integers(-40, 10))
def test_no_row_grows_and_none_moves_by_a_step(rows, exponent):
    grid = IntegerGrid(exponent)
    placed = np.ldexp(grid.whole(rows).astype(np.float64), exponent)
    assert np.all(np.abs(placed) <= np.abs(rows))
    assert np.all(np.abs(rows - placed) < grid.step)


@quick
@given(
    arrays(np.float64, (5, 2), elements=NUMBERS), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.permutations(range(5))
)
def test_a_sum_read_modulo_2_64_is_the_true_one_in_any_order(rows, clip, deviation, order):
    grid = IntegerGrid.finest(deviation, 5, clip)
    whole = grid.whole(clip_rows(rows, clip))
    total = np.zeros(2, dtype=np.uint64)
    for user in order:
        total += whole[user].view(np.uint64)
    exact = [math.ldexp(sum(int(value) for value in column), grid.exponent) for column in whole.T]
    np.testing.assert_array_equal(grid.values(total), exact)


@pytest.mark.parametrize(("terms", "clip", "deviation"), [(1, 1.0, 1e-3), (1000, 0.3, 2.0), (10**6, 5.0, 1e4)])
def test_the_largest_sum_with_the_largest_noise_fits_and_half_a_step_would_waste_no_bit(terms, clip, deviation):
    grid = IntegerGrid.finest(deviation, terms, clip)
    largest = (terms * clip * (1 + 2.0**-22) + 16 * deviation) / grid.step
    assert 2.0**61 * (1 - 1e-5) <= largest <= 2.0**62


def test_a_grid_has_room_for_rows_as_long_as_a_clip_in_floating_point_leaves_them():
    """The longest row is below a power of two by less than the clip's error, and there is next to no noise."""
    longest = 1 - 2.0**-22
    assert IntegerGrid.finest(1e-30, 1, longest).exponent == IntegerGrid.finest(1e-30, 1, 1.5).exponent
    assert IntegerGrid.finest(1e-30, 1, 1 - 2.0**-19).exponent == IntegerGrid.finest(1e-30, 1, 0.75).exponent


def test_a_user_moves_the_sum_by_no_more_than_twice_the_clip_whatever_its_data():
    worst = [0.0, 0.7, -0.7, 1 / 3, 1e300, -1e300, 5e-324]
    rows = clip_rows(np.array(list(itertools.product(worst, repeat=3))), 0.7)
    whole = IntegerGrid.finest(1.0, 2, 0.7).whole(rows).astype(object)
    squares = (whole * whole).sum(axis=1)
    step = IntegerGrid.finest(1.0, 2, 0.7).step
    # In whole numbers, exactly: neither the clip's float64 nor the grid makes a row longer than the slack covers.
    longest = math.isqrt(int(squares.max())) + 1
    assert 0.7 * (1 - 1e-9) < longest * step <= 0.7 * (1 + 2.0**-22)
    apart = max(int(((one - whole[0]) ** 2).sum()) for one in whole)
    farthest = max(int(((one - other) ** 2).sum()) for one, other in itertools.combinations(whole[::5], 2))
    assert math.sqrt(max(apart, farthest)) * step <= 1.4 * (1 + 2.0**-22)


def test_sums_of_nothing_and_units_in_which_no_grid_can_be_had_are_refused():
    with pytest.raises(BadInput, match="must be positive"):
        IntegerGrid.finest(1.0, 0, 1.0)
    with pytest.raises(BadInput, match="other units"):
        IntegerGrid.finest(1e-300, 1, 1e-300)
