"""Each ledger compares what a round draws with what it was charged."""

import math
from dataclasses import replace

import numpy as np
import pytest

from strategies.baselines.peeling import Peeling
from userdp.accounting import Cost, Ledger, Privacy, RoundLedger
from userdp.accounting.costs import calibrate_noise
from userdp.errors import BadInput, RunFailed
from userdp.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from userdp.noise import Scores, SeededNoise
from userdp.sampling import PoissonBatches, WeightedBatches

PRIVACY = Privacy(2.0, 1e-5)


def source():
    return SeededNoise(np.random.default_rng(0))


def test_releases_with_one_source_add_up():
    noise = source()
    assert noise.spent == Cost()
    GaussianMechanism(3.0, 2.0).release(np.zeros(2), noise)
    GaussianMechanism(1.0, 2.0).release(np.zeros(5), noise)
    LaplaceMechanism(1.0, 0.25).release(np.zeros(1), noise)
    ExponentialMechanism(1.0, 0.5).choose(Scores(np.zeros(3), 1.0), noise)
    Peeling(1, 1.0, 1.0, 0.0).release(Scores(np.ones(3), 1.0), noise)
    assert noise.spent.noise_multiplier == pytest.approx(math.sqrt(2.0))
    assert noise.spent.pure_epsilon == pytest.approx(1.75)
    assert source().spent == Cost()


@pytest.mark.parametrize(
    "more", [{"noise_multiplier": 4.0 * (1 - 1e-7)}, {"pure_epsilon": 0.1 * (1 + 1e-7)}, {"failure_delta": 1.1e-6}]
)
def test_a_round_draws_no_more_than_its_participation_costs(more):
    cost = Cost(noise_multiplier=4.0, pure_epsilon=0.1, failure_delta=1e-6)
    ledger = Ledger(5, cost, 1, PRIVACY)
    ledger.check_drawn(cost)
    ledger.check_drawn(Cost())
    with pytest.raises(RunFailed, match="releases of a round have a cost of"):
        ledger.check_drawn(replace(cost, **more))


def test_what_an_observer_of_the_cohorts_sees_is_compared_where_the_price_is_that_of_secret_ones():
    priced, seen = Cost(noise_multiplier=9.0), Cost(noise_multiplier=4.0)
    ledger = Ledger(5, priced, 1, PRIVACY, drawn=seen)
    ledger.check_drawn(seen)
    with pytest.raises(RunFailed, match=r"where 0\.0625 is charged"):
        ledger.check_drawn(Cost(noise_multiplier=3.9))
    with pytest.raises(RunFailed, match=r"where 0\.0123457 is charged"):
        Ledger(5, priced, 1, PRIVACY).check_drawn(seen)


def test_rounds_that_cost_more_than_the_budget_are_refused_before_the_first():
    sampler = PoissonBatches(40, 0.2, 3, 0)
    noise = sampler.calibrate(PRIVACY.epsilon, PRIVACY.delta)
    RoundLedger(sampler, noise, PRIVACY)
    with pytest.raises(BadInput, match="the plan of 3 rounds would cost epsilon"):
        RoundLedger(sampler, 0.99 * noise, PRIVACY)


def test_a_round_of_unequal_shares_draws_no_more_than_its_own():
    sampler = WeightedBatches(4, 4, 2, 0, shares=(0.2, 0.8))
    whole = calibrate_noise(2.0, 1e-5, 1)
    ledger = sampler.ledger(whole, PRIVACY)
    for index in range(2):
        ledger.charge(np.arange(4))
        own = sampler.multiplier(index, whole)
        ledger.check_drawn(Cost(noise_multiplier=own))
        for less in (own * (1 - 1e-7), whole):
            with pytest.raises(RunFailed, match="Gaussian noise"):
                ledger.check_drawn(Cost(noise_multiplier=less))
