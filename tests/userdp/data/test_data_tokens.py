"""Columns of text as tokens of a model's own tokenizer: windows of a user's rows, and texts with a target."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="needs userdp[language]")

from userdp.data import SequenceColumns, read_table
from userdp.data.tables import texts
from userdp.data.tables.columns import Columns
from userdp.data.tables.public import public_columns
from userdp.data.tables.sources import TableData
from userdp.data.tables.tabular import read_features
from userdp.data.tables.texts import token_codes, tokenizer_of
from userdp.errors import BadInput

END, AB = 256, 257
TEXT = st.text("abé\n\0😀<|>", max_size=6) | st.just("a<|end|>b")


def save(folder, **special):
    """A tokenizer of the bytes of UTF-8, of a token that ends texts if one is given, and of "ab"."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|end|>", "ab"]
    tokens = Tokenizer(models.BPE({name: code for code, name in enumerate(names)}, merges=[("a", "b")]))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokens, **special).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return save(tmp_path_factory.mktemp("tokenizer"), eos_token="<|end|>")


def alone(place, text):
    """The tokens of one text, as the library gives them."""
    return tokenizer_of(place)(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def read(folder, rows, columns=("who", "text"), **form):
    path = folder / "table.parquet"
    pd.DataFrame(rows, columns=list(columns)).to_parquet(path, index=False)
    return read_table(path, user="who", **form)


def of_user(loaded, label):
    return loaded.federation.block(np.flatnonzero(loaded.labels == label))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("xy"), TEXT | st.none()), min_size=1, max_size=10), st.integers(1, 9))
def test_windows_are_the_tokens_of_a_users_texts_joined_by_the_ending_one(place, tmp_path_factory, rows, window):
    form = SequenceColumns(window=window, text="text", tokenizer=place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "_TOKENISED_BYTES", 5)
        loaded = read(tmp_path_factory.mktemp("t"), rows, sequence=form)
    for label in loaded.labels:
        own = [alone(place, text or "") for who, text in rows if who == label]
        tokens = [code for text in own for code in [*text, END]][:-1]
        found = of_user(loaded, label).features
        assert found.shape == (max(1, -(-len(tokens) // window)), window)
        assert found.ravel().tolist() == tokens + [-1] * (found.size - len(tokens))
    assert not any(loaded.report.unknown_levels.values())


def test_the_shape_has_as_many_codes_as_the_tokenizer(place):
    shape = Columns(user="who", sequence=SequenceColumns(window=3, text="text", tokenizer=place)).shape
    assert (shape.columns, shape.sequence.steps, shape.sequence.levels) == (3, 3, (258,))
    assert (shape.tokenizer, shape.has_target) == (place, False)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=6) | TEXT.map(str.encode) | st.none(), max_size=8), st.integers(1, 20))
def test_a_cells_tokens_are_its_own_whatever_stands_beside_it(place, cells, block_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "_TOKENISED_BYTES", block_bytes)
        codes, ends = token_codes(pa.array(cells, type=pa.large_binary()), place)
    assert codes.dtype == np.uint16
    for cell, own in zip(cells, np.split(codes, ends[1:-1]) if cells else [], strict=True):
        assert own.tolist() == alone(place, (cell or b"").decode("utf-8", "replace"))


def test_a_text_that_the_tokenizer_fails_on_has_no_tokens_and_spoils_no_other(place, monkeypatch):
    whole = tokenizer_of(place)

    def fragile(given, **settings):
        if "bad" in given:
            raise RuntimeError("no such text")
        return whole(given, **settings)

    monkeypatch.setattr(texts, "tokenizer_of", lambda _: fragile)
    monkeypatch.setattr(texts, "token_count", lambda _: 258)
    codes, ends = token_codes(pa.array([b"ab", b"bad", b"b"], type=pa.large_binary()), place)
    assert codes.tolist() == [AB, *alone(place, "b")]
    assert ends.tolist() == [0, 1, 1, 2]


LABELLED = {"columns": ("who", "text", "mood"), "target": "mood", "target_levels": ["glad", "sad"]}
MOODS = [("u", "ab", "sad"), ("v", "", "glad"), ("u", "abbaab", "glad"), ("v", "é", "other"), ("v", None, "sad")]


