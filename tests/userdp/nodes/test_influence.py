"""The rows that users send for coefficients, against plain loops over their samples."""

from itertools import pairwise

import numpy as np
import pytest
from helpers import federation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit

from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.moments import symmetric, triangle
from userdp.nodes.node import Node
from userdp.problems import Huber, Logistic, Poisson, Squared

COLUMNS, SIZES = 3, [1, 2, 7, 40]
PROBLEMS = {
    "squared": (Squared(COLUMNS, np.inf, 5.0, low=-9.0, high=9.0, intercept=True), lambda s: s, np.ones_like),
    "logistic": (
        Logistic(COLUMNS, np.inf, 5.0, intercept=True),
        expit,
        lambda scores: expit(scores) * (1 - expit(scores)),
    ),
    "poisson": (Poisson(COLUMNS, np.inf, 5.0, count_bound=9.0, intercept=True), np.exp, np.exp),
}
every_problem = pytest.mark.parametrize("name", PROBLEMS)
rng = np.random.default_rng(4)
FEATURES, TARGETS = rng.normal(size=(sum(SIZES), COLUMNS)).astype(np.float32), rng.integers(0, 2, sum(SIZES))
WEIGHING, MODEL = rng.normal(size=(2, COLUMNS + 1)) / 2
DIRECTIONS = rng.normal(size=(COLUMNS + 1, 2))
SIZE = {"squared": 5.0, "logistic": 1.2, "poisson": 9.0}  # between the norms of users


def sent(name, question, clip_norm=1e9, users=None, **arrays_of):
    problem = PROBLEMS[name][0]
    node = Node(problem, federation_of(FEATURES, SIZES, TARGETS), np.arange(len(SIZES)))
    known = {"directions": DIRECTIONS, "weighing": WEIGHING}
    asked = Computation(question, "sum", clip_norm, parameters={"size": SIZE[name]}, arrays=known | arrays_of)
    chosen = np.arange(len(SIZES)) if users is None else np.array(users)
    return node.compute(np.zeros(COLUMNS + 1), chosen, asked).values[0]


def by_loop(name):
    """Each user's curvature, and its weighted slope, sample by sample."""
    _, mean, curvature = PROBLEMS[name]
    starts, found = np.concatenate([[0], np.cumsum(SIZES)]), []
    for first, last in pairwise(starts):
        whole, slope = np.zeros((2, 2)), np.zeros(2)
        for features, target in zip(FEATURES[first:last], TARGETS[first:last], strict=True):
            row = np.append(features.astype(float), 1.0)
            seen = DIRECTIONS.T @ row
            whole += curvature(row @ WEIGHING) * np.outer(seen, seen) / (last - first)
            slope += (mean(row @ MODEL) - target) * seen / (last - first)
        weight = min(1.0, SIZE[name] / np.linalg.norm(whole))
        found.append((whole, weight, weight * slope))
    return found


@every_problem
def test_curvatures_slopes_and_squares_are_those_of_a_loop_over_samples(name):
    influence = np.array([[1.0, 2.0], [-0.5, 0.1], [0.0, 3.0]])
    for user, (whole, weight, slope) in enumerate(by_loop(name)):
        curvature = sent(name, "user_curvature", SIZE[name], [user])
        np.testing.assert_allclose(symmetric(curvature), weight * whole, rtol=1e-6)
        np.testing.assert_allclose(sent(name, "weighted_slope", users=[user], model=MODEL), slope, rtol=1e-6)
        squares = sent(name, "squared_influence", users=[user], model=MODEL, influence=influence)
        np.testing.assert_allclose(squares, (influence @ slope) ** 2, rtol=1e-6)
    assert 0 < sum(weight < 1 for _, weight, _ in by_loop(name)) < len(SIZES)


@every_problem
def test_sizes_count_each_user_once_in_its_interval(name):
    norms = [float(np.linalg.norm(slope)) for *_, slope in by_loop(name)]
    edges = np.array([0.01, 0.1, 0.3, 1.0])
    counts = sent(name, "slope_sizes", 1.0, model=MODEL, edges=edges)
    np.testing.assert_array_equal(counts, np.histogram(norms, [0.0, *edges, np.inf])[0])


@settings(max_examples=50)
@given(arrays(np.float64, (2, 3, 3), elements=st.floats(-5, 5)))
def test_what_is_stated_to_be_acute_is(raw):
    """Curvatures are positive semidefinite, squares and counts are not negative: no two point apart."""
    curvatures = [triangle((each @ each.T)[None])[0] for each in raw]
    squares = [np.square(each).ravel() for each in raw]
    assert curvatures[0] @ curvatures[1] >= -1e-9
    assert squares[0] @ squares[1] >= 0
    for name in ("user_curvature", "slope_sizes", "squared_influence"):
        assert Computation(name, "sum", 1.0).sensitivity("replace_one") == pytest.approx(np.sqrt(2))
    assert Computation("weighted_slope", "sum", 1.0).sensitivity("replace_one") == 2.0


def test_a_loss_whose_curvature_depends_on_targets_is_refused():
    node = Node(Huber(COLUMNS, 5.0, 3.0, 1.0), federation_of(FEATURES, SIZES, TARGETS), np.arange(4))
    known = {"directions": DIRECTIONS[:-1], "weighing": WEIGHING[:-1]}
    asked = Computation("user_curvature", "sum", 1.0, parameters={"size": 1.0}, arrays=known)
    with pytest.raises(BadInput, match="no curvature that follows from its scores alone"):
        node.compute(np.zeros(COLUMNS), np.arange(4), asked)
