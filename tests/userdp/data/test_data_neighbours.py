"""Neighbouring tables: whatever one user's cells hold, everybody else's samples stay the same, bit for bit."""

import csv
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from userdp.data import Derivation, SequenceColumns, read_table, split
from userdp.data.tables.cells import cell_text
from userdp.data.tables.derived import KINDS as DERIVED

FORMATS = ("csv", "parquet")


def samples_of(federation, user):
    """(bits of the features, bits of the targets, how many samples) of a user."""
    block = federation.block(np.array([user]))
    features = block.features
    parts = [features] if isinstance(features, np.ndarray) else [features.data, features.indices, features.indptr]
    targets = b"" if block.targets is None else block.targets.tobytes()
    return [part.tobytes() for part in parts], targets, block.samples


def everybody_else(loaded, label):
    """Label -> samples, without this one."""
    return {name: samples_of(loaded.federation, user) for user, name in enumerate(loaded.labels) if name != label}


def column_of(cells):
    """A pandas series of the cells, of objects where pandas would lose digits of whole numbers."""
    series = pd.Series(cells)
    numbers = [(made, cell) for made, cell in zip(series, cells, strict=True) if isinstance(cell, int)]
    return series if all(made == cell for made, cell in numbers) else pd.Series(cells, dtype=object)


def as_text(cells):
    return pa.array([None if cell_text(cell) == "" else str(cell) for cell in cells], type=pa.string())


def array_of(cells, how):
    """An array of the cells, as PyArrow or pandas would write it; of texts where no type suits all cells."""
    try:
        made = pa.array(cells) if how["by"] == "arrow" else pa.Array.from_pandas(column_of(cells))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        made = as_text(cells)
    # A date that comes first makes PyArrow write numbers as dates, and cut times: then the file holds other values.
    if pa.types.is_temporal(made.type) and len({type(cell) for cell in cells if cell is not None}) > 1:
        made = as_text(cells)
    if how["narrow"] and pa.types.is_float64(made.type):
        with np.errstate(over="ignore"):
            narrow = made.to_numpy(zero_copy_only=False).astype(np.float32)
        if np.array_equal(narrow, made.to_numpy(zero_copy_only=False), equal_nan=True):
            made = made.cast(pa.float32())
    return made.dictionary_encode() if how["dictionary"] and pa.types.is_string(made.type) else made


def write(path, columns, how):
    """A table {column: cells} as a file."""
    if path.suffix == ".csv":
        table = pd.DataFrame({name: column_of(cells) for name, cells in columns.items()})
        quoting = csv.QUOTE_ALL if how["quoted"] else csv.QUOTE_MINIMAL
        table.to_csv(path, index=False, quoting=quoting, lineterminator=how["ends"])
    else:
        table = pa.table({name: array_of(cells, how) for name, cells in columns.items()})
        pq.write_table(table, path, row_group_size=how["group"])
    return path


PLAIN = {"by": "arrow", "narrow": False, "dictionary": False, "quoted": False, "ends": "\n", "group": 100}


def neighbours(folder, suffix, columns, row, changes, how=PLAIN, **form):
    """The samples of everybody but the user of this row, before and after its cells change."""
    after = {name: list(cells) for name, cells in columns.items()}
    for name, cell in changes.items():
        after[name][row] = cell
    label = cell_text(columns["who"][row])
    return [
        everybody_else(read_table(write(folder / f"table.{suffix}", table, how), **form), label)
        for table in (columns, after)
    ]


