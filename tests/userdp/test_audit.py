"""The bound of `helpers_audits`: below the truth, close to it, and as rarely wrong as it says."""

import math

import numpy as np
import pytest
from helpers_audits import epsilon_lower_bound
from scipy import stats

RUNS = 20_000


def gaussian_scores(mu, runs=RUNS, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1, runs), rng.normal(0, 1, runs)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_bound_on_two_normals_stays_below_the_truth_and_comes_close(mu, delta):
    if delta == 0.0:
        # No finite epsilon is true at delta = 0; what 20,000 runs can show is limited.
        assert epsilon_lower_bound(*gaussian_scores(mu)) > mu
        return
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        hockey = stats.norm.cdf(mu / 2 - middle / mu) - math.exp(middle) * stats.norm.cdf(-mu / 2 - middle / mu)
        low, high = (middle, high) if hockey > delta else (low, middle)
    bound = epsilon_lower_bound(*gaussian_scores(mu), delta)
    assert bound <= high
    assert bound >= 0.6 * high - 0.1


@pytest.mark.slow
def test_the_bound_fails_no_more_often_than_its_confidence_allows():
    """Randomised response of epsilon 1 has the true epsilon 1; of 400 audits at 90% at most 10% may exceed it."""
    rng = np.random.default_rng(1)
    heads = 1 / (1 + math.exp(-1))
    failures = sum(
        epsilon_lower_bound(rng.random(300) < heads, rng.random(300) < 1 - heads, confidence=0.9) > 1.0
        for _ in range(400)
    )
    # 40 failures would be expected of an exact bound; 60 has probability below 1e-3.
    assert failures < 60


def test_equal_distributions_show_nothing():
    a, b = gaussian_scores(0.0)
    assert epsilon_lower_bound(a, b) < 0.2
    assert epsilon_lower_bound(np.zeros(100), np.zeros(100)) == 0.0
    assert epsilon_lower_bound(a, b, delta=0.3) == 0.0


def test_an_outcome_that_only_one_data_set_has_is_found_and_bounded_by_the_number_of_runs():
    few = epsilon_lower_bound(np.full(100, -np.inf), np.full(100, np.inf))
    many = epsilon_lower_bound(np.full(10_000, -np.inf), np.full(10_000, np.inf))
    # All of 50 against none of 50, each at level 2.5%: (0.025^(1/50)) / (1 - 0.025^(1/50)).
    edge = 0.025 ** (1 / 50)
    assert few == pytest.approx(math.log(edge / (1 - edge)))
    assert many > few + 4
