"""The lasso's choices: their cost, and how far one record moves their scores."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.baselines.high_dimensional.lasso import Selections, choice_sensitivity
from strategies.baselines.truncated_rows import truncated_gradients
from userdp.accounting.composition import rho_for
from userdp.data.block import Block

budgets = st.floats(math.log(0.02), math.log(20)).map(math.exp)


deltas = st.floats(-25, -3).map(math.exp)


@settings(max_examples=60)
@given(budgets, deltas, st.integers(1, 300))
def test_choices_of_the_lasso_spend_what_is_asked_for(epsilon, delta, rounds):
    scheme = Selections(10, rounds, "zcdp")
    each = scheme.calibrate(epsilon, delta)
    assert epsilon * (1 - 1e-4) <= scheme.epsilon(2 / each, delta) <= epsilon
    assert each > math.sqrt(8 * rho_for(epsilon, delta) / rounds)  # what the simple conversion would allow


def block_of(features, targets, sizes=None):
    sizes = [1] * len(features) if sizes is None else sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Block(np.asarray(features, dtype=np.float32), offsets, np.asarray(targets, dtype=np.float32))


@pytest.mark.parametrize("radius", [1.0, 2.0, 4.0])
def test_the_worst_records_move_scores_by_exactly_the_sensitivity_t07(radius):
    threshold, users, worst = 1.5, 10, 0.0
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))
    for vertex in radius * np.concatenate([np.eye(3), -np.eye(3)]):
        records = [
            truncated_gradients(vertex, block_of(1e9 * signs, np.full(8, 1e9 * y)), threshold) for y in (-1.0, 1.0)
        ]
        rows = np.concatenate(records)
        gaps = np.abs(rows[:, None] - rows[None]).max() / users
        worst = max(worst, radius * gaps)
    assert choice_sensitivity(radius, threshold, users) == pytest.approx(worst, rel=1e-12)
    assert worst == pytest.approx(4 * radius * (radius + 1) * threshold**2 / users)
    papers = 8 * (2 * radius) * threshold**2 / users
    assert (papers < worst) == (radius > 3)
