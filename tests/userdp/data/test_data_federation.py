from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import Block, ColumnarFederation, Gaussian, SyntheticFederation, split
from userdp.data.federation import JoinedFederation
from userdp.data.tables.contributions import bounded_rows, public_order
from userdp.errors import BadInput, PopulationTooSmall


def ragged(sizes: list[int], targets: bool = True, columns: int = 2) -> ColumnarFederation:
    total = sum(sizes)
    features = np.arange(total * columns, dtype=np.float32).reshape(total, columns)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return ColumnarFederation(Block(features, offsets, np.arange(total, dtype=np.float32) if targets else None))


sizes_and_users = st.lists(st.integers(1, 9), min_size=1, max_size=12).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes), st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=20), st.booleans()
    )
)


@settings(max_examples=80)
@given(sizes_and_users)
def test_a_columnar_gather_equals_a_loop_over_users(case):
    sizes, users, targets = case
    federation = ragged(sizes, targets)
    whole = federation.block(np.arange(len(sizes)))
    gathered = federation.block(np.array(users))
    parts = [whole.part(user, user + 1) for user in users]
    np.testing.assert_array_equal(gathered.features, np.concatenate([part.features for part in parts]))
    np.testing.assert_array_equal(gathered.sizes, [sizes[user] for user in users])
    if targets:
        np.testing.assert_array_equal(gathered.targets, np.concatenate([part.targets for part in parts]))
    else:
        assert gathered.targets is None


def test_consecutive_users_are_views():
    federation = ragged([2, 3, 1, 4])
    whole = federation.block(np.arange(4))
    assert np.shares_memory(whole.features, federation.block(np.array([1, 2])).features)
    assert np.shares_memory(whole.features, federation.select(np.array([1, 2])).block(np.array([0])).features)


def test_a_user_keeps_the_samples_that_can_be_used_and_leaves_only_without_any():
    usable = np.array([True, False, True, False, False, True])
    users, left = replace(ragged([3, 2, 1]).block(np.arange(3)), usable=usable).usable_part()
    assert (users.tolist(), left.sizes.tolist(), left.targets.tolist()) == ([0, 2], [2, 1], [0.0, 2.0, 5.0])


@settings(max_examples=60)
@given(sizes_and_users, st.integers(1, 400))
def test_blocks_cover_all_users_once_within_max_bytes(case, max_bytes):
    sizes, users, targets = case
    federation = ragged(sizes, targets)
    users = np.array(users)
    seen = []
    for where, block in federation.blocks(users, max_bytes):
        assert block.users == where.stop - where.start
        assert block.users == 1 or block.samples * federation.sample_bytes <= max_bytes
        np.testing.assert_array_equal(block.features, federation.block(users[where]).features)
        seen.append(users[where])
    np.testing.assert_array_equal(np.concatenate(seen), users)


@pytest.mark.parametrize(
    ("features", "offsets", "targets", "message"),
    [
        (np.zeros(3), [0, 3], None, r"features must be \(samples, columns\), got shape \(3,\)"),
        (np.zeros((3, 1)), [0, 2, 2, 3], None, "no user may be empty"),
        (np.zeros((3, 1)), [1, 3], None, "offsets must rise"),
        (np.zeros((3, 1)), [0, 2], None, "offsets must rise"),
        (np.zeros((3, 1)), [], None, "offsets must rise"),
        (np.zeros((3, 1)), [0, 3], np.zeros(2, dtype=np.float32), r"targets must be \(3,\), got \(2,\)"),
    ],
)
def test_blocks_that_contradict_themselves_are_refused(features, offsets, targets, message):
    with pytest.raises(BadInput, match=message):
        Block(features, np.array(offsets, dtype=np.int64), targets)


@pytest.mark.parametrize("shape", [2, (3, 1), 0])
def test_which_samples_count_is_said_of_each(shape):
    with pytest.raises(BadInput, match=r"usable must be \(3,\)"):
        Block(np.zeros((3, 1)), np.array([0, 3]), None, np.ones(shape, dtype=bool))


def test_a_federation_knows_its_size():
    federation = ragged([2, 3], columns=4)
    assert (federation.users, federation.samples, federation.sample_bytes) == (2, 5, 20)
    assert federation.nbytes == 100


@pytest.mark.parametrize("users", [[], [-1], [4], [[0, 1]]])
def test_users_that_do_not_exist_are_refused(users):
    for federation in (ragged([1, 2, 3, 4]), SyntheticFederation(Gaussian(dimension=1), 4)):
        with pytest.raises(BadInput, match=r"indices in 0\.\.3"):
            federation.block(np.array(users, dtype=np.int64))
        with pytest.raises(BadInput, match=r"indices in 0\.\.3"):
            federation.select(np.array(users, dtype=np.int64))
    with pytest.raises(BadInput, match=r"indices in 0\.\.1"):
        SyntheticFederation(Gaussian(dimension=1), 4).select(np.array([2, 3])).block(np.array([2]))


@pytest.mark.parametrize("synthetic", [True, False])
def test_select_renumbers_users_and_keeps_the_population(synthetic):
    federation = SyntheticFederation(Gaussian(dimension=2), 6, samples_per_user=3) if synthetic else ragged([3] * 6)
    part = federation.select(np.array([4, 1, 5]))
    assert (part.users, part.samples, part.columns, part.sample_bytes) == (3, 9, 2, federation.sample_bytes)
    np.testing.assert_array_equal(part.block(np.array([2, 0])).features, federation.block(np.array([5, 4])).features)
    assert part.population_mean is federation.population_mean


