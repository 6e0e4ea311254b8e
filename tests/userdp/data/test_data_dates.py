"""Dates as features: days within declared bounds, parts by declaration, missing ones, and what is refused."""

from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import rows_of_table

from userdp.data import Derivation, read_table
from userdp.data.tables.columns import Columns
from userdp.errors import BadInput

BORN = {"born": ["1980-01-01", "1980-01-11"]}
FORM = {"user": "who", "dates": BORN}
PEOPLE = {
    "who": ["ann", "ann", "bob", "bob", "cy"],
    "born": ["1980-01-01", "1980-01-06T12:00", "1985-01-01", None, "03/04/1980"],
    "visited": ["2021-04-03 10:30", "2021-12-31T23:00-02:00", "", "soon", "2021-01-04"],
}
AGE = Derivation(kind="days_between", of=["visited", "born"], range=[0, 20000])


def rows_of(folder, people=PEOPLE, suffix="csv", **changes):
    return rows_of_table(folder, people, {**FORM, **changes}, suffix)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("scale", "low"), [("symmetric", -1.0), ("unit", 0.0)])
def test_days_since_the_first_bound_are_clipped_and_scaled(tmp_path, suffix, scale, low):
    features, names, report = rows_of(tmp_path, suffix=suffix, scale=scale)
    assert names == ["born"]
    share = np.array([0.0, 0.55, 1.0, np.nan, np.nan])
    np.testing.assert_array_equal(features[:, 0], (low + (1 - low) * share).astype(np.float32))
    assert report.clipped == {"born": 1}
    assert report.unusable == {"born": 2}
    assert not report.nothing_usable


@pytest.mark.parametrize(
    "bounds",
    [
        [date(1980, 1, 1), date(1980, 1, 11)],
        (datetime(1980, 1, 1), pd.Timestamp("1980-01-11")),
        [np.datetime64("1980-01-01"), datetime(1980, 1, 11, tzinfo=UTC)],
        ["1980-01-01T02:00+02:00", "19800111"],
    ],
)
def test_bounds_are_dates_of_any_kind(tmp_path, bounds):
    expected = rows_of(tmp_path)[0]
    np.testing.assert_array_equal(rows_of(tmp_path, dates={"born": bounds})[0], expected)


def test_parts_are_levels_that_are_public_by_nature(tmp_path):
    parts = {"visited": ["weekday", "month"], "born": ["quarter"]}
    features, names, report = rows_of(tmp_path, dates={}, date_parts=parts)
    assert names[:3] == ["visited weekday=monday", "visited weekday=tuesday", "visited weekday=wednesday"]
    assert names[7:9] == ["visited month=1", "visited month=2"]
    assert names[-4:] == [f"born quarter={quarter}" for quarter in (1, 2, 3, 4)]
    found = [{names[place] for place in np.flatnonzero(row)} for row in features]
    assert found == [
        {"visited weekday=saturday", "visited month=4", "born quarter=1"},
        {"visited weekday=saturday", "visited month=1", "born quarter=1"},  # a new year in UTC
        {"born quarter=1"},
        set(),
        {"visited weekday=monday", "visited month=1"},
    ]
    assert report.unknown_levels == {"visited": 2, "born": 2}
    assert Columns(user="who", date_parts=parts).samples.largest_norm == 3.0


def test_a_column_may_be_a_number_and_parts(tmp_path):
    features, names, report = rows_of(tmp_path, date_parts={"born": ["month", "hour"]})
    assert (len(names), names[0], names[1], names[-1]) == (37, "born", "born month=1", "born hour=23")
    assert np.isnan(features[:, 0]).tolist() == [False, False, False, True, True]
    assert features[1, names.index("born hour=12")] == 1
    assert report.unknown_levels == {}  # such a sample is set aside already


def test_a_declared_form_reads_what_is_not_guessed(tmp_path):
    features, _, report = rows_of(tmp_path, date_formats={"born": "%d/%m/%Y"})
    assert np.isnan(features[:, 0]).tolist() == [False, False, False, True, False]
    assert features[4, 0] == 1.0
    assert report.clipped == {"born": 2}