WHO = ["ann", "ann", "bob", "bob", "cy"]
CATEGORICAL = {"user": "who", "categorical": {"a": [1, 2, 3]}}
LISTED = {"user": "who", "codes": "a", "levels": [1, 2, 3]}
HASHED = {"user": "who", "codes": ["a", "b"], "buckets": 1000}
NUMERIC = {"user": "who", "features": ["a"], "ranges": {"a": [0, 10]}, "target": "b"}
FILLED = NUMERIC | {
    "impute": {"a": 2},
    "missing_indicators": ["a"],
    "derive": {"root": Derivation(kind="log1p", of=["c"], range=[0, 9], otherwise=1)},
}
FLOATS = {"who": WHO, "a": [1.0, 2.0, 3.0, 1.0, 2.0], "b": [4.0, 5.0, 6.0, 7.0, 8.0]}
FLOATS["c"] = FLOATS["a"]
LARGE = [2**53 + place for place in range(5)]


ODD_CELLS = {
    # The table, the columns that change, forms, the cells that one user comes to hold.
    "whole floats": (
        *(FLOATS, "ac", [CATEGORICAL, LISTED, HASHED, NUMERIC, FILLED]),
        [2.5, None, "Zebra", float("nan"), float("inf"), 1e300, 2**62, True, "1_000", "2 "],
    ),
    "beyond 2^53, where float64 tells no neighbours apart": (
        *(FLOATS | {"a": LARGE, "b": [2**53 + 1, 2**53, 1, 2, 3]}, "ab"),
        [HASHED, {"user": "who", "categorical": {"a": LARGE[:4]}}],
        [None],
    ),
    "one more digit": (
        *(FLOATS | {"a": [Decimal("1.10"), Decimal("2.20"), *[Decimal("3.00")] * 3], "b": ["x"] * 5}, "a"),
        [HASHED, NUMERIC | {"target": None}],
        [Decimal("1.2345"), 0.1, None, "Zebra"],
    ),
}


@pytest.mark.sweep(60)
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("by", ["arrow", "pandas"])
@pytest.mark.parametrize(
    ("name", "form", "cell"),
    [(name, form, cell) for name, (*_, forms, cells) in ODD_CELLS.items() for form in forms for cell in cells],
)
def test_one_odd_cell_changes_nobody_elses_samples(tmp_path, suffix, by, name, form, cell):
    """One 2.5 among whole floats made "1" into "1.0": all levels unknown, all buckets different."""
    columns, changed, *_ = ODD_CELLS[name]
    changes = dict.fromkeys(changed, cell)
    before, after = neighbours(tmp_path, suffix, columns, 4, changes, PLAIN | {"by": by}, **form)
    assert before == after
    assert len({str(samples) for samples in before.values()}) == 2


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "row",
    [
        "cy,0,1\n",
        "cy\n",
        "cy,0,\xff,1\n",
        "cy,0,a\rb,1\n",
        'cy,0,a"b,1\n',
        "cy,0,\0,\0\n",
    ],
)
def test_one_ragged_line_of_a_csv_file_changes_nobody_elses_samples(tmp_path, row, first):
    """Bytes that are no UTF-8 refused the file. A line that is too long does: `test_data_files.py`."""
    others, tables = "ann,0,1,2\nbob,0,2,3\nbob,0,3,4\n", []
    for own in ("cy,0,3,1\n", row):
        rows = own + others if first else others + own
        (tmp_path / "table.csv").write_bytes(f"who,not declared,a,b\n{rows}".encode("latin-1"))
        loaded = read_table(tmp_path / "table.csv", **NUMERIC)
        tables.append(everybody_else(loaded, "cy"))
        assert sorted(loaded.labels) == ["ann", "bob", "cy"]
    assert tables[0] == tables[1]
    assert np.frombuffer(tables[0]["bob"][1], dtype=np.float32).tolist() == [3, 4]


