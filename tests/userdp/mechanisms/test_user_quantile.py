"""Quantiles of users' samples: brute-force neighbours, the law's utility, and OpenDP's error beside ours."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax, softmax

from userdp.accounting import Cost
from userdp.errors import BadInput
from userdp.mechanisms import Grid, UserQuantile
from userdp.noise import SeededNoise

EDGES = np.array([0.0, 1.0, 2.0, 3.0])
PEOPLE = [list(some) for size in range(3) for some in combinations_with_replacement([-5.0, 0.0, 1.5, 3.0], size)]


def rows(people):
    owner = np.repeat(np.arange(len(people)), [len(one) for one in people]).astype(np.int64)
    return owner, np.array([value for one in people for value in one])


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_neighbour_moves_a_score_or_the_law_further_than_claimed(relation, share):
    """Users with no sample, one or two, equal or not; the range of log-likelihood ratios is what zCDP rests on."""
    mechanism, moved = UserQuantile(share, 1.5, relation), 0.0
    for others in combinations_with_replacement(PEOPLE[::3], 2):
        scores = np.array([mechanism.scores(*rows([*others, one]), EDGES).values for one in PEOPLE])
        laws = log_softmax(mechanism.epsilon * scores / (2 * mechanism.sensitivity), axis=1)
        neighbours = slice(None) if relation == "replace_one" else slice(1)  # PEOPLE[0] has no samples
        change, ratio = (each[:, None] - each[None, neighbours] for each in (scores, laws))
        moved = max(moved, float(np.abs(change).max()))
        assert np.abs(ratio).max() <= mechanism.epsilon + 1e-12
        assert np.ptp(ratio, axis=2).max() <= mechanism.epsilon + 1e-12
    assert moved == pytest.approx(mechanism.sensitivity)


@given(
    st.lists(st.lists(st.floats(-10, 10), max_size=4), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(0, 9)
)
def test_some_bin_holds_the_quantile_and_users_rows_may_be_mixed(people, share, seed):
    """The order of one user's own rows decides which of them has a vote larger by one unit, 2^-20."""
    mechanism = UserQuantile(share, 1.0, "replace_one")
    owner, values = rows(people)
    scores = mechanism.scores(owner, values, EDGES).values
    assert scores.max() == pytest.approx(0, abs=1e-12)
    order = np.random.default_rng(seed).permutation(len(owner))
    assert np.allclose(scores, mechanism.scores(owner[order], values[order], EDGES).values, rtol=0, atol=1e-5)


def test_all_users_weigh_the_same_however_many_samples_they_have():
    heavy = [[0.5] * 1000, [1.5], [1.5], [1.5]]
    mechanism = UserQuantile(0.5, 1.0, "replace_one")
    assert mechanism.scores(*rows(heavy), EDGES).values.tolist() == [-1.0, 0.0, -2.0]
    missing = np.array([0.5, np.nan, 1.5])
    assert mechanism.scores(np.array([0, 0, 1]), missing, EDGES).values.tolist() == [0.0, 0.0, -1.0]
    assert mechanism.scores(np.array([0]), np.array([np.nan]), EDGES).values.tolist() == [0.0, 0.0, 0.0]


def test_equal_samples_below_which_there_is_nothing_are_their_own_low_end():
    """A smallest number that half the samples equal is found, not any smaller candidate."""
    positive = np.geomspace(1e-6, 1e9, 15_001)
    grid = Grid.even(np.concatenate([-positive[::-1], positive]))
    mechanism = UserQuantile(0.1, 1.0, "replace_one")
    owner, values = np.arange(1000), np.repeat([1.0, 2.0], 500)
    for seed in range(20):
        chosen = mechanism.choose(owner, values, grid, SeededNoise(np.random.default_rng(seed)))
        assert grid.edges[chosen] == pytest.approx(1.0, rel=1e-2)


