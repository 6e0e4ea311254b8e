"""The sampler that is accounted is the one that is drawn from."""

import math

import numpy as np
import pytest
from helpers import federation_of, make, run
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import DPFedSGD, LocalizedRobustSGD, RobustRounds
from userdp.accounting import Ledger
from userdp.errors import BadInput, PopulationTooSmall, RunFailed
from userdp.problems import Quadratic
from userdp.sampling import ConcentratedBatches, DisjointBatches

plans = st.integers(1, 60).flatmap(
    lambda users: st.tuples(st.just(users), st.integers(1, users), st.integers(1, 4), st.integers(0, 2**31))
)


@settings(max_examples=150)
@given(plans)
def test_batches_of_an_epoch_are_disjoint_and_of_one_size(case):
    users, batch, epochs, seed = case
    sampler = DisjointBatches(users, batch, epochs, seed)
    assert sampler.rounds == epochs * (users // batch)
    for epoch in range(epochs):
        first = epoch * sampler.rounds_per_epoch
        cohorts = [sampler.cohort(first + index) for index in range(sampler.rounds_per_epoch)]
        together = np.concatenate(cohorts)
        assert all(len(cohort) == batch and np.all(np.diff(cohort) > 0) for cohort in cohorts)
        assert len(np.unique(together)) == len(together)
        assert together.min() >= 0
        assert together.max() < users


@settings(max_examples=60)
@given(plans)
def test_nobody_takes_part_more_often_than_there_are_epochs(case):
    users, batch, epochs, seed = case
    sampler = DisjointBatches(users, batch, epochs, seed)
    counts = np.zeros(users, dtype=int)
    for index in range(sampler.rounds):
        counts[sampler.cohort(index)] += 1
    assert counts.max() <= epochs
    assert counts.sum() == sampler.rounds * batch
    if users % batch == 0:
        assert np.all(counts == epochs)


def test_each_epoch_and_each_seed_has_its_own_partition():
    sampler = DisjointBatches(1000, 100, 2, seed=5)
    np.testing.assert_array_equal(sampler.cohort(3), DisjointBatches(1000, 100, 2, seed=5).cohort(3))
    assert not np.array_equal(sampler.cohort(3), sampler.cohort(13))
    assert not np.array_equal(sampler.cohort(3), DisjointBatches(1000, 100, 2, seed=6).cohort(3))


def test_every_user_is_as_likely_as_any_other():
    counts = np.zeros(20)
    for seed in range(2000):
        counts[DisjointBatches(20, 5, seed=seed).cohort(0)] += 1
    # A chi-square of 19 degrees of freedom (a little less, for cohorts have a fixed size): above 50 once in 10,000.
    assert ((counts - 500) ** 2 / 500).sum() < 50


@pytest.mark.parametrize(("users", "batch", "epochs"), [(0, 1, 1), (5, 0, 1), (5, 2, 0), (5, -1, 1)])
def test_numbers_below_one_are_refused(users, batch, epochs):
    with pytest.raises(BadInput, match="at least 1"):
        DisjointBatches(users, batch, epochs)


def test_a_batch_larger_than_the_population_is_refused():
    with pytest.raises(PopulationTooSmall, match="a batch takes 11 users and there are 10"):
        DisjointBatches(10, 11)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_batch_that_does_not_exist_is_refused(index):
    with pytest.raises(BadInput, match="there are 4"):
        DisjointBatches(10, 5, 2).cohort(index)


def _options(strategy):
    return {
        DPFedSGD: {"rounds": 7, "cohort": 90},
        RobustRounds: {"rounds": 4, "epochs": 2, "radius": 1.0},
        LocalizedRobustSGD: {"radius": 1.0, "batch": 150, "phases": 1, "learning_rate": 0.1},
    }[strategy]


@pytest.mark.parametrize("strategy", [DPFedSGD, RobustRounds, LocalizedRobustSGD])
def test_the_ledger_is_charged_with_exactly_the_cohorts_that_were_asked(strategy, monkeypatch):
    users, charged = 300, []
    monkeypatch.setattr(Ledger, "charge", lambda ledger, indices: charged.append(np.array(indices)))
    method = make(strategy, Quadratic(2, 1.0, 2.0), users, epsilon=8.0, delta=1e-3, **_options(strategy))
    asked, ask = [], method.request_of
    monkeypatch.setattr(method, "request_of", lambda index: asked.append(ask(index)) or asked[-1])
    run(method, federation_of(np.zeros((users, 2))))
    assert len(charged) == method.plan.rounds
    for request, indices in zip(asked, charged, strict=True):
        np.testing.assert_array_equal(request.users, indices)


def test_after_a_run_the_ledger_stops_one_more_round():
    method = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 20, rounds=2)
    federation = federation_of(np.zeros((20, 2)))
    run(method, federation)
    with pytest.raises(RunFailed, match="a user would take part 3 times where 2 are planned"):
        method.state.ledger.charge(np.arange(20))


budgets = st.floats(math.log(0.02), math.log(20)).map(math.exp)


deltas = st.floats(-25, -3).map(math.exp)


@settings(max_examples=40)
@given(budgets, deltas, st.integers(1, 50))
def test_concentrated_batches_spend_what_is_asked_for(epsilon, delta, epochs):
    sampler = ConcentratedBatches(10, 5, epochs)
    assert epsilon * (1 - 1e-6) <= sampler.epsilon(sampler.calibrate(epsilon, delta), delta) <= epsilon
