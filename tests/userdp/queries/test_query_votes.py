"""Users' rows in queries: bounded, not far apart, alone as in company; neighbours move sums as far as stated."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_cases import FILTER, FILTERED, PAIR, QUANTILES, SHAPE, SUMS, people, query

from userdp.data import Block, ColumnarFederation
from userdp.data.shape import Column
from userdp.errors import BadInput
from userdp.mechanisms.user_quantile import rank_scores, rank_sensitivity
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.queries.facts import wanted_levels
from userdp.queries.table import TableSettings
from userdp.queries.votes import bernstein, products

CLIPPED = Computation("user_shares", "sum", clip_norm=1.0)
CELL = st.one_of(st.sampled_from([-1.0, 1.0, 0.0, math.nan, math.inf, -math.inf, 7.0]), st.floats(-1, 1, width=32))
SAMPLE = st.tuples(CELL, st.sampled_from([-1.0, -0.6, 0.0, 0.99, 1.0]), st.integers(-1, 2))
USER = st.lists(SAMPLE, min_size=1, max_size=5)


def shares(problem, block):
    return problem.user_shares(problem.bound(block)[0])[:, : problem.sums]


@settings(max_examples=60, deadline=None)
@given(
    users=st.lists(USER, min_size=2, max_size=6),
    relation=st.sampled_from(["replace_one", "add_or_remove"]),
    asked=st.sampled_from([SUMS, FILTERED]),
)
def test_rows_are_bounded_and_not_far_apart_and_the_same_alone(users, relation, asked):
    problem, block = query(asked, relation), people(users)
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
@given(users=st.lists(USER, min_size=2, max_size=4), other=USER, sums=st.sampled_from([SUMS, FILTERED]))
def test_neighbours_move_the_sum_by_the_sensitivity_at_most(users, other, sums):
    asked = CLIPPED
    moves = {
        "replace_one": [[other, *users[1:]], [*users[:-1], other]],
        "add_or_remove": [users[1:], [*users, other]],
    }
    for relation, neighbours in moves.items():
        problem = query(sums, relation)
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
    where=st.sampled_from([{}, FILTER]),
)
def test_neighbours_move_scores_by_their_sensitivity_at_most(users, other, quantile, shift, where):
    problem = query([one | {"where": where} for one in QUANTILES])

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
        ({"statistic": "counts", "of": ["city", "city"]}, "ask.of = ['city', 'city']: a column is listed twice"),
        ({"statistic": "counts", "of": ["city", "age"]}, "ask.of = 'age': the column holds numbers"),
        ({"statistic": "mean", "of": "age", "where": {"agee": [1, 2]}}, "ask.where.agee: there is no such column; did"),
        ({"statistic": "mean", "of": "age", "where": {"wrist": 1}}, "declare it in data.features or data.categorical"),
        ({"statistic": "count", "where": {"city": "rome"}}, "ask.where.city = 'rome': there is no such level; did you"),
        ({"statistic": "count", "where": {"city": ["Rome", 7]}}, "ask.where.city = '7': there is no such level; there"),
        ({"statistic": "count", "where": {"city": []}}, "ask.where.city = []: must be a level or a list of them, or"),
        ({"statistic": "count", "where": {"age": [60, 50]}}, "ask.where.age = [60, 50]: must be [low, high] within"),
        ({"statistic": "count", "where": {"age": [-1, 50]}}, "within data.ranges.age = [0, 100], the lower one first"),
        ({"statistic": "count", "where": {"age": math.nan}}, "ask.where.age = nan: must be [low, high] within"),
        ({"statistic": "count", "where": {"age": [50, math.nan]}}, "ask.where.age = [50, nan]: must be [low, high]"),
        ({"statistic": "count", "where": {"age": []}}, "ask.where.age = []: must be [low, high] within"),
        ({"statistic": "count"}, "nothing but the number of users, which is public"),
    ],
)
def test_refusals_name_column_and_remedy(asked, sentence):
    with pytest.raises(BadInput) as error:
        query([asked])
    assert sentence in str(error.value)


@pytest.mark.parametrize("asked", [one for one in [*SUMS, *QUANTILES] if one["statistic"] != "survival"], ids=str)
def test_votes_of_samples_need_a_declared_bound(asked):
    section = {"kind": "table", "ask": [asked | {"per": "sample"}]}
    with pytest.raises(BadInput, match=r"data\.max_samples is missing"):
        TableSettings.model_validate(section).build(SHAPE, 0)


CORNERS = [*product([-1.0, 1.0, math.nan], [-1.0, 1.0], [-1, 0, 1])]
"""Samples with each cell at an end of its range, or without a number or a level."""
TWO = [[one] for one in CORNERS] + [[one, other] for one in CORNERS for other in CORNERS]


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
@pytest.mark.parametrize("asked", [*SUMS, *FILTERED], ids=str)
def test_no_two_users_of_all_corners_are_further_apart_than_stated(asked, relation):
    """All users of one or two samples, each by itself; the largest of each row decides."""
    if asked["statistic"] == "count" and "where" not in asked and asked.get("per") != "sample":
        return  # alone it is public
    problem = query([asked], relation)
    rows = shares(problem, people(TWO))
    assert rows.min() >= 0 or asked["statistic"] == "correlation"
    assert np.linalg.norm(rows, axis=1).max() <= 1
    if relation == "replace_one":
        different = np.unique(rows, axis=0)
        squares = (different**2).sum(axis=1)
        apart = (squares[:, None] + squares - 2 * different @ different.T).max()
        assert apart <= 2 * (1 + 1e-12)
        if problem.asked[0].whole:
            np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-9)


def test_a_filter_leaves_the_rows_of_the_samples_that_fit():
    """The rows are those of a table without the other samples; a user without any adds to no answer."""
    rng = np.random.default_rng(3)
    users = [
        [(rng.choice([-0.5, 0.1, 0.9, math.nan]), rng.uniform(-1, 1), rng.integers(-1, 3)) for _ in range(4)]
        for _ in range(60)
    ]
    kept = [[one for one in user if -0.4 <= one[0] <= 0.8 and one[2] in (0, 1)] for user in users]
    fits = np.array([bool(user) for user in kept])
    assert 0 < fits.sum() < len(users)
    ours, theirs = query(FILTERED), query([one for one in SUMS if "where" not in one])
    plain = {(one.statistic, str(one.model_dump(exclude={"where"}))): one for one in theirs.asked}
    assert len(plain) == len(FILTERED)
    block = people([user for user in kept if user])
    for one in ours.asked:
        rows = ours.rows(one, people(users))
        other = plain[one.statistic, str(one.model_dump(exclude={"where"}))]
        expected = theirs.rows(other, block)
        if expected.shape[1] > 0:  # without a filter the number of users is public
            np.testing.assert_array_equal(rows[fits][:, : expected.shape[1]], expected)
        rest = np.unique(rows[~fits], axis=0)
        assert len(rest) == 1
        if one.whole:
            assert rest[0].tolist() == [0.0] * (rows.shape[1] - 1) + [1.0]


def test_a_level_is_found_however_it_is_written():
    column = Column("smokes", (0, 1, 2), levels=("True", "2.0", "3"))
    for number, several in enumerate([(True, 1, "True", "1.0"), (2, 2.0, "2"), (3, "3.0")]):
        assert wanted_levels(list(several), column) == [number] * len(several)


def test_a_filter_holds_its_ends_and_no_missing_cell():
    problem = query([{"statistic": "count", "where": {"age": [25, 50]}}])
    cells = [-1.0, np.nextafter(np.float32(-0.5), np.float32(-1)), -0.5, 0.0, np.float32(1e-7), math.nan]
    rows = shares(problem, people([[(cell, 0.0, 0)] for cell in cells]))
    assert (rows[:, 0] > 0.5).tolist() == [False, False, True, True, False, False]


def test_a_filter_reaches_quantiles():
    problem = query([one | {"where": {"city": "Rome"}} for one in QUANTILES])
    cells = [[(-1.0, 0.0, 0), (1.0, 0.0, 1)], [(1.0, 0.0, 2)], [(1.0, 0.0, 0)]]
    for users, expected in ((cells, [1.0, 0.0, 1.0]), (cells[1:2], [0.0, 0.0, 0.0])):
        ranks = problem.user_ranks(problem.bound(people(users))[0]).toarray()
        np.testing.assert_allclose(ranks.sum(axis=0), expected)


def test_cells_are_clipped_into_the_range_of_their_own_column():
    """Beside a column of levels, or one whose low end is -1, a column's low end may be 0."""
    named = (replace(SHAPE.named[0], least=0.0), *SHAPE.named[1:])
    asked = [one for one in SUMS if one.get("of") == "age" and "where" not in one]
    section = {"kind": "table", "ask": asked, "relation": "replace_one", "max_samples": 3}
    problem = TableSettings.model_validate(section).build(replace(SHAPE, named=named), 0)
    cells = [-1.0, -0.5, 0.0, 0.5, 1.0]
    rows = shares(problem, people([[(cell, 0.0, 0)] for cell in cells] + [[(cell, 0.0, 0)] * 3 for cell in cells]))
    assert rows.min() >= 0
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    np.testing.assert_array_equal(rows[[0, 1, 5, 6]], rows[[2, 2, 7, 7]])


def test_pairs_of_levels_are_cells():
    problem = query([{"statistic": "counts", "of": PAIR}])
    cells = [(0.0, visits, city) for city in (-1, 0, 1, 2) for visits in (-1.0, 1.0)]
    rows = shares(problem, people([[one] for one in cells]))
    assert rows.argmax(axis=1).tolist() == [6, 6, 0, 1, 2, 3, 4, 5]
    found = problem.answers(rows.sum(axis=0), 0.0, len(cells))
    assert [one.level for one in found][:3] == ["Rome, no", "Rome, yes", "Oslo, no"]
    assert found[0].column == "city, often"
