"""Noise that users add to their own rows: as loud as asked, of their own, and new in every round."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import federation_of

from userdp.masking import sums
from userdp.masking.masks import MaskKey
from userdp.nodes import computations
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Node
from userdp.nodes.pipeline import RowPipeline
from userdp.noise import SeededNoise, rounding_slack
from userdp.problems import Quadratic
from userdp.randomness import stream

LENGTH, USERS = 400, np.array([0, 1, 2, 7, 30])
SEEDS = pytest.mark.parametrize("seed", [3, None], ids=["seeded", "secure"])


def noise_of(one, users=USERS, length=LENGTH):
    return one.add(np.zeros((len(users), length)), users)


@SEEDS
@pytest.mark.parametrize("deviation", [0.5, 40.0])
def test_each_entry_of_each_user_is_as_noisy_as_asked(seed, deviation):
    drawn = noise_of(LocalNoise(deviation, seed, 0)) / deviation
    assert drawn.std(axis=1) == pytest.approx(np.ones(len(USERS)), rel=0.2)
    assert drawn.std() == pytest.approx(1.0, rel=0.1)
    assert np.abs(drawn.mean()) < 0.2


@SEEDS
def test_no_two_users_or_rounds_share_their_noise(seed):
    rows = np.vstack([noise_of(LocalNoise(1.0, seed, index)) for index in range(3)])
    apart = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(apart).max() < 0.3
    assert len({row.tobytes() for row in rows[:, 1:]} | {row.tobytes() for row in rows[:, :-1]}) == 2 * len(rows)


def test_simulated_noise_is_that_of_seed_round_and_user_wherever_the_user_is_computed():
    one = LocalNoise(1.0, 3, 4)
    whole = noise_of(one)
    for place, user in enumerate(USERS):
        np.testing.assert_array_equal(noise_of(one, np.array([user]))[0], whole[place])
    assert not np.isin(noise_of(replace(one, seed=4)), whole).any()
    # Nor is it that of anybody else.
    assert computations._LOCAL != sums._SHARE
    others = [stream(3, "noise", 4, *label).standard_normal(LENGTH) for label in ((), (sums._SHARE, 0), (0,), (1,))]
    assert not np.isin(others, whole).any()


@pytest.mark.parametrize("block", [1, 2, 5])
@pytest.mark.parametrize("reduce", ["rows", "sum"])
def test_users_have_the_noise_of_their_number_in_the_population(reduce, block):
    """Whatever block they come in, and whatever their place in the question."""
    asked = Computation(reduce=reduce, clip_norm=1.0, noise=LocalNoise(1.0, 3, 4))
    pipeline = RowPipeline(asked, USERS, LENGTH)
    for first in range(0, len(USERS), block):
        where = slice(first, min(first + block, len(USERS)))
        pipeline.add(np.zeros((where.stop - first, LENGTH)), where)
    whole = noise_of(asked.noise)
    np.testing.assert_allclose(pipeline.values, whole if reduce == "rows" else whole.sum(axis=0, keepdims=True))


@pytest.mark.parametrize("reduce", ["rows", "sum"])
def test_a_single_user_without_a_gradient_is_noisy_too(reduce):
    node = Node(Quadratic(3, 9.0, 1.0), federation_of(np.full((3, 3), np.nan)), np.arange(3))
    asked = Computation(reduce=reduce, clip_norm=1.0, noise=LocalNoise(1.0, 3, 4))
    answer = node.compute(np.zeros(3), np.array([1]), asked)
    np.testing.assert_array_equal(answer.values, noise_of(asked.noise, np.array([1]), 3))


def test_a_server_that_sees_noisy_values_alone_is_not_trusted_with_counts():
    plain = Computation(reduce="sum", clip_norm=1.0)
    assert plain.trusting
    assert not replace(plain, noise=LocalNoise(1.0, 3, 4)).trusting
    masked = replace(plain, masked=sums.MaskedSum.hiding(9.0, 3, 1.0, 0.0))
    assert not masked.trusting
    # Also not by what else an answer holds.
    pipeline = RowPipeline(masked, np.arange(3), 2)
    pipeline.add(np.array([[np.nan, 0.0], [1.0, np.inf], [0.0, 0.0]]), slice(0, 3), unusable=2)
    assert pipeline.non_finite == 0
    assert pipeline.lengths is None
    assert pipeline.values.size == 0


def test_nodes_of_a_masked_sum_draw_their_shares_for_their_own_users(monkeypatch):
    """A node that drew another's share could take it off the sum."""
    keys, drawn = [MaskKey(), MaskKey()], []
    masked = replace(sums.MaskedSum.hiding(9.0, 9, 1.0, 0.0).among(tuple(key.public for key in keys)), seed=3)
    share = sums.MaskedSum._share
    monkeypatch.setattr(
        sums.MaskedSum, "_share", lambda one, *args: drawn.append(share(one, *args)) or drawn[-1], raising=True
    )
    for key, users in zip(keys, (np.array([1, 2]), np.array([4, 5, 6])), strict=True):
        pipeline = RowPipeline(Computation(reduce="sum", clip_norm=1.0, masked=masked), users, LENGTH)
        pipeline.add(np.zeros((len(users), LENGTH)), slice(0, len(users)))
        pipeline.masked(key, np.zeros(LENGTH))
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.3


def test_secure_noise_of_users_covers_the_rounding_of_their_rows(monkeypatch):
    slacks = []
    secure = lambda slack: slacks.append(slack) or SeededNoise(np.random.default_rng(0))  # noqa: E731
    monkeypatch.setattr(computations, "SecureNoise", secure)
    LocalNoise(1.0, seed=None, round=0).add(np.zeros((2, 3)), np.arange(2))
    assert slacks == [rounding_slack(1)]
