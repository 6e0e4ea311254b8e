"""Cells of dates: read one by one, without guessing, the same as text and as dates."""

import calendar
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from userdp.data.tables.date_cells import days_since, fault_of, moment, moments_of, part_codes
from userdp.data.tables.dates import PARTS
from userdp.errors import BadInput

NONE = np.datetime64("NaT", "us")


def read(cells, form=None, kind=None):
    column = pa.chunked_array([pa.array(cells, type=kind)])
    return moments_of(column, "born", form)


def texts(*cells, form=None):
    return read(list(cells), form, pa.string())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2021-04-03", "2021-04-03"),
        (" 2021-4-3\t", "2021-04-03"),
        ("2021/04/03", "2021-04-03"),
        ("2021.04.03", "2021-04-03"),
        ("20210403", "2021-04-03"),
        ("20210403.0", "2021-04-03"),  # whole floats are whole numbers, as in every column
        ("2021-04", "2021-04-01"),
        ("2021", "2021-01-01"),
        ("2021-04-03 10", "2021-04-03T10"),
        ("2021-04-03T9:30", "2021-04-03T09:30"),
        ("2021-04-03T10:00:00,25", "2021-04-03T10:00:00.25"),
        ("2021-04-03 10:00:00.123456789", "2021-04-03T10:00:00.123456"),
        ("20210403T101530Z", "2021-04-03T10:15:30"),
        ("2021-04-03T10:00+02:00", "2021-04-03T08:00"),
        ("2021-04-03 23:00:00 -05", "2021-04-04T04:00"),
        ("2021-04-03T10:00-0530", "2021-04-03T15:30"),
        ("0001-01-01", "0001-01-01"),
        ("1500-02-28", "1500-02-28"),
        ("9999-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999"),
    ],
)
def test_iso_8601_is_read(text, meant):
    assert texts(text)[0] == np.datetime64(meant, "us")


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "soon", "03/04/2021", "3.4.2021", "03-04-21", "21-04-03", "202104", "2021.4", "44289", "1617408000"),
        *("2021-13-01", "2021-02-29", "2021-04-03T24:00", "2021-04-03T10:60", "2021-04-03T10:00:60", "10:30"),
        *(
            "2021 10",
            "2021-04 10:00",
            "2021-04/03",
            "2021-W14-6",
            "2021-04-03T10:00+25:00",
            "0000-01-01",
            "10000-01-01",
        ),
        *(
            "0001-01-01T00:00+01:00",
            "9999-12-31T23:59-00:01",
            "NaT",
            "nan",
            "1e300",
            "True",
            "2021-04-03" + " " * 200 + "x",
        ),
        *("٢٠٢١-٠٤-٠٣", "2021-04-03\n", "\0", "\\xff", "-2021-04-03", "2021-04-03Z"),
    ],
)
@pytest.mark.parametrize("form", [None, "%d %m %Y"])
def test_what_is_no_date_without_guessing_is_missing(text, form):
    assert np.isnat(texts(text, form=form)[0])


# A declared form ------------------------------------------------------------------------------------------------------


def test_a_declared_form_is_read_beside_iso_8601_and_no_other():
    found = texts("03.04.2021", "2021-04-03", "3/4/2021", "31.04.2021", form="%d.%m.%Y")
    np.testing.assert_array_equal(found, np.array(["2021-04-03", "2021-04-03", "NaT", "NaT"], "M8[us]"))
    assert texts("03.04.2021 10:00 +0200", form="%d.%m.%Y %H:%M %z")[0] == np.datetime64("2021-04-03T08:00")
    assert texts("03042021", form="%d%m%Y")[0] == np.datetime64("2021-04-03")
    assert texts("2021-W13-6", form="%G-W%V-%u")[0] == np.datetime64("2021-04-03")


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        ("%Y-%d-%m", "could be taken for others"),
        ("%Y%d%m", "could be taken for others"),
        ("%m.%Y", "or for numbers"),  # of the number 10.2020 the last zero counts for nothing
        ("%d.%m.", "it has no year"),
        ("%H:%M", "it has no year"),
        ("", "it has no year"),
        ("%d.%m.%Y %Z", "%z reads offsets"),
        ("%Q %Y", "there is no %Q"),
        ("%Y %", "a lone %"),
        ("%d %d %Y", "no date can be read by it"),
        ("%G", "no date can be read by it"),
    ],
)
def test_a_form_that_cannot_be_relied_on_has_a_fault(form, fault):
    assert fault in fault_of(form)


@settings(max_examples=80)
@given(
    st.datetimes(datetime(1678, 1, 1), datetime(2400, 1, 1)),
    st.sampled_from(
        ["%d.%m.%Y", "%m/%d/%Y", "%d%m%Y", "%d.%m.%Y %H:%M:%S.%f", "%Y%m", "%Y", "%B %d, %Y", "%Y-%j", "%Y%m%d"]
    ),
)
def test_every_date_of_a_form_without_fault_is_read_as_python_reads_it(when, form):
    assert fault_of(form) is None
    text = when.strftime(form)
    assert texts(text, form=form)[0] == np.datetime64(datetime.strptime(text, form), "us")


