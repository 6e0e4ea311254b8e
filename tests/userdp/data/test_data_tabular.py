import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from userdp.arrays.sparse_rows import dense
from userdp.data import LoadReport, read_table
from userdp.data.tables.codes import bucket
from userdp.errors import BadInput


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    users = np.repeat(["ann", "bob", "007", "cy", "8"], [3, 1, 5, 8, 2])
    return pd.DataFrame(
        {
            "who": users,
            "age": rng.integers(0, 120, len(users)),
            "height": rng.uniform(1.0, 2.2, len(users)),
            "dept": rng.choice(["chem", "law", "art"], len(users)),
            "year": rng.choice([1, 2, 3], len(users)),
            "score": rng.uniform(0, 10, len(users)),
            "passed": rng.choice(["yes", "no"], len(users)),
        }
    )


FORM = {
    "user": "who",
    "features": ["age", "height"],
    "ranges": {"age": [0, 100], "height": [1.0, 2.0]},
    "categorical": {"dept": ["law", "chem"], "year": [1, 2, 3]},
    "target": "score",
    "target_range": [0, 8],
}


def write(folder, table, suffix="parquet"):
    path = folder / f"table.{suffix}"
    if suffix == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)
    return path


def read(folder, table=None, suffix="parquet", **changes):
    options = {**FORM, **changes}
    return read_table(write(folder, people() if table is None else table, suffix), **options)


def whole(loaded):
    return loaded.federation.block(np.arange(loaded.federation.users))


CODES = {"features": (), "ranges": {}, "categorical": {}}
HASHED = CODES | {"codes": ["dept", "year"], "buckets": 50}
SEVERAL = {"levels": {"dept": ["law", "chem"], "year": 3}, "impute": {"dept": "own level"}}


def score(own):
    return np.clip(own.score, 0, 8) / 4 - 1


def numbers(own, low=-1.0):
    shares = [np.clip(own.age, 0, 100) / 100, np.clip(own.height, 1, 2) - 1]
    levels = [own.dept == "law", own.dept == "chem", *(own.year == level for level in (1, 2, 3))]
    return np.column_stack([*(low + (1 - low) * share for share in shares), *levels])


def levels_of(column, *levels):
    """The places of cells in a list of levels; -1 for those that are not in it."""
    return np.array([levels.index(cell) if cell in levels else -1 for cell in column])


def buckets(own):
    """One for each cell in its bucket, in rows of length one."""
    expected = np.zeros((len(own), 50))
    for row, (dept, year) in enumerate(zip(own.dept, own.year, strict=True)):
        expected[row, bucket("dept", dept, 50)] += 1
        expected[row, bucket("year", str(year), 50)] += 1
    return expected / np.linalg.norm(expected, axis=1, keepdims=True)


LANDS = {
    "symmetric": ({}, numbers, score),
    "unit scale, a kept target": (
        {"scale": "unit", "target_range": None},
        *(lambda own: numbers(own, 0.0), lambda own: own.score),
    ),
    "no target": ({"target": None, "target_range": None}, numbers, None),
    "a binary target": (
        {"target": "passed", "target_range": None, "positive": "yes"},
        *(numbers, lambda own: own.passed == "yes"),
    ),
    "classes": (
        {"target": "year", "target_range": None, "target_levels": ["3", 1], "categorical": {}},
        *(lambda own: numbers(own)[:, :2], lambda own: own.year.map({3: 0.0, 1: 1.0})),
    ),
    "numbered codes": (CODES | {"codes": "year", "levels": 4}, lambda own: own[["year"]], score),
    "listed codes": (
        CODES | {"codes": "dept", "levels": ["law", "art"]},
        *(lambda own: levels_of(own.dept, "law", "art")[:, None], score),
    ),
    "several codes": (
        CODES | {"codes": ["year", "dept"]} | SEVERAL,
        *(lambda own: np.column_stack([levels_of(own.year, 0, 1, 2), levels_of(own.dept, "law", "chem")]), score),
    ),
    "hashed codes": (HASHED, buckets, score),
}


