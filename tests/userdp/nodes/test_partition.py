"""Groups of slots: what lies in none."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import federation_of

from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.nodes.partition import OUTSIDE, Partition
from userdp.problems import Quadratic


def test_samples_beyond_a_users_slots_are_in_no_group():
    block = federation_of(np.arange(10.0)[:, None], sizes=[7, 3]).block(np.arange(2))
    present, grouped = Partition(np.array([[1, 0], [0, OUTSIDE]], dtype=np.int32), 2).regroup(block)
    assert present.tolist() == [0, 1]
    assert grouped.features.ravel().tolist() == [1.0, 7.0, 0.0]  # of the first user two samples, of the second one
    assert grouped.sizes.tolist() == [2, 1]


def test_the_longest_is_that_of_the_one_user_whose_slots_meet_most_often():
    groups = np.array([[0, 1, 2], [0, 0, 1], [OUTSIDE] * 3, [2, 2, 2], [0, OUTSIDE, OUTSIDE]], dtype=np.int32)
    norms = [3**0.5, 5**0.5, 0.0, 3.0, 1.0]
    for user, norm in enumerate(norms):
        assert Partition(groups[[user]], 3).longest == norm
    assert Partition(groups, 3).longest == max(norms)
    assert Partition(groups[:0], 3).longest == 0.0


def test_a_part_keeps_the_groups_of_its_own_users():
    groups = np.array([[0, 1], [2, 0], [1, 1], [OUTSIDE, 2]], dtype=np.int32)
    whole = Partition(groups, 3)
    for users in (slice(1, 3), np.array([0, 3]), slice(2, 2)):
        np.testing.assert_array_equal(whole.part(users).groups, groups[users])
        assert whole.part(users).count == 3
    # A block is answered by the groups of the users in it.
    asked = Computation("clipped_sample_sum", "sum", parameters={"sample_clip_norm": 9.0}, partition=whole)
    problem, federation = Quadratic(1, 9.0, 1.0), federation_of(np.arange(8.0)[:, None], sizes=[2, 2, 2, 2])
    sums = Node(problem, federation, np.arange(4)).compute(np.zeros(1), np.array([1, 3]), asked.part(np.array([1, 3])))
    np.testing.assert_array_equal(sums.values, [[-3.0, 0.0, -9.0]])


@pytest.mark.parametrize("groups", [[[0, 2]], [[0, OUTSIDE - 1]], [0, 1], [[[0]]]])
def test_groups_that_are_not_among_the_counted_are_refused(groups):
    """The longest of a user's sums is that of the counted groups."""
    with pytest.raises(BadInput, match="must be a matrix of numbers from -1 to 1"):
        Partition(np.array(groups, dtype=np.int32), 2)


def test_slots_of_other_users_are_refused_and_samples_in_no_group_add_nothing():
    problem, federation = Quadratic(1, 9.0, 1.0), federation_of(np.ones((3, 1)))
    none = Partition(np.full((3, 1), OUTSIDE, dtype=np.int32), 2)
    for users in (0, 2, 4):
        with pytest.raises(BadInput, match=f"a partition of {users} users was sent for 3"):
            Partition(np.zeros((users, 1), dtype=np.int32), 1).regroup(federation.block(np.arange(3)))
    asked = Computation("clipped_sample_sum", "sum", parameters={"sample_clip_norm": 9.0}, partition=none)
    answer = Node(problem, federation, np.arange(3)).compute(np.zeros(1), np.arange(3), asked)
    assert not answer.values.any()
    assert answer.non_finite == 0
    assert replace(asked, parameters={}).sensitivity("replace_one") is None