def test_a_declared_date_stands_for_a_missing_one(tmp_path):
    declared = {
        "impute": {"born": date(1980, 1, 6), "visited": "2021-05-01"},
        "missing_indicators": ["born", "visited"],
    }
    features, names, report = rows_of(tmp_path, **declared, date_parts={"visited": ["quarter"]})
    assert names[:3] == ["born", "born is missing", "visited is missing"]
    np.testing.assert_array_equal(features[3:, :3], [[0, 1, 1], [0, 1, 0]])
    np.testing.assert_array_equal(features[2:4, 3:], [[0, 1, 0, 0], [0, 1, 0, 0]])
    assert report.imputed == {"born": 2, "visited": 2}
    assert report.unusable == {"born": 0}


def test_days_between_two_dates_are_derived_and_the_dates_need_be_no_features(tmp_path):
    features, names, report = rows_of(tmp_path, dates={}, derive={"age": AGE}, impute={"born": "1980-01-01"})
    assert names == ["age"]
    days = [(datetime(2021, 4, 3, 10, 30) - datetime(1980, 1, 1)).total_seconds() / 86400, None, None, None, 14979.0]
    days[1] = (datetime(2022, 1, 1, 1) - datetime(1980, 1, 6, 12)).total_seconds() / 86400
    wanted = [np.nan if one is None else one / 10000 - 1 for one in days]
    np.testing.assert_allclose(features[:, 0], wanted, rtol=1e-6)
    assert report.unusable == {"age": 2}
    beside = Derivation(kind="days_between", of=["visited", "born"], range=[0, 9], otherwise=4)
    features, names, _ = rows_of(tmp_path, derive={"age": beside})  # not clipped into the bounds first
    assert names == ["born", "age"]
    assert features[2, 1] == np.float32(2 * 4 / 9 - 1)


# What is said of columns of which no cell is a date -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "formats", "told"),
    [
        (
            ["03/04/2021", "05/04/2021"],
            {},
            "its cells are dates; which number is the day and which the month is not gue",
        ),
        (["03/04/2021"], {}, "date_formats = { born = '%d.%m.%Y' }"),
        (["03/04/2021"], {"born": "%d.%m.%Y"}, "check date_formats.born = '%d.%m.%Y'"),
        (["10:30"], {}, "its cells are times of day; write the day before each time"),
        (["44289", "44290"], {}, "its cells are numbers; write dates as 2021-04-03, or declare numbers under features"),
        (["soon", "later"], {}, "its cells are text; write dates as 2021-04-03, or declare their format"),
        ([None, None], {}, "has no cell with a value"),
    ],
)
def test_a_column_without_a_date_comes_with_its_remedy(tmp_path, cells, formats, told):
    people = {"who": [f"u{place}" for place in range(len(cells))], "born": cells}
    for how in (
        {"dates": BORN},
        {"dates": {}, "derive": {"none": Derivation(**AGE.model_dump() | {"of": ["born"] * 2})}},
    ):
        _, _, report = rows_of(tmp_path, people, date_formats=formats, **how)
        (sentence,) = report.nothing_usable
        assert "the feature 'born'" in sentence
        assert told in sentence
        assert "44289" not in sentence
        assert "03/04" not in sentence


def test_parts_of_what_is_no_date_tell_nothing_and_set_nobody_aside(tmp_path):
    people = {"who": ["a", "b"], "born": ["03/04/2021", ""]}
    features, _, report = rows_of(tmp_path, people, dates={}, date_parts={"born": ["quarter"]})
    assert not features.any()
    (sentence,) = report.nothing_usable
    assert sentence.startswith("the feature 'born' is declared as a date, and no cell can be read as one")
    assert "date_formats = { born = " in sentence


def test_a_column_that_is_not_there_and_types_that_hold_no_dates_are_refused(tmp_path):
    with pytest.raises(BadInput, match="has no column 'bron' and too few of the others to tell"):
        rows_of(tmp_path, dates={"bron": BORN["born"]})
    pq.write_table(pa.table({"who": ["a"], "born": [[1]]}), tmp_path / "lists.parquet")
    with pytest.raises(BadInput, match="column 'born' holds list"):
        read_table(tmp_path / "lists.parquet", **FORM)
    pq.write_table(pa.table({"who": ["a"], "born": [datetime(1980, 1, 2)]}), tmp_path / "dates.parquet")
    with pytest.raises(BadInput, match=r"'born' holds timestamp.* dates = \{ born = \['1950-01-01', '2030-12-31'\] \}"):
        read_table(tmp_path / "dates.parquet", user="who", features=["born"], ranges={"born": [0, 9]})
