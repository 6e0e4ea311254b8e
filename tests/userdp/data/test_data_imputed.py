"""Missing cells with declared values, and columns made of others: row by row, within declared bounds."""

import math

import numpy as np
import pyarrow as pa
import pytest
from examples import rows_of_table
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import Derivation
from userdp.data.tables.cells import Rows, texts_of
from userdp.data.tables.columns import Columns
from userdp.data.tables.derived import KINDS
from userdp.data.tables.unusable import Counts

FORM = {
    "user": "who",
    "features": ["age", "visits"],
    "ranges": {"age": [0, 100], "visits": [0, 10]},
    "categorical": {"team": ["red", "blue"]},
}
PEOPLE = {
    "who": ["ann", "ann", "bob", "bob"],
    "age": [25.0, None, 50.0, math.inf],
    "visits": [5.0, 0.0, None, 20.0],
    "height": [2.0, 4.0, None, 0.0],
    "team": ["red", None, "violet", "blue"],
}
RATIO = {"kind": "ratio", "of": ["visits", "height"], "range": [0.0, 4.0], "otherwise": 1.0}


def rows_of(folder, suffix="csv", people=PEOPLE, **changes):
    return rows_of_table(folder, people, {**FORM, **changes}, suffix)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_missing_cell_counts_as_what_is_declared_for_it(tmp_path, suffix):
    declared = {"impute": {"age": 75, "team": "own level"}, "missing_indicators": ["age"]}
    features, names, report = rows_of(tmp_path, suffix, **declared)
    assert names == ["age", "visits", "age is missing", "team=red", "team=blue", "team is missing"]
    np.testing.assert_array_equal(features[:, 0], [-0.5, 0.5, 0.0, 0.5])
    assert np.isnan(features[2, 1])  # nothing is declared for it
    np.testing.assert_array_equal(features[:, 2], [0, 1, 0, 1])
    # A cell that is there, but no declared level, is not missing.
    np.testing.assert_array_equal(features[:, 3:], [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0]])
    assert report.imputed == {"age": 2, "team": 1}
    assert report.unusable == {"age": 0, "visits": 1}
    assert report.unknown_levels == {"team": 1}


@pytest.mark.parametrize(
    ("column", "levels", "declared", "codes"),
    [
        ("team", ["red", "blue"], "own level", [0, 2, -1, 1]),
        ("team", ["red", "blue"], "red", [0, 0, -1, 1]),
        ("visits", 6, "own level", [5, 0, 6, -1]),
        ("visits", 6, 3, [5, 0, 3, -1]),
    ],
)
def test_a_missing_code_is_one_of_the_levels_or_one_more(tmp_path, column, levels, declared, codes):
    form = {"features": (), "ranges": {}, "categorical": {}, "codes": column, "levels": levels}
    features, _, report = rows_of(tmp_path, **form, impute={column: declared})
    assert features[:, 0].tolist() == codes
    assert report.imputed == {column: 1}
    most = len(levels) if isinstance(levels, list) else levels
    columns = Columns(user="who", codes=column, levels=levels, impute={column: declared})
    assert columns.samples.counts == (most + (declared == "own level"),)


def test_nothing_declared_leaves_a_table_as_it_was(tmp_path):
    features, names, report = rows_of(tmp_path)
    assert names == ["age", "visits", "team=red", "team=blue"]
    assert np.isnan(features[:, 0]).tolist() == [False, True, False, True]
    assert report.imputed == {}
    assert "imputed" not in report.as_dict()


def test_derived_columns_are_features_within_their_range(tmp_path):
    made = {
        "per_height": Derivation(**RATIO),
        "older": Derivation(kind="difference", of=["age", "visits"], range=[-10, 30]),
    }
    features, names, report = rows_of(tmp_path, derive=made)
    assert names == ["age", "visits", "per_height", "older", "team=red", "team=blue"]
    # 5 / 2, 0 / 4, missing over missing, 20 / 0, from [0, 4] to [-1, 1].
    np.testing.assert_array_equal(features[:, 2], [0.25, -1.0, -0.5, -0.5])
    # 20 of [-10, 30], then cells of which one is missing.
    np.testing.assert_array_equal(features[:, 3], [0.5, np.nan, np.nan, np.nan])
    assert report.imputed == {"per_height": 2}
    assert report.unusable == {"age": 2, "visits": 1, "per_height": 0, "older": 3}


def test_derived_columns_are_made_of_imputed_cells(tmp_path):
    made = {"per_height": Derivation(**RATIO)}
    features, names, report = rows_of(tmp_path, derive=made, impute={"height": 8, "visits": 4})
    assert names[2] == "per_height"
    assert features[2, 2] == np.float32(2 * 0.5 / 4 - 1)
    assert report.imputed == {"visits": 1, "height": 1, "per_height": 1}


CELLS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, -1.0, 5e-324, math.nan])


