"""The stated properties of each function of users' rows, on which a price or a skipped step rests, hold.

A property that is stated of a function for the first time needs an entry here, by which it is tried.
"""

import math

import numpy as np
import pytest
from row_cases import QUERIED, QUESTIONS, USERS, asked_of, voters

from userdp.arrays.sparse_rows import dense
from userdp.nodes.computations import Computation
from userdp.nodes.functions import ROW_FUNCTIONS
from userdp.nodes.node import Node

ACUTE = [
    "second_moments",
    "class_shares",
    "column_moments",
    "user_curvature",
    "slope_sizes",
    "squared_influence",
    "loss_sizes",
    "score_shares",
    "user_shares",
    "user_ranks",
]


def rows_of(name, clip_norm=None, **more):
    problem, parameters, arrays = QUESTIONS[name]
    node, everybody = Node(problem, asked_of(name), np.arange(USERS)), np.arange(USERS)
    asked = Computation(name, clip_norm=clip_norm, parameters=parameters, arrays=arrays, **more)
    return dense(node.compute(np.full(problem.dimension, 0.7), everybody, asked).values)


def test_properties_are_stated_of_the_functions_that_are_tried_and_of_no_others():
    stated = {
        flag: {name for name, one in ROW_FUNCTIONS.items() if getattr(one, flag)} for flag in ("acute", "same_alone")
    }
    assert stated == {"acute": set(ACUTE), "same_alone": QUERIED}


@pytest.mark.parametrize("name", ACUTE)
def test_no_two_users_are_further_apart_than_is_priced(name):
    rows = rows_of(name)
    longest = np.linalg.norm(rows, axis=1).max()
    assert longest > 0
    for clip in (longest / 3, 1.0):
        held = rows_of(name, clip)
        assert np.linalg.norm(held, axis=1).max() <= clip * (1 + 1e-9)
        apart = max(np.linalg.norm(one - held, axis=1).max() for one in held)
        asked = Computation(name, "sum", clip, parameters=QUESTIONS[name][1], arrays=QUESTIONS[name][2])
        assert apart <= asked.sensitivity("replace_one") * (1 + 1e-9)
        assert asked.sensitivity("replace_one") == pytest.approx(math.sqrt(2) * clip)
        assert asked.sensitivity("add_or_remove") == clip


@pytest.mark.parametrize("name", sorted(QUERIED))
def test_rows_of_which_it_is_stated_are_the_same_bits_alone_and_within_every_clip(name):
    together, separate = (rows_of(name, 1.0, separate=one) for one in (False, True))
    np.testing.assert_array_equal(together, separate)
    np.testing.assert_array_equal(together, rows_of(name))
    problem = QUESTIONS[name][0]
    alone = Node(problem, voters(), np.arange(USERS))
    asked = Computation(name, clip_norm=1.0, arrays=QUESTIONS[name][2])
    for user in range(0, USERS, 7):
        own = dense(alone.compute(np.zeros(problem.dimension), np.array([user]), asked).values)[0]
        np.testing.assert_array_equal(own, together[user])
