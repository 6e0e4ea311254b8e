"""Cells by themselves: one text and one number for each value, whatever the column's type; every cell has them."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data.tables.cells import cell_number, cell_text, numbers_of, texts_of

SAME = {
    "": [None, float("nan"), np.float32("nan"), pd.NaT, pd.NA, Decimal("NaN"), ""],
    "1": [1, 1.0, np.float32(1), np.int8(1), Decimal("1.00"), "1", "1.0", "1.000", True, np.True_, "True"],
    "0": [0, 0.0, -0.0, "-0.0", Decimal("-0.00"), "0.0", False, np.False_, "False"],
    "2.5": [2.5, np.float32(2.5), Decimal("2.50"), "2.5", "2.50"],
    "-12.5": [-12.5, "-12.50"],
    "9007199254740993": [2**53 + 1, np.int64(2**53 + 1), Decimal(2**53 + 1), "9007199254740993"],
    "1152921504606846976": [2**60, float(2**60), str(float(2**60))],
    "10000000000000000": [10**16, 1e16, "1e+16", Decimal("1E+16")],
    "0.00001": [1e-5, "1e-05", "0.00001", Decimal("1E-5")],
    "2024-01-31": [
        date(2024, 1, 31),
        datetime(2024, 1, 31),
        pd.Timestamp(2024, 1, 31),
        "2024-01-31 00:00:00",
        "2024-01-31T00:00:00.000",
    ],
    "2024-01-31 12:00:00.5": [
        datetime(2024, 1, 31, 12, microsecond=500_000),
        "2024-01-31 12:00:00.500",
        "2024-01-31T12:00:00.5",
    ],
    "2024-01-31 00:00:00+00:00": [
        datetime(2024, 1, 31, tzinfo=UTC),
        datetime(2024, 1, 31, 2, tzinfo=timezone(timedelta(hours=2))),
    ],
    "12:30:00": [time(12, 30), "12:30:00.000"],
    "3 days": ["3 days", "3 days 00:00:00"],
}


@pytest.mark.parametrize(("text", "cells"), SAME.items())
def test_one_value_is_one_text(text, cells):
    assert [cell_text(cell) for cell in cells] == [text] * len(cells)


@pytest.mark.parametrize(
    "cell",
    ["007", "007.0", "7 ", "1e5", "1E+16", "0x1f", "1_000", ".5", "5.", "\u0661.\u0660", "Drama", "inf", "nan", "v1.0"],
)
def test_other_text_stays_as_it_is(cell):
    assert cell_text(cell) == cell


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1", 1),
        (" 1\t", 1),
        ("+1.5e3", 1500),
        (".5", 0.5),
        ("5.", 5),
        ("1E-2", 0.01),
        ("True", 1),
        ("False", 0),
        (Decimal("1.10"), 1.1),
        *dict.fromkeys(
            [None, "", "nan", "NaN", "inf", "-Infinity", "1_000", "0x1f", "1,5", "\u0661"], math.nan
        ).items(),
        *dict.fromkeys(["1 2", "Zebra", "1e", "e5", "."], math.nan).items(),
    ],
)
def test_numbers_are_read_as_csv_files_have_them_and_other_spellings_are_none(cell, number):
    np.testing.assert_equal(cell_number(cell), number)


@pytest.mark.parametrize("cell", ["1" * 200_000 + "x", "0." + "1" * 200_000 + "x", "-" * 200_000, "1" * 200_000])
def test_a_long_cell_is_read_like_a_short_one(cell):
    assert cell_text(cell) == cell
    assert not math.isfinite(cell_number(cell))


TYPES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.float16(): st.floats(width=16),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 9): st.decimals(
        allow_nan=False, allow_infinity=False, places=9, min_value=-(10**20), max_value=10**20
    ),
    pa.large_string(): st.text(),
    pa.string(): st.one_of(st.integers(), st.floats(), st.booleans(), st.dates()).map(str),
}


@pytest.mark.slow
@settings(max_examples=80)
@given(
    st.sampled_from(list(TYPES)).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(st.none() | TYPES[kind], min_size=1))
    )
)
def test_a_column_is_read_cell_by_cell_whatever_its_type(drawn):
    """The fast reading of a whole column equals reading its cells one by one, and reading their text."""
    kind, cells = drawn
    cells = [np.float16(cell) if kind == pa.float16() and cell is not None else cell for cell in cells]
    column = pa.chunked_array([pa.array([cell], type=kind) for cell in cells])
    whole = texts_of(column, "c")
    texts = [whole.distinct[position] for position in whole.positions]
    assert texts == [cell_text(cell) for cell in column.to_pylist()]
    assert len(set(whole.distinct)) == len(whole.distinct)
    numbers = numbers_of(column, "c")
    alone = np.concatenate([numbers_of(pa.chunked_array([chunk]), "c") for chunk in column.chunks])
    assert numbers.tobytes() == alone.tobytes()
    if not pa.types.is_large_string(kind) and not pa.types.is_string(kind):
        by_text = np.array([cell_number(text) for text in texts])
        np.testing.assert_array_equal(numbers, np.where(np.isfinite(by_text), by_text, np.nan))


@settings(max_examples=80)
@given(
    st.sampled_from(
        [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Europe/Berlin")]
        + [pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    ),
    st.data(),
)
def test_every_date_has_a_text_that_no_other_cell_changes(kind, data):
    """Dates of any year: Python ends at 9999."""
    bits = kind.bit_width
    ticks = data.draw(st.lists(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), min_size=1, max_size=6))
    cells = pa.array(ticks, type=pa.int32() if bits == 32 else pa.int64()).view(kind)
    whole = texts_of(pa.chunked_array([cells]), "c")
    alone = [texts_of(pa.chunked_array([cells[row : row + 1]]), "c").distinct[0] for row in range(len(ticks))]
    assert [whole.distinct[position] for position in whole.positions] == alone


@settings(max_examples=60)
@given(
    st.lists(
        st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)) | st.dates(date(1700, 1, 1), date(2200, 1, 1)),
        min_size=1,
    )
)
def test_a_timestamp_is_one_text_whatever_the_unit_and_whether_csv_or_parquet(cells):
    moments = [cell if isinstance(cell, datetime) else datetime.combine(cell, time()) for cell in cells]
    expected = [cell_text(moment) for moment in moments]
    for unit in ("us", "ns"):
        whole = texts_of(pa.chunked_array([pa.array(moments, type=pa.timestamp(unit))]), "c")
        assert [whole.distinct[position] for position in whole.positions] == expected
    assert [cell_text(line) for line in pd.DataFrame({"c": moments}).to_csv(index=False).splitlines()[1:]] == expected


@pytest.mark.parametrize("scale", [12, 20, 30])
def test_a_decimal_is_the_nearest_number_whatever_the_scale_that_other_cells_ask_for(scale):
    """PyArrow's own conversion misses the nearest float64 of these: it works from the digits at the column's scale."""
    cells = [Decimal("6.881529588781"), Decimal("0.1"), Decimal("12345.678901234567")]
    numbers = numbers_of(pa.chunked_array([pa.array(cells, pa.decimal128(38, scale))]), "c")
    assert numbers.tolist() == [6.881529588781, 0.1, 12345.678901234567]


def test_bytes_that_are_no_utf8_are_spelled_out():
    broken = pa.array([b"Jos\xe9", b"Jos\xe8", b"1.0", None]).view(pa.string())
    for column in (broken, broken.cast(pa.binary()), pa.array([b"Jos\xe9", b"Jos\xe8"], pa.binary(4))):
        assert texts_of(pa.chunked_array([column]), "c").distinct[:2] == ["Jos\\xe9", "Jos\\xe8"]
        assert np.isnan(numbers_of(pa.chunked_array([column]), "c")[:2]).all()


def test_dictionaries_and_extensions_are_read_as_what_they_hold():
    words = pa.chunked_array([pa.array(["b", None, "1.0"]).dictionary_encode(), pa.array(["a"]).dictionary_encode()])
    column = texts_of(words, "c")
    assert [column.distinct[position] for position in column.positions] == ["b", "", "1", "a"]
    numbers = pa.chunked_array([pa.array([5, None, 5]).dictionary_encode()])
    np.testing.assert_array_equal(numbers_of(numbers, "c"), [5, np.nan, 5])
    assert len(texts_of(pa.chunked_array([pa.array([b"x" * 16, b"y" * 16], pa.uuid())]), "c").distinct) == 2


def test_a_number_that_is_not_finite_is_none():
    column = pa.chunked_array([pa.array([1.0, np.inf, -np.inf, np.nan, None])])
    np.testing.assert_array_equal(numbers_of(column, "c"), [1.0, np.nan, np.nan, np.nan, np.nan])
