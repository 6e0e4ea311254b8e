"""Hazards by period under `auto`: events and time at one price, weights by features alone, and estimates that hold."""

from itertools import product

import numpy as np
import pytest
from helpers import federation_of, make, run
from scipy.optimize import minimize
from test_auto import Watched

from strategies import Auto
from strategies.auto.level import Hazard, Level
from strategies.auto.releases import Movement
from userdp.data.block import Block
from userdp.nodes.moments import events_and_time, moment_size, second_moments, weighted_gradient
from userdp.problems import Cloglog, Logistic

PERIODS, TRUTH = 4, np.array([0.7, -0.4])
LEVELS = np.array([-2.6, -2.0, -2.2, -1.8])
KINDS = {"cloglog": Cloglog, "logistic": Logistic}


def problem_of(kind, columns=2, periods=PERIODS):
    return KINDS[kind](columns + periods + 1, np.inf, 5.0, feature_bound=1.0).by_period(columns, columns + periods)


def rows_of(features, ends, periods=PERIODS):
    """(U K, k + K + 1) samples of users with these features (U, k) who are at risk in their first periods (U,)."""
    at_risk = np.arange(periods) < ends[:, None]
    each = np.concatenate(
        [
            np.repeat(features[:, None], periods, axis=1),
            np.tile(np.eye(periods), (len(features), 1, 1)),
            np.ones((len(features), periods, 1)),
        ],
        axis=2,
    )
    return (each * at_risk[:, :, None]).reshape(-1, features.shape[1] + periods + 1)


def cohort(kind, users, seed):
    """People with two numbers, and hazards of this kind, of whom a third leaves early."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (users, 2))
    scores = (features @ TRUTH)[:, None] + LEVELS
    hazards = KINDS[kind](2, np.inf, 5.0).family.predictions(scores)["probability"]
    happens = rng.random((users, PERIODS)) < hazards
    leaves = np.where(rng.random(users) < 1 / 3, rng.integers(1, PERIODS + 1, users), PERIODS)
    first = np.where(happens.any(axis=1), happens.argmax(axis=1), PERIODS)
    events = (np.arange(PERIODS) == first[:, None]) & (first < leaves)[:, None]
    ends = np.minimum(first + 1, leaves)
    return federation_of(rows_of(features, ends), [PERIODS] * users, events.ravel().astype(float))


def exact(kind, federation):
    """The fit without privacy: weights, then a level for each period; and its standard errors."""
    block = federation.block(np.arange(federation.users))
    at_risk = block.features[:, -1] > 0
    rows, targets = block.features[at_risk, :-1].astype(float), block.targets[at_risk].astype(float)
    family = KINDS[kind](2, np.inf, 5.0).family

    def loss(x):
        return family.losses(rows @ x, targets).sum(), rows.T @ family.slopes(rows @ x, targets)

    x = minimize(loss, np.zeros(rows.shape[1]), jac=True, method="BFGS").x
    return x, np.sqrt(np.diag(np.linalg.inv((rows.T * family.curvatures(rows @ x)) @ rows)))


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
    assert Hazard.movement == Movement.of_ball(0.5) == Level.movement
    assert apart <= Hazard.movement.replaced + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_training_starts_at_the_constant_hazard(kind):
    federation, problem = cohort(kind, 3000, 1), problem_of(kind)
    block, memory = federation.block(np.arange(3000)), make(Auto, problem, 3000).memory
    means = events_and_time(problem, problem.initial(), block).mean(axis=0)
    facts = Hazard(problem).take(memory, np.zeros(2), Watched(answer=means))
    hazard = block.targets.sum() / (block.features[:, -1] > 0).sum()
    assert facts["mean_target"] == pytest.approx(hazard)
    assert memory.constant.tolist() == [0.0] * 6 + [pytest.approx(problem.family.score_of(hazard))]
    assert memory.slope == pytest.approx(np.sqrt(problem.family.curvature_at(hazard) / PERIODS))


@pytest.mark.parametrize("released", [[-0.6, -0.4], [0.9, -0.9], [-9.0, 9.0], [0.0, 0.0]])
def test_hazards_drowned_in_noise_are_still_hazards(released):
    problem = problem_of("cloglog")
    memory = make(Auto, problem, 400).memory
    facts = Hazard(problem).take(memory, np.zeros(2), Watched(answer=np.array(released), deviation=0.2))
    assert 0 < facts["mean_target"] < 1
    assert np.isfinite(memory.constant).all()
    assert memory.curvature > 0


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
def test_hazard_ratios_are_those_of_a_fit_without_privacy_where_noise_is_small(kind):
    users = 4000
    federation = cohort(kind, users, 5)
    method = make(Auto, problem_of(kind), users, 200.0, seed=5, coefficients=0.5)
    run(method, federation)
    found, (fit, errors) = method.memory.inference, exact(kind, federation)
    reading = [*range(2), *range(2, 2 + PERIODS)]
    estimate = np.concatenate([found.model[:2], found.model[2:6] + found.model[6]])
    assert (np.abs(estimate - fit[reading]) < 0.5 * errors[reading]).all()