@pytest.mark.parametrize("name", LANDS)
def test_each_cell_lands_with_its_user_as_declared_from_csv_and_parquet_alike(tmp_path, name):
    table, (form, features, target) = people(), LANDS[name]
    one, two = (read(tmp_path, table, suffix, **form) for suffix in ("csv", "parquet"))
    assert (one.report, one.feature_names) == (two.report, two.feature_names)
    assert one.labels.tolist() == two.labels.tolist()
    assert sorted(one.labels) == sorted(set(table.who))
    assert dense(whole(one).features).tobytes() == dense(whole(two).features).tobytes()
    assert whole(one).features.dtype == (np.int32 if "levels" in form else np.float32)
    for user, label in enumerate(one.labels):
        own, block = table[table.who == label], one.federation.block(np.array([user]))
        np.testing.assert_allclose(dense(block.features), features(own), atol=1e-6)
        for loaded in (block, two.federation.block(np.array([user]))):
            if target is None:
                assert loaded.targets is None
            else:
                np.testing.assert_allclose(loaded.targets, target(own), rtol=1e-7, atol=1e-6)


def test_features_are_named_by_column_and_level(tmp_path):
    names = read(tmp_path).feature_names
    assert names == ["age", "height", "dept=law", "dept=chem", "year=1", "year=2", "year=3"]
    assert read(tmp_path, **HASHED).feature_names == ["dept", "year"]


def test_the_report_counts_what_was_done(tmp_path):
    table = people()
    loaded = read(tmp_path, table)
    assert loaded.report == LoadReport(
        rows=19,
        users=5,
        doubts=(
            *(
                f"more than a tenth of the cells of the {one}, and count as its ends: check the range, and the unit of "
                "the cells"
                for one in (
                    "feature 'age' lie outside ranges.age",
                    "feature 'height' lie outside ranges.height",
                    "target 'score' lie outside target_range",
                )
            ),
            "more than a tenth of the cells of the feature 'dept' are missing, or not as declared: check their form "
            "and spelling; impute declares what a missing one counts as",
        ),
        samples=19,
        clipped={
            "age": int((table.age > 100).sum()),
            "height": int((table.height > 2).sum()),
            "score": int((table.score > 8).sum()),
        },
        unknown_levels={"dept": int((table.dept == "art").sum()), "year": 0},
        unusable={"age": 0, "height": 0, "score": 0},
    )
    assert loaded.report.clipped["height"] > 0
    assert loaded.report.unknown_levels["dept"] > 0
    in_files = ("rows", "users", "samples", "clipped", "unknown_levels", "unusable", "doubts")
    assert {*in_files} <= loaded.report.as_dict().keys()
    for_the_holder = replace(loaded.report, doubtful_ids="ids", target_ends=(1.0, 8.0)).as_dict()
    assert not {"doubtful_ids", "target_ends"} & for_the_holder.keys()
    classes = read(tmp_path, table, target="year", target_range=None, target_levels=["3", 1], categorical={}).report
    assert classes.unknown_levels["year"] == classes.unusable["year"] == (table.year == 2).sum() > 0
    codes = read(tmp_path, table, **CODES, codes=["year", "dept"], **SEVERAL).report
    unusable = {"year": (table.year == 3).sum(), "dept": (table.dept == "art").sum(), "score": 0}
    assert (codes.unusable, codes.imputed) == (unusable, {"dept": 0})
    bounded = read(tmp_path, table, min_samples=2, max_samples=4, users=3).report
    assert (bounded.users, bounded.small_users, bounded.surplus_users) == (3, 1, 1)
    assert bounded.samples + bounded.surplus_samples == sum(
        (table.who == label).sum() for label in read(tmp_path, table, min_samples=2, users=3).labels
    )


def test_na_and_nan_are_levels_like_any_other(tmp_path):
    """In text, that is: Namibia's code is no missing cell."""
    table = people().assign(dept=["NA", "nan", "null", *["art"] * 16])
    for suffix in ("csv", "parquet"):
        features = whole(read(tmp_path, table, suffix, categorical={"dept": ["NA", "nan", "null", ""]})).features
        np.testing.assert_array_equal(features[:, 2:].sum(axis=0), [1, 1, 1, 0])


