"""Rows that leave a node: finite, clipped, in this order."""

import numpy as np
import pytest
from helpers import federation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from userdp.arrays.sparse_rows import add_clipped_rows, clip_rows, finite_rows, row_lengths
from userdp.errors import BadInput
from userdp.nodes.computations import COMPUTATIONS, Computation
from userdp.nodes.node import Node
from userdp.problems import Huber, Quadratic

entries = st.floats(allow_nan=False, allow_infinity=False, width=64)
matrices = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=entries)
norms = st.floats(1e-6, 1e6)


@pytest.mark.slow
@settings(max_examples=200)
@given(matrices, norms)
def test_a_clipped_row_never_exceeds_the_norm_even_where_squares_overflow(rows, clip_norm):
    clipped = clip_rows(rows, clip_norm)
    assert np.isfinite(clipped).all()
    assert np.all(np.linalg.norm(clipped, axis=1) <= clip_norm * (1 + 1e-12))


@pytest.mark.slow
@settings(max_examples=200)
@given(matrices, norms)
def test_short_rows_stay_and_long_rows_keep_their_direction(rows, clip_norm):
    clipped = clip_rows(rows, clip_norm)
    scale = np.abs(rows).max(axis=1)
    for row, new, largest in zip(rows, clipped, scale, strict=True):
        if largest == 0:
            assert not new.any()
            continue
        direction = row / largest
        norm = float(np.linalg.norm(direction))
        length = min(largest, clip_norm / norm)
        # The smallest numbers have few bits: a quotient is exact to one unit of the smallest number only, which what
        # it is multiplied by may enlarge.
        few = 1e-320 + 1e-323 * length
        np.testing.assert_allclose(new, row * (length / largest), rtol=1e-9, atol=few)
        if largest <= clip_norm / norm * (1 - 1e-12):  # a product could overflow
            np.testing.assert_allclose(new, row, rtol=1e-12, atol=1e-320)


@pytest.mark.parametrize("size", [1e300, 1e155, 1e-160, 5e-324])
def test_extreme_rows_are_clipped_by_hand(size):
    rows = np.array([[size, 0.0], [0.0, -size], [0.0, 0.0]])
    length = min(size, 2.0)
    np.testing.assert_allclose(clip_rows(rows, 2.0), [[length, 0.0], [0.0, -length], [0.0, 0.0]], rtol=1e-12, atol=0)


@settings(max_examples=100)
@given(arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 5)), elements=entries), norms)
def test_what_becomes_of_a_row_depends_on_that_row_alone_to_the_last_bit(rows, clip_norm):
    alone = [(clip_rows(row[None], clip_norm), row_lengths(row[None])) for row in rows]
    np.testing.assert_array_equal(clip_rows(rows, clip_norm), np.concatenate([clipped for clipped, _ in alone]))
    np.testing.assert_array_equal(row_lengths(rows), np.concatenate([length for _, length in alone]))


@settings(max_examples=100)
@given(matrices, norms)
def test_rows_clipped_while_they_are_added_give_the_sum_of_clipped_rows(rows, clip_norm):
    total = np.full(rows.shape[1], 0.25)
    add_clipped_rows(total, rows, clip_norm, row_lengths(rows))
    np.testing.assert_allclose(
        total, 0.25 + clip_rows(rows, clip_norm).sum(axis=0), rtol=0, atol=1e-14 * (1 + clip_norm) * len(rows)
    )


def test_a_row_within_the_clip_is_not_touched():
    rows = np.random.default_rng(0).normal(size=(500, 7))
    longest = float(row_lengths(rows).max())
    np.testing.assert_array_equal(clip_rows(rows, longest), rows)


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


def test_finite_rows_are_not_copied():
    rows = np.ones((3, 2))
    assert finite_rows(rows)[0] is rows


