"""No user moves the sum that leaves a node by more than the computation says, and some users move it as far."""

from itertools import combinations

import numpy as np
import pytest
from helpers import federation_of, rows_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.baselines.heavy_tailed.partitions import shuffled, spread
from userdp.nodes.computations import Computation
from userdp.nodes.functions import ROW_FUNCTIONS, RowFunction
from userdp.nodes.pipeline import RowPipeline
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Quadratic

ASKED = {
    "l2": Computation(reduce="sum", clip_norm=0.5),
    "l1 after l2": Computation(reduce="sum", clip_norm=0.5, l1_norm=0.6),
    "l1 alone": Computation(reduce="sum", l1_norm=0.6),
    "centre": Computation(reduce="sum", clip_norm=2.0, centre=np.array([0.3, -2.0, 0.1])),
    **{name: Computation(reduce="sum", clip_norm=0.5, l1_norm=0.6, statistic=name) for name in STATISTICS},
}
each_relation = pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
each_question = pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
anything = arrays(np.float64, (5, 3), elements=st.floats(width=64) | st.floats(-2, 2))


def total(asked: Computation, rows, weight=1.0):
    """The sum that leaves the node, its statistic weighted."""
    pipeline = RowPipeline(asked, np.arange(len(rows)), 3)
    pipeline.add(rows, slice(0, len(rows)))
    return pipeline.values[0] * ([1, 1, 1, weight] if asked.statistic else 1)


def neighbour(rows, relation):
    """Without the last user, who is in the place of the first one if users are replaced."""
    return np.vstack([rows[-1:], rows[1:-1]]) if relation == "replace_one" else rows[1:-1]


@each_relation
@each_question
@given(rows=anything, weight=st.floats(0, 3))
def test_no_user_moves_the_sum_by_more_than_its_sensitivity(asked, relation, rows, weight):
    moved = total(asked, rows[:-1], weight) - total(asked, neighbour(rows, relation), weight)
    for order in (1, 2):
        most = asked.sensitivity(relation, order, weight)
        assert (most is None) == (order == 1 and asked.l1_norm is None)
        assert most is None or np.linalg.norm(moved, order) <= most * (1 + 1e-9)


@each_relation
@each_question
def test_users_far_away_move_the_sum_of_vectors_as_far(asked, relation):
    ways = [np.outer([1e9, 0, -1e9], way) for way in ([1, 0, 0], [1, 1, 1])]
    moved = [(total(asked, far[:-1]) - total(asked, neighbour(far, relation)))[:3] for far in ways]
    for order in (1, 2):
        most = asked.sensitivity(relation, order, weight=0)
        assert most is None or max(np.linalg.norm(moved, order, axis=1)) == pytest.approx(most, rel=1e-8)


@pytest.mark.parametrize("draw", [shuffled, spread])
def test_a_user_moves_the_sums_of_all_groups_together_by_its_slots_in_each(draw):
    groups, clip = draw(6, 5, 3, np.random.default_rng(1)), {"sample_clip_norm": 0.5}
    asked = Computation("clipped_sample_sum", "sum", parameters=clip, partition=groups)

    def sums(sides):
        block = federation_of(np.multiply.outer(sides, np.full((7, 2), 1e6))).block(np.arange(6))
        return rows_of(Quadratic(2, np.inf, 9.0), np.zeros(2), block, asked)[0]

    moved = [np.linalg.norm(sums(np.ones(6)) - sums(1 - 2 * user)) for user in np.eye(6)]
    assert max(moved) == pytest.approx(asked.sensitivity("replace_one"))


def test_nothing_is_claimed_of_users_who_are_not_clipped():
    samples = Computation("clipped_sample_sum", clip_norm=np.inf, parameters={"sample_clip_norm": 0.5})
    assert Computation().sensitivity("replace_one") is samples.sensitivity("replace_one") is None


CORNERS = [
    np.array([0.0, 0.0, 3.0]),
    np.array([4.0, 0.0, 0.0]),
    np.array([0.0, 5.0, 0.0]),
    np.zeros(3),
    np.full(3, 1.5),
]
"""Rows without negative entries; no two of them point apart."""


@each_relation
@pytest.mark.parametrize("centre", [None, np.array([2.0, 0.5, 1.5])], ids=["zero", "centre"])
@pytest.mark.parametrize("l1_norm", [None, 1.2], ids=["l2", "l1"])
@pytest.mark.parametrize("counted", [None, "log_size"], ids=["alone", "number"])
def test_rows_that_do_not_point_apart_move_a_sum_as_far_as_is_said_and_further_about_a_centre(
    relation, centre, l1_norm, counted, monkeypatch
):
    monkeypatch.setitem(ROW_FUNCTIONS, "corners", RowFunction(lambda problem, x, block: None, acute=True))
    asked = Computation("corners", "sum", 2.0, l1_norm, centre=centre, statistic=counted)
    sums = [total(asked, np.array([CORNERS[4], *ones])) for ones in ([one] for one in CORNERS)]
    alone = total(asked, np.array([CORNERS[4]]))
    pairs = combinations(sums, 2) if relation == "replace_one" else ((one, alone) for one in sums)
    moves = [one - other for one, other in pairs]
    for order in (1, 2):
        most = asked.sensitivity(relation, order)
        assert (most is None) == (order == 1 and l1_norm is None)
        assert most is None or max(np.linalg.norm(move, order) for move in moves) <= most * (1 + 1e-9)
    apart = 2.0 if centre is not None else 2**0.5
    longest = 2.0 if l1_norm is None else l1_norm
    assert asked.sensitivity("replace_one", weight=0.0) == pytest.approx(apart * longest)


@pytest.mark.parametrize(("name", "users"), [("user_gradient", 8), ("update_octaves", 8), ("loss_answer", 1 << 23)])
def test_blocks_are_as_large_as_what_their_rows_are_made_from_allows(name, users):
    assert RowPipeline(Computation(name), np.arange(3), 1 << 20).max_users == users
