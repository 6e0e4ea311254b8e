"""No cell, of any size, leaves the bounds that its declaration promises."""

import math

import numpy as np
import pytest

from userdp.data.tables.columns import Columns
from userdp.data.tables.declared import scaled

ENDLESS = [math.nan, -math.inf, math.inf, -1.7e308, 1.7e308, 5e-324, -5e-324, 0.0, -0.0]
RANGES = [(0.0, 1.0), (-3.0, 1e-3), (0.1, 0.3), (1e9, 1e9 + 1), (-1e300, 1e300), (18.0, 99.9)]


@pytest.mark.parametrize("bounds", RANGES, ids=str)
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 1.0), (0.0, 255.0)])
def test_scaled_cells_lie_within_their_bounds_in_order_and_say_how_many_did_not(bounds, low, high):
    first, last = bounds
    inside = np.linspace(first, last, 101)
    around = np.nextafter([first, first, last, last], [-math.inf, math.inf, -math.inf, math.inf])
    values = np.array([*ENDLESS, *bounds, *around, *inside])
    found, clipped = scaled(values, bounds, low, high)
    known = ~np.isnan(values)
    assert np.isnan(found).tolist() == np.isnan(values).tolist()
    assert np.all((low <= found[known]) & (found[known] <= high))
    assert np.all(np.diff(found[known][np.argsort(values[known], kind="stable")]) >= 0)
    assert found[len(ENDLESS) : len(ENDLESS) + 2].tolist() == [low, high]
    assert clipped == sum(not first <= one <= last for one in values[known])
    for value, own in zip(values, found, strict=True):  # alone as in company
        np.testing.assert_array_equal(scaled(np.array([value]), bounds, low, high)[0], own)


NUMBERS = {"features": ["age", "dose"], "ranges": {"age": [0, 99], "dose": [0, 1]}}
LEVELS = {"categorical": {"city": ["Rome", "Oslo"], "sex": ["f", "m"]}}
DATES = {"dates": {"seen": ["2000-01-01", "2030-12-31"]}, "date_parts": {"seen": ["month", "weekday"]}}


@pytest.mark.parametrize(
    ("declared", "most"),
    [
        (NUMBERS, 2),
        (LEVELS, 2),
        (NUMBERS | LEVELS, 4),
        (NUMBERS | {"impute": {"age": 40, "dose": 0}, "missing_indicators": ["age", "dose"]}, 4),
        (NUMBERS | LEVELS | {"impute": {"age": 40}, "missing_indicators": ["age"]}, 5),
        (DATES, 3),
        (NUMBERS | LEVELS | DATES, 7),
    ],
    ids=lambda each: "+".join(each) if isinstance(each, dict) else str(each),
)
def test_a_sample_is_as_long_as_each_of_its_columns_makes_it(declared, most):
    """A number, an indicator, the one level of a column, and the one level of each part of a date are 1 each."""
    assert Columns(user="user", **declared).shape.feature_norm == most


@pytest.mark.parametrize(("columns", "buckets"), [(1, 8), (3, 8), (3, 2), (8, 8)])
def test_a_hashed_sample_has_an_entry_for_each_of_its_columns(columns, buckets):
    shape = Columns(user="user", codes=[f"code {one}" for one in range(columns)], buckets=buckets).shape
    assert (shape.sparsity, shape.feature_length, shape.bound) == (min(columns, buckets), 1.0, 1.0)


@pytest.mark.parametrize("side", [1, 5])
def test_a_picture_is_as_long_as_its_pixels(side):
    shape = Columns(user="user", images="picture", image_shape=[side, 2]).shape
    assert (shape.feature_norm, shape.bound) == (2.0 * side, 1.0)
