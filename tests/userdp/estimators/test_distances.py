"""Distances of all pairs: to the last bit the largest of all differences, whichever coordinates decide."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from userdp.estimators import concentration as distances
from userdp.estimators.concentration import all_pairs

COLUMNS = 300


def clouds(count, seed):
    """Rows of every kind, and their centre or something else."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(count, COLUMNS))
    place = rng.normal(size=COLUMNS) * 1e6
    sparse = np.where(rng.random(normal.shape) < 0.01, normal, 0.0)
    return {
        "normal": (normal, np.zeros(COLUMNS)),
        "long tails": (rng.standard_cauchy(normal.shape), np.zeros(COLUMNS)),
        "far away": (normal + place, place),
        "about another place": (normal, place),
        "sparse": (sparse, np.zeros(COLUMNS)),
        "signs": (np.sign(normal), np.zeros(COLUMNS)),
        "of one coordinate": (normal[:, :1] * (np.arange(COLUMNS) == 7), np.zeros(COLUMNS)),
        "close to one another in the farthest": (np.where(np.arange(COLUMNS) < 40, 5.0, normal), np.zeros(COLUMNS)),
        "equal": (np.full((count, COLUMNS), 0.1), np.full(COLUMNS, 0.1)),
        "huge": (np.clip(normal, -1.7, 1.7) * 1e308, np.zeros(COLUMNS)),
        "tiny": (normal * 1e-312, np.zeros(COLUMNS)),
        "rounded": (np.round(normal) * 2.0**53 + np.round(rng.normal(size=normal.shape)), np.full(COLUMNS, 3.0)),
    }


def sorted_distances(rows, centre):
    with np.errstate(over="ignore"):
        return np.sort(np.concatenate([each.ravel() for each in all_pairs(rows, centre)]))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 60), tile=st.sampled_from([1024, 16]))
def test_distances_are_those_of_all_coordinates_to_the_last_bit(seed, count, tile):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "TILE", tile)
        for name, (rows, centre) in clouds(count, seed).items():
            assert np.array_equal(sorted_distances(rows, centre), np.sort(pdist(rows, "chebyshev"))), name


def test_each_pair_of_two_tiles_is_at_its_place(monkeypatch):
    monkeypatch.setattr(distances, "TILE", 30)
    rows = clouds(60, 1)["normal"][0]
    parts = list(all_pairs(rows, np.zeros(COLUMNS)))
    assert np.array_equal(parts[0], pdist(rows[:30], "chebyshev"))
    assert np.array_equal(parts[1], cdist(rows[:30], rows[30:], "chebyshev"))
    assert np.array_equal(parts[2], pdist(rows[30:], "chebyshev"))


@pytest.mark.parametrize("columns", [256, 1000, 3000])
def test_few_coordinates_decide_nearly_all_pairs_of_normal_rows(columns, monkeypatch):
    """And pairs that they do not decide are looked at one by one, not all anew."""
    monkeypatch.setattr("torch.pdist", None)
    rows = np.random.default_rng(1).normal(size=(200, columns))
    tile = distances._Tile(rows, np.zeros(columns), searched=True)
    found = tile._found(tile)
    undecided = np.maximum(found, found.T) < tile._bounds[:, None] + tile._bounds
    assert 0 < undecided[np.triu_indices(200, 1)].mean() < distances._UNDECIDED
    assert np.array_equal(tile.within(), pdist(rows, "chebyshev"))


def test_a_tile_of_which_little_is_decided_is_computed_at_once(monkeypatch):
    """Rows whose differences are all far smaller than their deviations from a wrong centre."""
    rows = np.random.default_rng(1).normal(size=(30, COLUMNS))
    tile = distances._Tile(rows, np.full(COLUMNS, 1e3), searched=True)
    assert not tile._complete(tile._found(tile), other=tile, pairs=np.ones((30, 30), dtype=bool))
    assert np.array_equal(tile.within(), pdist(rows, "chebyshev"))


def test_with_few_coordinates_none_are_searched(monkeypatch):
    monkeypatch.setattr(distances._Tile, "_found", None)
    rows = np.random.default_rng(1).normal(size=(30, 255))
    assert np.array_equal(sorted_distances(rows, np.zeros(255)), np.sort(pdist(rows, "chebyshev")))