def test_pfl_nan_cannot_pass_the_clip(monkeypatch):
    """Rows are made finite BEFORE they are clipped: a clip alone would let NaN, and turn infinity into NaN."""
    broken = np.array([[np.nan, 1.0], [np.inf, 0.0], [-np.inf, np.inf], [3.0, 4.0]])
    monkeypatch.setitem(COMPUTATIONS, "rough_user_gradient", lambda problem, x, block: broken)
    problem, federation = Quadratic(2, 1.0, 1.0), federation_of(np.zeros((4, 2)))
    rows, count = Computation(clip_norm=1.0)(problem, np.zeros(2), federation.block(np.arange(4)))
    assert count == 3
    np.testing.assert_allclose(rows, [[0, 0], [0, 0], [0, 0], [0.6, 0.8]])


def test_rows_without_a_clip_stay_as_they_are():
    problem, federation = Quadratic(2, 100.0, 1.0), federation_of([[3.0, 4.0], [30.0, 40.0]])
    rows, count = Computation()(problem, np.zeros(2), federation.block(np.arange(2)))
    assert count == 0
    np.testing.assert_allclose(rows, [[-3, -4], [-30, -40]])


def test_the_sum_of_clipped_samples_is_the_sum_of_clipped_samples():
    problem = Quadratic(2, 100.0, 1.0)
    block = federation_of([[3.0, 4.0], [30.0, 40.0], [0.0, 0.5]], sizes=[2, 1]).block(np.arange(2))
    computation = Computation("clipped_sample_sum", parameters={"sample_clip_norm": 1.0})
    rows, _ = computation(problem, np.zeros(2), block)
    np.testing.assert_allclose(rows, [[-1.2, -1.6], [0.0, -0.5]])
    held, _ = Computation("clipped_sample_sum", clip_norm=1.0, parameters={"sample_clip_norm": 1.0})(
        problem, np.zeros(2), block
    )
    np.testing.assert_allclose(held, [[-0.6, -0.8], [0.0, -0.5]])


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_local_update_is_what_each_users_own_gradient_steps_move(steps):
    problem, x = Huber(2, 5.0, 1.5, 1.0), np.array([0.2, -0.1])
    block = federation_of([[4.0, 0.3], [3.0, 0.1], [-0.5, 0.5], [0.0, -4.0]], sizes=[2, 1, 1]).block(np.arange(3))
    rows, bad = Computation("local_update", parameters={"steps": steps, "step_size": 0.7})(problem, x, block)
    assert bad == 0
    for user in range(3):
        own, model = block.part(user, user + 1), x
        for _ in range(steps):
            model = problem.domain.project(model - 0.7 * problem.user_gradients(model, own)[0])
        np.testing.assert_allclose(rows[user], model - x, rtol=1e-12, atol=1e-15)


def test_a_user_whose_local_model_diverges_counts_as_zero_and_spares_the_others():
    problem = Quadratic(1, 10.0, np.inf)
    block = federation_of([[3.0], [0.0]]).block(np.arange(2))
    computation = Computation("local_update", clip_norm=1.0, parameters={"steps": 400, "step_size": 1e3})
    rows, bad = computation(problem, np.zeros(1), block)
    assert bad == 1
    np.testing.assert_array_equal(rows, [[0.0], [0.0]])


def test_an_unknown_computation_is_refused_by_name():
    block = federation_of([[0.0]]).block(np.arange(1))
    with pytest.raises(
        BadInput, match=r"computation 'hessian' is unknown; there are clipped_sample_sum, .*, user_gradient"
    ):
        Computation("hessian")(Quadratic(1, 1.0, 1.0), np.zeros(1), block)


@given(arrays(np.float64, (4, 6), elements=st.floats(-1e200, 1e200)), st.floats(1e-3, 1e3))
def test_rows_are_held_to_an_l1_norm_after_the_l2_clip(rows, bound):
    clipped, non_finite = Computation(clip_norm=2.0, l1_norm=bound).finish(rows)
    assert non_finite == 0
    assert (np.abs(clipped).sum(axis=1) <= bound * (1 + 1e-12)).all()
    assert (np.linalg.norm(clipped, axis=1) <= 2.0 * (1 + 1e-12)).all()
    short = np.array([[0.1, -0.2, 0.0]])
    np.testing.assert_array_equal(Computation(clip_norm=2.0, l1_norm=0.4).finish(short)[0], short)
