"""Users' rows in queries: bounded, not far apart, alone as in company; neighbours move sums as far as stated."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_cases import QUANTILES, SHAPE, SUMS, people, query

from userdp.data import Block, ColumnarFederation
from userdp.data.shape import Column
from userdp.errors import BadInput
from userdp.mechanisms.user_quantile import rank_scores, rank_sensitivity
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.queries.table import TableSettings
from userdp.queries.votes import bernstein, products

CLIPPED = Computation("user_shares", "sum", clip_norm=1.0)
CELL = st.one_of(st.sampled_from([-1.0, 1.0, 0.0, math.nan, math.inf, -math.inf, 7.0]), st.floats(-1, 1, width=32))
SAMPLE = st.tuples(CELL, st.sampled_from([-1.0, -0.6, 0.0, 0.99, 1.0]), st.integers(-1, 2))
USER = st.lists(SAMPLE, min_size=1, max_size=5)


def shares(problem, block):
    return problem.user_shares(problem.bound(block)[0])[:, : problem.sums]


@settings(max_examples=60, deadline=None)
@given(users=st.lists(USER, min_size=2, max_size=6), relation=st.sampled_from(["replace_one", "add_or_remove"]))
def test_rows_are_bounded_and_not_far_apart_and_the_same_alone(users, relation):
    problem, block = query(SUMS, relation), people(users)
    rows = shares(problem, block)
    assert np.isfinite(rows).all()
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    if relation == "replace_one":
        assert max(np.linalg.norm(one - rows, axis=1).max() for one in rows) <= math.sqrt(2)
    for user, row in zip(users, rows, strict=True):
        np.testing.assert_array_equal(shares(problem, people([user]))[0], row)
    # Also once they are clipped, which a node does with all users of a block at once.
    many = people(users * 40)
    node = Node(problem, ColumnarFederation(many), np.arange(many.users))
    asked = replace(CLIPPED, reduce="rows", separate=True)
    clipped = node.compute(np.zeros(problem.dimension), np.arange(many.users), asked).values
    np.testing.assert_array_equal(clipped[:, : problem.sums], np.tile(rows, (40, 1)))


@settings(max_examples=60, deadline=None)
@given(users=st.lists(USER, min_size=2, max_size=4), other=USER)
def test_neighbours_move_the_sum_by_the_sensitivity_at_most(users, other):
    asked = CLIPPED
    moves = {
        "replace_one": [[other, *users[1:]], [*users[:-1], other]],
        "add_or_remove": [users[1:], [*users, other]],
    }
    for relation, neighbours in moves.items():
        problem = query(SUMS, relation)
        total = shares(problem, people(users)).sum(axis=0)
        for neighbour in neighbours:
            moved = np.linalg.norm(shares(problem, people(neighbour)).sum(axis=0) - total)
            assert moved <= asked.sensitivity(relation) * (1 + 1e-9)


@pytest.mark.parametrize(("k", "nearly"), [(2, math.sqrt(8 / 9)), (3, 1.0), (4, math.sqrt(24 / 25))])
def test_products_of_extreme_users_are_not_far_apart(k, nearly):
    """All corners of the cells' ranges, and users without a number; for odd k two of them differ by the bound."""
    corners = np.array([*product([-1.0, 1.0], repeat=k), [math.nan] * k], dtype=np.float32)
    block = Block(corners, np.arange(len(corners) + 1))
    columns = [Column(str(place), (place,), (-1.0, 1.0)) for place in range(k)]
    for most in (None, 1, 4):
        rows = products(block, columns, most, replaced=True)
        assert np.linalg.norm(rows, axis=1).max() <= 1
        apart = max(np.linalg.norm(one - rows, axis=1).max() for one in rows)
        assert apart <= math.sqrt(2) * (1 + 1e-12)
        assert most == 4 or apart == pytest.approx(math.sqrt(2) * nearly)
        alone = products(block, columns, most, replaced=False)
        assert np.linalg.norm(alone, axis=1).max() == pytest.approx(1.0 / (1 if most is None else most))