@settings(max_examples=40)
@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_split_is_by_user_disjoint_complete_and_seeded(users, fraction, seed):
    federation = ragged([1] * users)
    if round(fraction * users) >= users:
        with pytest.raises(BadInput, match="at least one"):
            split(federation, test_fraction=fraction, seed=seed)
        return
    train, test = split(federation, test_fraction=fraction, seed=seed)
    assert test.users == max(1, round(fraction * users))
    owners = [part.block(np.arange(part.users)).targets for part in (train, test)]
    assert sorted(np.concatenate(owners)) == list(range(users))
    _, again = split(federation, test_users=test.users, seed=seed)
    np.testing.assert_array_equal(again.block(np.arange(again.users)).targets, owners[1])


def test_different_seeds_split_differently():
    federation = ragged([1] * 50)
    chosen = {tuple(split(federation, test_users=10, seed=seed)[1].block(np.arange(10)).targets) for seed in range(5)}
    assert len(chosen) == 5


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({}, "exactly one"),
        ({"test_fraction": 0.5, "test_users": 1}, "exactly one"),
        ({"test_fraction": 1.0}, r"test_fraction must lie in \(0, 1\), got 1.0"),
        ({"test_fraction": float("nan")}, "test_fraction"),
        ({"test_users": 3}, "3 of 3 users"),
        ({"test_users": 0}, "0 of 3 users"),
    ],
)
def test_impossible_splits_are_refused(settings_, message):
    with pytest.raises(BadInput, match=message):
        split(ragged([1, 2, 3]), **settings_)


owners_lists = st.integers(1, 6).flatmap(
    lambda users: st.lists(st.integers(-1, users - 1), max_size=40).map(lambda some: [*range(users), *some])
)


@settings(max_examples=100)
@given(owners_lists, st.one_of(st.none(), st.integers(1, 5)), st.integers(0, 10))
def test_bounded_rows_keeps_at_most_max_samples_of_each_user(owner, max_samples, seed):
    owner = np.array(owner)
    rows, offsets = bounded_rows(owner, max_samples, seed)
    assert len(set(rows.tolist())) == len(rows) == offsets[-1]
    for user in range(len(offsets) - 1):
        own = rows[offsets[user] : offsets[user + 1]]
        held = int((owner == user).sum())
        assert (owner[own] == user).all()
        assert np.all(np.diff(own) > 0)
        assert len(own) == (held if max_samples is None else min(held, max_samples))
    np.testing.assert_array_equal(rows, bounded_rows(owner, max_samples, seed)[0])


@settings(max_examples=60)
@given(owners_lists, st.integers(1, 3), st.lists(st.integers(0, 46), max_size=20))
def test_replacing_a_users_rows_leaves_every_other_users_choice_alone(owner, max_samples, places):
    """The formal guarantee of `bounded_rows`: rows of user 0 inserted anywhere move nobody else's choice."""
    owner = np.array(owner)
    changed = np.insert(owner, [min(place, len(owner)) for place in places], 0)

    def choice(owner):
        rows, offsets = bounded_rows(owner, max_samples, seed=3)
        earlier = [np.flatnonzero(owner == user) for user in range(len(offsets) - 1)]
        return [
            np.searchsorted(earlier[user], rows[offsets[user] : offsets[user + 1]]).tolist()
            for user in range(1, len(offsets) - 1)
        ]

    assert choice(owner) == choice(changed)


def test_the_choice_of_samples_is_uniform():
    # 3 of 6 rows: all 20 subsets equally likely; chi-square with 19 degrees of freedom, 99.9 % quantile 43.8.
    trials = 4000
    owner = np.repeat(np.arange(trials), 6)
    rows, _ = bounded_rows(owner, 3, seed=1)
    subsets = (1 << (rows % 6)).reshape(trials, 3).sum(axis=1)
    counts = np.bincount(subsets, minlength=64)
    counts = counts[counts > 0]
    assert len(counts) == 20
    assert ((counts - trials / 20) ** 2 / (trials / 20)).sum() < 43.8


def test_the_choice_of_samples_changes_with_the_seed():
    owner = np.repeat(np.arange(20), 10)
    assert not np.array_equal(bounded_rows(owner, 3, 0)[0], bounded_rows(owner, 3, 1)[0])


def test_the_public_order_is_seeded_and_drops_small_and_surplus_users():
    sizes = np.array([1, 5, 5, 2, 5, 5])
    labels = np.array(list("abcdef"), dtype=object)
    full = public_order(labels, sizes, 1, None, 7)
    assert sorted(full) == list(range(6))
    eligible = public_order(labels, sizes, 3, None, 7)
    np.testing.assert_array_equal(eligible, [user for user in full if sizes[user] >= 3])
    np.testing.assert_array_equal(public_order(labels, sizes, 3, 2, 7), eligible[:2])
    with pytest.raises(PopulationTooSmall, match=r"4 users hold .* min_samples = 3 .* users = 5"):
        public_order(labels, sizes, 3, 5, 7)
    with pytest.raises(PopulationTooSmall, match="0 users"):
        public_order(labels, sizes, 9, None, 7)


def test_those_who_follow_come_after_all_places():
    first, second = ragged([1, 2]), ragged([3, 1])
    whole = JoinedFederation(first, second, 4)
    assert whole.users == 6
    np.testing.assert_array_equal(whole.block(np.array([0, 4])).features[1:], second.block(np.array([0])).features)
    np.testing.assert_array_equal(whole.block(np.array([5])).features, second.block(np.array([1])).features)
    with pytest.raises(BadInput):
        whole.block(np.array([2]))  # an empty place
    for mixed in ([4, 0], [0, 5, 4], [1, 4, 0]):
        with pytest.raises(BadInput, match="must be asked for in rising order"):
            whole.block(np.array(mixed))
