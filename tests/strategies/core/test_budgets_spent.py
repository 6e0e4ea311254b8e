"""Noise is calibrated by the function that reports: what is asked for is spent, and never more."""

from dataclasses import replace

import numpy as np
import pytest
from any_strategy import options_of, problem_of
from helpers import federation_of, make, noise_again, run

from strategies import STRATEGIES, WinsorizedRotation
from userdp.accounting import Cost, epsilon_of, zcdp_to_epsilon
from userdp.problems import Quadratic

FACTS = {"max_samples": 2, "samples": 5000}
UNSPENT = {"stopped_sgd"}
"""A random cohort ends its run before the budget is used up, as its guarantee says."""


# --- Every strategy --------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("epsilon", [0.2, 8.0])
@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"non_private"}))
def test_a_plan_spends_what_is_asked_for_and_promises_for_the_unit_asked_for(name, epsilon):
    strategy = STRATEGIES[name]
    for unit in strategy.about.units:
        problem = problem_of(name)
        method = make(strategy, problem, 6000, epsilon, 1e-5, unit=unit, facts=FACTS, **options_of(name))
        guarantee = method.plan.guarantee
        assert guarantee.unit == unit
        assert guarantee.epsilon <= epsilon * (1 + 1e-6)
        assert name in UNSPENT or guarantee.epsilon >= 0.995 * epsilon


# --- One cell --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 1), (4, 2)])
def test_with_one_cell_a_rotation_is_a_plain_gaussian(rounds, epochs):
    """A choice from one candidate costs nothing, so the mean gets the whole budget, exactly."""
    options = {"rounds": rounds, "epochs": epochs, "deviation": 100.0}
    method = make(WinsorizedRotation, Quadratic(5, 9.0, 9.0), 5000, 1.0, 1e-6, **options)
    assert method.plan.numbers["cells"] == 1
    assert method.plan.numbers["selection_epsilon"] == 0
    exact = epsilon_of(Cost(noise_multiplier=method.scheme.mechanism.noise_multiplier), epochs, 1e-6)
    assert method.plan.guarantee.epsilon == pytest.approx(exact) == pytest.approx(1.0, rel=1e-6)
    assert zcdp_to_epsilon(epochs / (2 * method.scheme.mechanism.noise_multiplier**2), 1e-6) > 1.05
    assert method.plan.guarantee.accountant == "analytic Gaussian mechanism, composed over participations"


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_with_one_cell_a_run_chooses_nothing(noise, monkeypatch):
    options = {"rounds": 2, "epochs": 2, "deviation": 100.0}
    method = make(WinsorizedRotation, Quadratic(3, 9.0, 9.0), 40, 1.0, 1e-3, **options)
    if noise == "secure":
        method = WinsorizedRotation(**options).strategy(
            method.problem, method.public, replace(method.privacy, noise="secure")
        )
    chosen = []
    monkeypatch.setattr(type(noise_again(method, 0)), "choose", lambda *given: chosen.append(given))
    result = run(method, federation_of(np.ones((40, 3))))
    assert len(result.rounds) == 2
    assert not chosen
    assert method.spent_epsilon == method.plan.guarantee.epsilon
