"""The direction in which two data sets' runs differ: as good as the likelihood ratio, where that is known."""

import numpy as np
import pytest

from userdp.audit import Direction, error_rates


def power(direction, weights):
    """Cosine to the best weights."""
    found = direction.weights
    return float(found @ weights / np.linalg.norm(found) / np.linalg.norm(weights))


def test_many_features_that_are_alike_are_averaged_where_each_alone_is_drowned():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.02, 1, (500, 100)), rng.normal(0, 1, (500, 100))
    assert power(Direction.learnt(first, second, np.ones(100, dtype=bool)), np.ones(100)) > 0.9
    assert power(Direction.learnt(first, second, np.zeros(100, dtype=bool)), np.ones(100)) < 0.6


def test_correlated_noise_is_taken_off():
    rng = np.random.default_rng(1)
    mixing = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    shift = np.array([1.0, 1.0, 1.0])
    first, second = (rng.normal(size=(4000, 3)) @ mixing.T + side * shift for side in (0.5, -0.5))
    best = np.linalg.solve(mixing @ mixing.T, shift)
    assert power(Direction.learnt(first, second, np.ones(3, dtype=bool)), best) > 0.99


def test_what_never_varies_and_differs_tells_all():
    first, second = np.tile([1.0, 2.0], (30, 1)), np.tile([1.0, 3.0], (30, 1))
    scores = Direction.learnt(first, second, np.ones(2, dtype=bool))
    assert (scores.scores(first) > scores.scores(second)).all()
    assert not Direction.learnt(first, first, np.ones(2, dtype=bool)).weights.any()


def test_error_rates_are_shares_by_threshold():
    alarms, misses = error_rates(np.arange(20) + 10.0, np.arange(20.0))
    assert (np.diff(alarms) >= 0).all()
    assert (np.diff(misses) <= 0).all()
    at = int(np.flatnonzero(misses == 0)[0])
    assert alarms[at] == pytest.approx(0.5)
