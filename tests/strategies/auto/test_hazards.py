"""Hazards by period under `auto`: events and time at one price, and estimates that hold."""

import numpy as np
import pytest
from hazard_cases import KINDS, PERIODS, problem_of, rows_of
from helpers import federation_of, make, run
from scipy.optimize import minimize
from test_auto import Watched

from strategies import Auto
from strategies.auto.level import Hazard, Level
from strategies.auto.releases import Movement
from userdp.nodes.moments import events_and_time

TRUTH = np.array([0.7, -0.4])
LEVELS = np.array([-2.6, -2.0, -2.2, -1.8])


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


def test_events_and_time_cost_no_more_than_a_mean_target():
    """`test_moments_by_period` bounds the rows."""
    assert Hazard.movement == Movement.of_ball(0.5) == Level.movement


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