def test_the_sensitivity_is_attained():
    asked = CLIPPED
    problem = query(
        [{"statistic": "mean", "of": "age"}, {"statistic": "histogram", "of": "visits", "bins": [0, 5, 10]}]
    )
    low, high = ([(-1.0, -1.0, 0)], [(1.0, 1.0, 0)])
    rows = shares(problem, people([low, high]))
    assert np.linalg.norm(rows[1] - rows[0]) == pytest.approx(asked.sensitivity("replace_one"), rel=1e-9)
    problem = query([{"statistic": "mean", "of": "age"}], "add_or_remove")
    assert np.linalg.norm(shares(problem, people([low]))) == pytest.approx(asked.sensitivity("add_or_remove"), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    users=st.lists(USER, min_size=2, max_size=5),
    other=USER,
    quantile=st.sampled_from([0.1, 0.5, 0.75]),
    shift=st.floats(-3, 3),
)
def test_neighbours_move_scores_by_their_sensitivity_at_most(users, other, quantile, shift):
    problem = query(QUANTILES)

    def scores(them, relation):
        rows = problem.user_ranks(problem.bound(people(them))[0])
        assert rows.min() >= 0
        assert rows.sum(axis=1).max() <= 1 + 1e-12
        return rank_scores(rows.sum(axis=0), quantile, relation, shift)

    for relation, neighbour in (("replace_one", [other, *users[1:]]), ("add_or_remove", [*users, other])):
        before, after = scores(users, relation), scores(neighbour, relation)
        assert np.abs(after.values - before.values).max() <= before.moved + 1e-9
        assert before.moved == after.moved == rank_sensitivity(quantile, relation)


def test_a_cell_equal_to_an_edge_lies_on_its_right_side():
    problem = query([{"statistic": "histogram", "of": "visits", "bins": [0, 1, 2, 5, 10]}])
    cells = [[(0.0, np.float32(-1 + 2 * (visits / 10)), 0)] for visits in (0, 1, 2, 4, 5, 10)]
    rows = shares(problem, people(cells))
    assert rows.argmax(axis=1).tolist() == [0, 1, 2, 2, 3, 3]


@settings(max_examples=30, deadline=None)
@given(value=st.floats(0, 1), degree=st.integers(1, 4))
def test_bernstein_polynomials_divide_one(value, degree):
    parts = bernstein(np.array([value]), degree)
    assert parts.min() >= 0
    assert parts.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"statistic": "mean", "of": "agee"}, "ask.of = 'agee': there is no such column; did you mean 'age'?"),
        ({"statistic": "mean", "of": "city"}, "ask.of = 'city': the column holds levels; ask statistic = 'counts'"),
        ({"statistic": "counts", "of": "age"}, "ask.of = 'age': the column holds numbers; ask statistic = 'histogram'"),
        ({"statistic": "histogram", "of": "age", "bins": [3, 2]}, "ask.bins = [3.0, 2.0]: must be two or more edges"),
        ({"statistic": "quantiles", "of": "age", "at": [1.5]}, "ask.at = 1.5: a quantile lies between 0 and 1"),
        ({"statistic": "correlation", "of": ["age", "age"]}, "a column is listed twice"),
        ({"statistic": "count"}, "nothing but the number of users, which is public"),
    ],
)
def test_refusals_name_column_and_remedy(asked, sentence):
    with pytest.raises(BadInput) as error:
        query([asked])
    assert sentence in str(error.value)


def test_votes_of_samples_need_a_declared_bound():
    section = {"kind": "table", "ask": [{"statistic": "mean", "of": "age", "per": "sample"}]}
    with pytest.raises(BadInput, match=r"data\.max_samples is missing"):
        TableSettings.model_validate(section).build(SHAPE, 0)
