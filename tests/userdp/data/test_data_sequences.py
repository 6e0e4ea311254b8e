"""Samples that are sequences: windows of a user's rows, of lists, of characters."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import SequenceColumns, read_table
from userdp.data.tables import texts
from userdp.data.tables.columns import Columns
from userdp.data.tables.tabular import read_features
from userdp.data.tables.texts import character_codes
from userdp.errors import BadInput, PopulationTooSmall

ANSWERS = SequenceColumns(window=3, order="at", inputs={"film": ["a", "b"]}, predict="right", levels=2)
SPEECH = SequenceColumns(window=4, text="text", alphabet="ab\n")
OTHER_FILM, OTHER_RIGHT = 2, 2


def answers() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "who": ["ann", "bob", "ann", "ann", "bob", "ann", "cy"],
            "at": [3.0, 1.0, 1.0, 2.0, 0.0, 2.0, 5.0],
            "film": ["a", "b", "b", "zebra", "a", None, "b"],
            "right": [1, 0, 1, 7, 1, 0, 0],
        }
    )


def read(folder, table, suffix="parquet", **form):
    path = folder / f"table.{suffix}"
    if suffix == "csv":
        table.to_csv(path, index=False)
    elif isinstance(table, pd.DataFrame):
        table.to_parquet(path, index=False)
    else:
        pq.write_table(pa.table(table), path)
    return read_table(path, user="who", **form)


def windows_of(loaded, label):
    """(windows, L*C) of one user."""
    return loaded.federation.block(np.flatnonzero(loaded.labels == label)).features


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_become_steps_in_their_order_with_other_codes_and_padding(tmp_path, suffix):
    loaded = read(tmp_path, answers(), suffix, sequence=ANSWERS)
    ann = [[1, 1, OTHER_FILM, OTHER_RIGHT, OTHER_FILM, 0], [0, 1, -1, -1, -1, -1]]
    np.testing.assert_array_equal(windows_of(loaded, "ann"), ann)
    np.testing.assert_array_equal(windows_of(loaded, "bob"), [[0, 1, 1, 0, -1, -1]])
    np.testing.assert_array_equal(windows_of(loaded, "cy"), [[1, 0, -1, -1, -1, -1]])
    block = loaded.federation.block(np.arange(3))
    assert block.features.dtype == np.int32
    assert block.features.flags.c_contiguous
    assert block.targets is None
    assert loaded.feature_names == ["film", "right"]
    assert loaded.report.unknown_levels == {"film": 2, "right": 1}
    assert loaded.report.steps == {"film": 7, "right": 7}
    assert loaded.report.as_dict()["steps"] == {"film": 7, "right": 7}


def test_rows_without_a_number_to_sort_by_come_last_in_the_files_order(tmp_path):
    table = answers().assign(at=["x", "1", "inf", "0", "", "7", "5"])
    loaded = read(tmp_path, table, sequence=ANSWERS)
    np.testing.assert_array_equal(windows_of(loaded, "ann")[:, 1::2], [[OTHER_RIGHT, 0, 1], [1, -1, -1]])


def test_without_an_order_rows_are_in_the_files(tmp_path):
    form = SequenceColumns(window=10, predict="right", levels=[1, 0])
    loaded = read(tmp_path, answers(), sequence=form)
    np.testing.assert_array_equal(windows_of(loaded, "ann"), [[0, 0, 2, 1] + [-1] * 6])
    assert loaded.feature_names == ["right"]


ROWS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from([0.0, 1.0, 2.0, np.nan]), st.integers(-1, 4)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=50)
@given(ROWS, st.integers(1, 7), st.none() | st.integers(1, 3), st.integers(0, 3))
def test_windows_are_each_users_rows_one_after_the_other(tmp_path_factory, rows, window, most, seed):
    """All of them without a bound; with one, as many different ones in their order."""
    table = pd.DataFrame(rows, columns=["who", "at", "code"])
    form = SequenceColumns(window=window, order="at", predict="code", levels=4)
    loaded = read(tmp_path_factory.mktemp("t"), table, sequence=form, max_samples=most, seed=seed)
    for label in loaded.labels:
        own = table[table.who == label].sort_values("at", kind="stable", na_position="last").code
        codes = np.where(own.between(0, 3), own, 4)
        whole = [np.append(codes, [-1] * window)[at : at + window].tolist() for at in range(0, len(codes), window)]
        found = windows_of(loaded, label).tolist()
        if most is None:
            assert found == whole
        else:
            left = iter(whole)
            assert len(found) == min(most, len(whole))
            assert all(one in left for one in found)


def test_few_and_many_windows_are_counted_in_windows(tmp_path):
    loaded = read(tmp_path, answers(), sequence=ANSWERS, min_samples=2)
    assert list(loaded.labels) == ["ann"]
    bounded = read(tmp_path, answers(), sequence=ANSWERS, max_samples=1)
    assert bounded.report.surplus_samples == 1
    assert bounded.federation.samples == 3
    with pytest.raises(PopulationTooSmall, match="min_samples = 3"):
        read(tmp_path, answers(), sequence=ANSWERS, min_samples=3)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from("xy"), st.text("abé\n\0😀", max_size=6) | st.none()), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 20),
)
def test_text_is_read_character_by_character_with_newlines_between_rows(tmp_path_factory, rows, window, block_bytes):
    table = pd.DataFrame(rows, columns=["who", "text"]).astype({"text": "string"})
    form = SequenceColumns(window=window, text="text", alphabet="bé\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "BLOCK_BYTES", block_bytes)
        loaded = read(tmp_path_factory.mktemp("t"), table, sequence=form)
    for label in loaded.labels:
        text = "\n".join("" if pd.isna(cell) else cell for cell in table[table.who == label].text)
        codes = ["bé\n".find(character) % 4 for character in text]
        found = windows_of(loaded, label)
        assert found.shape == (max(1, -(-len(text) // window)), window)
        assert found.ravel().tolist() == codes + [-1] * (found.size - len(codes))


def test_csv_and_parquet_text_are_the_same_and_without_newline_joints_are_other(tmp_path):
    table = pd.DataFrame({"who": ["u", "v", "u"], "text": ["ab", "b", "ba"]})
    form = SPEECH.model_copy(update={"alphabet": "ab"})
    for suffix in ("csv", "parquet"):
        loaded = read(tmp_path, table, suffix, sequence=form)
        np.testing.assert_array_equal(windows_of(loaded, "u"), [[0, 1, 2, 1], [0, -1, -1, -1]])
        assert loaded.report.unknown_levels == {"text": 1}


def test_a_user_without_any_character_has_one_window_of_padding(tmp_path):
    loaded = read(tmp_path, {"who": ["u", "v"], "text": ["", "ab"]}, sequence=SPEECH)
    np.testing.assert_array_equal(windows_of(loaded, "u"), [[-1] * 4])
    nobody = read(tmp_path, {"who": ["u", "v"], "text": pa.nulls(2)}, sequence=SPEECH)
    assert nobody.federation.samples == 2
    assert "has no cell with a value" in nobody.report.nothing_usable[0]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=6) | st.text(max_size=4).map(lambda text: text.encode()), max_size=8))
def test_bytes_that_are_no_text_are_other_characters_of_their_own_cell(cells):
    codes, ends = character_codes(pa.array(cells, type=pa.large_binary()), "ab")
    for cell, own in zip(cells, np.split(codes, ends[1:-1]) if cells else [], strict=True):
        assert own.tolist() == ["ab".find(character) % 3 for character in cell.decode("utf-8", "replace")]


def test_lists_are_flattened_and_other_columns_follow_them_step_by_step(tmp_path):
    table = {
        "who": ["u", "v", "u", "v"],
        "tokens": pa.array([[1, 2, None], [], [9, 0], None], type=pa.list_(pa.int16())),
        "place": [["a", "b"], ["a"], ["b", "a", "a"], ["b"]],
        "kind": [0, 1, 1, 0],
    }
    form = SequenceColumns(window=4, inputs={"place": ["a", "b"], "kind": 2}, predict="tokens", levels=9)
    loaded = read(tmp_path, table, sequence=form)
    first = [[0, 0, 1], [1, 0, 2], [2, 0, 9], [1, 1, 9]]
    second = [[0, 1, 0], [-1] * 3, [-1] * 3, [-1] * 3]
    np.testing.assert_array_equal(windows_of(loaded, "u").reshape(2, 4, 3), [first, second])
    np.testing.assert_array_equal(windows_of(loaded, "v"), [[-1] * 12])
    empty = read(
        tmp_path, {"who": ["u"], "tokens": [[]]}, sequence=SequenceColumns(window=2, predict="tokens", levels=9)
    )
    np.testing.assert_array_equal(windows_of(empty, "u"), [[-1, -1]])
    read(tmp_path, table, sequence=form)
    with pytest.raises(BadInput, match="'place' holds lists and 'kind' does not"):
        read(tmp_path, table, sequence=SequenceColumns(window=4, inputs={"place": 2}, predict="kind", levels=2))


@settings(max_examples=40)
@given(
    st.lists(st.text("ab\n", max_size=5), min_size=1, max_size=4),
    st.lists(st.binary(max_size=9) | st.none(), min_size=1, max_size=6),
    st.integers(0, 5),
    st.none() | st.integers(1, 3),
)
def test_whatever_one_user_says_changes_no_bit_of_anybody_elses_windows(tmp_path_factory, before, after, place, most):
    folder, others = tmp_path_factory.mktemp("t"), [("x", b"abba"), ("y", b"\n\xe4"), ("x", b"b\xe4\xb8"), ("y", b"ab")]
    found = []
    for own in ([text.encode() for text in before], after):
        rows = others[:place] + [("cy", cell) for cell in own] + others[place:]
        who, text = zip(*rows, strict=True)
        table = {"who": list(who), "text": pa.array(text, type=pa.binary())}
        loaded = read(folder, table, sequence=SPEECH, max_samples=most)
        found.append([windows_of(loaded, label).tobytes() for label in "xy"])
    assert found[0] == found[1]


def test_numbers_are_no_text_and_windows_no_rows(tmp_path):
    with pytest.raises(BadInput, match="'text' holds int64, not text or bytes"):
        read(tmp_path, {"who": ["u"], "text": [1]}, sequence=SPEECH)
    read(tmp_path, {"who": ["u"], "text": ["a"]}, sequence=SPEECH)
    with pytest.raises(BadInput, match="nothing is predicted row by row"):
        read_features(tmp_path / "table.parquet", Columns(user="who", sequence=SPEECH))
