"""Rows of users for models with tables: how often a user counts, and how long each part of its row is."""

import math

import numpy as np
import pytest
from embedding_cases import SENT, TABLES, rows

from userdp.nodes.computations import Computation

ARRAYS = {"tables": TABLES.described}


def test_a_user_with_every_row_counts_as_much_as_one_with_a_single_row():
    counted = rows(Computation("row_weights", "rows", 1.0, arrays={"tables": TABLES.described}))
    lengths = np.linalg.norm(counted, axis=1)
    assert sorted(set(np.round(lengths, 12))) == [0.0, 1.0]
    everything = np.flatnonzero((SENT[:, 1:] != 0).all(axis=1) & np.isfinite(SENT).all(axis=1))
    np.testing.assert_allclose(counted[everything], 1 / math.sqrt(3))
    assert (counted >= 0).all()


@pytest.mark.parametrize("clip", [0.1, 1.0, 30.0])
def test_neither_part_of_a_row_is_longer_than_its_bound(clip):
    parts = {"clip": clip, "weight": 0.5}
    held = rows(Computation("gradient_and_weights", "rows", 100.0, parameters=parts, arrays=ARRAYS))
    assert np.linalg.norm(held[:, :7], axis=1).max() <= clip * (1 + 1e-12)
    assert set(np.round(np.linalg.norm(held[:, 7:], axis=1), 12)) == {0.0, 0.5}
    finite = np.isfinite(SENT).all(axis=1)
    assert not held[~finite].any()
    alone = rows(Computation("row_weights", "rows", 1.0, arrays=ARRAYS))
    np.testing.assert_allclose(held[finite, 7:], 0.5 * alone[finite])


@pytest.mark.parametrize("chosen", [[], [1], [0, 2], [0, 1, 2]])
def test_a_part_of_a_gradient_has_the_rows_asked_for_and_what_is_in_no_table(chosen):
    asked = Computation("kept_gradient", "rows", arrays=ARRAYS | {"rows": np.array(chosen, dtype=float)})
    places = [0, *(1 + 2 * row + entry for row in chosen for entry in range(2))]
    finite = np.isfinite(SENT).all(axis=1)
    np.testing.assert_array_equal(rows(asked)[finite], SENT[finite][:, places])
