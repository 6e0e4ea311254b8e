"""Noise is calibrated by the function that reports: what is asked for is spent, and never more."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from any_strategy import options_of, problem_of
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from helpers import federation_of, make, noise_again, run
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import STRATEGIES, WinsorizedRotation
from userdp.accounting import Cost, epsilon_of, largest_rho, rho_for, zcdp_to_epsilon
from userdp.accounting.amplified import _fixed_size_round, _log_centred_moments, fixed_size_epsilon
from userdp.errors import BadInput
from userdp.mechanisms.peeling import Peeling
from userdp.papers.high_dimensional.lasso import Selections
from userdp.problems import Quadratic
from userdp.sampling import ConcentratedBatches, FixedSizeBatches

FACTS = {"max_samples": 2, "samples": 5000}
UNSPENT = {"stopped_sgd"}
"""A random cohort ends its run before the budget is used up, as its guarantee says."""
budgets = st.floats(math.log(0.02), math.log(20)).map(math.exp)
deltas = st.floats(-25, -3).map(math.exp)


# --- Every strategy --------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("epsilon", [0.2, 8.0])
@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"non_private"}))
def test_a_plan_spends_what_is_asked_for_and_promises_for_the_unit_asked_for(name, epsilon):
    strategy = STRATEGIES[name]
    for unit in strategy.units:
        problem = problem_of(name)
        method = make(strategy, problem, 6000, epsilon, 1e-5, unit=unit, facts=FACTS, **options_of(name))
        guarantee = method.plan.guarantee
        assert guarantee.unit == unit
        assert guarantee.epsilon <= epsilon * (1 + 1e-6)
        assert name in UNSPENT or guarantee.epsilon >= 0.995 * epsilon


@pytest.mark.sweep(1)
@pytest.mark.parametrize("sampling", ["cyclic", "poisson", "fixed_size"])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_every_sampling_spends_what_is_asked_for(sampling, epsilon):
    options = {"sampling": sampling, "cohort": 100, "rounds": 20}
    method = make(STRATEGIES["dp_fed_sgd"], Quadratic(2, 1.0, 2.0), 1000, epsilon, 1e-5, **options)
    assert epsilon * (1 - 2e-4) <= method.plan.guarantee.epsilon <= epsilon


# --- Zero-concentrated privacy ---------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(budgets, deltas)
def test_the_largest_rho_is_the_inverse_of_the_conversion_that_reports(epsilon, delta):
    rho = largest_rho(epsilon, delta)
    assert epsilon * (1 - 1e-6) <= zcdp_to_epsilon(rho, delta) <= epsilon
    assert rho > rho_for(epsilon, delta)
    assert zcdp_to_epsilon(rho * (1 + 1e-4), delta) > epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_no_rho_for_a_budget_out_of_range(epsilon, delta):
    with pytest.raises(BadInput):
        largest_rho(epsilon, delta)


@settings(max_examples=60)
@given(budgets, deltas, st.integers(1, 300))
def test_choices_of_the_lasso_spend_what_is_asked_for(epsilon, delta, rounds):
    scheme = Selections(10, rounds, "zcdp")
    each = scheme.calibrate(epsilon, delta)
    assert epsilon * (1 - 1e-4) <= scheme.epsilon(2 / each, delta) <= epsilon


def test_the_lasso_spends_eight_where_it_left_a_tenth_of_it():
    scheme = Selections(10, 20, "zcdp")
    assert scheme.epsilon(2 / scheme.calibrate(8.0, 1e-6), 1e-6) == pytest.approx(8.0, rel=1e-4)
    loose = math.sqrt(8 * rho_for(8.0, 1e-6) / 20)
    assert scheme.epsilon(2 / loose, 1e-6) < 7.5


@settings(max_examples=60)
@given(budgets, deltas, st.integers(1, 60))
def test_peeling_spends_what_is_asked_for(epsilon, delta, sparsity):
    peeling = Peeling(sparsity, 1.0, epsilon, delta)
    if peeling.pure:
        assert 3 * sparsity / peeling.scale == pytest.approx(epsilon)
    else:
        assert epsilon * (1 - 1e-4) <= zcdp_to_epsilon(sparsity / peeling.scale**2, delta) <= epsilon
    # Whichever of the two takes less noise.
    assert peeling.scale == pytest.approx(
        min(3 * sparsity / epsilon, math.sqrt(sparsity / largest_rho(epsilon, delta)))
    )


@settings(max_examples=40)
@given(budgets, deltas, st.integers(1, 50))
def test_concentrated_batches_spend_what_is_asked_for(epsilon, delta, epochs):
    sampler = ConcentratedBatches(10, 5, epochs)
    assert epsilon * (1 - 1e-6) <= sampler.epsilon(sampler.calibrate(epsilon, delta), delta) <= epsilon


# --- One cell --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 1), (4, 2)])
def test_with_one_cell_a_rotation_is_a_plain_gaussian(rounds, epochs):
    """Nothing is chosen among one candidate, so that costs nothing and the mean gets the whole budget, exactly."""
    options = {"rounds": rounds, "epochs": epochs, "deviation": 100.0}
    method = make(WinsorizedRotation, Quadratic(5, 9.0, 9.0), 5000, 1.0, 1e-6, **options)
    assert method.scheme.grid.cells == 1
    assert method.scheme.selection_epsilon == 0
    exact = epsilon_of(Cost(noise_multiplier=method.scheme.mechanism.noise_multiplier), epochs, 1e-6)
    assert method.plan.guarantee.epsilon == pytest.approx(exact) == pytest.approx(1.0, rel=1e-6)
    assert zcdp_to_epsilon(epochs / (2 * method.scheme.mechanism.noise_multiplier**2), 1e-6) > 1.05
    assert method.plan.guarantee.accountant == "analytic Gaussian mechanism, composed over participations"


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_with_one_cell_a_run_chooses_nothing(noise, monkeypatch):
    options = {"rounds": 2, "epochs": 2, "deviation": 100.0}
    method = make(WinsorizedRotation, Quadratic(3, 9.0, 9.0), 40, 1.0, 1e-3, **options)
    if noise == "secure":
        method = WinsorizedRotation(method.problem, method.public, _secure(method.privacy), **options)
    chosen = []
    monkeypatch.setattr(type(noise_again(method, 0)), "choose", lambda *given: chosen.append(given))
    result = run(method, federation_of(np.ones((40, 3))))
    assert len(result.rounds) == 2
    assert not chosen
    assert method.spent_epsilon == method.plan.guarantee.epsilon


def _secure(privacy):
    return type(privacy)(privacy.epsilon, privacy.delta, noise="secure")


# --- Cohorts of a fixed size -----------------------------------------------------------------------------------------


def _theirs(noise, rate, orders):
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    accountant.compose(SampledWithoutReplacementDpEvent(10**6, round(rate * 10**6), GaussianDpEvent(noise)))
    return np.asarray(accountant._rdp)


@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.5), (1.0, 0.1), (3.0, 0.01), (8.0, 0.02), (0.06, 0.2)])
def test_divergences_of_a_fixed_size_round_are_those_of_dp_accounting(noise, rate):
    orders, bounds = _fixed_size_round(noise, rate)
    chosen = [2, 3, 7, 12, 33, 64]
    mine = [bounds[orders == order].item() for order in chosen]
    np.testing.assert_allclose(mine, _theirs(noise, rate, chosen), rtol=1e-8)
    between = (orders > 2) & (orders < 3)
    first, last = bounds[orders == 2].item(), 2 * bounds[orders == 3].item()
    chord = first + (orders[between] - 2) * (last - first)
    np.testing.assert_allclose(bounds[between] * (orders[between] - 1), chord, rtol=1e-12)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("noise", [0.5, 1.0, 20.0, 300.0])
def test_centred_moments_of_the_likelihood_ratio_are_exact(noise):
    """Against differences of plain moments with 600 digits, of which cancellation may take what it likes."""
    found = _log_centred_moments(noise)
    assert len(found) == min(512, int(40 * noise**2)) // 2
    with localcontext(prec=600):
        for power in (2, 4, 10, 64, 512 if noise < 100 else 66):
            if power > 2 * len(found):
                continue
            plain = [(Decimal(k * (k - 1)) / (2 * Decimal(noise) ** 2)).exp() for k in range(power + 1)]
            total = sum((-1) ** (power - k) * math.comb(power, k) * moment for k, moment in enumerate(plain))
            assert found[power // 2 - 1] == pytest.approx(float(total.ln()), rel=1e-9, abs=1e-9)


def test_no_order_that_would_prove_less_is_skipped():
    """Each epsilon is compared with that at an order between 97 and 259, where there were none."""
    for noise, rate, rounds, order in ((8.0, 0.01, 100, 128), (10.0, 0.01, 100, 200), (6.0, 0.005, 20, 256)):
        spent = rounds * _theirs(noise, rate, [order])[0]
        theirs = spent + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
        assert fixed_size_epsilon(noise, rate, rounds, 1e-5) <= theirs * (1 + 1e-9)
    orders, _ = _fixed_size_round(1.0, 0.1)
    assert set(range(2, 129)) <= set(orders)
    assert orders[-1] == 2048
    assert (orders[1:] / orders[:-1]).max() < 1.016


def test_known_epsilons_of_fixed_size_sampling():
    assert 14.0 < FixedSizeBatches(1000, 100, 100).epsilon(1.0, 1e-5) <= 14.0538
    # At the orders that there were: 0.0655, 0.0829 and 0.0108.
    assert fixed_size_epsilon(6.0, 0.005, 20, 1e-5) == pytest.approx(0.02385, rel=1e-3)
    assert fixed_size_epsilon(10.0, 0.01, 100, 1e-5) == pytest.approx(0.06853, rel=1e-3)
    assert fixed_size_epsilon(7.0, 0.001, 20, 1e-5) == pytest.approx(0.006549, rel=1e-3)


@pytest.mark.parametrize("noise", [1e-200, 1e-9, 1e-3, 0.2])
def test_next_to_no_noise_is_priced_like_plain_composition_or_less(noise):
    assert fixed_size_epsilon(noise, 0.1, 3, 1e-5) <= epsilon_of(Cost(noise), 3, 1e-5)
