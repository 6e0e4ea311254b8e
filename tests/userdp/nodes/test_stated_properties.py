"""The stated properties of each function of users' rows, on which a price or a skipped step rests, hold.

A property that is stated of a function for the first time needs an entry here, by which it is tried.
"""

import math

import numpy as np
import pytest
from helpers import federation_of
from query_cases import QUANTILES, SUMS, people, query
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import dense
from userdp.data import Block, ColumnarFederation
from userdp.nodes.computations import Computation
from userdp.nodes.functions import ROW_FUNCTIONS
from userdp.nodes.node import Node
from userdp.problems import Logistic, SparseLogistic, Squared

USERS, RNG = 60, np.random.default_rng(5)
SIZES = RNG.integers(1, 5, USERS)
CELLS = (RNG.uniform(-1, 1, (SIZES.sum(), 2)) * RNG.choice([0.0, 1e-3, 1.0], SIZES.sum())[:, None]).astype(np.float32)
CLASSES = RNG.integers(0, 2, len(CELLS)).astype(np.float32)
NUMBERS = RNG.uniform(-1, 1, len(CELLS)).astype(np.float32)
EDGES, EYE = np.array([0.05, 0.3, 1.0]), np.eye(2)
SLOPE = {"directions": EYE, "weighing": np.array([0.4, -0.3]), "model": np.array([-2.0, 1.0])}


def dense_people(targets):
    return federation_of(CELLS, SIZES, targets)


def sparse_people():
    block = Block(csr_array(np.abs(CELLS)), np.concatenate([[0], np.cumsum(SIZES)]), CLASSES)
    return ColumnarFederation(block)


def voters(members=USERS):
    numbers = np.random.default_rng(6)
    cell = [-1.0, 1.0, 0.0, math.nan, 0.3]
    return ColumnarFederation(
        people(
            [
                [(numbers.choice(cell), numbers.choice([-1.0, 0.0, 1.0]), numbers.integers(-1, 3)) for _ in range(size)]
                for size in SIZES[:members].tolist()
            ]
        )
    )


LOGISTIC, SQUARED, SPARSE = Logistic(2, 2.0, 5.0), Squared(2, 2.0, 5.0, low=-1.0, high=1.0), SparseLogistic(2, 2.0, 2)
SUMMED, CHOSEN = query(SUMS), query(QUANTILES)
ACUTE = {
    "second_moments": (LOGISTIC, CLASSES, {}, {"scales": np.array([1.0, 0.5])}),
    "class_shares": (LOGISTIC, CLASSES, {}, {"classes": np.array([0.0, 1.0])}),
    "column_moments": (SPARSE, None, {}, {}),
    "user_curvature": (LOGISTIC, CLASSES, {"size": 0.1}, {"directions": EYE, "weighing": SLOPE["weighing"]}),
    "slope_sizes": (SQUARED, NUMBERS, {"size": 0.1}, SLOPE | {"edges": EDGES}),
    "squared_influence": (SQUARED, NUMBERS, {"size": 0.1}, SLOPE | {"influence": np.array([[1.0, -2.0], [0.0, 1.0]])}),
    "loss_sizes": (SQUARED, NUMBERS, {}, {"edges": EDGES}),
    "score_shares": (LOGISTIC, CLASSES, {}, {"edges": np.array([-0.3, 0.0, 0.3])}),
    "user_shares": (SUMMED, None, {}, {}),
    "user_ranks": (CHOSEN, None, {}, {"bins": np.array([3])}),
}
"""Function -> problem, targets, parameters and arrays of a question for which its users differ."""
QUERIED = {"user_shares", "user_ranks"}


def rows_of(name, clip_norm=None, **more):
    problem, targets, parameters, arrays = ACUTE[name]
    if name in QUERIED:
        federation = voters()
    elif problem is SPARSE:
        federation = sparse_people()
    else:
        federation = dense_people(targets)
    node, everybody = Node(problem, federation, np.arange(USERS)), np.arange(USERS)
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
        asked = Computation(name, "sum", clip, parameters=ACUTE[name][2], arrays=ACUTE[name][3])
        assert apart <= asked.sensitivity("replace_one") * (1 + 1e-9)
        assert asked.sensitivity("replace_one") == pytest.approx(math.sqrt(2) * clip)
        assert asked.sensitivity("add_or_remove") == clip
