"""Strategies of noisy robust means: populations, radii, users who disagree, and outliers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import Wild, federation_of, final, make, run

from strategies import OutlierRemoval, RobustRounds, WinsorizedRotation
from strategies.baselines.outlier_removal.neighbour_mean import IndicatorKernel
from userdp.errors import BadInput, PopulationTooSmall, RunFailed
from userdp.estimators import RampKernel, concentration_score
from userdp.problems import Linear, Quadratic

REFUSED = [
    (RobustRounds, {"rounds": 5, "epochs": epochs, "radius": radius, "kernel": kernel})
    for epochs in (1, 2)
    for radius in (None, 0.5)
    for kernel in ("exp", "ramp")
]


@pytest.mark.parametrize(("strategy", "options"), [*REFUSED, (OutlierRemoval, {"rounds": 1}), (OutlierRemoval, {})])
def test_a_refused_population_learns_how_many_users_are_enough(strategy, options):
    problem, rounds, epochs = Linear(2, 1.0), options.get("rounds", 5), options.get("epochs", 1)
    with pytest.raises(PopulationTooSmall, match=r"cohorts of \d+ users; a cohort that") as refusal:
        make(strategy, problem, 20, 1.0, 1e-5, **options)
    cohort = int(str(refusal.value).split("takes ")[1].split(":")[0])
    enough = -(-cohort * rounds // epochs)
    assert make(strategy, problem, enough, 1.0, 1e-5, **options).plan.users_needed == enough
    with pytest.raises(PopulationTooSmall):
        make(strategy, problem, enough - 1, 1.0, 1e-5, **options)


@pytest.mark.parametrize(
    ("strategy", "setting", "asked"),
    [
        (RobustRounds, {"radius": 1.0}, r"strategy.radius: this loss has no bound .* or strategy.deviation"),
        (OutlierRemoval, {"radius": 1.0}, r"strategy.radius: this loss has no bound .* l2\) or strategy.deviation"),
        (WinsorizedRotation, {}, r"strategy.deviation: this loss has no bound"),
    ],
)
def test_a_loss_without_a_bound_needs_a_radius_or_a_deviation(strategy, setting, asked):
    problem = Quadratic(2, 1.0, math.inf)
    with pytest.raises(BadInput, match=asked):
        make(strategy, problem, 5000, 2.0, 1e-5)
    assert make(strategy, problem, 5000, 2.0, 1e-5, deviation=1.0).plan.guarantee.holds
    if setting:
        assert make(strategy, problem, 5000, 2.0, 1e-5, **setting).plan.signal == math.inf


@pytest.mark.parametrize("strategy", [RobustRounds, OutlierRemoval])
def test_agreement_is_measured_within_the_radius_that_the_noise_is_for(strategy):
    """A test that looked wider would pass batches for which the estimate's sensitivity is not proven."""
    method = make(strategy, Wild(2), 60, epsilon=20.0, delta=0.01, rounds=1, radius=0.5)
    agreement, rows = method.scheme.agreement, np.random.default_rng(0).normal(size=(60, 2)) * 0.3
    near = (np.linalg.norm(rows[:, None] - rows, axis=2) <= 0.5).sum(axis=1).mean()
    kernel, score = {
        RobustRounds: (RampKernel(0.5), concentration_score(rows, RampKernel(0.5))),
        OutlierRemoval: (IndicatorKernel(0.5), pytest.approx(near, abs=1.0)),  # with or without oneself
    }[strategy]
    assert 5 < agreement.score(rows) < 50
    assert agreement.score(rows) == score
    assert agreement.test.kernel == kernel
    assert agreement.radius == method.plan.numbers["radius"] == 0.5
    with pytest.raises(RunFailed, match="take one radius"):
        replace(agreement, test=replace(agreement.test, kernel=replace(kernel, radius=0.51)))


@pytest.mark.parametrize("strategy", [RobustRounds, OutlierRemoval])
def test_users_that_disagree_fail_the_test_and_the_model_stays_where_it_is(strategy):
    federation = federation_of(np.random.default_rng(0).uniform(-1, 1, (1000, 3)))
    method = make(strategy, Quadratic(3, 1.0, 2.0), 1000, 2.0, 1e-4, rounds=2, radius=0.01)
    result = run(method, federation)
    np.testing.assert_array_equal(final(result), np.zeros(3))
    assert [record.facts["passed"] for record in result.rounds] == [0.0, 0.0]
    assert result.rounds[-1].spent_epsilon == method.plan.guarantee.epsilon  # a failed test costs all the same
