"""Groups of slots: what lies in none, and how much of one user each has."""

import numpy as np
import pytest
from helpers import federation_of

from userdp.nodes.partition import OUTSIDE, Partition, spread_length


def test_samples_beyond_a_users_slots_are_in_no_group():
    block = federation_of(np.arange(10.0)[:, None], sizes=[7, 3]).block(np.arange(2))
    present, grouped = Partition(np.array([[1, 0], [0, OUTSIDE]], dtype=np.int32), 2).regroup(block)
    assert present.tolist() == [0, 1]
    assert grouped.features.ravel().tolist() == [1.0, 7.0, 0.0]  # of the first user two samples, of the second one
    assert grouped.sizes.tolist() == [2, 1]


@pytest.mark.parametrize("slots", [1, 3, 4, 7, 12])
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_a_users_spread_slots_are_as_long_as_is_said(slots, count):
    groups = Partition.spread(9, slots, count, np.random.default_rng(0)).groups
    lengths = [np.linalg.norm(np.bincount(own, minlength=count)) for own in groups]
    np.testing.assert_allclose(lengths, spread_length(slots, count))
