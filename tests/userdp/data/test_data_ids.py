"""Ids are text to the letter, whatever the type of their column, and two spellings of one person are noticed."""

import logging
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from userdp.data import read_table
from userdp.data.tables.ids import doubtful_ids, ids_of
from userdp.data.tables.sources import TableData
from userdp.errors import BadInput, PopulationTooSmall
from userdp.nodes.node import identities

FORM = {"user": "pid", "features": ["age"], "ranges": {"age": [0, 100]}}
APART = [
    "007",
    "7",
    " 7",
    "1e5",
    "100000",
    "1E5",
    "True",
    "1",
    "1.10",
    "1.1",
    "+3",
    "3",
    "Ann",
    "ann",
    "123456789012345678",
]


def labels(folder, ids, suffix, **how):
    frame = pd.DataFrame({"pid": ids, "age": np.arange(len(ids))})
    if suffix == "frame":
        return read_table(frame, **FORM, **how).labels.tolist()
    path = folder / f"table.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    return read_table(path, **FORM, **how).labels.tolist()


@pytest.mark.parametrize("how", [{}, {"memory": 0}], ids=str)
@pytest.mark.parametrize("suffix", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (APART, APART),
        ([2**53 + 1, 2**53], ["9007199254740993", "9007199254740992"]),
        ([1.0, 2.0**53 - 1, -3.0], ["1", "9007199254740991", "-3"]),
        (np.array([1.0, 2.0**24 - 1], dtype=np.float32), ["1", "16777215"]),
        ([True, False], ["True", "False"]),
        (pd.Series([True, 1.0, 2, "3"], dtype=object), ["True", "1", "2", "3"]),
    ],
)
def test_an_id_is_text_to_the_letter_and_a_whole_number_its_digits(tmp_path, ids, told, suffix, how):
    if suffix == "parquet" and isinstance(ids, pd.Series):  # Parquet has no objects
        ids = ids.astype(str)
    assert sorted(labels(tmp_path, ids, suffix, **how)) == sorted(told)


@pytest.mark.parametrize("how", [{}, {"memory": 0}], ids=str)
@pytest.mark.parametrize("suffix", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([1.0, 123456789012345678.0], "has an id that is a float which is not whole, or from 9007199254740992 on"),
        ([1.0, 2.0**53], "from 9007199254740992 on"),
        ([1.5, 2.25], "a float which is not whole"),
        (np.array([2.0**24, 1.0], dtype=np.float32), "from 16777216 on"),
        ([np.inf, 1.0], "a float which is not whole"),
        (["a\0b", "c"], "has an id with a NUL byte"),
        *(
            (["a", word, "c"], r"1 cell \(the first in row 2\) without a user")
            for word in ("NA", "nan", "<NA>", "NULL", " ")
        ),
    ],
)
def test_an_id_that_may_be_two_peoples_is_refused(tmp_path, ids, told, suffix, how):
    text = suffix == "csv" and (told in ("a float which is not whole", "from 16777216 on"))
    if text:  # then it is text to the letter, with all digits
        assert len(labels(tmp_path, ids, suffix, **how)) == 2
        return
    with pytest.raises(BadInput, match=f"the user column 'pid' .*{told}") as caught:
        labels(tmp_path, ids, suffix, **how)
    assert "123456789012345" not in str(caught.value)


def test_a_silo_that_reads_ids_as_floats_holds_the_same_people_or_is_refused(tmp_path):
    salt = b"0" * 16
    one, two = (labels(tmp_path, ids, "csv") for ids in (["100001", "7"], [100001.0, 7.0]))
    np.testing.assert_array_equal(identities(one, salt), identities(two, salt))
    long = "123456789012345678"
    assert labels(tmp_path, [long, "7"], "csv")[0] in (long, "7")
    with pytest.raises(BadInput, match="two people can become one"):
        labels(tmp_path, [float(long), 7.0], "csv")


def test_every_word_for_a_missing_cell_names_nobody_and_no_other_word_does():
    """Such an id would make one person of many, of whom a limit would then protect none."""
    words = ["NA", "n/a", "#N/A", "<NA>", "NaN", "NaT", "null", "NONE", "", "  ", " na\t"]
    others = ["nobody", "nan1", "0", "False", "-", "N A", "unknown"]
    found = ids_of(pa.chunked_array([[*words, *others]]), "pid")
    assert [found.distinct[place] for place in found.positions] == [""] * len(words) + others


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("7", "007"),
        ("Ann", "ann"),
        ("ann", " ann "),
        ("\uff41nn", "ann"),
        ("1e5", "100000"),
        ("1.10", "1.1"),
        ("+3", "3"),
        ("ann", "an\u200bn"),
    ],
)
def test_two_spellings_are_told_without_an_id(one, other):
    sentence = doubtful_ids([one, other, "zoe"], "pid")
    assert sentence.startswith("the same people may be written in two ways: 1 of the 3 ids in data.user = 'pid' differ")
    assert "zoe" not in sentence
    assert not doubtful_ids([one, "zoe"], "pid")


@pytest.mark.parametrize(("one", "other"), [("True", "1"), ("1", "10"), ("a7", "a07"), ("1e99999", "1"), ("", "0a")])
def test_other_ids_are_of_other_people(one, other):
    assert not doubtful_ids([one, other], "pid")


@pytest.mark.parametrize(
    "word", ["Total", "totals", "Subtotal", " SUM ", "all", "overall", "Mean", "AVERAGE", "Grand total"]
)
def test_a_row_of_totals_is_told_to_the_holder_without_its_id(word):
    told = doubtful_ids(["anna", word, "Totalia", "summer"], "pid")
    assert told.startswith("data.user = 'pid' has an id that is a word for many people")
    assert "anna" not in told
    assert doubtful_ids([word, word.upper() + " "], "pid").count("data.user = 'pid'") == 2
    assert not doubtful_ids(["anna", "Totalia", "summer"], "pid")


@pytest.mark.parametrize("declared", [{"all_users": 4}, {"all_users": 9}, {"users": 9}])
def test_the_number_of_users_is_not_to_be_corrected_to_that_of_spellings(tmp_path, caplog, declared):
    path = tmp_path / "table.csv"
    path.write_text("pid,age\n" + "".join(f"{name}{at},1\n" for at in range(4) for name in ("P", "p")))
    data = TableData(kind="table", path=str(path), test_fraction=0.0, **FORM, **declared)
    with caplog.at_level(logging.WARNING), pytest.raises((BadInput, PopulationTooSmall)) as caught:
        data.load(0)
    assert "correct data.all_users" not in str(caught.value)
    assert "data.all_users = 8" not in str(caught.value)
    assert ("may be written in two ways: 4 of the 8 ids" in str(caught.value)) == ("all_users" in declared)
    assert "may be written in two ways: 4 of the 8 ids in data.user = 'pid'" in caplog.text
    with pytest.raises(BadInput, match=r"unless data\.user writes the same people in") as caught:
        data.model_copy(update={"all_users": 4, "users": None}).load(0, lambda: True)
    assert "8" not in str(caught.value)  # their number is protected


def test_decimals_are_ids_by_their_digits(tmp_path):
    assert sorted(labels(tmp_path, [Decimal("7.00"), Decimal("12345678901234567890.00")], "parquet")) == [
        "12345678901234567890",
        "7",
    ]