# A generated search: two tables that differ in one user's rows, written as programs write them, which choose columns'
# types by all the cells.
FAMILIES = {
    "small": st.integers(0, 4),
    "large": st.integers(2**53, 2**53 + 4),
    "whole": st.integers(0, 4).map(float),
    "floats": st.sampled_from([0.1, 2.5, 1e16, 1e-5, 1e300, -0.0, 3.0]) | st.floats(),
    "single": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "booleans": st.booleans(),
    "decimals": st.decimals(-9, 9, places=2),
    "numerals": st.sampled_from(["1", "1.0", "2.50", "007", "-0.0", " 3", "1e3", "1_000"]),
    "words": st.sampled_from(["law", "chem", "a,b", 'a"b', "a\rb", "a\nb", "\0", "é", "NA", "nan"])
    | st.text(max_size=3),
    "days": st.dates(date(2023, 1, 1), date(2023, 1, 4)),
    "midnights": st.integers(1, 4).map(lambda day: datetime(2023, 1, day)),
    "moments": st.datetimes(datetime(2023, 1, 1), datetime(2023, 1, 2)),
    "written days": st.sampled_from(["2023-01-02", "20230102", "2023-01-02T10:00:00+02:00", "2.1.2023", "1/2/2023"]),
}
HOW = st.fixed_dictionaries(
    {
        "by": st.sampled_from(["arrow", "pandas"]),
        "narrow": st.booleans(),
        "dictionary": st.booleans(),
        "quoted": st.booleans(),
        "ends": st.sampled_from(["\n", "\r\n"]),
        "group": st.sampled_from([1, 2, 100]),
    }
)
LABELS = [
    ["ann", "bob", "007", "7"],
    [1, 2, 3, 4],
    [float(place) for place in range(4)],
    [2**53 + place for place in range(4)],
    [datetime(2024, 1, 1 + place) for place in range(4)],
]


def usual(names):
    """The cells of a column: of one family, some of them missing."""

    def cells(name):
        return st.lists(st.one_of(FAMILIES[name], FAMILIES[name], FAMILIES[name], st.none()), min_size=8, max_size=8)

    return st.sampled_from(sorted(names)).flatmap(cells)


def made_of(column):
    """A derived column of every kind."""
    return {
        f"made {kind}": Derivation(kind=kind, of=[column] * (each.columns or 1), range=[-1, 2], otherwise=0.5)
        for kind, each in DERIVED.items()
        if kind != "days_between"
    }


ODD = st.none() | st.one_of(*FAMILIES.values())
KINDS = [
    "features",
    "imputed and derived",
    "dates",
    "kept target",
    "binary target",
    "target of levels",
    "numbered codes",
    "listed codes",
    "hashed codes",
    "several codes",
    "sequence",
    "text",
]


def form_of(draw, kind, columns):
    """Declarations, of the cells of ``columns`` among others."""
    cells = st.sampled_from(columns["b" if "features" in kind or "derived" in kind else "a"]) | ODD
    drawn = draw(st.lists(cells, min_size=1, max_size=6))
    levels = list({cell_text(cell): cell for cell in drawn}.values())
    ranges = {"a": draw(st.sampled_from([[0, 3], [-1e300, 1e300], [0.1, 0.7]]))}
    numbers = {"features": ["a"], "ranges": ranges, "target": "y"}
    return {"user": "who"} | {
        "features": numbers | {"categorical": {"b": levels}, "target_range": [0, 3]},
        "imputed and derived": numbers
        | {
            "categorical": {"b": [level for level in levels if cell_text(level)] or ["none"]},
            "impute": {"a": ranges["a"][1], "b": "own level"},
            "missing_indicators": ["a"],
            "derive": made_of("a"),
        },
        "dates": {
            "dates": {"a": draw(st.sampled_from([["2023-01-01", "2023-01-04"], ["2000-01-01", "2000-01-02T12:00"]]))},
            "date_parts": {"a": ["month", "hour"], "b": ["weekday", "quarter"]},
            "date_formats": draw(st.sampled_from([{}, {"a": "%d.%m.%Y", "b": "%d/%m/%Y"}])),
            "impute": draw(st.sampled_from([{}, {"b": "2023-01-03"}])),
            "derive": {"apart": Derivation(kind="days_between", of=["a", "b"], range=[-2, 2])},
        },
        "kept target": numbers | {"scale": "unit"},
        "binary target": numbers | {"positive": columns["y"][0]},
        "target of levels": numbers | {"target_levels": [*levels, "none of these"][:3]},
        "numbered codes": {"codes": "a", "levels": 4, "target": "y"},
        "listed codes": {"codes": "a", "levels": levels},
        "hashed codes": {"codes": ["a", "b"], "buckets": 64, "target": "y"},
        "several codes": {"codes": ["a", "b"], "levels": {"a": levels, "b": levels}, "target": "y"},
        "sequence": {"sequence": SequenceColumns(window=2, order="y", inputs={"b": levels}, predict="a", levels=4)},
        "text": {"sequence": SequenceColumns(window=3, order="y", text="b", alphabet="abcé\r")},
    }[kind]


