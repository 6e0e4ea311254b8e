"""DataFrames as tables: every cell is read by itself, as it would be from a file."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import SequenceColumns, read_table
from userdp.data.tables.cells import cell_number, cell_text
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import table_file, write_frame
from userdp.data.tables.reading import read_columns
from userdp.errors import BadInput, MissingColumn


class Silent:
    """A cell whose own code fails."""

    def __str__(self):
        raise RuntimeError("no text")


COLUMNS = Columns(user="id", features=["x"], ranges={"x": [0, 1]}, categorical={"who": ["ann"]})
ODD = [Silent(), b"2.5", b"\xff", "\ud800", [1, 2], {"a": 1}, 10**5000, Decimal("sNaN"), pd.NaT, pd.NA, "", " 7 "]
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.decimals(),
    st.text(),
    st.dates(),
    st.datetimes().map(pd.Timestamp),
    st.times(),
    st.sampled_from(ODD),
)


def read(frame, columns=COLUMNS):
    """(texts of who, numbers of x) of a frame."""
    with table_file(frame.assign(id="u"), columns.names) as path:
        rows = read_columns(path, columns, columns.names)
    return [rows.texts["who"].distinct[at] for at in rows.texts["who"].positions], rows.numbers["x"]


def frame_of(cells, dtype=object):
    return pd.DataFrame({"who": pd.Series(cells, dtype=dtype), "x": pd.Series(cells, dtype=dtype)})


@pytest.mark.slow
@settings(max_examples=50)
@given(cells=st.lists(CELLS, min_size=1, max_size=4))
def test_a_cell_of_an_object_column_is_read_by_itself(cells):
    texts, numbers = read(frame_of(cells))
    for at, cell in enumerate(cells):
        (text,), (number,) = read(frame_of([cell]))
        assert texts[at] == text
        np.testing.assert_array_equal(numbers[at], number)


@pytest.mark.slow
@given(cell=st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.dates()))
def test_a_cell_of_an_object_column_has_the_text_and_the_number_of_its_value(cell):
    (text,), (number,) = read(frame_of([cell]))
    assert text == cell_text(cell_text(cell).encode("utf-8", "backslashreplace").decode())
    wanted = float(cell) if isinstance(cell, float | int) else cell_number(cell)
    np.testing.assert_array_equal(number, wanted if np.isfinite(wanted) else np.nan)


def test_text_is_read_to_the_letter_and_bytes_to_the_bit():
    frame = pd.DataFrame({"who": ["u"] * 3, "text": ["1.0", "True", None], "picture": [b"\0\xff", "1", None]})
    told = Columns(user="who", sequence=SequenceColumns(window=9, text="text", alphabet="01.Ture\n"))
    with table_file(frame, told.names) as path:
        features = read_table(path, user="who", sequence=told.sequence).federation.block(np.zeros(1, np.int64)).features
    assert features.tolist() == [[1, 2, 0, 7, 3, 5, 4, 6, 7]]
    with table_file(frame, ["who", "picture"]) as path:
        block = read_table(path, user="who", images="picture", image_shape=[1, 2]).federation.block(
            np.zeros(1, np.int64)
        )
    np.testing.assert_array_equal(block.features, [[0, 1], [np.nan] * 2, [np.nan] * 2])


@pytest.mark.parametrize("cell", ODD, ids=range(len(ODD)))
def test_no_cell_stops_the_others(cell):
    texts, numbers = read(frame_of(["ann", cell, 0.5]))
    assert (texts[0], texts[2], numbers[2]) == ("ann", "0.5", 0.5)


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        ([1, 2, 3], "int64"),
        ([1.5, np.nan, 3.0], "float64"),
        ([1.5, 2.25, 3.0], "float32"),
        ([True, False, True], "bool"),
        ([1, pd.NA, 3], "Int64"),
        ([True, pd.NA, False], "boolean"),
        (["1", "x", None], "string"),
        (["", "é", None, " 7 ", "1.0"], "string"),
        (["", "é", "1.0"], "str"),
        (["1", "\ud800"], "string[python]"),
        (["1", "x", "2.50"], "category"),
        ([2**63, 1, 2], "uint64"),
        ([1, "1", 1.0], "category"),
        (["2000-01", None, "2001-02"], "period[M]"),
        ([pd.Interval(0, 1), pd.Interval(1, 2)], "interval"),
    ],
)
def test_the_dtype_of_a_column_changes_no_cell(cells, dtype):
    texts, numbers = read(frame_of(cells, dtype))
    plain_texts, plain_numbers = read(frame_of(list(pd.Series(cells, dtype=dtype).astype(object))))
    assert texts == plain_texts
    np.testing.assert_array_equal(numbers, plain_numbers)


def test_dates_are_text_and_no_numbers():
    days = pd.Series([pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02 12:00")])
    with table_file(pd.DataFrame({"who": days}), ["who"]) as path:
        texts = read_columns(path, COLUMNS, ["who"]).texts["who"].distinct
    assert texts == ["2020-01-01", "2020-01-02 12:00:00"]
    assert texts[0] == cell_text(dt.date(2020, 1, 1))
    with pytest.raises(BadInput, match=r"column 'x' holds timestamp.*, not numbers; declare a feature of dates"):
        read(pd.DataFrame({"who": ["a", "b"], "x": days}))


def test_other_columns_are_left_where_they_are():
    texts, numbers = read(pd.DataFrame({"secret": [1j], "x": [0.5], "who": ["ann"]}))
    assert (texts, numbers.tolist()) == (["ann"], [0.5])
    with pytest.raises(MissingColumn):
        read(pd.DataFrame({"x": [0.5]}))


def test_nothing_stays_of_a_frame(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with table_file(frame_of([1]), ["who"]) as path:
        assert path.is_relative_to(tmp_path)
    assert not list(tmp_path.iterdir())


def test_columns_of_several_levels_are_refused_with_the_remedy(tmp_path):
    table = pd.DataFrame([[1, 2.0]], columns=pd.MultiIndex.from_tuples([("who", "id"), ("x", "mean")]))
    with pytest.raises(MissingColumn, match="columns of several levels: join them"):
        write_frame(table, tmp_path / "table.parquet", ["who"])
