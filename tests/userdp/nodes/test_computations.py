"""Rows that leave a node: finite, clipped, in this order."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from helpers import federation_of, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import dense, finite_rows
from userdp.errors import BadInput
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.functions import ROW_FUNCTIONS, RowFunction
from userdp.nodes.node import Node, identities
from userdp.nodes.partition import Partition
from userdp.nodes.pipeline import RowPipeline
from userdp.nodes.row_maker import RowMaker
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Quadratic
from userdp.sampling.coins import SampleCoins


def test_gradients_are_rough_only_where_a_clip_follows():
    class Told(Quadratic):
        def rough_user_gradients(self, x, block):
            return 0 * self.user_gradients(x, block)

    node = Node(Told(2, 9.0, 1.0), federation_of(np.ones((3, 2))), np.arange(3))
    users, x = np.arange(3), np.zeros(2)
    assert node.compute(x, users, Computation()).values.all()
    assert node.compute(x, users, Computation("sample_sum", clip_norm=1.0)).values.all()
    for lengths in (False, True):
        answer = node.compute(x, users, Computation(clip_norm=1.0, lengths=lengths))
        assert not answer.values.any()
        assert answer.lengths is None or not answer.lengths.any()


@settings(max_examples=100)
@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(width=64)))
def test_rows_with_a_value_that_is_not_finite_become_zero_and_are_counted(rows):
    bad = ~np.isfinite(rows).all(axis=1)
    cleaned, count = finite_rows(rows)
    assert count == bad.sum()
    assert not cleaned[bad].any()
    np.testing.assert_array_equal(cleaned[~bad], rows[~bad])
    assert bad.any() or cleaned is rows  # not copied


def test_pfl_nan_cannot_pass_the_clip(monkeypatch):
    """Rows are made finite BEFORE they are clipped: a clip alone would let NaN, and turn infinity into NaN."""
    broken = np.array([[np.nan, 1.0], [np.inf, 0.0], [-np.inf, np.inf], [3.0, 4.0]])
    monkeypatch.setitem(ROW_FUNCTIONS, "rough_user_gradient", RowFunction(lambda problem, x, block: broken))
    block = federation_of(np.zeros((4, 2))).block(np.arange(4))
    rows, count = rows_of(Quadratic(2, 1.0, 1.0), np.zeros(2), block, Computation(clip_norm=1.0))
    assert count == 3
    np.testing.assert_allclose(rows, [[0, 0], [0, 0], [0, 0], [0.6, 0.8]])


def test_votes_are_halved_signs_and_an_infinite_slope_voids_them():
    slopes = np.array([[3.0, -1e-300, 0.0], [np.inf, 1.0, 1.0], [1.0, np.nan, -1.0], [0.0, -np.inf, 0.0]])
    wanted = [[0.5, -0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    block = federation_of(np.zeros((4, 3))).block(np.arange(4))
    for kept in (slopes, csr_array(slopes)):

        class Told(Quadratic):
            def user_gradients(self, x, block, kept=kept):
                return kept

        problem = Told(3, 1.0, 1.0)
        rows, count = rows_of(problem, np.zeros(3), block, Computation("gradient_votes", clip_norm=3**0.5 / 2))
        assert count == 3
        np.testing.assert_array_equal(dense(rows), wanted)
        votes = ROW_FUNCTIONS["gradient_votes"].rows(problem, np.zeros(3), block)
        assert isinstance(votes, type(kept))


def test_a_user_whose_local_model_diverges_counts_as_zero_and_spares_the_others():
    problem = Quadratic(1, 10.0, np.inf)
    block = federation_of([[3.0], [0.0]]).block(np.arange(2))
    computation = Computation("local_update", clip_norm=1.0, parameters={"steps": 400, "step_size": 1e3})
    rows, bad = rows_of(problem, np.zeros(1), block, computation)
    assert bad == 1
    np.testing.assert_array_equal(rows, [[0.0], [0.0]])


def test_an_unknown_computation_is_refused_by_name():
    block = federation_of([[0.0]]).block(np.arange(1))
    with pytest.raises(BadInput, match=r"computation 'hessian' is unknown; there are answers, .*, user_gradient"):
        rows_of(Quadratic(1, 1.0, 1.0), np.zeros(1), block, Computation("hessian"))


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_keeps_to_its_bounds_whatever_the_row(name):
    one = STATISTICS[name]
    lengths = np.concatenate([[0.0, 5e-324, 1e308], np.geomspace(1e-300, 1e300, 601)])
    for clip in (1e-9, 1.0, 1e9):
        numbers = one.compute(np.column_stack([lengths, np.zeros(len(lengths))]), clip)
        assert (numbers.min(), numbers.max()) == (one.low, one.high)
        assert one.sensitivity("replace_one") == np.ptp(numbers)
        assert one.sensitivity("add_or_remove") == np.abs(numbers).max()


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_a_row_and_its_statistic_are_bounded_together(name, relation):
    """Rows of opposite directions, of which one is clipped and the other is not, or is tiny."""
    asked = Computation(reduce="sum", clip_norm=2.0, statistic=name)
    rows = np.outer([-1e9, -2.0, -1e-9, 1e-9, 1.999, 1e9], [0.6, 0.8])
    pipeline = RowPipeline(replace(asked, reduce="rows"), np.arange(len(rows)), 2)
    pipeline.add(rows, slice(0, len(rows)))
    sent = pipeline.values
    others = sent if relation == "replace_one" else np.zeros((1, 3))
    moved = max(np.linalg.norm(one - sent, axis=1).max() for one in others)
    assert moved <= asked.sensitivity(relation) * (1 + 1e-12)
    assert moved > 0.7 * asked.sensitivity(relation)
    assert moved > asked.sensitivity(relation, weight=0.0) or name != "unclipped"


@pytest.mark.parametrize(("one", "same"), [("\u00e9", "e\u0301"), ("\ufb01", "fi"), (" anna", "anna\t")])
def test_a_label_that_is_written_in_two_ways_is_one_person(one, same):
    np.testing.assert_array_equal(identities([one], bytes(16)), identities([same], bytes(16)))


@pytest.mark.parametrize("length", [0, 1, 15, 65])
def test_a_salt_that_could_be_tried_or_is_cut_is_refused(length):
    node = Node(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((1, 1))), np.arange(1), labels=["anna"])
    with pytest.raises(BadInput, match="the salt must be 16 to 64 bytes"):
        node.identities(bytes(length))
    for salts in ((bytes(16), b"a" + bytes(15)), (bytes(64), bytes(63) + b"a")):
        assert len({node.identities(salt).tobytes() for salt in salts}) == 2


STEPS = {
    "partition": Partition(np.zeros((3, 1), dtype=np.int32), 1),
    "coins": SampleCoins(0.5, np.zeros(3, dtype=np.uint64)),
    "lengths": True,
    "centre": np.zeros(2),
    "statistic": "log_norm",
    "noise": LocalNoise(1.0, 0, 0),
    "l1_norm": 0.5,
}
APART = [
    {"partition", "centre"},
    {"partition", "statistic"},
    {"partition", "noise"},
    {"partition", "l1_norm"},
    {"partition", "lengths"},
    {"coins", "centre"},
    {"coins", "statistic"},
    {"coins", "lengths"},
    {"noise", "lengths"},
]
"""Steps whose composition no sensitivity is stated for."""
PLAIN = Computation("clipped_sample_sum", "sum", clip_norm=0.5, parameters={"sample_clip_norm": 0.5})


@pytest.mark.parametrize("names", [*combinations(STEPS, 1), *combinations(STEPS, 2)], ids=" and ".join)
def test_steps_that_are_not_priced_together_are_refused_together(names):
    changes = {name: STEPS[name] for name in names}
    if {*names} not in APART:
        replace(PLAIN, **changes)
        return
    with pytest.raises(BadInput, match=r"plain sums over samples|leave one of them out|leave out the coins"):
        replace(PLAIN, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": STEPS["partition"], "reduce": "rows"},
        {"partition": STEPS["partition"], "name": "user_gradient"},
        {"clip_norm": None, "statistic": "log_norm"},
        {"clip_norm": None, "lengths": True},
    ],
)
def test_a_step_without_what_bounds_it_is_refused(changes):
    with pytest.raises(BadInput, match=r"plain sums over samples|a clip_norm"):
        replace(PLAIN, **changes)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("asked", [PLAIN, replace(PLAIN, separate=True), Computation("steepness", separate=True)])
def test_a_proof_in_floating_point_has_blocks_of_one_user_where_no_order_is_fixed(asked, ordered, grouped):
    """Groups take the place of users in a block, so the samples of several users would be added up as one's."""
    grouped = grouped and asked.function.groups_samples

    class Told(Quadratic):
        fixed_order = ordered

    asked = replace(asked, partition=STEPS["partition"]) if grouped else asked
    kept = ordered and asked.function.fixed_order and not grouped
    assert RowMaker(Told(2, 1.0, 1.0), np.zeros(2), asked, print).alone == (asked.separate and not kept)


@pytest.mark.parametrize("name", ["user_gradient", "gradient_votes"])
def test_samples_that_no_coin_chose_are_not_in_a_mean_that_is_kept(name, monkeypatch):
    """A user's mean is of all samples; the price of a sampled round holds for the drawn ones alone."""
    monkeypatch.setattr("userdp.nodes.node.MEMORY_BYTES", 23)
    values = np.array([[0.5], [-0.5], [0.25], [1.0], [-1.0], [0.5]])
    node = Node(Quadratic(1, 9.0, 1.0), federation_of(values, sizes=[2, 2, 2]), np.arange(3))
    everybody, clip = np.arange(3), 0.5 if name == "gradient_votes" else 1.0
    asked = Computation(name, clip_norm=clip)
    node.compute(np.zeros(1), everybody, asked)
    drawn = node.compute(np.zeros(1), everybody, replace(asked, coins=SampleCoins(1.0, np.zeros(3, np.uint64), 1)))
    first = -values[::2]
    np.testing.assert_allclose(drawn.values, np.sign(first) / 2 if name == "gradient_votes" else first)