@st.composite
def neighbouring_tables(draw):
    """(declarations, tables before and after, the label of the user whose rows were replaced)."""
    kind = draw(st.sampled_from(KINDS))
    numeric = FAMILIES.keys() - {"days", "midnights", "moments"}
    columns = {
        "a": draw(usual(FAMILIES if kind == "dates" or ("codes" in kind and kind != "numbered codes") else numeric)),
        "b": draw(usual(["words", "numerals"] if kind == "text" else FAMILIES)),
        "y": draw(usual(FAMILIES if kind in ("binary target", "target of levels") else numeric)),
    }
    assume(kind != "binary target" or cell_text(columns["y"][0]))
    label, *others = draw(st.sampled_from(LABELS))
    columns["who"] = others + draw(st.lists(st.sampled_from(others), min_size=5, max_size=5))
    first = st.lists(st.tuples(*(st.sampled_from(columns[name]) for name in "aby")), min_size=1, max_size=3)
    second = st.lists(st.tuples(ODD, ODD, ODD), min_size=1, max_size=6)
    spelled = st.sampled_from([label, cell_text(label)])
    form, tables = form_of(draw, kind, columns), []
    for own, user in ((draw(first), label), (draw(second), draw(spelled))):
        table = {name: list(cells) for name, cells in columns.items()}
        for row in own:
            place = draw(st.integers(0, len(table["who"])))
            for name, cell in zip(("a", "b", "y", "who"), (*row, user), strict=True):
                table[name].insert(place, cell)
        tables.append(table)
    return form, tables, cell_text(label)


def as_numbers(form):
    """The columns that are read as numbers."""
    codes = form["codes"] if form.get("levels") == 4 else None
    target = None if form.keys() & {"positive", "target_levels"} else form.get("target")
    steps = form.get("sequence")
    sequence = {steps.order, steps.predict} if steps else set()
    return {*form.get("features", ()), codes, target, *sequence} - {None}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=100)
@given(neighbouring_tables(), HOW, st.sampled_from([None, 1, 2]), st.integers(0, 3))
def test_replacing_one_users_rows_changes_no_bit_of_anybody_elses_samples(
    tmp_path_factory, suffix, drawn, how, max_samples, seed
):
    form, tables, label = drawn
    if suffix == "parquet":  # a column of dates alone is refused as numbers, by its type
        types = [array_of(table[name], how).type for table in tables for name in as_numbers(form)]
        assume(not any(pa.types.is_temporal(kind) for kind in types))
    folder = tmp_path_factory.mktemp("table")
    paths = [write(folder / f"{place}.{suffix}", table, how) for place, table in enumerate(tables)]
    before, after = (read_table(path, **form, max_samples=max_samples, seed=seed) for path in paths)
    np.testing.assert_array_equal(before.labels, after.labels)
    assert everybody_else(before, label) == everybody_else(after, label)
    parts = [split(loaded.federation, test_users=2, seed=seed) for loaded in (before, after)]
    moved = [
        samples_of(one, user) != samples_of(two, user)
        for one, two in zip(*parts, strict=True)
        for user in range(one.users)
    ]
    assert sum(moved) <= 1
