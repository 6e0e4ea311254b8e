"""Conversions to epsilon: zero-concentrated privacy, and the orders of sampling cohorts of a fixed size."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.accounting import Cost, epsilon_of, largest_rho, rho_for, zcdp_to_epsilon
from userdp.accounting.amplified import _fixed_size_round, _log_centred_moments, fixed_size_epsilon
from userdp.sampling import FixedSizeBatches

budgets = st.floats(math.log(0.02), math.log(20)).map(math.exp)


deltas = st.floats(-25, -3).map(math.exp)


@settings(max_examples=60)
@given(budgets, deltas)
def test_the_largest_rho_is_the_inverse_of_the_conversion_that_reports(epsilon, delta):
    rho = largest_rho(epsilon, delta)
    assert epsilon * (1 - 1e-6) <= zcdp_to_epsilon(rho, delta) <= epsilon
    assert rho > rho_for(epsilon, delta)
    assert zcdp_to_epsilon(rho * (1 + 1e-4), delta) > epsilon


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
