"""Tables of the Arrow PyCapsule interface: every cell means the same as in a Parquet file."""

import datetime as dt
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from userdp.data import Derivation, SequenceColumns, read_table
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import table_file
from userdp.data.tables.reading import read_columns
from userdp.errors import BadInput, MissingColumn

DAY = dt.date(2021, 4, 3)
ROWS = {
    "who": pa.array(["ann", "bob", "ann", None, "cid"]).fill_null("dan"),
    "height": pa.array([1.5, None, float("nan"), float("inf"), 3.25]),
    "count": pa.array([2**53 + 1, None, -7, 0, 3], pa.int64()),
    "flag": pa.array([True, None, False, True, True]),
    "price": pa.array([Decimal("1.20"), None, Decimal("-3.00"), Decimal("0.05"), Decimal("9.99")]),
    "team": pa.array(["red", "1.0", "", None, "näh"]).dictionary_encode(),
    "born": pa.array([DAY, None, dt.date(1950, 1, 1), DAY, DAY]),
    "seen": pa.array([dt.datetime(2021, 4, 3, hour, tzinfo=dt.UTC) for hour in range(5)], pa.timestamp("us", "UTC")),
}
FORM = {
    "user": "who",
    "features": ["height", "count", "flag", "price"],
    "ranges": {"height": [0, 3], "count": [-10, 2.0**54], "flag": [0, 1], "price": [-5, 10]},
    "categorical": {"team": ["red", 1, "näh"]},
    "dates": {"born": ["1940-01-01", "2030-01-01"]},
    "date_parts": {"seen": ["hour"]},
    "derive": {"late": Derivation(kind="days_between", of=["seen", "born"], range=[0, 40_000])},
    "impute": {"team": "own level", "height": 1.0},
    "missing_indicators": ["height"],
}


def table_of(rows=ROWS):
    return pa.table(rows)


