"""Weighed losses: short gradients within reach of the start, steps that enlarge no distance, and their steepness."""

import numpy as np
from helpers import federation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import each_wide_problem

from userdp.nodes.weighing import steepness, weighed_gradient
from userdp.problems import Quadratic, Softmax


def people(problem, rng, count):
    values = rng.choice([-5.0, -1.0, -0.1, 0.0, 0.3, 1.0, 5.0], (count, 2, 2))
    targets = rng.integers(0, 3 if isinstance(problem, Softmax) else 2, 2 * count)
    return federation_of(values, targets=targets if problem.has_targets else None).block(np.arange(count))


@each_wide_problem
@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_weighed_gradients_within_reach_are_short_and_their_steps_enlarge_no_distance(problem, seed):
    rng = np.random.default_rng(seed)
    longest, reach, curvature = rng.choice([0.1, 1.0, 10.0], 3)
    block, start = people(problem, rng, 5), rng.normal(size=problem.dimension)
    ways = rng.normal(size=(2, problem.dimension))
    x, y = start + reach * rng.random((2, 1)) * ways / np.linalg.norm(ways, axis=1, keepdims=True)
    f, g = (weighed_gradient(problem, model, block, longest, reach, curvature, start) for model in (x, y))
    assert np.linalg.norm([f, g], axis=2).max() <= longest
    apart = np.linalg.norm((x - y) - 2 / curvature * (f - g), axis=1)
    assert apart.max() <= np.linalg.norm(x - y) * (1 + 1e-9)


def test_steepness_is_a_share_of_the_way_between_the_two_ends_in_logarithms():
    problem = Quadratic(2, 9.0, 50.0)
    block = federation_of([[3.0, 4.0], [0.0, 0.0], [0.0, 0.1]]).block(np.arange(3))
    numbers = steepness(problem, np.zeros(2), block, reach=0.1, low=0.1, high=10.0)[:, 0]
    np.testing.assert_allclose(numbers + 0.5, np.log([51, 1, 2]) / np.log(100), atol=1e-6)


def test_a_gradient_that_is_not_finite_has_no_steepness_and_no_weighed_gradient():
    problem, start = Quadratic(2, 9.0, 50.0), np.zeros(2)
    block = federation_of([[1.0, 0.0], [np.inf, 0.0], [np.nan, 0.0]]).block(np.arange(3))
    numbers = steepness(problem, start, block, reach=0.1, low=0.1, high=10.0)[:, 0]
    np.testing.assert_array_equal(np.isnan(numbers), [False, True, True])
    sent = weighed_gradient(problem, start, block, longest=1.0, reach=0.1, curvature=1.0)
    np.testing.assert_array_equal(np.isnan(sent).any(axis=1), [False, True, True])
