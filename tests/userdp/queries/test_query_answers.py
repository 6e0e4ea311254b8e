"""Answers from noisy sums: without noise they are numpy's; errors are those of simulated noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_cases import people, query

from userdp.data.shape import Column, Shape
from userdp.queries import ranks
from userdp.queries.answers import Sums, correlations, least_variance, squared_polynomial
from userdp.queries.table import TableSettings
from userdp.queries.votes import bernstein

USERS = 300


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    age, visits = rng.uniform(-1, 1, USERS), np.round(rng.uniform(-1, 1, USERS), 1)
    age[rng.random(USERS) < 0.2] = np.nan
    level = rng.integers(-1, 3, USERS)
    return people([[one] for one in zip(age, visits, level, strict=True)]), 50 * (age + 1), 5 * (visits + 1), level


def exact(asked, block, relation):
    """The answers without noise."""
    problem = query(asked, relation)
    bounded = problem.bound(block)[0]
    released = np.zeros(problem.dimension)
    released[: problem.sums] = problem.user_shares(bounded).sum(axis=0)[: problem.sums]
    return problem.answers(released, 0.0, block.users)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_without_noise_answers_are_those_of_numpy(drawn, relation):
    block, age, visits, level = drawn
    known = ~np.isnan(age)
    asked = [
        {"statistic": "mean", "of": "age"},
        {"statistic": "mean", "of": "visits"},
        {"statistic": "variance", "of": "age"},
        {"statistic": "histogram", "of": "visits", "bins": [0, 2.05, 5.05, 10]},
        {"statistic": "counts", "of": "city"},
        {"statistic": "group_means", "of": "age", "by": "city"},
        {"statistic": "correlation", "of": ["age", "visits"]},
    ]
    variance = age[known].var() * (1 + 1 / known.sum())  # about the population, as for samples of it
    expected = [
        age[known].mean(),
        visits.mean(),
        variance,
        np.sqrt(variance),
        *np.histogram(visits, [0, 2.05, 5.05, 10])[0] / USERS,
        *(np.sum(level == k) for k in (0, 1, 2, -1)),
        *(age[known & (level == k)].mean() for k in range(3)),
        np.corrcoef(age[known], visits[known])[0, 1],
    ]
    found = exact(asked, block, relation)
    np.testing.assert_allclose([one.estimate for one in found], expected, rtol=1e-5)
    mean = found[0]
    assert mean.standard_error == pytest.approx(age[known].std() / np.sqrt(known.sum()), rel=1e-5)
    assert mean.low < mean.estimate < mean.high
    counts = [one for one in found if one.statistic == "counts"]
    assert all(one.standard_error == 0 for one in counts)


@settings(max_examples=40, deadline=None)
@given(a=st.floats(-2, 2), b=st.floats(-2, 2), at=st.floats(0, 1))
def test_squares_of_polynomials(a, b, at):
    c = np.array([a, (a + b) / 2, b])  # a line
    value = bernstein(np.array([at]), 2)[0]
    assert value @ squared_polynomial(c) == pytest.approx((value @ c) ** 2, abs=1e-9)


def test_a_known_total_takes_noise_off():
    rng, exact_sums, c = np.random.default_rng(2), np.array([30.0, 50.0, 20.0]), np.array([1.0, -2.0, 0.5])
    noisy = exact_sums + 4.0 * rng.normal(size=(20_000, 3))
    for whole in (100.0, None):
        found = [float(c @ Sums.of(one, 4.0, whole).values) for one in noisy]
        sums = Sums.of(noisy[0], 4.0, whole)
        assert np.var(found) == pytest.approx(sums.noise(c), rel=0.05)
        assert np.mean(found) == pytest.approx(c @ exact_sums, abs=0.3)
    assert Sums.of(noisy[0], 4.0, 100.0).values.sum() == pytest.approx(100.0)


def test_errors_of_correlations_are_those_of_simulated_noise():
    rng, users, deviation = np.random.default_rng(3), 100_000_000, 0.01
    cells = np.column_stack([np.ones(5000), rng.uniform(-1, 1, (5000, 2)) @ np.array([[1.0, 0.6], [0.0, 0.5]])])
    truth = cells.T @ cells / 5000
    found = []
    for _ in range(3000):
        noise = np.triu(rng.normal(scale=deviation, size=(3, 3)))
        found.append(correlations((truth + noise + np.triu(noise, 1).T) * users, deviation * users)[0, 0, 1])
    stated = correlations(truth * users, deviation * users)[1, 0, 1]
    assert np.std(found) == pytest.approx(stated, rel=0.08)


@pytest.mark.parametrize("end", [-1.0, 1.0])
@pytest.mark.parametrize(("part", "drowned"), [(0.97, True), (1.03, False)])
def test_a_plan_says_from_which_spread_on_a_correlation_is_told_from_noise(end, part, drowned):
    variance = part * least_variance(1e-4)
    products = np.outer([1.0, end, end], [1.0, end, end]) + np.diag([0.0, variance, variance])
    assert np.isnan(correlations(1e6 * products, 1e2)[0, 0, 1]) == drowned


def test_what_drowns_in_noise_says_so(drawn):
    problem = query([{"statistic": "mean", "of": "age"}], "add_or_remove")
    one = problem.answers(np.zeros(problem.dimension), 10.0, USERS)[0]
    assert np.isnan(one.estimate)
    assert (one.low, one.high) == (0.0, 100.0)


@pytest.mark.parametrize(("quantile", "users", "scale"), [(0.5, 10_000, 5.0), (0.9, 100, 200.0), (0.25, 4000, 40.0)])
def test_the_reach_of_an_end_is_passed_once_in_forty_times(quantile, users, scale):
    """A choice that misses by as much as the worst data allow."""
    rng = np.random.default_rng(4)
    drawn_users = rng.normal(0, np.sqrt(users * quantile * (1 - quantile)), 400_000)
    chosen = scale * np.log(50) + rng.exponential(scale, 400_000)
    distance = ranks.reach(quantile, users, scale, 50)
    assert np.mean(drawn_users + chosen > distance) == pytest.approx(0.025, abs=0.0015)


def test_large_edges_are_told_to_the_last_digit():
    shape = Shape(columns=1, has_target=False, bound=1.0, named=(Column("cost", (0,), (0.0, 2e6)),))
    ask = [{"statistic": "histogram", "of": "cost", "bins": [0, 1234567, 2e6], "where": {"cost": [0, 1234567.5]}}]
    (first, _) = TableSettings.model_validate({"kind": "table", "ask": ask}).build(shape, 0).answers(np.ones(3), 0.0, 3)
    assert (first.level, first.where) == ("[0, 1234567)", "cost in [0, 1234567.5]")
