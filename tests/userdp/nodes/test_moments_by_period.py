"""Rows of users by period: events and time at one price, and weights by features alone."""

from itertools import product

import numpy as np
import pytest
from hazard_cases import KINDS, PERIODS, problem_of, rows_of

from userdp.data.block import Block
from userdp.nodes.answers import answers
from userdp.nodes.influence import user_curvature, weighted_slope
from userdp.nodes.moments import events_and_time, moment_size, second_moments, symmetric, weighted_gradient
from userdp.problems import segments


@pytest.mark.parametrize("periods", [1, 2, 5])
def test_events_and_time_move_a_sum_by_no_more_than_a_mean_target_alone(periods):
    """All corners: every subset of periods at risk with every target, also those that no table gives."""
    rows = []
    problem = problem_of("cloglog", 1, periods)
    for at_risk in product((0, 1), repeat=periods):
        for targets in product((0.0, 1.0), repeat=periods):
            features = np.column_stack([np.zeros(periods), np.diag(at_risk), at_risk]).astype(np.float32)
            block = Block(features, np.array([0, periods]), np.array(targets, np.float32))
            rows.append(events_and_time(problem, problem.initial(), block)[0])
    rows = np.array(rows)
    assert np.linalg.norm(rows, axis=1).max() <= 0.5 + 1e-12
    apart = np.linalg.norm(rows[:, None] - rows, axis=2).max()
    assert apart <= 1 + 1e-12


def test_held_out_people_answer_no_difference_where_the_model_is_right():
    """At the true hazard the mean of own averages would be far from zero; five standard errors."""
    people, hazard = 20_000, 0.25
    first = np.random.default_rng(2).geometric(hazard, people)
    rows = rows_of(np.zeros((people, 2)), np.minimum(first, PERIODS)).astype(np.float32)
    events = (np.arange(1, PERIODS + 1) == first[:, None]).ravel().astype(np.float32)
    block, problem = Block(rows, np.arange(people + 1) * PERIODS, events), problem_of("cloglog")
    x = problem.constant_model(np.array([hazard, 1.0]))
    asked = {"limit": 2.0, "width": 1.0, "weight": 1.0, "asked": np.array([0.0, 1.0, 0.0]), "reference": x}
    differences = 2 * answers(problem, x, block, **asked)[:, 2]
    assert abs(differences.mean()) < 5 * differences.std() / np.sqrt(people)


def test_the_size_of_a_user_who_is_read_in_pieces_is_that_of_all_its_samples(monkeypatch):
    rng, periods = np.random.default_rng(1), 12
    problem = problem_of("logistic", 2, periods)
    rows = rows_of(rng.uniform(-1, 1, (3, 2)), np.array([12, 7, 2]), periods).astype(np.float32)
    rows[:, :2] *= np.linspace(0.1, 1, len(rows))[:, None]
    block = Block(rows, np.arange(4) * periods, np.zeros(len(rows), np.float32))
    asked = problem, problem.initial(), block, 1e-3, 1e3, np.ones(problem.dimension)
    whole = moment_size(*asked)
    monkeypatch.setattr(segments, "CHUNK_BYTES", 5 * rows[0].nbytes)
    np.testing.assert_allclose(moment_size(*asked), whole, rtol=1e-12)


def test_weights_do_not_depend_on_how_long_a_person_is_at_risk():
    """A person's samples weigh as much whether it leaves early or late: moments and slopes are sums of the same."""
    problem, scales = problem_of("cloglog"), np.array([0.5, 0.4, 0.3, 0.4, 0.2, 0.5, 0.9])
    features, x = np.tile([[0.9, -0.8]], (PERIODS, 1)), np.linspace(-1, 0.5, 7)
    whole = rows_of(features[:1], np.array([PERIODS]))
    single = np.concatenate([whole * (np.arange(PERIODS) == k)[:, None] for k in range(PERIODS)])
    made = [
        Block(each.astype(np.float32), np.arange(0, len(each) + 1, PERIODS), np.zeros(len(each), np.float32))
        for each in (whole, single)
    ]
    for size in (1.0, 30.0, 1e6):
        for compute in (
            lambda block, size=size: second_moments(problem, x, block, scales, size),
            lambda block, size=size: weighted_gradient(problem, x, block, size, scales, np.eye(7)),
        ):
            np.testing.assert_allclose(compute(made[0])[0], compute(made[1]).sum(axis=0), rtol=1e-9)
        assert np.linalg.norm(second_moments(problem, x, made[0], scales, size)[0]) <= size * (1 + 1e-9)
    sizes = moment_size(problem, x, made[1], 1e-3, 1e9, scales)
    assert np.ptp(sizes) < 1e-9
    exact_size = np.linalg.norm(second_moments(problem, x, made[0], scales)[0])
    assert problem.followed_sizes(whole, np.diag(1 / scales)) == pytest.approx([exact_size] * PERIODS, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_squared_slopes_are_the_curvature_over_the_periods_where_hazards_are_those_of_the_model(kind):
    """All ends of one person's follow-up, by their probabilities: an event in each period, or none."""
    problem, x = problem_of(kind), np.array([0.7, -0.4, -1.2, -0.3, 0.1, -0.8, -0.5])
    rows = rows_of(np.tile([[0.9, -0.8]], (PERIODS + 1, 1)), np.append(np.arange(1, PERIODS + 1), PERIODS))
    targets = np.eye(PERIODS + 1, PERIODS, dtype=np.float32).ravel()
    block = Block(rows.astype(np.float32), np.arange(0, len(rows) + 1, PERIODS), targets)
    hazards = problem.family.predictions(block.features[-PERIODS:].astype(float) @ x)["probability"]
    chances = np.append(hazards, 1.0) * np.append(1.0, np.cumprod(1 - hazards))
    asked = {"size": 1e9, "directions": np.eye(7), "weighing": x, "curvature": 1.0}
    slopes = weighted_slope(problem, x, block, model=x, **asked)
    np.testing.assert_allclose(chances @ slopes, 0, atol=1e-9)
    curvature = symmetric(chances @ user_curvature(problem, x, block, **asked))
    np.testing.assert_allclose((chances * slopes.T) @ slopes, curvature / PERIODS, atol=1e-9)
