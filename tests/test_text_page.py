"""The tables of docs/text.md are read by the tokenizer of a base model, as the page says."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("transformers", reason="needs userdp[language]")

from userdp.data.tables.sources import TableData

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "text.md").read_text(encoding="utf-8")
WINDOWS, LABELLED = (
    tomllib.loads(text)["data"] for text in re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
)
USERS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory, module_of):
    """A folder with the table of the page and a tokenizer."""
    folder = tmp_path_factory.mktemp("page")
    module_of("pretrain").byte_tokenizer().save_pretrained(folder / "base")
    count = 3 * USERS
    texts = {"message": [f"ticket {number} " * 9 for number in range(count)], "urgent": ["no", "yes"] * (count // 2)}
    pd.DataFrame({"customer": np.arange(count) % USERS} | texts).to_parquet(folder / "tickets.parquet")
    return folder


def load(folder, raw):
    sequence = raw["sequence"] | {"tokenizer": f"hf:{folder / 'base'}"}
    own = {"path": str(folder / raw["path"]), "all_users": USERS, "sequence": sequence}
    data = TableData.model_validate(raw | own)
    train = data.load(0).users
    return data, train.block(np.arange(train.users))


def test_texts_of_a_user_become_windows_of_their_bytes(folder):
    data, block = load(folder, WINDOWS)
    length = sum(len(f"ticket {number} " * 9) for number in (0, USERS, 2 * USERS)) + 2
    assert block.features.shape[1] == data.sample_shape.columns == WINDOWS["sequence"]["window"]
    assert {int(size) for size in block.sizes} <= {-(-length // 128), -(-(length + 18) // 128)}
    assert data.sample_shape.sequence.levels == (257,)
    assert any("tokenizer is public" in sentence for sentence in data.assumptions)


def test_a_text_with_a_target_is_a_row(folder):
    data, block = load(folder, LABELLED)
    assert block.features.shape == (3 * block.users, LABELLED["sequence"]["window"])
    assert set(block.targets) == {0.0, 1.0}
    assert data.sample_shape.classes == 2