def by_hand(kind, row, threshold):
    """One result in Python, None where there is none."""
    if any(math.isnan(cell) for cell in row):
        return None
    if kind == "count_above":
        return float(sum(cell > threshold for cell in row))
    if kind == "log1p":
        return math.log1p(row[0]) if row[0] > -1 else None
    first, second = map(np.float64, row)
    with np.errstate(all="ignore"):
        if kind == "ratio":
            return None if second == 0 else float(first / second)
        return float(first * second if kind == "product" else first - second)


@settings(max_examples=60)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_a_derived_cell_is_what_its_own_row_says(data, kind):
    columns = KINDS[kind].columns or data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.lists(CELLS, min_size=columns, max_size=columns), min_size=1, max_size=9))
    otherwise = data.draw(st.none() | st.just(2.5)) if kind != "ratio" else 2.5
    made = Derivation(kind=kind, of=["a"] * columns, range=[-5.0, 5.0], otherwise=otherwise)
    found, instead = made.values([np.array(cells) for cells in zip(*rows, strict=True)])
    wanted = [by_hand(kind, row, 0.0) for row in rows]
    gone = math.nan if otherwise is None else otherwise
    np.testing.assert_array_equal(found, [gone if one is None else one for one in wanted])
    assert instead == (0 if otherwise is None else wanted.count(None))
    # To the last bit, whatever stands in the other rows.
    for place, row in enumerate(rows):
        alone, _ = made.values([np.array([cell]) for cell in row])
        assert alone.tobytes() == found[place : place + 1].tobytes()


@settings(max_examples=25)
@given(cells=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6), scale=st.sampled_from(["symmetric", "unit"]))
def test_declared_bounds_hold_for_every_sample(tmp_path_factory, cells, scale):
    folder = tmp_path_factory.mktemp("table")
    people = {
        "who": [f"u{k}" for k in range(len(cells))],
        "age": [a for a, _ in cells],
        "visits": [b for _, b in cells],
    }
    people["team"] = [None] * len(cells)
    made = {
        kind: Derivation(kind=kind, of=["age", "visits"][: each.columns or 2], range=[-2.0, 1.0], otherwise=0.0)
        for kind, each in KINDS.items()
        if kind != "days_between"
    }
    declared = {"impute": {"age": 3, "visits": 3, "team": "red"}, "missing_indicators": ["age", "team"]}
    features, names, _ = rows_of(folder, people=people, scale=scale, derive=made, **declared)
    columns = Columns(**{**FORM, **declared, "derive": made})
    assert features.shape == (len(cells), len(names))
    assert np.isfinite(features).all()
    assert np.abs(features).max() <= 1
    assert np.abs(features).sum(axis=1).max() <= columns.samples.largest_norm


# --- Levels of missing cells -----------------------------------------------------------------------------------------

SHIRTS = ("team", "shirt")
LEVELS = ("red", "blue", "", "violet")
"""Levels that a cell may hold; '' stands for a missing one."""


@st.composite
def declared_columns(draw):
    """(categorical, impute, missing_indicators) of two columns, as somebody may declare them."""
    categorical, impute, indicators = {}, {}, []
    for column in SHIRTS:
        levels = categorical[column] = draw(st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3, unique=True))
        choices = [] if "" in levels else ["own level", *levels]
        value = draw(st.none() | st.sampled_from(choices)) if choices else None
        if value is not None:
            impute[column] = value
            if value != "own level" and draw(st.booleans()):
                indicators.append(column)
    return categorical, impute, indicators


@settings(max_examples=80)
@given(
    declared_columns(), st.lists(st.tuples(st.sampled_from(LEVELS), st.sampled_from(LEVELS)), min_size=1, max_size=6)
)
def test_a_missing_cell_is_the_level_that_is_declared_for_it_and_moves_no_other_column(declared, cells):
    """Each row by hand: features by their names, of which each column sets one at most."""
    categorical, impute, indicators = declared
    columns = Columns(user="who", categorical=categorical, impute=impute, missing_indicators=indicators)
    read = {name: pa.chunked_array([[row[k] or None for row in cells]], pa.string()) for k, name in enumerate(SHIRTS)}
    table = Rows(len(cells), {name: texts_of(column, name) for name, column in read.items()}, {}, {}, {})
    counts = Counts()
    features, names = columns.samples.features(table, np.arange(len(cells)), counts), columns.samples.names
    assert features.shape == (len(cells), len(names))
    for row, found in zip(cells, features, strict=True):
        expected = dict.fromkeys(names, 0.0)
        for column, cell in zip(SHIRTS, row, strict=True):
            if cell == "" and column in indicators:
                expected[f"{column} is missing"] = 1.0
            level = impute.get(column, cell) if cell == "" else cell
            if level == "own level":
                expected[f"{column} is missing"] = 1.0
            elif level in categorical[column]:
                expected[f"{column}={level}"] = 1.0
        assert found.tolist() == list(expected.values())
    for k, column in enumerate(SHIRTS):
        missing = sum(row[k] == "" for row in cells)
        assert counts.imputed.get(column, 0) == (missing if column in impute else 0)
