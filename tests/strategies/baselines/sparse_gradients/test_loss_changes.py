"""The changes of users' losses under other models."""

import numpy as np
from helpers import federation_of, rows_of

from userdp.nodes.computations import Computation
from userdp.problems import Quadratic


def test_a_users_change_of_loss_is_held_to_its_reach_and_what_is_no_number_is_worst():
    problem, models = Quadratic(2, np.inf, 2.0), np.array([[1.0, 0.0], [0.0, 0.0]])
    computation = Computation("loss_changes", arrays={"models": models, "reach": np.array([0.25, 0.25])})
    block = federation_of(np.array([[0.1, 0.0], [5.0, 0.0], [1e30, 0.0]])).block(np.arange(3))
    rows, _ = rows_of(problem, np.zeros(2), block, computation)
    assert computation.width(2) == 2
    np.testing.assert_allclose(rows[:2], [[0.25, 0.0], [-0.25, 0.0]])
    assert np.abs(rows).max() <= 0.25