def test_a_column_says_who_is_held_out(tmp_path):
    table = people().assign(part=lambda people: np.where(people.who.isin(["bob", "cy"]), "test", "train"))
    loaded = read(tmp_path, table, split_column="part", split_test="test", users=4)
    assert list(loaded.labels[loaded.held_out]) == [label for label in loaded.labels if label in ("bob", "cy")]
    assert read(tmp_path, table).held_out is None
    for suffix in ("csv", "parquet"):
        with pytest.raises(BadInput, match=r"split column 'part' has 4 cells \(the first in row 6\) that differ"):
            read(
                tmp_path,
                table.assign(part=["test"] * 5 + ["train"] * 14),
                suffix,
                split_column="part",
                split_test="test",
            )


def test_users_are_numbered_by_a_seeded_order_of_their_labels_whatever_the_rows(tmp_path):
    table = people()
    first = read(tmp_path, table, seed=1)
    shuffled = read(tmp_path, table.sample(frac=1, random_state=0), seed=1)
    np.testing.assert_array_equal(first.labels, shuffled.labels)
    assert len({tuple(read(tmp_path, table, seed=seed).labels) for seed in range(6)}) > 1
    np.testing.assert_array_equal(read(tmp_path, table, seed=1, users=2).labels, first.labels[:2])


def no_cells(column):
    return lambda table: table.assign(**{column: np.where(table.index == 4, np.nan, table[column])})


def put(column, value, row=4):
    def change(table):
        table[column] = table[column].astype(object)
        table.loc[row, column] = value
        return table

    return change


BINARY = {"target": "passed", "target_range": None, "positive": "yes"}
CLASSES = {"target": "passed", "target_range": None, "target_levels": ["no", "yes"]}
UNUSABLE_CELLS = [
    (no_cells("age"), {}, "age", 1),
    (no_cells("score"), {}, "score", 1),
    (put("height", "Zebra"), {}, "height", 1),
    (put("height", "inf"), {}, "height", 1),
    (put("height", "nan"), {}, "height", 1),
    (put("height", "1_0"), {}, "height", 1),
    (put("height", "1e400"), {}, "height", 1),
    (put("score", "1e300"), {"target_range": None}, "score", 1),
    (lambda table: table.assign(age="Zebra"), {}, "age", 19),
    (put("passed", None), BINARY, "passed", 1),
    (put("passed", None), CLASSES, "passed", 1),
    (put("passed", "Zebra"), CLASSES, "passed", 1),
    (put("year", 3), CODES | {"codes": "year", "levels": 4}, "year", 0),
    (put("year", 4), CODES | {"codes": "year", "levels": 4}, "year", 1),
    (put("year", -1), CODES | {"codes": "year", "levels": 4}, "year", 1),
    (put("year", 1.5), CODES | {"codes": "year", "levels": 4}, "year", 1),
    (put("year", None), CODES | {"codes": "year", "levels": 4}, "year", 1),
    (put("dept", "Zebra"), CODES | {"codes": "dept", "levels": ["law", "chem", "art"]}, "dept", 1),
    (put("dept", None), CODES | {"codes": "dept", "levels": ["law", "chem", "art"]}, "dept", 1),
]


@pytest.mark.sweep(26)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("change", "form", "column", "count"), UNUSABLE_CELLS)
def test_cells_that_no_loss_can_use_are_marked_and_counted_in_their_own_sample(
    tmp_path, suffix, change, form, column, count
):
    table = change(people())
    if suffix == "parquet":
        mixed = [name for name in table if table[name].dtype == object]
        table[mixed] = table[mixed].map(lambda cell: None if cell is None else str(cell))
    before, after = read(tmp_path, suffix=suffix, **form), read(tmp_path, table, suffix, **form)
    assert after.report.unusable[column] == count
    assert sum(after.report.unusable.values()) == count
    assert after.report.clipped.get(column, 0) <= before.report.clipped.get(column, 0)
    marks = np.isnan(whole(after).features) | (whole(after).features == -1) & ("codes" in form)
    marked = marks.any(axis=1) | np.isnan(whole(after).targets)
    assert marked.sum() == count
    changed = (whole(before).features != whole(after).features).any(axis=1)
    changed |= whole(before).targets != whole(after).targets
    if count:
        np.testing.assert_array_equal(changed, marked)
    assert "Zebra" not in str(after.report.as_dict())


