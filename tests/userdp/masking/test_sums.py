"""Masked sums: what their noise is, and what it costs, against the exact discrete laws."""

import math

import numpy as np
import pytest
from scipy import stats

from userdp.accounting import Cost, delta_of
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.masks import MaskKey
from userdp.masking.sums import MaskedSum
from userdp.noise import discrete_gaussian

FALSE_ALARM = 1e-9
"""Of tests whose noise has no seed."""
WIDE = 600


def nodes_of(count):
    keys = [MaskKey(bytes([number + 1]) * 32) for number in range(count)]
    return keys, tuple(key.public for key in keys)


def summed(deviation, count, length, *, seed=0, index=0, exponent=0):
    """The noise of a whole sum over that many nodes, in grid steps."""
    keys, public = nodes_of(count)
    asked = MaskedSum(IntegerGrid(exponent), deviation, seed, index, public)
    parts = [asked.hidden(np.zeros(length, dtype=np.int64), key, b"q", user) for user, key in enumerate(keys)]
    return np.sum(parts, axis=0, dtype=np.uint64).view(np.int64)


def discrete(parameter):
    """The law of one discrete Gaussian on -WIDE..WIDE."""
    weights = np.exp(-(np.arange(-WIDE, WIDE + 1.0) ** 2) / (2 * parameter**2))
    return weights / weights.sum()


def law_of_shares(parameter, count):
    """The law of the sum of that many, by convolution."""
    law = discrete(parameter)
    for _ in range(count - 1):
        law = np.convolve(law, discrete(parameter), mode="same")
    return law


def rounded(deviation):
    """The law of continuous noise, rounded."""
    edges = np.arange(-WIDE - 0.5, WIDE + 1.0)
    return np.diff(stats.norm.cdf(edges / deviation))


def test_shares_that_the_operating_system_draws_follow_the_law_that_is_priced():
    drawn = np.clip(discrete_gaussian(20_000, 9.0), -30, 30)
    law = discrete(9.0)
    chances = law[WIDE - 30 : WIDE + 31].copy()
    chances[[0, -1]] = law[: WIDE - 29].sum()
    counts = np.bincount(drawn + 30, minlength=61)
    assert stats.chisquare(counts, 20_000 * chances / chances.sum()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_noise_of_the_sum_is_normal_with_the_deviation_it_says_however_many_nodes(count):
    noise = summed(4096.0, count, 20_000)
    assert stats.kstest(noise / 4096.0, "norm").pvalue > 1e-4  # seeded: one fixed sample


def test_secret_shares_have_the_deviation_too():
    noise = summed(4096.0, 3, 2_000, seed=None)
    assert stats.kstest(noise / 4096.0, "norm").pvalue > FALSE_ALARM
    assert not np.array_equal(noise, summed(4096.0, 3, 2_000, seed=None))


def test_seeded_shares_depend_on_seed_round_and_node_alone():
    one = summed(4096.0, 2, 1000)
    np.testing.assert_array_equal(one, summed(4096.0, 2, 1000))
    _, public = nodes_of(2)
    alone = MaskedSum(IntegerGrid(0), 4096.0, 0, 0, public)
    shares = [alone._share(1000, user) for user in (0, 1)]
    for other in (summed(4096.0, 2, 1000, seed=1), summed(4096.0, 2, 1000, index=1)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(1000)
    assert abs(np.corrcoef(*shares)[0, 1]) < 4 / math.sqrt(1000)
    np.testing.assert_array_equal(shares[0] + shares[1], one)


@pytest.mark.parametrize(("share", "count"), [(8.0, 2), (8.0, 5), (11.5, 3)])
def test_the_shares_add_up_to_one_discrete_gaussian(share, count):
    np.testing.assert_allclose(law_of_shares(share, count), discrete(share * math.sqrt(count)), rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize(("share", "count"), [(8.0, 1), (8.0, 4), (15.0, 3)])
def test_they_are_as_near_to_rounded_noise_as_is_claimed_and_the_claim_is_no_looser_than_it_need(share, count):
    sigma = share * math.sqrt(count)
    apart = np.abs(law_of_shares(share, count) - rounded(sigma)).sum() / 2
    assert 0.7 / 49 < apart * sigma**2 <= 1 / 40


@pytest.mark.parametrize("colluding", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("moved", [3, 16, 40])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_price_covers_the_exact_law_of_the_honest_shares(colluding, moved, epsilon):
    count, share = 4, 8.0
    honest = count - math.floor(colluding * count)
    law = law_of_shares(share, honest)
    shifted = np.concatenate([np.zeros(moved), law[:-moved]])
    exact = np.maximum(0.0, shifted - math.exp(epsilon) * law).sum()
    asked = MaskedSum(IntegerGrid(0), share * math.sqrt(count), 0, 0)
    multiplier = asked.deviation * math.sqrt(1 - colluding) / moved
    ideal = delta_of(Cost(noise_multiplier=multiplier), 1, epsilon)
    assert exact <= ideal + asked.excess(colluding, 1, epsilon)
    assert exact == pytest.approx(ideal, rel=0.05, abs=1e-6)


def test_the_price_rises_with_coordinates_and_with_who_colludes():
    asked = MaskedSum(IntegerGrid(-30), 1.0, 0, 0)
    assert asked.excess(0.0, 1, 0.0) == pytest.approx(2 * 4.0**-30 / 40, abs=0)
    assert asked.excess(0.0, 10, 1.0) == pytest.approx(10 * (1 + math.e) * 4.0**-30 / 40, abs=0)
    assert asked.excess(0.75, 1, 0.0) == pytest.approx(4 * asked.excess(0.0, 1, 0.0), abs=0)


def test_nodes_that_were_asked_different_questions_add_up_to_nothing_readable():
    keys, public = nodes_of(2)
    asked = MaskedSum(IntegerGrid(0), 4096.0, 0, 0, public)
    zero = np.zeros(20_000, dtype=np.int64)
    total = asked.hidden(zero, keys[0], b"one", 0) + asked.hidden(zero, keys[1], b"another", 1)
    assert stats.kstest(total / 2.0**64, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("deviation", "keys"), [(7.0, 1), (11.0, 2), (2.0**60, 1), (100.0, 0)])
def test_shares_for_which_nothing_is_proven_are_refused(deviation, keys):
    made, public = nodes_of(max(1, keys))
    asked = MaskedSum(IntegerGrid(0), deviation, 0, 0, public[:keys])
    with pytest.raises(BadInput, match="grid"):
        asked.hidden(np.zeros(2, dtype=np.int64), made[0], b"q", 0)


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.inf, math.nan])
def test_discrete_noise_of_no_size_is_refused(deviation):
    with pytest.raises(BadInput, match="positive number"):
        discrete_gaussian(1, deviation)
