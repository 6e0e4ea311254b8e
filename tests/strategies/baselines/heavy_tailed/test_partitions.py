"""Groups of slots: how much of one user each has."""

import numpy as np
import pytest

from strategies.baselines.heavy_tailed.partitions import spread, spread_length


@pytest.mark.parametrize("slots", [1, 3, 4, 7, 12])
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_a_users_spread_slots_are_as_long_as_is_said(slots, count):
    groups = spread(9, slots, count, np.random.default_rng(0)).groups
    lengths = [np.linalg.norm(np.bincount(own, minlength=count)) for own in groups]
    np.testing.assert_allclose(lengths, spread_length(slots, count))
