"""Private iterative hard thresholding on arrays: sensitivities, folds, invariants, limits and measured errors."""

import itertools
import math

import numpy as np
import pytest
from test_peeling import Silent

from userdp.errors import BadInput
from userdp.estimators.smoothed_truncation import smoothed_truncation_mean
from userdp.high_dimensional.hard_thresholding import (
    SparseBudget,
    checked_start,
    folds,
    log_rounds,
    private_hard_thresholding,
    private_sparse_optimisation,
    truncated_gradient_bound,
    truncation_level,
    truncation_scale,
    unit_ball,
)
from userdp.high_dimensional.peeling import Peeling
from userdp.noise import SeededNoise


def seeded(seed=0):
    return SeededNoise(np.random.default_rng(seed))


def budget(sparsity=2, epsilon=1.0, delta=1e-5, learning_rate=2 / 3, **options):
    return SparseBudget(sparsity, epsilon, delta, learning_rate, **options)


def sparse_truth(dimension, sparsity, rng):
    truth = np.zeros(dimension)
    truth[rng.choice(dimension, sparsity, replace=False)] = rng.normal(size=sparsity)
    return truth / np.linalg.norm(truth)


def regression(records, dimension=200, sparsity=2, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    truth, features = (
        sparse_truth(dimension, sparsity, rng),
        rng.standard_normal((records, dimension), dtype=np.float32),
    )
    return features, features @ truth + noise * rng.normal(size=records), truth


def means(truth, records, seed):
    """Gradients of ||x - w||^2 / 2 for entries w* + t(3), and the records themselves."""
    rows = truth + np.random.default_rng(seed).standard_t(3, (records, len(truth)))
    return lambda model, fold: model - rows[fold]


# --- Algorithm 3 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [1, 2, 4])
def test_t08_the_sensitivity_of_a_step_holds_and_is_attained(sparsity):
    """Every pattern of signs of one record against every other, at models on the sphere: the worst step."""
    level, rate, size = 1.7, 0.4, 5
    bound = truncated_gradient_bound(level, sparsity)
    rng, worst = np.random.default_rng(0), 0.0
    models = [np.ones(sparsity) / math.sqrt(sparsity)]
    models += [unit_ball(10 * rng.normal(size=sparsity)) for _ in range(5)]
    for model in models:
        steps = []
        for *features, target in itertools.product([-level, 0.0, level], repeat=sparsity + 1):
            a = np.array(features)
            steps.append(rate / size * a * (a @ model - target))
        steps = np.array(steps)
        worst = max(worst, float((steps.max(axis=0) - steps.min(axis=0)).max()))
    assert worst == pytest.approx(2 * bound * rate / size)
    fit = private_hard_thresholding(
        np.ones((5, 6)), np.ones(5), budget(sparsity, learning_rate=rate, rounds=1), seeded(), level=level
    )
    assert fit.peeling.sensitivity == pytest.approx(worst)


@pytest.mark.parametrize("value", [1e300, -1e300, math.inf, -math.inf, math.nan, 0.0])
def test_t08_no_record_moves_a_step_by_more_than_the_sensitivity(value, monkeypatch):
    steps = []
    monkeypatch.setattr(Peeling, "release", lambda self, values, noise: steps.append(values) or np.zeros_like(values))
    rng = np.random.default_rng(1)
    features, targets = rng.normal(size=(20, 6)), rng.normal(size=20)
    start = np.array([0.6, 0, 0, -0.8, 0, 0])
    settings = {"level": 1.5, "start": start}
    fit = private_hard_thresholding(features, targets, budget(rounds=1), seeded(), **settings)
    features[3], targets[3] = value, -value
    private_hard_thresholding(features, targets, budget(rounds=1), seeded(), **settings)
    assert 0 < np.abs(steps[0] - steps[1]).max() <= fit.peeling.sensitivity
    assert np.isfinite(steps[1]).all()


def test_t11_folds_are_disjoint_blocks_and_leave_the_remainder_out():
    assert folds(10, 3) == [slice(0, 3), slice(3, 6), slice(6, 9)]
    assert folds(4, 4) == [slice(i, i + 1) for i in range(4)]
    assert [log_rounds(n) for n in (1, 2, 8, 200_000)] == [1, 1, 2, 12]


@pytest.mark.parametrize("changed", [0, 2, 3])
def test_t11_a_record_changes_the_models_after_its_fold_alone(changed):
    features, targets, truth = regression(4000, 20)
    rows = np.random.default_rng(2).standard_t(3, (4000, 20))

    def both():
        first = private_hard_thresholding(features, targets, budget(rounds=4, epsilon=50.0), seeded(3))
        second = private_sparse_optimisation(
            lambda model, fold: model - truth - rows[fold], 4000, 20, budget(rounds=4, epsilon=50.0), seeded(3)
        )
        return first.iterates, second.iterates

    before = both()
    where = changed * 1000 + 17
    features[where], targets[where], rows[where] = 50.0, -50.0, 1e6
    for old, new in zip(before, both(), strict=True):
        np.testing.assert_array_equal(old[: changed + 1], new[: changed + 1])
        assert not np.array_equal(old[changed + 1], new[changed + 1])


def test_t12_iterates_are_sparse_and_in_the_unit_ball():
    features, targets, _ = regression(3000, 30)
    start = np.zeros(30)
    start[4] = -1.0
    fit = private_hard_thresholding(features, targets, budget(epsilon=0.3), seeded(), start=start)
    np.testing.assert_array_equal(fit.iterates[0], start)
    assert fit.iterates.shape == (log_rounds(3000) + 1, 30)
    assert (np.count_nonzero(fit.iterates, axis=1) <= 2).all()
    assert (np.linalg.norm(fit.iterates, axis=1) <= 1 + 1e-12).all()
    assert (np.abs(fit.iterates).sum(axis=1) <= math.sqrt(2) * (1 + 1e-12)).all()


def hard_thresholding(features, targets, sparsity, rate, rounds, level=math.inf):
    """Non-private, on the same folds: the reference."""
    w = np.zeros(features.shape[1])
    for fold in folds(len(features), rounds):
        a, y = np.clip(features[fold], -level, level), np.clip(targets[fold], -level, level)
        w = w - rate * a.T @ (a @ w - y) / len(y)
        w[np.argsort(-np.abs(w))[:-1][sparsity - 1 :]] = 0.0 if sparsity < len(w) else w
        kept = np.argsort(-np.abs(w))[:sparsity]
        w = np.where(np.isin(np.arange(len(w)), kept), w, 0.0)
        w /= max(1.0, np.linalg.norm(w))
    return w


def test_t13_without_noise_it_is_hard_thresholding_which_converges_linearly():
    features, targets, truth = regression(40_000, 50, noise=0.0)
    features = features.astype(np.float64)
    settings = budget(rounds=10, epsilon=1e12)
    for noise in (Silent(), seeded()):
        fit = private_hard_thresholding(features, targets, settings, noise, level=100.0)
        np.testing.assert_allclose(fit.model, hard_thresholding(features, targets, 2, 2 / 3, 10), atol=1e-6)
    gaps = np.linalg.norm(
        private_hard_thresholding(features, targets, settings, Silent(), level=100.0).iterates - truth, axis=1
    )
    assert (gaps[2:9] < 0.6 * gaps[1:8]).all()
    assert gaps[-1] < 1e-3


def test_anchor_the_usable_regime_and_its_baselines():
    """n = 200,000, d = 200, s = 2, standard normal features, noise 0.1: excess risk beside zero and no privacy (T16)."""
    features, targets, truth = regression(200_000)
    zero = 1.0  # ||w*||^2, the excess of w = 0, which is also the start
    found = {}
    for accounting, epsilon in itertools.product(("paper", "tight"), (1.0, 10.0, 100.0)):
        delta = 200_000**-1.1 if epsilon < 10 or accounting == "tight" else 1e-300
        settings = budget(epsilon=epsilon, delta=delta, rounds=12, accounting=accounting)
        if accounting == "paper" and epsilon > 10:
            continue
        level = (200_000 * epsilon / 24) ** 0.25
        runs = [
            private_hard_thresholding(features, targets, settings, seeded(seed), level=level).model for seed in range(3)
        ]
        found[accounting, epsilon] = float(np.mean([((w - truth) ** 2).sum() for w in runs]))
    not_private = private_hard_thresholding(
        features, targets, budget(rounds=12), Silent(), level=(200_000 / 24) ** 0.25
    ).model
    print(found, ((not_private - truth) ** 2).sum())
