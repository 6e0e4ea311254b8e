"""The set union: exact attacks on small instances, for both relations; its law, weights and threshold."""

import math
from itertools import chain, combinations, combinations_with_replacement, product

import numpy as np
import pytest
from scipy import stats

from userdp.accounting import Cost, delta_of
from userdp.errors import BadInput
from userdp.mechanisms import SetUnion
from userdp.mechanisms.set_union import own_keys
from userdp.noise import SecureNoise, SeededNoise

ITEMS = range(3)
SUBSETS = [frozenset(some) for size in range(4) for some in combinations(ITEMS, size)]
OUTPUTS = np.array(list(product([0, 1], repeat=3)), dtype=bool)


def law(mechanism: SetUnion, users: list[frozenset[int]]) -> np.ndarray:
    """(8,) the exact probability of every output."""
    choices = [list(combinations(sorted(one), min(len(one), mechanism.most_items))) for one in users]
    every = list(product(*choices))
    total = np.zeros(len(OUTPUTS))
    for kept in every:
        weights = np.zeros(3)
        for one in kept:
            weights[list(one)] += 1 / math.sqrt(max(len(one), 1))
        passes = stats.norm.sf((mechanism.threshold() - weights) / mechanism.standard_deviation)
        passes[~np.isin(ITEMS, list(chain(*kept)))] = 0.0
        total += np.where(OUTPUTS, passes, 1 - passes).prod(axis=1) / len(every)
    return total


def neighbours(relation: str):
    for size in (0, 1, 2, 3):
        for others in combinations_with_replacement([SUBSETS[0], SUBSETS[1], SUBSETS[4], SUBSETS[7]], size):
            for one, other in product(SUBSETS, SUBSETS):
                if relation == "replace_one":
                    yield [*others, one], [*others, other]
                elif not other:
                    yield [*others, one], [*others]
                    yield [*others], [*others, one]


def divergence(mechanism: SetUnion, one, other, epsilon: float) -> float:
    return float(np.maximum(law(mechanism, one) - math.exp(epsilon) * law(mechanism, other), 0).sum())


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
@pytest.mark.parametrize(("multiplier", "failure", "most"), [(0.7, 0.02, 2), (1.5, 0.2, 3)])
def test_no_pair_of_small_neighbours_is_told_apart_by_more_than_the_cost_says(relation, multiplier, failure, most):
    """Neighbours with items of their own on both sides, with shared items, and with more items than count."""
    mechanism = SetUnion(multiplier, failure, most, relation)
    laws = {}

    def cached(users):
        key = tuple(sorted(users, key=sorted))
        if key not in laws:
            laws[key] = law(mechanism, list(key))
        return laws[key]

    pairs = [(cached(one), cached(other)) for one, other in neighbours(relation)]
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        worst = np.maximum(first - math.exp(epsilon) * second, 0).sum(axis=1).max()
        assert worst <= delta_of(mechanism.cost, 1, epsilon) * (1 + 1e-9)
    assert worst >= 0.5 * failure  # items of one user alone are found nearly as often as they may be


def test_replacing_a_user_moves_two_shared_items_as_far_as_the_root_of_two():
    """The sensitivity of adding a user would give too little noise: the exact divergence exceeds the claim."""
    crowds = [[frozenset([0])] * k + [frozenset([1])] * k for k in range(1, 8)]
    one, other = frozenset([0]), frozenset([1])
    for relation, private in (("replace_one", True), ("add_or_remove", False)):
        mechanism = SetUnion(1.0, 1e-3, 1, relation)
        worst = max(divergence(mechanism, [*some, one], [*some, other], 1.0) for some in crowds)
        assert (worst <= delta_of(mechanism.cost, 1, 1.0)) == private


def test_the_threshold_holds_back_items_of_one_user_with_the_probability_it_says():
    for most, failure, multiplier in ((1, 0.1, 0.4), (3, 0.01, 0.4), (3, 0.01, 2.0), (100, 1e-7, 4.0)):
        mechanism = SetUnion(multiplier, failure, most, "replace_one")
        held = np.arange(1, most + 1)
        passes = stats.norm.sf((mechanism.threshold() - 1 / np.sqrt(held)) / mechanism.standard_deviation)
        some = -np.expm1(held * np.log1p(-passes))
        assert some.max() <= failure
        assert some.max() >= failure * (1 - 1e-5)


def keys_of(items, rng):
    return rng.integers(2**64, size=len(items), dtype=np.uint64)


def release_law(mechanism, users, source, draws):
    owner = np.repeat(np.arange(len(users)), [len(one) for one in users])
    items = np.array([item for one in users for item in sorted(one)], dtype=np.int64)
    counts, rng = np.zeros(len(OUTPUTS)), np.random.default_rng(5)
    for _ in range(draws):
        found = mechanism.release(owner, items, keys_of(items, rng), source())
        counts[(np.isin(ITEMS, found) == OUTPUTS).all(axis=1)] += 1
    return counts


def source_of(slack, generator):
    return SeededNoise(generator) if slack is None else SecureNoise(slack)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("slack", [None, 0.0])
def test_releases_follow_the_law_that_was_attacked(slack):
    """The noise is seeded or the operating system's, and one user holds more items than count."""
    mechanism = SetUnion(0.6, 0.1, 2, "add_or_remove")
    users = [frozenset([0, 1, 2]), frozenset([0]), frozenset([0, 1])]
    generator, draws = np.random.default_rng(1), 1500
    expected = law(mechanism, users) * draws
    counts = release_law(mechanism, users, lambda: source_of(slack, generator), draws)
    likely = expected > 0
    assert counts[~likely].sum() == 0
    assert (
        stats.chisquare(counts[likely], expected[likely] * counts[likely].sum() / expected[likely].sum()).pvalue > 1e-9
    )


