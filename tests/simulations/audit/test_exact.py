"""The exact epsilon of a round's first outcome: against the claim, and against broken mechanisms."""

import re
from dataclasses import replace

import numpy as np
import pytest
from test_audit_command import NAMES, config_of, instance_of

from simulations.audit.canaries import _tipping, attacks
from simulations.audit.instance import Instance
from simulations.audit.trials import exact_step
from strategies import STRATEGIES
from strategies.core.scheme import law_of
from userdp.errors import RunFailed
from userdp.mechanisms.exponential import ExponentialMechanism

DISCRETE = {"robust_rounds", "outlier_removal", "robust_frank_wolfe", "private_lasso", "sparse_exponential"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_outcome_costs_no_more_than_the_whole_claims(name):
    """The strategies with an exact step are checked, too: a new one is found by what its scheme can do."""
    instance = instance_of(name, 2.0)
    found = exact_step(instance)
    assert (found is not None) == (law_of(instance.template.scheme) is not None) == (name in DISCRETE)
    assert found is None or found <= instance.plan.guarantee.epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "share"), [("robust_rounds", "test_epsilon", 0.5), ("robust_frank_wolfe", "choice_epsilon", 0.9)]
)
def test_the_worst_canaries_cost_most_of_what_an_outcome_may(name, part, share):
    instance = instance_of(name, 4.0)
    found, most = exact_step(instance), instance.plan.numbers[part]
    assert share * most < found <= most * (1 + 1e-9)


@pytest.mark.slow
def test_an_outcome_of_half_the_noise_costs_more_than_is_claimed(monkeypatch):
    instance = instance_of("robust_frank_wolfe", 4.0)
    scheme = instance.template.scheme
    doubled = ExponentialMechanism(scheme.mechanism.sensitivity, 2 * scheme.mechanism.epsilon)
    instance.template.program.own.scheme = replace(scheme, mechanism=doubled)
    with pytest.raises(RunFailed, match="is charged"):
        exact_step(instance)
    monkeypatch.setattr("userdp.accounting.ledger.check_drawn", lambda drawn, charged: None)
    assert exact_step(instance) > instance.plan.guarantee.epsilon


def test_colluders_bring_a_score_to_its_threshold():
    for many in _tipping(80.0, 100):
        scores = 100 - many, ((100 - many) ** 2 + many**2) / 100
        assert min(abs(score - 80.0) for score in scores) <= 1.5
    assert _tipping(100.0, 100) == _tipping(40.0, 100) == []


def test_canaries_stay_within_the_declared_bounds_and_pull_where_they_say():
    instance = instance_of("robust_rounds", 4.0)
    for attack in attacks(instance):
        assert np.nanmax(np.abs(attack.heads)) <= 1e3
        np.testing.assert_allclose(np.linalg.norm(attack.directions, axis=1), 1.0)


def test_strategies_that_compare_users_say_so():
    """The stated cost of a round shows it: the square of a cohort, or of groups."""
    for strategy in STRATEGIES.values():
        assert strategy.about.compares_users == bool(re.search(r"[Uk]\^2 d", strategy.about.cost)), strategy.about.name


@pytest.mark.slow
def test_users_with_many_samples_bring_a_test_of_distances_to_its_threshold():
    found = [exact_step(one) for one in Instance.all_of(config_of("outlier_removal", 4.0))]
    assert 1.0 < max(found) <= 4.0
