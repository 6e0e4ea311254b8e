"""A configuration names a language model once: its column of text is read by the model's own tokenizer."""

import pytest
from examples import changed

from simulations.config.places import make_absolute
from simulations.config.run_config import _with_tokenizer, load_config, parse_config
from userdp.errors import BadInput

MODEL = "hf:base"
TEXT = {"window": 8, "text": "speech"}


def file(**sequence):
    return {"problem": {"kind": "torch", "model": MODEL}, "data": {"kind": "table", "sequence": sequence}}


def test_a_column_of_text_gets_the_models_tokenizer():
    assert _with_tokenizer(file(**TEXT))["data"]["sequence"] == {**TEXT, "tokenizer": MODEL}
    assert _with_tokenizer(file(window=8))["data"]["sequence"]["tokenizer"] == MODEL  # a public set names its own text


@pytest.mark.parametrize("own", [{"tokenizer": "hf:other"}, {"alphabet": "ab"}, {"predict": "song", "levels": 3}])
def test_what_the_file_says_itself_stays(own):
    raw = file(window=8, **own)
    assert _with_tokenizer(raw) == raw


def test_files_without_a_language_model_or_a_sequence_stay():
    for raw in ({}, {"data": {"sequence": TEXT}}, {"problem": {"model": MODEL}, "data": {}}, {"problem": 1, "data": 2}):
        assert _with_tokenizer(raw) == raw


def test_folders_are_relative_to_the_file_and_names_of_the_hub_stay(tmp_path):
    (tmp_path / "base").mkdir()
    raw = file(**TEXT, tokenizer="hf:./other")
    make_absolute(raw, tmp_path)
    assert raw["problem"]["model"] == f"hf:{tmp_path / 'base'}"
    assert raw["data"]["sequence"]["tokenizer"] == f"hf:{tmp_path / 'other'}"
    raw = file(**TEXT, tokenizer="hf:owner/name")
    make_absolute(raw, tmp_path)
    assert raw["data"]["sequence"]["tokenizer"] == "hf:owner/name"


def test_characters_are_no_tokens_of_a_model():
    raw = changed(problem=None, data=None, strategy={"kind": "dp_fed_sgd"}) | {
        "problem": {"kind": "torch", "loss": "cross_entropy", "model": MODEL},
        "data": {"kind": "public", "name": "gerdracor"},
    }
    with pytest.raises(BadInput, match=r"declare data\.sequence"):
        parse_config(raw)


def test_a_text_without_alphabet_and_tokenizer_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "t"\nproblem = { kind = "torch", loss = "cross_entropy", module = "m:make" }\n'
        'data = { kind = "table", path = "t.csv", user = "u", sequence = { window = 8, text = "speech" } }\n'
        "privacy = { epsilon = 1.0, delta = 1e-5 }\n"
    )
    with pytest.raises(BadInput, match="needs either"):
        _ = load_config(path).data.sample_shape
