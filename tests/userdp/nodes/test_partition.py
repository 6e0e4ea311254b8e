"""Groups of slots: what lies in none."""

import numpy as np
from helpers import federation_of

from userdp.nodes.partition import OUTSIDE, Partition


def test_samples_beyond_a_users_slots_are_in_no_group():
    block = federation_of(np.arange(10.0)[:, None], sizes=[7, 3]).block(np.arange(2))
    present, grouped = Partition(np.array([[1, 0], [0, OUTSIDE]], dtype=np.int32), 2).regroup(block)
    assert present.tolist() == [0, 1]
    assert grouped.features.ravel().tolist() == [1.0, 7.0, 0.0]  # of the first user two samples, of the second one
    assert grouped.sizes.tolist() == [2, 1]
