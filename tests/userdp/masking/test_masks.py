"""Pairwise masks: they vanish from the sum of all, and one alone looks like nothing."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from userdp.errors import BadInput
from userdp.masking.masks import MaskKey

SECRETS = [bytes([number]) * 32 for number in range(1, 7)]


def parties(count):
    made = [MaskKey(secret) for secret in SECRETS[:count]]
    return made, [party.public for party in made]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 20), st.binary(max_size=8), st.integers(0, 2**32))
def test_the_sum_of_masked_vectors_is_the_sum(count, length, context, seed):
    made, keys = parties(count)
    vectors = np.random.default_rng(seed).integers(0, 2**64, (count, length), dtype=np.uint64)
    masked = [vector + party.mask(keys, context, length) for vector, party in zip(vectors, made, strict=True)]
    np.testing.assert_array_equal(np.sum(masked, axis=0, dtype=np.uint64), vectors.sum(axis=0, dtype=np.uint64))


def test_one_masked_vector_is_uniform_and_has_nothing_of_what_it_hides():
    made, keys = parties(3)
    mask = made[1].mask(keys, b"a", 50_000)
    masked = np.arange(50_000, dtype=np.uint64) + mask
    # One fixed sample of each: the thresholds are false alarms of 1e-4.
    assert stats.kstest(masked / 2.0**64, "uniform").pvalue > 1e-4
    assert stats.chisquare(np.bincount(masked.view(np.uint8), minlength=256)).pvalue > 1e-4
    assert abs(np.corrcoef(masked / 2.0**64, np.arange(50_000))[0, 1]) < 4 / np.sqrt(50_000)
    assert abs(np.corrcoef(masked[1:] / 2.0**64, masked[:-1] / 2.0**64)[0, 1]) < 4 / np.sqrt(50_000)


def test_any_two_parties_hide_each_other_from_all_others_together():
    """The part of a mask that comes from the second of the two, which the others do not know, is uniform."""
    made, keys = parties(5)
    for one, other in permutations(range(5), 2):
        known = made[one].mask(keys[:other] + keys[other + 1 :], b"a", 1000)
        left = made[one].mask(keys, b"a", 1000) - known
        assert stats.kstest(left / 2.0**64, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("change", ["context", "own key", "other key"])
def test_a_mask_changes_wholly_with_keys_and_context(change):
    made, keys = parties(2)
    before, other, context = made[0].mask(keys, b"a", 10_000), made[0], b"a"
    if change == "context":
        context = b"b"
    elif change == "own key":
        other, keys = MaskKey(SECRETS[4]), [MaskKey(SECRETS[4]).public, keys[1]]
    else:
        keys = [keys[0], MaskKey(SECRETS[5]).public]
    after = other.mask(keys, context, 10_000)
    assert not np.any(before == after)
    # A bit in two differs: 640,000 coins, five standard deviations.
    assert abs(np.bitwise_count(before ^ after).mean() - 32) < 5 * 4 / np.sqrt(10_000)


def test_a_key_is_fresh_and_can_be_made_again():
    assert MaskKey().public != MaskKey().public
    key = MaskKey()
    assert MaskKey(key.secret).public == key.public


@pytest.mark.parametrize("fault", ["own missing", "twice", "short", "of small order"])
def test_keys_that_hide_nothing_are_refused(fault):
    made, keys = parties(3)
    wrong = {
        "own missing": keys[1:],
        "twice": [keys[0], keys[1], keys[1]],
        "short": [keys[0], b"abc"],
        "of small order": [keys[0], bytes(32)],
    }[fault]
    with pytest.raises(BadInput, match="masked sum"):
        made[0].mask(wrong, b"a", 4)


def test_a_secret_of_another_length_is_refused():
    with pytest.raises(BadInput, match="32 bytes"):
        MaskKey(b"abc")