# One cell at a time ---------------------------------------------------------------------------------------------------

CELLS = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.dates().map(date.isoformat),
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=-7, minutes=-30))])).map(str),
    st.dates(date(1900, 1, 1)).map(lambda day: day.strftime("%d/%m/%Y")),
    st.dates(date(1900, 1, 1)).map(lambda day: day.strftime("%m/%d/%Y")),
    st.from_regex(r"[0-9]{1,4}[-/.][0-9]{1,2}([-/.][0-9]{1,4})?([ T][0-9]{1,2}(:[0-9]{2}){0,2})?", fullmatch=True),
    st.integers(-(10**9), 10**9).map(str),
)


@settings(max_examples=150)
@example(["04/13/2021", "03/04/2021"], None)
@example(["04/13/2021", "03/04/2021"], "%d/%m/%Y")
@given(st.lists(CELLS, min_size=1, max_size=8), st.sampled_from([None, "%d/%m/%Y", "%m/%d/%Y"]))
def test_a_cell_means_what_it_means_alone(cells, form):
    """pandas finds a column's form in its first cell, so that one person's would say what the others' mean."""
    together = texts(*cells, form=form)
    alone = [texts(cell, form=form)[0] for cell in cells]
    np.testing.assert_array_equal(together, np.array(alone, "M8[us]"))
    np.testing.assert_array_equal(texts(*cells[::-1], form=form)[::-1], together)


@settings(max_examples=80)
@given(
    st.lists(st.none() | st.datetimes(), min_size=1, max_size=6),
    st.sampled_from([pa.timestamp(unit) for unit in ("s", "ms", "us")] + [pa.date32(), pa.date64()]),
    st.sampled_from([None, "UTC", "Asia/Tokyo"]),
)
def test_dates_as_such_mean_what_their_text_means(cells, kind, zone):
    if zone is not None and pa.types.is_timestamp(kind):
        kind = pa.timestamp(kind.unit, zone)
    column = pa.array(cells, type=pa.timestamp("us")).cast(kind, safe=False)
    spelled = [
        None if cell is None else str(cell)
        for cell in column.cast(pa.timestamp("us") if not pa.types.is_date(kind) else pa.timestamp("ms")).to_pylist()
    ]
    np.testing.assert_array_equal(moments_of(pa.chunked_array([column]), "born"), texts(*spelled))


def test_no_moment_overflows():
    for unit in ("s", "ms", "us", "ns"):
        ticks = [np.iinfo(np.int64).min, np.iinfo(np.int64).max, -1, 0, None]
        found = moments_of(pa.chunked_array([pa.array(ticks, pa.int64()).cast(pa.timestamp(unit))]), "born")
        assert np.isnat(found[[0, 4]]).all()
        assert np.isnat(found[1]) == (unit != "ns")
        assert found[2] < found[3] == np.datetime64(0, "us")
    days = moments_of(pa.chunked_array([pa.array([2**31 - 1, -(2**31), 0], pa.int32()).cast(pa.date32())]), "born")
    assert np.isnat(days).tolist() == [True, True, False]


def test_frames_and_numbers_are_read_by_value():
    assert read([20210403, None], kind=pa.int64()).tolist() == [datetime(2021, 4, 3), None]
    assert read([20210403.0, 2.5], kind=pa.float64()).tolist() == [datetime(2021, 4, 3), None]
    assert np.isnat(read([True, False], kind=pa.bool_())).all()
    assert np.isnat(read([None, None], kind=pa.null())).all()
    with pytest.raises(BadInput, match="column 'born' holds list"):
        read([[1]], kind=pa.list_(pa.int64()))


# Days and parts -------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.lists(st.none() | st.datetimes(), min_size=1, max_size=6), st.datetimes())
def test_days_and_parts_are_those_of_the_calendar(cells, first):
    moments = np.array([NONE if cell is None else np.datetime64(cell, "us") for cell in cells], "M8[us]")
    found = days_since(moments, np.datetime64(first, "us"))
    parts = {part: part_codes(moments, part) for part in PARTS}
    for place, cell in enumerate(cells):
        levels = {part: None if codes[place] < 0 else PARTS[part][codes[place]] for part, codes in parts.items()}
        if cell is None:
            assert np.isnan(found[place])
            assert set(levels.values()) == {None}
            continue
        assert found[place] == pytest.approx((cell - first) / timedelta(days=1), rel=1e-12, abs=1e-12)
        assert levels == {
            "month": str(cell.month),
            "quarter": str((cell.month + 2) // 3),
            "weekday": calendar.day_name[cell.weekday()].lower(),
            "hour": str(cell.hour),
        }


def test_a_whole_day_is_a_whole_number():
    since = days_since(texts("1977-01-02", "1977-01-01T12:00", "1983-12-31", "soon"), np.datetime64("1977-01-01", "us"))
    np.testing.assert_array_equal(since, [1.0, 0.5, 2555.0, np.nan])
    assert moment("1970-01-02") == 86_400_000_000
