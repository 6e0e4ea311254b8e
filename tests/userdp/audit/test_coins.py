"""Bounds from guesses of coins: they hold as often as they say, and come close to what is true."""

import numpy as np
import pytest
from scipy import stats

from userdp.audit.coins import accuracy_lower_bound, mean_exceeds, most_right, mu_lower_bound
from userdp.audit.trade_off import Gaussian
from userdp.errors import BadInput


def gaussian_runs(mu, runs, canaries, seed=0):
    """(R, m) coins, and scores of canaries each of whom moves a column of its own by mu standard deviations."""
    rng = np.random.default_rng(seed)
    coins = 2 * rng.integers(0, 2, (runs, canaries)) - 1
    return coins, rng.normal(size=coins.shape) + coins * mu / 2


def right(coins, scores):
    return (np.sign(scores) == coins).mean(axis=1)


@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_the_bound_on_mu_stays_below_the_truth_and_comes_close(mu):
    shares = right(*gaussian_runs(mu, 600, 64))
    bound = mu_lower_bound(shares[:300], shares[300:])
    assert mu - 0.08 < bound <= mu
    assert mu_lower_bound(shares[:300], shares[300:], 0.5) > bound > mu_lower_bound(shares[:300], shares[300:], 0.999)


def test_nothing_is_found_where_guesses_are_blind():
    shares = right(*gaussian_runs(0.0, 200, 8, seed=4))
    assert mu_lower_bound(shares[:100], shares[100:]) < 0.1
    assert mu_lower_bound(np.full(30, 0.5), np.full(30, 0.5)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_bounds_fail_no_more_often_than_their_confidence_allows(together):
    """The guesses of a run may be all right or all wrong together, which bounds on binomials would not survive."""
    rng, failures = np.random.default_rng(3), 0
    mu = 1.0
    chance = stats.norm.cdf(mu / 2)
    for _ in range(300):
        shape = (60, 1) if together else (60, 16)
        shares = np.repeat(rng.random(shape) < chance, 16 if together else 1, axis=1).mean(axis=1)
        failures += mu_lower_bound(shares[:30], shares[30:], 0.9) > mu
    # 30 would be expected of an exact bound; 50 has probability below 1e-3.
    assert failures < 50


@pytest.mark.slow
def test_the_test_of_a_mean_fails_no_more_often_than_its_confidence_allows():
    rng = np.random.default_rng(5)
    failures = 0
    for _ in range(1000):
        values = np.where(rng.random(80) < 0.25, 0.75, -0.25)
        failures += mean_exceeds(values[:40], values[40:], 0.25, 0.9)
    assert failures < 130


@pytest.mark.parametrize(
    "refused",
    [
        lambda: mu_lower_bound(np.zeros(19), np.zeros(30)),
        lambda: mu_lower_bound(np.zeros(30), np.full(30, 1.1)),
        lambda: mu_lower_bound(np.zeros(30), np.resize([0.5, -0.1], 30)),
        lambda: mu_lower_bound(np.zeros(30), np.resize([0.5, np.nan], 30)),
        lambda: mu_lower_bound(np.zeros(30), np.zeros((30, 1))),
        lambda: mu_lower_bound(np.zeros(30), np.zeros(30), 1.0),
    ],
)
def test_numbers_that_cannot_be_audited_are_refused(refused):
    with pytest.raises(BadInput):
        refused()


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_a_profile_leaves_a_guess_no_less_than_the_truth_and_little_more(mu):
    truth = Gaussian(mu).membership_accuracy
    assert truth <= most_right(Gaussian(mu).epsilon) <= truth + 0.02


def test_the_bound_on_the_share_of_right_guesses_is_below_it_and_comes_close():
    rng = np.random.default_rng(3)
    learnt, tested = rng.binomial(30, 0.6, 300) / 30, rng.binomial(30, 0.6, 300) / 30
    assert 0.57 < accuracy_lower_bound(learnt, tested) <= 0.6
    assert accuracy_lower_bound(learnt, 1 - tested) == 0.5
