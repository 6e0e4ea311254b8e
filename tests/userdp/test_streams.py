"""The noise of a run is opened once, and each round has another."""

import numpy as np
import pytest

from userdp.errors import RunFailed
from userdp.nodes.computations import Computation, LocalNoise
from userdp.streams import Streams, seeded


def test_what_a_run_opened_is_refused_to_all_that_resume_it():
    first = Streams(secure=False)
    first.open(3, 0, 0, 0.0)
    for secure in (False, True):
        second = Streams(secure=secure)
        second.restore(first.state())
        with pytest.raises(RunFailed, match="round 0, purpose 0 was drawn before"):
            second.open(4, 0, 0, 0.0)
        second.open(4, 1, 0, 0.0)
        third = Streams(secure=secure)
        third.restore(second.state())
        for index in (0, 1):
            with pytest.raises(RunFailed, match="was drawn before"):
                third.open(4, index, 0, 0.0)


def test_users_add_other_noise_in_every_round():
    asked = Computation("user_gradient", clip_norm=1.0, noise=LocalNoise(1.0, None, 0))
    rows, users = np.zeros((3, 4)), np.arange(3)
    drawn = [seeded(asked, index, seed=0, noise_seed=7).noise.add(rows.copy(), users) for index in (0, 1, 2, 1)]
    np.testing.assert_array_equal(drawn[1], drawn[3])
    assert len(np.unique(drawn[:3])) == 3 * 12