def test_noise_that_is_enlarged_has_a_threshold_of_its_own():
    mechanism, draws = SetUnion(1.0, 0.01, 1, "add_or_remove"), 2000
    alone, keys = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint64)
    passed = sum(len(mechanism.release(alone, alone, keys, SecureNoise(0.5))) for _ in range(draws))
    assert stats.binomtest(passed, draws, 0.01, alternative="greater").pvalue > 1e-9
    assert mechanism.threshold(0.5) > mechanism.threshold()


class Upwards(SeededNoise):
    """Noise that lifts every candidate above the threshold."""

    def gaussian(self, values, standard_deviation):
        return values + 1e9


def test_each_user_adds_a_vector_of_norm_one_however_often_it_repeats_an_item():
    mechanism = SetUnion(1.0, 0.1, 3, "replace_one")
    for items in ([0, 0, 0], [0, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3, 4, 4], [-1, -1], [-1, 3]):
        keys = np.array(items).astype(np.uint64)
        weights = mechanism.weights(np.full(len(items), 7), np.array(items), keys)
        assert np.linalg.norm(weights) == pytest.approx(min(len({*items} - {-1}), 1))
        assert np.count_nonzero(weights) == min(len({*items} - {-1}), 3)
        released = mechanism.release(np.full(len(items), 7), np.array(items), keys, Upwards(np.random.default_rng(0)))
        assert released.tolist() == np.flatnonzero(weights).tolist()  # what a user left out is no candidate


def test_items_that_many_share_are_found_and_those_of_few_are_not():
    owner = np.concatenate([np.arange(500), np.arange(500)])
    items = np.concatenate([np.zeros(500, dtype=np.int64), np.arange(1, 501)])
    mechanism, noise = SetUnion(3.0, 1e-6, 5, "replace_one"), SeededNoise(np.random.default_rng(3))
    keys = keys_of(items, np.random.default_rng(0))
    assert mechanism.release(owner, items, keys, noise).tolist() == [0]
    assert noise.spent == Cost(noise_multiplier=3.0, failure_delta=1e-6)
    assert 20 < mechanism.users_needed(1) < 35
    assert mechanism.release(owner[:0], items[:0], keys[:0], noise).size == 0


@pytest.mark.parametrize("failure", [0.0, 1.0, math.nan])
def test_a_failure_probability_out_of_range_is_refused(failure):
    with pytest.raises(BadInput, match=r"failure_delta = .* strictly between 0 and 1"):
        SetUnion(1.0, failure, 3, "replace_one")


# Choices are each user's own -----------------------------------------------------------------------------------------

WORDS = "abcdefgh"


def rows_of(people: dict[str, str]):
    """(owner, items, keys for seed 5, words) of people who hold these letters, as a search numbers them."""
    labels, names = sorted(people), sorted({*chain(*people.values())})
    owner = np.repeat(np.arange(len(labels)), [len(people[label]) for label in labels])
    items = np.array([names.index(word) for label in labels for word in people[label]], dtype=np.int64)
    return owner, items, own_keys(5, owner, labels, items, names), names


def weights_of(mechanism: SetUnion, people: dict[str, str]) -> dict[str, float]:
    owner, items, keys, names = rows_of(people)
    return dict(zip(names, mechanism.weights(owner, items, keys), strict=True))


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
@pytest.mark.parametrize("coarse", [False, True])
def test_for_a_known_seed_no_user_moves_shared_weights_further_than_is_charged(relation, coarse, monkeypatch):
    """Everybody else chooses as before, whatever one user holds, also where keys are equal: by brute force."""
    if coarse:
        monkeypatch.setattr("userdp.mechanisms.set_union._mixed", lambda words: words % np.uint64(3))
    rng, mechanism = np.random.default_rng(0), SetUnion(1.0, 0.1, 3, relation)
    others = {f"u{one}": "".join(rng.permutation(list(WORDS))[: rng.integers(1, 8)]) for one in range(60)}
    own = ["", "a", "hg", "zzz", "abcdefgh", "habc", "xyz", "AB"]
    alone = weights_of(mechanism, others)
    charged, moved = mechanism.standard_deviation / mechanism.noise_multiplier, []
    for label, (one, other) in product(("a first", "u3 b", "zoe"), product(own, own)):
        if relation == "add_or_remove" and other:
            continue
        first, second = (weights_of(mechanism, others | ({label: words} if words else {})) for words in (one, other))
        shared = set(alone)  # what others hold; the rest is covered by the threshold
        moved.append(math.hypot(*(first[word] - second[word] for word in shared)))
    assert max(moved) <= charged * (1 + 1e-12)
    assert max(moved) >= 0.9 * charged


def test_users_choose_evenly_and_each_for_itself():
    names = [str(item) for item in range(6)]
    owner, items = np.repeat(np.arange(3000), 6), np.tile(np.arange(6), 3000)
    keys = own_keys(1, owner, [str(user) for user in range(3000)], items, names)
    kept = SetUnion(1.0, 0.1, 2, "replace_one").weights(owner, items, keys) * math.sqrt(2)
    assert kept.sum() == pytest.approx(6000)
    assert stats.chisquare(kept).pvalue > 1e-9
    assert not np.array_equal(keys, own_keys(2, owner, [str(user) for user in range(3000)], items, names))
