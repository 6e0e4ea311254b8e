"""Columns of codes without a vocabulary: buckets that are the same everywhere, rows of length one, what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_data_tabular import HASHED, read, whole

from userdp.data.tables.cells import texts_of
from userdp.data.tables.codes import bucket, hashed_rows
from userdp.problems import SparseLogistic

cells = st.lists(st.tuples(*[st.text(max_size=3)] * 3), min_size=1, max_size=20)


def table_of(rows):
    columns = {f"column {place}": pa.chunked_array([texts]) for place, texts in enumerate(zip(*rows, strict=True))}
    return {name: texts_of(column, name) for name, column in columns.items()}


def test_buckets_are_fixed_for_good():
    """Silos hash on their own, years apart: these numbers must never change."""
    assert [bucket("film", cell, 1000) for cell in ("", "1", "Alien")] == [953, 262, 33]
    assert bucket("film", "1", 1000) != bucket("genre", "1", 1000)


@pytest.mark.slow
@given(cells, st.integers(1, 9))
def test_rows_are_canonical_and_never_longer_than_one(rows, buckets):
    made = hashed_rows(table_of(rows), buckets)
    assert made.shape == (len(rows), buckets)
    assert np.all(np.diff(made.indptr) >= 1)
    assert np.all(np.diff(made.indptr) <= 3)
    lengths = np.square(made.data, dtype=np.float64)
    squares = np.add.reduceat(lengths, made.indptr[:-1])
    assert np.all(squares <= 1)
    np.testing.assert_allclose(squares, 1, rtol=1e-6)
    for row in range(len(rows)):
        assert np.all(np.diff(made.indices[made.indptr[row] : made.indptr[row + 1]]) > 0)


@pytest.mark.slow
@given(cells, st.integers(0, 19))
def test_a_row_depends_on_its_own_cells_alone(rows, which):
    which %= len(rows)
    among, alone = hashed_rows(table_of(rows), 7), hashed_rows(table_of([rows[which]]), 7)
    np.testing.assert_array_equal(among.toarray()[which], alone.toarray()[0])


def test_the_bounds_of_a_sparse_problem_leave_hashed_samples_as_they_are(tmp_path):
    changes = HASHED | {"target": "passed", "positive": "yes", "target_range": None, "codes": ["dept", "year", "age"]}
    block = whole(read(tmp_path, **changes))
    bounded, clipped = SparseLogistic(50, 1.0, 3).bound(block)
    assert clipped == 0
    np.testing.assert_array_equal(bounded.features.toarray(), block.features.toarray())


def test_cells_spread_evenly():
    counts = np.bincount([bucket("film", str(film), 100) for film in range(20_000)], minlength=100)
    assert counts.min() > 200 - 6 * np.sqrt(200)
    assert counts.max() < 200 + 6 * np.sqrt(200)