def test_a_choice_costs_what_it_is_charged():
    noise = SeededNoise(np.random.default_rng(0))
    mechanism = UserQuantile(0.5, 0.7, "replace_one")
    mechanism.choose(*rows([[1.0]]), Grid.even(EDGES), noise)
    assert noise.spent == mechanism.cost == Cost(pure_epsilon=0.7)


def test_weights_multiply_chances_and_a_turned_grid_keeps_them():
    grid = Grid(EDGES, np.array([1.0, 5.0, 2.0, 7.0]))
    mechanism, noise = UserQuantile(0.5, 1.0, "replace_one"), SeededNoise(np.random.default_rng(0))
    people = rows([[0.5], [1.5], [1.5], [2.5]])
    chosen = [mechanism.choose(*people, grid, noise) for _ in range(4000)]
    chances = grid.bins * np.exp(mechanism.scores(*people, EDGES).values / 2)
    assert stats.chisquare(np.bincount(chosen), 4000 * chances / chances.sum()).pvalue > 1e-9
    turned = grid.turned()
    assert turned.edges.tolist() == [-3.0, -2.0, -1.0, 0.0]
    assert turned.bins.tolist() == [7.0, 2.0, 5.0]
    assert mechanism.reach(grid, 0.1) == pytest.approx(2 * np.log(8 / 0.1))


def test_the_choice_is_further_from_the_quantile_than_its_reach_as_rarely_as_it_says():
    mechanism, noise = UserQuantile(0.5, 2.0, "replace_one"), SeededNoise(np.random.default_rng(1))
    grid, owner = Grid.even(np.arange(102.0)), np.arange(200)
    values = np.repeat([0.5, 50.5, 100.5], [95, 10, 95])
    for failure in (0.5, 0.1):
        scores = mechanism.scores(owner, values, grid.edges).values
        missed = sum(
            -scores[mechanism.choose(owner, values, grid, noise)] > mechanism.reach(grid, failure) for _ in range(500)
        )
        assert stats.binomtest(missed, 500, failure, alternative="greater").pvalue > 1e-9


@pytest.mark.parametrize(
    ("edges", "weights"),
    [
        ([1.0], [1.0]),
        ([0.0, 0.0, 1.0], [1.0] * 3),
        ([0.0, np.inf], [1.0] * 2),
        ([0.0, 1.0], [1.0]),
        ([0.0, 1.0], [1.0, 0.0]),
        ([0.0, 1.0], [1.0, np.inf]),
        ([0.0, 1.0], [1.0, np.nan]),
        ([[0.0, 1.0], [2.0, 3.0]], [[1.0, 1.0], [1.0, 1.0]]),
    ],
)
def test_grids_that_are_none_are_refused(edges, weights):
    with pytest.raises(BadInput, match=r"two finite numbers or more that rise strictly|as many positive numbers"):
        Grid(np.array(edges), np.array(weights))
    with pytest.raises(BadInput, match=r"share = 1.0: must lie strictly"):
        UserQuantile(1.0, 1.0, "replace_one")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_the_error_exceeds_that_of_opendp_by_a_tenth_at_most(share):
    """Users between the quantile and the bin, exactly; for theirs by 200 draws (four standard errors), on one grid."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    values, grid, epsilon = np.random.default_rng(0).lognormal(3, 1, 500), np.geomspace(0.1, 1e5, 5001), 1.0
    mechanism = UserQuantile(share, epsilon, "add_or_remove")
    scores = mechanism.scores(np.arange(500), values, grid).values
    ours = -softmax(epsilon * scores / (2 * mechanism.sensitivity)) @ scores
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    scale = 2 * mechanism.sensitivity / epsilon
    theirs = dp.m.make_private_quantile(
        domain, dp.symmetric_distance(), dp.max_divergence(), candidates=grid.tolist(), alpha=share, scale=scale
    )
    assert theirs.map(1) == pytest.approx(epsilon)
    drawn = [theirs(values.tolist()) for _ in range(200)]
    errors = np.abs(np.searchsorted(np.sort(values), drawn) - share * 500)
    assert ours <= 1.1 * (errors.mean() + 4 * errors.std() / np.sqrt(200))
