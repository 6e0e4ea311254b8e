"""The randomness of a run: noise is opened once in all its resumes, and requests carry other seeds in every round."""

import copy

import numpy as np
import pytest

from userdp.errors import BadInput, RunFailed
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


@pytest.mark.parametrize("noise_seed", [4, None], ids=["seeded", "secure"])
def test_users_are_asked_for_other_noise_in_every_round_and_for_all_that_they_were_asked_for(noise_seed):
    """Users who add noise themselves draw it from the seed, the round and their number."""
    asked = Computation(clip_norm=1.0, noise=LocalNoise(2.0, 1, 0))
    noise = [seeded(asked, index, 3, noise_seed).noise for index in range(3)]
    assert [(one.seed, one.deviation) for one in noise] == [(noise_seed, 2.0)] * 3
    users = np.arange(5)
    rows = np.vstack([one.add(np.zeros((5, 400)), users) for one in noise])
    assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.3


def test_what_draws_once_is_neither_copied_nor_opened_by_a_fork(monkeypatch):
    for kind in ({"secure": True}, {"secure": False, "once": True}):
        once = Streams(**kind)
        with pytest.raises(BadInput, match="its budget is spent once"):
            copy.deepcopy(once)
        with monkeypatch.context() as patch:
            patch.setattr("userdp.streams.os.getpid", lambda: -1)
            with pytest.raises(BadInput, match="its budget is spent once"):
                once.open(1, 0, 0, 0.0)
            Streams(secure=False).open(1, 0, 0, 0.0)
        once.open(1, 0, 0, 0.0)