def test_a_row_without_a_user_is_refused(tmp_path):
    for suffix in ("csv", "parquet"):
        with pytest.raises(BadInput, match=r"user column 'who' has 1 cell \(the first in row 5\) without a user"):
            read(tmp_path, put("who", None)(people()), suffix)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_positive_that_nobody_has_is_a_warning_for_one_cell_can_decide_it(tmp_path, suffix, caplog):
    loaded = read(tmp_path, people(), suffix, **BINARY | {"positive": "Yes"})
    assert "positive = 'Yes' is in no cell of the target" in caplog.text
    targets = whole(loaded).targets
    assert not np.any(targets[np.isfinite(targets)])


@pytest.mark.parametrize(
    "declared",
    [
        {"categorical": {"dept": ["LAW", "CHEM"], "year": [1, 2, 3]}},
        {"features": [], "ranges": {}, "categorical": {}, "codes": "year", "levels": [*range(4, 12)]},
        {"features": [], "ranges": {}, "categorical": {}, "codes": "year", "levels": 1},
        {"target": "passed", "target_range": None, "target_levels": ["Yes", "No"]},
    ],
    ids=["categorical", "listed codes", "numbered codes", "classes"],
)
def test_a_column_without_any_declared_level_is_a_warning_for_one_cell_can_decide_it(tmp_path, caplog, declared):
    loaded = read(tmp_path, people(), **declared)
    (sentence,) = loaded.report.nothing_usable
    assert re.match("the (feature|target) '(dept|year|passed)' has no cell with a declared level: check", sentence)
    assert sentence in caplog.messages


def test_one_declared_level_in_one_cell_is_enough_for_no_warning(tmp_path, caplog):
    first = people().dept.iloc[0]
    read(tmp_path, people(), categorical={"dept": [first, "LAW"], "year": [1]})
    assert not [line for line in caplog.messages if "no cell" in line]


@pytest.mark.parametrize(
    ("column", "cells", "told"),
    [
        ("age", pd.Timestamp("2024-01-01"), "column 'age' holds timestamp.*, not numbers"),
        ("age", [[1]] * 19, "column 'age' holds list, not numbers"),
        ("dept", [[1]] * 19, "column 'dept' holds list, not text, numbers or dates"),
        ("dept", [{"a": 1}] * 19, "column 'dept' holds struct, not text, numbers or dates"),
        ("who", pd.Timedelta(1), "column 'who' holds duration.*, not text, numbers or dates"),
    ],
)
def test_columns_of_a_type_that_cannot_be_used_are_refused(tmp_path, column, cells, told):
    with pytest.raises(BadInput, match=told):
        read(tmp_path, people().assign(**{column: cells}))


def test_a_parquet_column_that_is_there_twice_is_refused(tmp_path):
    table = pa.Table.from_pandas(people())
    pq.write_table(table.append_column("age", table["age"]), tmp_path / "twice.parquet")
    with pytest.raises(BadInput, match="has column 'age' more than once"):
        read_table(tmp_path / "twice.parquet", **FORM)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": ["agee"], "ranges": {"agee": [0, 1]}}, "no column 'agee'; did you mean 'age'"),
        (CODES | {"codes": ["dept", "yaer"], "buckets": 50}, "no column 'yaer'; did you mean 'year'"),
        ({"user": "qqq"}, "no column 'qqq'; it has who, age"),
        ({"min_samples": 0}, "min_samples"),
        ({"max_samples": 2, "min_samples": 3}, "max_samples must be at least min_samples = 3, got 2"),
        ({"users": 0}, "users"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_the_table_or_the_numbers_of_users_do_not_fit_is_refused(tmp_path, changes, message):
    with pytest.raises(BadInput, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("nowhere.csv", None, r"nowhere\.csv does not exist"),
        ("broken.parquet", b"no parquet", "cannot be read as parquet"),
        ("empty.csv", b"", "cannot be read as csv"),
        ("open.csv", b'who,age\nann,"1\n', "cannot be read as csv"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, name, content, told):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=told):
        read_table(tmp_path / name, user="who", features=["age"], ranges={"age": [0, 9]})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_without_rows_is_refused(tmp_path, suffix):
    with pytest.raises(BadInput, match="has no rows"):
        read(tmp_path, people().iloc[:0], suffix)
