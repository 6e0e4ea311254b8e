"""The success that promises leave an attacker, against brute force over tests and guesses."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from userdp.accounting import Cost, epsilon_of
from userdp.audit import Approximate, Gaussian
from userdp.errors import BadInput

ALARMS = np.linspace(0, 1, 101)
epsilons = st.floats(0.01, 6.0)
deltas = st.floats(0.0, 0.3)


def attained(epsilon, delta):
    """The two laws of four outputs that an (epsilon, delta) promise allows and that differ most."""
    heads = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    tails = (1 - delta) / (1 + math.exp(epsilon))
    return np.array([delta, heads, tails, 0.0]), np.array([0.0, tails, heads, delta])


@given(epsilons, deltas)
def test_a_promise_of_epsilon_and_delta_bounds_every_test_and_the_worst_pair_attains_it(epsilon, delta):
    first, second = attained(epsilon, delta)
    claim = Approximate(epsilon, delta)
    for outputs in range(16):
        reject = np.array([outputs >> bit & 1 for bit in range(4)], dtype=bool)
        assert first[~reject].sum() >= claim.false_negatives(second[reject].sum()) - 1e-12
    for best in (1, 2):
        reject = np.arange(4) < best
        assert first[~reject].sum() == pytest.approx(float(claim.false_negatives(second[reject].sum())), abs=1e-12)
    assert claim.membership_accuracy == pytest.approx(0.5 + np.abs(first - second).sum() / 4)


@pytest.mark.parametrize("claim", [Approximate(0.0, 0.0), Approximate(1.0, 1e-3), Gaussian(0.0), Gaussian(1.3)])
def test_a_trade_off_is_convex_falls_and_lies_below_blind_guessing(claim):
    values = claim.false_negatives(ALARMS)
    assert (np.diff(values) <= 1e-12).all()
    assert (np.diff(values, 2) >= -1e-12).all()
    assert (values <= 1 - ALARMS + 1e-12).all()
    assert claim.membership_accuracy == pytest.approx(0.5 + np.max(1 - ALARMS - values) / 2, abs=2e-3)


def test_a_gaussian_is_that_of_two_normals_a_step_apart():
    claim = Gaussian(1.2)
    thresholds = np.linspace(-3, 4, 20)
    expected = stats.norm.cdf(thresholds - 1.2)
    np.testing.assert_allclose(claim.false_negatives(stats.norm.sf(thresholds)), expected, rtol=1e-9)
    assert claim.false_negatives([0.0, 1.0]).tolist() == [1.0, 0.0]
    assert claim.membership_accuracy == pytest.approx(stats.norm.cdf(0.6))


@given(st.floats(0.05, 8.0), st.floats(1e-9, 0.05))
def test_the_gaussian_of_a_budget_spends_that_budget(epsilon, delta):
    claim = Gaussian.of(epsilon, delta)
    assert claim.epsilon(delta) == pytest.approx(epsilon, rel=1e-5)
    assert claim.epsilon(delta) == epsilon_of(Cost(1 / claim.mu), 1, delta)
    # One Gaussian is better than the budget alone says.
    assert (claim.false_negatives(ALARMS) >= Approximate(epsilon, delta).false_negatives(ALARMS) - 1e-6).all()


@given(epsilons, st.floats(0.0, 1.0))
def test_a_guess_is_no_better_than_the_trade_off_says_and_pure_privacy_multiplies_its_odds(epsilon, rate):
    claim = Approximate(epsilon, 0.0)
    expected = min(math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - rate))
    assert claim.guess_success(rate) == pytest.approx(expected)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: Approximate(-0.1, 0.0),
        lambda: Approximate(math.nan, 0.0),
        lambda: Approximate(1.0, 1.1),
        lambda: Gaussian(-1.0),
        lambda: Gaussian(1.0).guess_success(1.5),
    ],
)
def test_what_is_no_promise_or_no_rate_is_refused(refused):
    with pytest.raises(BadInput):
        refused()
