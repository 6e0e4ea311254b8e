"""The bound from one run: its formula against brute force, and how often it fails."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from userdp.audit import best_guesses, guessed, one_run_lower_bound, one_run_p_value
from userdp.errors import BadInput


@given(st.integers(1, 40), st.floats(0.0, 4.0), st.floats(0.0, 1e-3), st.data())
def test_the_formula_by_hand(guesses, epsilon, delta, data):
    correct = data.draw(st.integers(0, guesses))
    canaries = guesses + data.draw(st.integers(0, 10))
    q = 1 / (1 + math.exp(-epsilon))
    law = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    steps = [sum(law[correct - i : correct]) / i for i in range(1, correct + 1)]
    expected = sum(law[correct:]) + 2 * canaries * delta * max(steps, default=0.0)
    assert one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(min(1.0, expected), abs=1e-9)


def test_the_bound_is_where_the_p_value_meets_the_level():
    bound = one_run_lower_bound(1000, 250, 180, 1e-5)
    assert one_run_p_value(1000, 250, 180, bound, 1e-5) == pytest.approx(0.05, rel=1e-3)
    assert bound > one_run_lower_bound(1000, 250, 180, 1e-3)
    assert bound > one_run_lower_bound(1000, 250, 170, 1e-5) > 0
    assert one_run_lower_bound(1000, 250, 125, 1e-5) == 0.0
    assert one_run_lower_bound(10**15, 10**15, 10**15, 0.0) == 30.0  # the most that is tried
    assert one_run_lower_bound(100, 100, 100, 0.0) == pytest.approx(math.log(0.05**0.01 / (1 - 0.05**0.01)), rel=1e-6)


@pytest.mark.slow
def test_it_fails_no_more_often_than_its_confidence_allows():
    """Randomised response of all coins, which is as far as pure privacy goes."""
    rng, epsilon = np.random.default_rng(8), 1.0
    correct = rng.binomial(100, 1 / (1 + math.exp(-epsilon)), size=400)
    bounds = {int(v): one_run_lower_bound(100, 100, int(v), 0.0, 0.9) for v in set(correct.tolist())}
    assert sum(bounds[int(v)] > epsilon for v in correct) < 60


def test_a_gaussian_with_many_canaries_is_found_and_not_exceeded():
    rng, mu = np.random.default_rng(9), 2.0
    coins = 2 * rng.integers(0, 2, 1000) - 1
    found = guessed(coins * mu / 2 + rng.normal(size=1000), 250)
    bound = one_run_lower_bound(1000, 250, int((found == coins).sum()), 1e-5)
    assert 1.5 < bound < stats.norm.cdf(mu) * 10  # the truth is about 9.5


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_all_coins_of_many_runs_bound_randomised_response_closely(epsilon):
    rng = np.random.default_rng(6)
    coins = 2 * rng.integers(0, 2, (200, 32)) - 1
    scores = np.where(rng.random(coins.shape) < 1 / (1 + math.exp(-epsilon)), coins, -coins) + 0.0
    bound = one_run_lower_bound(6400, 6400, int((scores == coins).sum()), 1e-6)
    assert 0.85 * epsilon < bound <= epsilon


def test_withholding_doubtful_guesses_tells_more_of_a_gaussian():
    """At a small delta, epsilon shows in the tails."""
    rng, mu = np.random.default_rng(7), 1.5
    coins = 2 * rng.integers(0, 2, 20_000) - 1
    scores = coins * mu / 2 + rng.normal(size=20_000)
    bounds = []
    for share in (1.0, best_guesses(scores[:10_000], coins[:10_000], 1e-5)):
        guesses = int(share * 10_000)
        correct = int((guessed(scores[10_000:], guesses) == coins[10_000:]).sum())
        bounds.append(one_run_lower_bound(10_000, guesses, correct, 1e-5))
    assert bounds[1] > 1.5 * bounds[0]


def test_guesses_are_of_the_most_extreme_scores():
    np.testing.assert_array_equal(guessed([3.0, -1.0, 0.0, 5.0, -7.0], 4), [1, -1, 0, 1, -1])
    np.testing.assert_array_equal(guessed([3.0, -1.0, 0.0, 5.0, -7.0], 3), [0, 0, 0, 1, -1])


@pytest.mark.parametrize(
    "refused",
    [
        lambda: guessed([1.0, 2.0], 3 + 1),
        lambda: guessed([1.0, 2.0], 1),
        lambda: guessed([1.0, math.nan], 2),
        lambda: guessed([[1.0, 3.0], [2.0, 4.0]], 2),
        lambda: one_run_p_value(10, 0, 0, 1.0, 0.0),
        lambda: one_run_p_value(10, 11, 5, 1.0, 0.0),
        lambda: one_run_p_value(10, 10, 11, 1.0, 0.0),
        lambda: one_run_p_value(10, 10, 5, -1.0, 0.0),
        lambda: one_run_p_value(10, 10, 5, 1.0, 1.0),
        lambda: one_run_lower_bound(10, 10, 5, 0.0, 0.0),
    ],
)
def test_impossible_counts_are_refused(refused):
    with pytest.raises(BadInput):
        refused()
