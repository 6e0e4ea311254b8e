"""Truncated data: what is large is cut, whatever it is, before gradients are taken."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import Wild, federation_of, rows_of
from problem_cases import block_of, normal_data

from strategies.baselines.truncated_rows import truncated, truncated_gradients
from userdp.nodes.computations import Computation
from userdp.problems import Squared

PROBLEM = Squared(3, math.inf, 2.0, low=-math.inf, high=math.inf)


def test_truncation_keeps_what_is_small_and_takes_anything():
    values = truncated(np.array([0.5, -3.0, math.inf, -math.inf, math.nan]), 2.0)
    np.testing.assert_array_equal(values, [0.5, -2.0, 2.0, -2.0, 0.0])


def test_gradients_are_twice_those_of_the_problem_where_nothing_is_truncated():
    features, targets, _ = normal_data(6)
    block, w = block_of(features, targets, [1, 3, 2]), np.array([0.2, -0.1, 0.4])
    np.testing.assert_allclose(truncated_gradients(w, block, 1e6), 2 * PROBLEM.user_gradients(w, block), rtol=1e-12)


def test_features_and_targets_are_truncated_alike():
    far, near = (block_of([[size, -size, 0.5]], [size]) for size in (1e9, 2.0))
    w = np.array([0.3, 0.1, -0.2])
    np.testing.assert_allclose(truncated_gradients(w, far, 2.0), truncated_gradients(w, near, 2.0), rtol=1e-12)
    targets = [block_of([[1.0, 0.0, 0.0]], [target]) for target in (1e9, 2.0)]
    np.testing.assert_array_equal(*(truncated_gradients(w, block, 2.0) for block in targets))


@pytest.mark.parametrize(("name", "samples"), [("truncated_data_gradient", 1), ("truncated_data_sum", 3)])
def test_every_coordinate_is_held_to_its_bound_whatever_the_loss(name, samples):
    """Users who answer 1e300 to anything: the sum over three samples holds each of them."""
    asked = Computation(name, parameters={"level": 16.0, "bound": 0.75})
    data = np.zeros((2, samples, 2))
    data[0, :, 0] = 4  # the code of 1e300
    rows, non_finite = rows_of(Wild(2), np.zeros(2), federation_of(data).block(np.arange(2)), asked)
    assert non_finite == 0
    np.testing.assert_allclose(np.abs(rows[0]), [0.75 * samples, 0.0])


@pytest.mark.parametrize("name", ["truncated_data_gradient", "truncated_data_sum"])
def test_known_terms_stay_with_data_that_are_cut(name):
    features, targets, _ = normal_data(6)
    problem, w = PROBLEM.with_terms(-1.0, 1.0), np.array([0.2, -0.1, 0.4])
    block = replace(block_of(features, targets, [2, 2, 2]), terms=np.linspace(-1, 1, 6).astype(np.float32))
    asked = Computation(name, parameters={"level": 1e6, "bound": 1e6})
    times = 2 if name == "truncated_data_sum" else 1
    expected = times * problem.user_gradients(w, problem.bound(block)[0])
    np.testing.assert_allclose(rows_of(problem, w, block, asked)[0], expected, rtol=1e-9)
