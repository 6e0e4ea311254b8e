"""Pictures from columns of bytes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import read_table
from userdp.data.tables.sample_kinds import pixels
from userdp.errors import BadInput

FORM = {"user": "who", "images": "picture", "image_shape": (2, 3), "target": "digit"}


def write(folder, pictures, kind=None):
    path = folder / "table.parquet"
    who = [f"u{place % 2}" for place in range(len(pictures))]
    picture = pa.array(pictures, type=kind or pa.binary())
    pq.write_table(pa.table({"who": who, "picture": picture, "digit": range(len(who))}), path)
    return path


def test_bytes_become_numbers_in_zero_to_one_and_other_lengths_are_set_aside(tmp_path):
    pictures = [bytes(range(6)), b"short", bytes([255] * 6), None, b"", bytes(7)]
    loaded = read_table(write(tmp_path, pictures), **FORM)
    block = loaded.federation.block(np.arange(2))
    assert block.features.dtype == np.float32
    assert block.features.flags.c_contiguous
    by_digit = dict(zip(block.targets.tolist(), block.features, strict=True))
    np.testing.assert_array_equal(by_digit[0], np.arange(6, dtype=np.float32) / np.float32(255))
    np.testing.assert_array_equal(by_digit[2], np.ones(6))
    assert all(np.isnan(by_digit[digit]).all() for digit in (1, 3, 4, 5))
    assert loaded.report.unusable == {"picture": 4, "digit": 0}
    assert loaded.feature_names == ["picture"]


@settings(max_examples=40)
@given(st.lists(st.binary(min_size=3, max_size=3) | st.binary(max_size=4) | st.none(), max_size=8), st.randoms())
def test_a_picture_depends_on_its_own_cell(cells, random):
    rows = np.array(random.sample(range(len(cells)), len(cells)), dtype=np.int64)
    found = pixels(pa.array([b"", *cells], type=pa.large_binary()).slice(1), rows, 3)
    for row, cell in zip(rows, found, strict=True):
        own = cells[row]
        expected = np.frombuffer(own, np.uint8) / np.float32(255) if own and len(own) == 3 else np.full(3, np.nan)
        np.testing.assert_array_equal(cell, expected.astype(np.float32))


def test_only_bytes_are_pictures(tmp_path):
    with pytest.raises(BadInput, match="'picture' holds int64, not text or bytes"):
        read_table(write(tmp_path, [1, 2], pa.int64()), **FORM)
