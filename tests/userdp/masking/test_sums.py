"""Masked sums: what their noise is, and what it costs, against the exact discrete laws."""

import math

import numpy as np
import pytest
from scipy import stats

from userdp.accounting import Cost, delta_of
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.masks import MaskKey
from userdp.masking.sums import MaskedSum, coalition, fewest_nodes, least_loudness, loudness, most_loudness
from userdp.noise import discrete_gaussian

FALSE_ALARM = 1e-9
"""The probability of a false alarm in tests with unseeded noise."""
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


def test_shares_that_the_operating_system_draws_follow_the_law_that_is_priced():
    drawn = np.clip(discrete_gaussian(20_000, 9.0), -30, 30)
    law = discrete(9.0)
    chances = law[WIDE - 30 : WIDE + 31].copy()
    chances[[0, -1]] = law[: WIDE - 29].sum()
    counts = np.bincount(drawn + 30, minlength=61)
    assert stats.chisquare(counts, 20_000 * chances / chances.sum()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("count", [2, 3, 7])
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


@pytest.mark.parametrize(
    ("colluding", "lost", "gone"),
    [(0.0, 0, 1), (0.24, 0, 1), (0.25, 0, 1), (0.5, 0, 2), (0.75, 0, 3), (0.0, 1, 2), (0.0, 2, 3), (0.5, 1, 3)],
)
@pytest.mark.parametrize("moved", [3, 16, 40])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_price_covers_the_exact_law_of_the_shares_that_a_coalition_does_not_know(
    colluding, lost, gone, moved, epsilon
):
    """Some of four nodes are in the coalition, and others fall silent: both are gone from the noise."""
    _, public = nodes_of(4)
    priced = MaskedSum(IntegerGrid(0), 16.0)
    share = priced.among(public, colluding, lost).deviation / math.sqrt(4)
    law = law_of_shares(share, 4 - gone)
    shifted = np.concatenate([np.zeros(moved), law[:-moved]])
    exact = np.maximum(0.0, shifted - math.exp(epsilon) * law).sum()
    ideal = delta_of(Cost(noise_multiplier=priced.deviation / moved), 1, epsilon)
    assert exact <= ideal + priced.excess(1, epsilon)
    assert exact == pytest.approx(ideal, rel=0.05, abs=1e-6)


def test_the_price_rises_with_coordinates_and_with_coarser_grids():
    asked = MaskedSum(IntegerGrid(-30), 1.0, 0, 0)
    assert asked.excess(1, 0.0) == pytest.approx(2 * 4.0**-30 / 40, abs=0)
    assert asked.excess(10, 1.0) == pytest.approx(10 * (1 + math.e) * 4.0**-30 / 40, abs=0)
    assert MaskedSum(IntegerGrid(-29), 1.0).excess(1, 0.0) == pytest.approx(4 * asked.excess(1, 0.0), abs=0)


@pytest.mark.parametrize("hundredths", [0, 1, 10, 29, 30, 50, 57, 67, 90, 99])
def test_a_coalition_is_the_declared_share_but_one_node_at_least_and_never_all(hundredths):
    colluding = hundredths / 100
    for nodes in range(2, 301):
        named = min(nodes - 1, max(1, hundredths * nodes // 100))
        assert coalition(nodes, colluding) == named
        assert loudness(nodes, colluding) == math.sqrt(nodes / (nodes - named))
        # What is left of the whole is what was asked for.
        whole = MaskedSum(IntegerGrid(0), 100.0).among(tuple(range(nodes)), colluding).deviation
        assert whole * math.sqrt((nodes - named) / nodes) == pytest.approx(100.0, rel=1e-12)


@pytest.mark.parametrize(
    "colluding", [0.0, 1e-3, 0.01, 0.1, 0.29, 1 / 3, 0.4, 0.5, 0.55, 2 / 3, 0.67, 0.75, 0.9, 0.999]
)
def test_no_number_of_nodes_is_louder_or_quieter_than_is_said(colluding):
    louder = [loudness(nodes, colluding) for nodes in range(2, 2500)]
    assert max(louder) <= most_loudness(colluding)
    assert max(louder) >= 0.95 * most_loudness(colluding)
    for lost in (1, 2, 7):
        fewest = fewest_nodes(colluding, lost)
        loudest = max(loudness(nodes, colluding, lost) for nodes in range(fewest, 3 * fewest + 2500))
        assert 0.9 * most_loudness(colluding, lost) <= loudest <= most_loudness(colluding, lost)
        with pytest.raises(BadInput, match=f"at least {fewest} nodes are needed"):
            loudness(fewest - 1, colluding, lost)
    for most in (2, 3, 4, 5, 10, 100, 2499):
        assert least_loudness(most, colluding) == min(louder[: most - 1])


@pytest.mark.parametrize("lost", [0, 1, 4])
@pytest.mark.parametrize("colluding", [0.0, 0.3, 0.95])
def test_the_grid_has_room_for_the_noise_of_all_nodes_whatever_their_number(colluding, lost):
    sum_asked, fewest = MaskedSum.hiding(100.0, 3, 1.0, colluding, lost=lost), fewest_nodes(colluding, lost)
    for nodes in (fewest, fewest + 1, fewest + 18, fewest + 19, 1000):
        deviation = sum_asked.among(tuple(range(nodes)), colluding, lost).deviation
        assert (3 * (1 + 2.0**-22) + 16 * deviation) / sum_asked.grid.step <= 2.0**62


def test_a_sum_of_a_single_node_is_refused_by_whoever_asks_and_by_the_node():
    made, public = nodes_of(1)
    asked = MaskedSum(IntegerGrid(0), 4096.0)
    for keys in ((), public):
        with pytest.raises(BadInput, match="at least two must hold users"):
            asked.among(keys)
        with pytest.raises(BadInput, match="at least two must hold users"):
            MaskedSum(IntegerGrid(0), 4096.0, keys=keys).hidden(np.zeros(2, dtype=np.int64), made[0], b"q", 0)


def test_a_sum_is_made_loud_once():
    _, public = nodes_of(3)
    with pytest.raises(BadInput, match="has its nodes already"):
        MaskedSum(IntegerGrid(0), 4096.0).among(public).among(public)


def test_nodes_that_were_asked_different_questions_add_up_to_nothing_readable():
    keys, public = nodes_of(2)
    asked = MaskedSum(IntegerGrid(0), 4096.0, 0, 0, public)
    zero = np.zeros(20_000, dtype=np.int64)
    total = asked.hidden(zero, keys[0], b"one", 0) + asked.hidden(zero, keys[1], b"another", 1)
    assert stats.kstest(total / 2.0**64, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("deviation", "keys"), [(11.0, 2), (13.0, 3), (2.0**60, 2)])
def test_shares_for_which_nothing_is_proven_are_refused(deviation, keys):
    made, public = nodes_of(keys)
    asked = MaskedSum(IntegerGrid(0), deviation, 0, 0, public)
    with pytest.raises(BadInput, match="grid"):
        asked.hidden(np.zeros(2, dtype=np.int64), made[0], b"q", 0)