def test_a_text_with_a_target_is_a_sample_padded_or_cut(place, tmp_path):
    form = SequenceColumns(window=4, text="text", tokenizer=place)
    loaded = read(tmp_path, MOODS, sequence=form, **LABELLED)
    one, two = (code + 1 for code in alone(place, "ba"))
    first = of_user(loaded, "u")
    np.testing.assert_array_equal(first.features, [[AB + 1, 0, 0, 0], [AB + 1, one, two, AB + 1]])
    np.testing.assert_array_equal(first.targets, [1, 0])
    second = of_user(loaded, "v")
    np.testing.assert_array_equal(second.features[[0, 2]], [[-1] * 4] * 2)
    np.testing.assert_array_equal(second.features[1], [*(code + 1 for code in alone(place, "é")), 0, 0])
    np.testing.assert_array_equal(second.targets, [0, np.nan, 1])
    assert loaded.report.unusable["text"] == 2
    assert loaded.report.clipped["text"] == 0
    shorter = read(tmp_path, MOODS, sequence=form.model_copy(update={"window": 3}), **LABELLED)
    assert shorter.report.clipped["text"] == 1
    shape = Columns(user="who", sequence=form, target="mood", target_levels=["glad", "sad"]).shape
    assert (shape.columns, shape.code_levels, shape.classes, shape.sequence) == (4, (259,) * 4, 2, None)
    assert shape.codes_from == "data.sequence"


def test_rows_of_texts_are_read_for_predictions(place, tmp_path):
    form = SequenceColumns(window=4, text="text", tokenizer=place)
    read(tmp_path, MOODS, sequence=form, **LABELLED)
    columns = Columns(user="who", sequence=form, target="mood", target_levels=["glad", "sad"])
    features, _, unusable = read_features(tmp_path / "table.parquet", columns)
    assert features.shape == (5, 4)
    assert unusable == {"text": 2}


def test_a_column_without_any_text_is_told(place, tmp_path):
    form = SequenceColumns(window=4, text="text", tokenizer=place)
    loaded = read(tmp_path, [("u", ""), ("v", "")], sequence=form)
    assert "has no cell with a value" in loaded.report.nothing_usable[0]
    empty = [("u", "", "sad"), ("v", "", "glad")]
    assert "has no cell with a value" in read(tmp_path, empty, sequence=form, **LABELLED).report.nothing_usable[0]


@pytest.mark.parametrize(
    ("form", "more", "told"),
    [
        ({"text": "text"}, {}, "needs either sequence.alphabet"),
        ({"text": "text", "alphabet": "ab", "tokenizer": "hf:x"}, {}, "needs either sequence.alphabet"),
        ({"predict": "text", "levels": 2, "tokenizer": "hf:x"}, {}, "sequence.tokenizer reads sequence.text"),
        ({"text": "text", "tokenizer": "x"}, {}, "write 'hf:FOLDER'"),
        ({"text": "text", "tokenizer": "hf:/no/such"}, {}, "there is no such folder"),
        ({"text": "text", "alphabet": "ab"}, {"target": "mood"}, "or give sequence.tokenizer"),
    ],
)
def test_contradictions_are_refused(form, more, told, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=told):
        _ = Columns(user="who", sequence=SequenceColumns(window=3, **form), **more).shape


def test_what_does_not_fit_a_text_with_a_target_is_refused(place):
    for field, value in (("order", "at"), ("inputs", {"at": 3})):
        form = SequenceColumns(window=3, text="text", tokenizer=place, **{field: value})
        with pytest.raises(BadInput, match=f"leave sequence.{field} out"):
            Columns(user="who", sequence=form, target="mood", target_levels=[0, 1])


def test_a_tokenizer_without_an_ending_token_or_without_files_is_refused(tmp_path):
    form = SequenceColumns(window=3, text="text", tokenizer=save(tmp_path / "endless"))
    with pytest.raises(BadInput, match="has no token that ends a text"):
        read(tmp_path, [("u", "ab")], sequence=form)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="the folder has to hold the files of a tokenizer"):
        tokenizer_of(f"hf:{tmp_path / 'empty'}")


def test_who_made_the_tokenizer_is_an_assumption(place):
    form = {"window": 3, "text": "text", "tokenizer": place}
    data = TableData.model_validate({"kind": "table", "path": "t.csv", "user": "who", "sequence": form})
    assert "the tokenizer is public, and made without the text of these users" in data.assumptions


def test_a_public_sets_own_text_can_be_read_by_a_tokenizer(place):
    given = {"sequence": SequenceColumns(window=128, tokenizer=place)}
    form = public_columns("gerdracor", given)["sequence"]
    assert (form.window, form.text, form.alphabet, form.tokenizer) == (128, "text", None, place)
