import hashlib
import http.client
import io
import os
import urllib.error
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from userdp.data import PUBLIC_DATASETS, SequenceColumns, load_public, public_columns, public_file
from userdp.data.tables.columns import Columns
from userdp.errors import BadInput

CONTENT = b"a small file"


@pytest.fixture
def males(monkeypatch):
    """The entry of Males, with the checksum of `CONTENT`."""
    entry = replace(PUBLIC_DATASETS["males"], sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(PUBLIC_DATASETS, "males", entry)
    return entry


def answer(monkeypatch, content: bytes, asked: list[str]):
    def opener(address, timeout):
        asked.append(address)
        assert timeout > 0
        return io.BytesIO(content)

    monkeypatch.setattr("urllib.request.urlopen", opener)


FETCHED = [entry.name for entry in PUBLIC_DATASETS.values() if entry.address]
ONES_OWN = [entry.name for entry in PUBLIC_DATASETS.values() if not entry.address]


@pytest.mark.parametrize("name", FETCHED)
def test_the_real_tables_have_the_declared_users_and_samples(public_cache, name):
    entry = PUBLIC_DATASETS[name]
    loaded = load_public(name, public_cache)
    assert (loaded.federation.users, loaded.federation.samples) == (entry.users, entry.samples)
    block = loaded.federation.block(np.arange(entry.users))
    assert np.abs(block.features).max() <= 1
    assert np.abs(block.targets).max() <= 1
    assert loaded.report.rows == entry.samples


def ones_own(name):
    """The table of a set that has no address; skips where the cache lacks its file."""
    folder = Path(os.environ.get("USERDP_DATA", ""))
    if not (folder / PUBLIC_DATASETS[name].file).is_file():
        pytest.skip(f"USERDP_DATA has no {PUBLIC_DATASETS[name].file}, which only its own makers can put there")
    return load_public(name, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONES_OWN)
def test_sets_without_an_address_have_the_declared_users_samples_and_levels(name):
    entry, loaded = PUBLIC_DATASETS[name], ones_own(name)
    assert (loaded.federation.users, loaded.federation.samples) == (entry.users, entry.samples)
    assert entry.test_users == (0 if loaded.held_out is None else loaded.held_out.sum())
    features = loaded.federation.block(np.arange(entry.users)).features
    if "sequence" in entry.columns:
        form = entry.columns["sequence"]
        channels = features.reshape(entry.samples, form.window, -1)
        for codes, count, unknown in zip(
            np.moveaxis(channels, 2, 0), form.code_counts, loaded.report.unknown_levels.values(), strict=True
        ):
            assert codes.min() == -1
            assert codes.max() < count
            assert unknown < 1e-4 * loaded.report.steps[form.predicted]
    else:
        assert features.min() == 0
        assert features.max() == 1
        assert loaded.report.unusable == {"pixels": 0, "digit": 0}


def test_a_set_without_an_address_says_which_file_is_expected_and_what_of(tmp_path):
    for name in ONES_OWN:
        entry = PUBLIC_DATASETS[name]
        with pytest.raises(BadInput, match="has no address") as caught:
            load_public(name, tmp_path)
        for told in (str(tmp_path / entry.file), entry.made_from, entry.sha256):
            assert told in str(caught.value)
        (tmp_path / entry.file).write_bytes(b"one's own")
        with pytest.raises(BadInput, match=r"read a file of your own making as data\.kind = 'table'"):
            load_public(name, tmp_path)


def test_a_public_sequence_keeps_what_is_not_named():
    own = PUBLIC_DATASETS["assistments2015"].columns["sequence"]
    kept = public_columns("assistments2015", {"sequence": SequenceColumns(window=9)})
    assert kept == {"user": "student", "sequence": own.model_copy(update={"window": 9})}
    other = SequenceColumns(window=9, predict="skill", levels=101)
    assert public_columns("assistments2015", {"sequence": other})["sequence"] == other
    coded = public_columns("assistments2015", {"codes": ["skill"], "levels": {"skill": 101}, "target": "correct"})
    assert "sequence" not in coded
    digits = public_columns("mnist_writers", {"features": ["index"], "ranges": {"index": [0, 6e4]}})
    assert digits.keys() == {"user", "target", "split_column", "split_test", "features", "ranges"}


def test_the_alphabet_of_german_print_has_every_character_once():
    alphabet = PUBLIC_DATASETS["gerdracor"].columns["sequence"].alphabet
    assert len(set(alphabet)) == len(alphabet) == 104


def test_options_replace_a_public_sets_own_columns(public_cache):
    coded = load_public("insteval", public_cache, codes="d", levels=2161, min_samples=10)
    assert coded.federation.columns == 1
    assert coded.federation.users == 2642
    wage = load_public(
        "males", public_cache, features=["school"], ranges={"school": [4, 18]}, target="wage", target_range=[0, 3]
    )
    assert wage.feature_names == ["school"]
    assert wage.report.clipped["wage"] > 0


@pytest.mark.parametrize("name", PUBLIC_DATASETS)
def test_every_entry_is_complete_and_its_columns_are_consistent(name):
    entry = PUBLIC_DATASETS[name]
    assert entry.name == name
    assert entry.address is None or entry.address.startswith("https://")
    assert entry.address is None or entry.address.endswith(entry.file)
    assert (entry.made_from == "") == (entry.address is not None)
    assert entry.source
    assert len(entry.sha256) == 64
    assert entry.license
    assert entry.summary
    columns = Columns(**entry.columns)
    assert columns.target or columns.sequence


def test_a_file_that_is_not_cached_is_fetched_once(monkeypatch, males, tmp_path):
    asked: list[str] = []
    answer(monkeypatch, CONTENT, asked)
    monkeypatch.setenv("USERDP_DATA", str(tmp_path / "cache"))
    path = public_file("males")
    assert path == tmp_path / "cache" / "Males.parquet"
    assert path.read_bytes() == CONTENT
    assert public_file("males") == path
    assert asked == [males.address]
    assert [file.name for file in path.parent.iterdir()] == ["Males.parquet"]


def test_the_cache_is_below_the_home_folder_by_default(monkeypatch, males, tmp_path):
    monkeypatch.delenv("USERDP_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    answer(monkeypatch, CONTENT, [])
    assert public_file("males") == tmp_path / ".cache" / "userdp" / "Males.parquet"


@pytest.mark.parametrize(
    "problem", [urllib.error.URLError("no route"), TimeoutError(), http.client.IncompleteRead(b"")]
)
def test_offline_says_which_file_from_where_and_where_to(monkeypatch, tmp_path, problem):
    def refuse(address, timeout):
        raise problem

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(BadInput) as caught:
        load_public("chem97", tmp_path)
    message = str(caught.value)
    assert PUBLIC_DATASETS["chem97"].address in message
    assert str(tmp_path / "Chem97.parquet") in message
    assert not list(tmp_path.iterdir())


def test_another_checksum_is_refused_cached_or_fetched(monkeypatch, males, tmp_path):
    answer(monkeypatch, b"something else", [])
    with pytest.raises(BadInput, match=r"the download from https.* SHA-256"):
        public_file("males", tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "Males.parquet").write_bytes(b"something else")
    with pytest.raises(BadInput, match=rf"Males\.parquet has the SHA-256 checksum .* instead of {males.sha256}"):
        public_file("males", tmp_path)


def test_only_https_is_fetched(monkeypatch, males, tmp_path):
    monkeypatch.setitem(PUBLIC_DATASETS, "males", replace(males, address="http://example.org/Males.parquet"))
    with pytest.raises(BadInput, match="must start with https"):
        public_file("males", tmp_path)


def test_a_cache_that_cannot_be_written_is_refused(monkeypatch, males, tmp_path):
    answer(monkeypatch, CONTENT, [])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadInput, match="cannot be written"):
        public_file("males", tmp_path / "file" / "cache")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match="name = 'insteval2' is unknown; did you mean 'insteval'"):
        load_public("insteval2")
    with pytest.raises(BadInput, match="there are insteval, chem97, males, movielens"):
        load_public("zzz")
