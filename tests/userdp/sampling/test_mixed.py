"""Rounds of all users and of random cohorts under one price, against quadrature and a second accountant."""

import math

import numpy as np
import pytest
from scipy import stats

from strategies.baselines.averaged_clipping.renyi import sampled_gaussian_epsilon
from userdp.accounting.amplified import poisson_epsilon
from userdp.accounting.sampled_gaussian import SampledRounds, unequal_rounds_epsilon
from userdp.errors import BadInput
from userdp.sampling import MixedBatches, WeightedSlots

DELTA = 1e-5
MIXES = [
    [SampledRounds(8.0, 1.0), SampledRounds(1.5, 0.07, 40), SampledRounds(5.0, 1.0)],
    [SampledRounds(0.7, 0.01, 60), SampledRounds(2.0, 0.3, 5), SampledRounds(4.0, 1.0)],
    [SampledRounds(1.0, 0.5, 2), SampledRounds(3.0, 1.0, 2)],
]


def divergences(z, drawn, rate, epsilon):
    """Hockey-stick divergences of one round of all users and one of a cohort, adding and removing, by quadrature."""
    grid, cells = np.linspace(-14, 14, 2801), 0.01
    first, second = (grid[:, None] * each for each in (z, drawn))
    without = stats.norm.pdf(first, 0, z) * stats.norm.pdf(second.T, 0, drawn)
    mixed = (1 - rate) * stats.norm.pdf(second.T, 0, drawn) + rate * stats.norm.pdf(second.T, 1, drawn)
    there = stats.norm.pdf(first, 1, z) * mixed
    area, c = z * drawn * cells**2, math.exp(epsilon)
    return [np.maximum(0, one - c * two).sum() * area for one, two in ((there, without), (without, there))]


@pytest.mark.parametrize(("z", "drawn", "rate"), [(2.0, 1.0, 0.2), (4.0, 0.6, 0.05), (1.5, 3.0, 0.9)])
def test_two_rounds_cost_what_quadrature_says_and_hardly_more(z, drawn, rate):
    steps, delta = [SampledRounds(z, 1.0), SampledRounds(drawn, rate)], 1e-3
    epsilon = unequal_rounds_epsilon(steps, delta)
    assert max(divergences(z, drawn, rate, epsilon)) <= delta
    assert max(divergences(z, drawn, rate, epsilon - 0.01)) > delta


@pytest.mark.parametrize("steps", MIXES)
def test_the_price_is_below_that_of_renyi_privacy_and_above_that_of_each_part(steps):
    whole = unequal_rounds_epsilon(steps, DELTA)
    assert whole < sampled_gaussian_epsilon(steps, DELTA)
    assert all(whole > unequal_rounds_epsilon([step], DELTA) for step in steps)
    assert whole == pytest.approx(unequal_rounds_epsilon(steps[::-1], DELTA))


def test_rounds_that_are_alike_cost_what_the_other_accountant_says():
    found = unequal_rounds_epsilon([SampledRounds(1.2, 0.05, 50)], DELTA)
    assert found == pytest.approx(poisson_epsilon(1.2, 0.05, 50, DELTA), rel=1e-3)
    assert unequal_rounds_epsilon([], DELTA) == 0.0
    with pytest.raises(BadInput, match="delta = 0"):
        unequal_rounds_epsilon(MIXES[0], 0)


def test_all_users_in_every_round_cost_what_weighted_rounds_cost():
    shares = (0.1, 0.3, 0.6)
    mixed, plain = MixedBatches(50, (1.0,) * 3, shares), WeightedSlots(50, 50, 3, shares=shares)
    for rounds in range(4):
        assert mixed.epsilon(2.0, DELTA, rounds) == pytest.approx(plain.epsilon(2.0, DELTA, rounds))
    assert mixed.multiplier(1, 2.0) == plain.multiplier(1, 2.0)
    assert mixed.expected(0) == plain.expected(0) == 50


def sampler(seed=0, rate=0.1):
    return MixedBatches(4000, (1.0, rate, rate, 1.0), (0.1, 0.4, 0.4, 0.1), seed)


def test_a_round_has_the_noise_of_its_share_were_all_users_there():
    """On the mean, whatever the rate: a tenth of the users, a tenth of the noise on the sum."""
    mixed = sampler()
    for index, share in enumerate(mixed.shares):
        assert mixed.multiplier(index, 3.0) / mixed.expected(index) == pytest.approx(3.0 / math.sqrt(share) / 4000)
    assert mixed.expected_batch == pytest.approx(2200)


def test_everybody_has_a_coin_of_its_own_in_rounds_that_are_drawn():
    mixed = sampler()
    np.testing.assert_array_equal(mixed.cohort(0), np.arange(4000))
    one, two = mixed.cohort(1), mixed.cohort(2)
    assert not np.array_equal(one, two)
    assert abs(len(one) - 400) < 100  # five standard deviations
    np.testing.assert_array_equal(one, sampler().cohort(1))
    assert not np.array_equal(one, sampler(seed=1).cohort(1))
