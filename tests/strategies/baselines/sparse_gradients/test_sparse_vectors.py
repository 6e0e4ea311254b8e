"""Populations whose users hold sparse vectors: blocks, packings."""

import math
from functools import partial

import numpy as np
import pytest

from strategies.baselines.sparse_gradients.populations import SparseBlocks, SparsePacking, greedy_packing
from userdp.data import SyntheticFederation
from userdp.errors import BadInput


def held(law, users, samples=1, seed=0):
    """(n, m, d) the samples of all users, and the population's mean."""
    federation = SyntheticFederation(law, users, seed, samples_per_user=samples)
    features = federation.block(np.arange(users)).features
    return features.reshape(users, samples, -1).astype(np.float64), federation.population_mean


@pytest.mark.parametrize(("d", "s"), [(4, 1), (10, 1), (8, 2), (12, 3), (12, 4), (14, 4), (14, 6)])
def test_a_packing_is_as_large_and_as_far_apart_as_the_lemma_says_c17(d, s):
    packing = greedy_packing(d, s)
    np.testing.assert_allclose(np.linalg.norm(packing, axis=1), 1.0)
    assert ((packing != 0).sum(axis=1) == s).all()
    assert len(packing) >= (d / s - 0.5) ** (s / 2)
    distances = np.linalg.norm(packing[:, None] - packing, axis=2)
    assert (distances[~np.eye(len(packing), dtype=bool)] >= 1 / math.sqrt(2) - 1e-12).all()


def test_blocks_share_no_coordinate_and_a_users_samples_are_alike():
    law = SparseBlocks(dimension=40, sparsity=3, blocks=5, norm=2.0)
    rows, mean = held(law, 200, samples=2)
    assert (rows[:, 0] == rows[:, 1]).all()
    vectors = np.unique(rows[:, 0], axis=0)
    assert len(vectors) == 5
    assert ((vectors != 0).sum(axis=0) <= 1).all()
    np.testing.assert_allclose(np.abs(vectors[vectors != 0]), 2 / math.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(vectors.mean(axis=0), mean, rtol=1e-6)


def test_users_are_spread_over_the_blocks_as_the_population_mean_says():
    rows, mean = held(SparseBlocks(dimension=64, sparsity=1, blocks=64), 64_000)
    shares = np.abs(rows[:, 0]).mean(axis=0) * 64
    np.testing.assert_allclose(shares, 1.0, atol=6 / math.sqrt(1000))
    np.testing.assert_allclose(rows[:, 0].mean(axis=0), mean, atol=6 / math.sqrt(64_000 * 64))


def test_a_share_of_the_users_holds_the_vector_of_the_packing():
    law = SparsePacking(dimension=12, sparsity=3, share=0.25, norm=2.0)
    rows, mean = held(law, 20_000)
    holds = rows[:, 0].any(axis=1)
    assert holds.mean() == pytest.approx(0.25, abs=0.02)
    assert len(np.unique(rows[holds, 0], axis=0)) == 1
    packing = 2 * greedy_packing(12, 3)
    assert np.isclose(packing, rows[holds, 0][0]).all(axis=1).sum() == 1
    np.testing.assert_allclose(mean, 0.25 * rows[holds, 0][0], rtol=1e-6)
    others = [held(law, 1, seed=seed)[1] for seed in range(20)]
    assert len(np.unique(others, axis=0)) > 10


@pytest.mark.parametrize("law", [SparseBlocks, SparsePacking])
def test_users_may_have_shifts_of_their_own(law):
    rows, mean = held(law(dimension=3, heterogeneity=0.5), 4000, samples=2)
    assert (rows[:, 0] == rows[:, 1]).all()
    np.testing.assert_allclose((rows[:, 0] - mean).std(axis=0), 0.5, rtol=0.1)


REFUSED = [
    # (make, the arguments that are wrong, words of the message)
    (SparseBlocks, {"dimension": 7, "sparsity": 2, "blocks": 4}, "7 coordinates hold at most 3 blocks"),
    *[(partial(SparseBlocks, dimension=7), {name: 0}, name) for name in ("blocks", "sparsity", "norm")],
    (partial(SparsePacking, dimension=7), {"share": 0.0}, "share = 0.0: must be greater than 0"),
    (SparsePacking, {"dimension": 60, "sparsity": 30}, "dimension = 60, sparsity = 30"),
    *[
        (greedy_packing, {"dimension": d, "sparsity": s}, f"dimension = {d}, sparsity = {s}")
        for d, s in ((3, 0), (3, 4), (60, 30))
    ],
]


@pytest.mark.parametrize(("make", "wrong", "words"), REFUSED)
def test_what_no_population_can_be_is_refused_by_name_and_value(make, wrong, words):
    with pytest.raises(BadInput, match=words):
        make(**wrong)