class Capsule:
    """An object of no library, with nothing but the interface."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def relation(table):
    connection = duckdb.connect()
    connection.register("people", table)
    return connection.sql("select * from people")


MADE = {
    "Table": lambda table: table,
    "RecordBatchReader": lambda table: table.to_reader(max_chunksize=2),
    "RecordBatch": lambda table: table.combine_chunks().to_batches()[0],
    "StructArray": lambda table: table.to_struct_array().combine_chunks(),
    "Capsule": Capsule,
    "polars": pl.DataFrame,
    "duckdb": relation,
    "pandas": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
}


def same(one, other):
    everybody = np.arange(one.federation.users)
    for left, right in zip(*(vars(table.federation.block(everybody)).values() for table in (one, other)), strict=True):
        np.testing.assert_array_equal(left, right)
    assert (one.labels.tolist(), one.feature_names, one.report) == (
        other.labels.tolist(),
        other.feature_names,
        other.report,
    )


@pytest.mark.parametrize("kind", MADE)
def test_a_table_in_memory_is_read_like_its_parquet_file(tmp_path, kind):
    pq.write_table(table_of(), tmp_path / "people.parquet")
    same(read_table(MADE[kind](table_of()), **FORM), read_table(tmp_path / "people.parquet", **FORM))


def test_a_stream_that_outgrows_memory_is_stored_like_its_file():
    stored = read_table(table_of().to_reader(max_chunksize=2), memory=0, **FORM)
    same(stored, read_table(table_of(), **FORM))


def test_enums_categories_and_views_of_polars_are_text(tmp_path):
    frame = pl.DataFrame({"who": ["a", "b", "c"], "x": ["1", "2.0", None]})
    for kind in (pl.Categorical, pl.Enum(["1", "2.0"])):
        given = frame.with_columns(pl.col("x").cast(kind))
        same(
            read_table(given, user="who", categorical={"x": ["1", "2"]}),
            read_table(frame.to_pandas(), user="who", categorical={"x": ["1", "2"]}),
        )


def test_lists_are_sequences_in_batches_too(tmp_path):
    table = pa.table({"who": ["a", "b"], "code": [[0, 1, 2], [2, 0]]})
    pq.write_table(table, tmp_path / "people.parquet")
    form = {"user": "who", "sequence": SequenceColumns(window=4, predict="code", levels=3)}
    for made in (pl.DataFrame(table), table.to_reader(max_chunksize=1)):
        same(read_table(made, **form), read_table(tmp_path / "people.parquet", **form))


def _texts(table, columns):
    with table_file(table, ["x"]) as path:
        found = read_columns(path, columns, ["x"]).texts["x"]
    return [found.distinct[at] for at in found.positions]


def test_no_time_of_seconds_stops_the_others():
    seconds = pa.array([0, 2**62, -(2**62), None], pa.timestamp("s"))
    times = pa.table({"x": seconds, "who": [*"abcd"]})
    for table in (times, times.to_pandas()):
        assert _texts(table, Columns(user="x", categorical={"y": ["1"]})) == ["1970-01-01", "", "", ""]


def test_a_missing_cell_where_the_schema_has_none_stops_nobody():
    schema = pa.schema([pa.field("who", pa.string(), nullable=False), pa.field("x", pa.float64(), nullable=False)])
    table = pa.table([["a", "b"], [1.0, None]], schema=schema)
    assert read_table(table, user="who", features=["x"], ranges={"x": [0, 1]}).report.unusable == {"x": 1}


FEATURE = {"user": "who", "features": ["x"], "ranges": {"x": [0, 1]}}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (pl.DataFrame({"who": ["a"]}), "the DataFrame has no column 'x'; it has who"),
        (
            pl.DataFrame({"who": ["a"], "X": [1.0]}).lazy(),
            r"the LazyFrame is no table: call .collect\(\) on it, or give a",
        ),
        (
            pl.Series([1]),
            r"the Series cannot be read as an Arrow table \(ArrowInvalid\): read it alone .* has named columns",
        ),
        (pd.Series([1]), r"the Series is no table: call .to_frame\(\) on it"),
        (pa.array([1]), r"the Int64Array cannot be read as an Arrow table \(ArrowInvalid\)"),
        (pa.table({"who": pa.array([], pa.string()), "x": pa.array([], pa.float64())}), "the Table has no rows"),
        (pa.table([["a"], [1], [2]], ["who", "x", "x"]), "the Table has column 'x' more than once"),
        (pa.table({"who": ["a"], "x": [{"y": 1}]}), "column 'x' holds struct, not numbers; convert"),
        ([1, 2], "the list is no table: make one by pandas"),
        (pd.DataFrame({"who": ["a"]}), "the DataFrame has no column 'x'; it has who"),
        (pd.DataFrame({"who": [], "x": []}), "the DataFrame has no rows"),
        (pd.DataFrame([["a", 1, 2]], columns=["who", "x", "x"]), "the DataFrame has column 'x' more than once"),
        (pd.DataFrame({"who": ["a"], "x": [1j]}), "column 'x' holds complex128, not text, numbers or dates; convert"),
    ],
)
def test_what_is_no_table_is_refused(table, told):
    with pytest.raises(BadInput, match=told):
        read_table(table, **FEATURE)


def test_types_that_parquet_lacks_are_refused_by_name():
    lasting = duckdb.sql("select 'a' as who, interval 1 day as x")
    with pytest.raises(BadInput, match="column 'x' holds month_day_nano_interval, not text, numbers or dates; convert"):
        read_table(lasting, **FEATURE)
    with pytest.raises(MissingColumn):
        read_table(lasting, user="who", features=["y"], ranges={"y": [0, 1]})


def test_a_stream_is_read_once_and_a_query_that_fails_shows_no_cell():
    stream = table_of().to_reader()
    read_table(stream, **FORM)
    with pytest.raises(BadInput, match=r"the RecordBatchReader has no rows \(a stream that has been read is empty"):
        read_table(stream, **FORM)
    cells = "case when i > 2 then 'secret' else '1' end"
    query = duckdb.sql(f"select 'a' as who, cast({cells} as int) as x from range(9) t(i)")
    for failing in (query, pa.RecordBatchReader.from_batches(table_of().schema, broken_batches())):
        with pytest.raises(BadInput, match=f"the {type(failing).__name__} cannot be read as an Arrow table") as caught:
            read_table(failing, **(FEATURE if failing is query else FORM))
        assert "secret" not in str(caught.value)


def broken_batches():
    yield from table_of().to_batches()
    raise ValueError("secret")
