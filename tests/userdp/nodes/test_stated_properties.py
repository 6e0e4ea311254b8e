"""The stated properties of each function of users' rows, on which a price or a skipped step rests, hold.

A property that is stated of a function for the first time needs an entry here, by which it is tried.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from row_cases import QUESTIONS, USERS, asked_of

from userdp.arrays.sparse_rows import dense
from userdp.errors import RunFailed
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.nodes.functions import ROW_FUNCTIONS
from userdp.nodes.node import Node
from userdp.nodes.statistics import statistic

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
    "update_octaves",
    "row_weights",
]


def rows_of(name, clip_norm=None, **more):
    problem, parameters, arrays = QUESTIONS[name]
    node, everybody = Node(problem, asked_of(name), np.arange(USERS)), np.arange(USERS)
    asked = Computation(name, clip_norm=clip_norm, parameters=parameters, arrays=arrays, **more)
    return dense(node.compute(np.full(problem.dimension, 0.7), everybody, asked).values)


def test_the_property_is_stated_of_the_functions_that_are_tried_and_of_no_others():
    assert {name for name, one in ROW_FUNCTIONS.items() if one.acute} == set(ACUTE)


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
        # Entries of one sign are no nearer in the l1 norm: two users may have different ones.
        assert replace(asked, l1_norm=clip).sensitivity("replace_one", order=1) == 2 * clip


@pytest.mark.parametrize(("relation", "factor"), [("replace_one", 2), ("add_or_remove", 1)])
def test_noise_is_compared_with_what_a_user_moves_in_the_norm_of_its_mechanism(relation, factor):
    asked = Computation("user_gradient", "sum", 1.0, l1_norm=3.0, statistic="unclipped")
    for kind, moved, number in (
        (GaussianMechanism, factor, False),
        (LaplaceMechanism, 3 * factor, False),
        (GaussianMechanism, statistic("unclipped").sensitivity(relation), True),
    ):
        check_covered(asked, kind(moved / 10, 1.0), 10, relation, number=number)
        with pytest.raises(RunFailed, match="its noise is made for"):
            check_covered(asked, kind(0.99 * moved / 10, 1.0), 10, relation, number=number)


@pytest.mark.parametrize("kind", [GaussianMechanism, LaplaceMechanism])
@pytest.mark.parametrize("number", [False, True])
def test_what_no_clip_bounds_has_no_noise_that_covers_it(kind, number):
    with pytest.raises(RunFailed, match=r"by any length, and its noise is made for 1e\+06: clip"):
        check_covered(Computation("user_gradient", "sum"), kind(1e6, 1.0), 10, "replace_one", number=number)
