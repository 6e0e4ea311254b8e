"""Private iterative hard thresholding on arrays: sensitivities, folds, invariants, limits and measured errors."""

import itertools
import math

import numpy as np
import pytest
from helpers import Silent

from strategies.baselines.high_dimensional.hard_thresholding import (
    log_rounds,
    truncated_gradient_bound,
    truncation_level,
    truncation_scale,
    unit_ball,
)
from strategies.baselines.high_dimensional.reference.hard_thresholding import (
    SparseBudget,
    folds,
    private_hard_thresholding,
    private_sparse_optimisation,
)
from strategies.baselines.peeling import Peeling
from strategies.baselines.smoothed_truncation import smoothed_truncation_mean
from userdp.errors import BadInput
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
    return features, features @ truth.astype(np.float32) + noise * rng.normal(size=records), truth


# --- Algorithm 3 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [1, 2, 4])
def test_the_sensitivity_of_a_step_holds_and_is_attained_t08(sparsity):
    """Every pattern of signs of one record against every other: the worst step, in a coordinate that is not in use."""
    level, rate, size = 1.7, 0.4, 5
    bound = truncated_gradient_bound(level, sparsity)
    rng, worst = np.random.default_rng(0), 0.0
    models = [np.ones(sparsity) / math.sqrt(sparsity)]
    models += [unit_ball(10 * rng.normal(size=sparsity)) for _ in range(5)]
    for used in models:
        model = np.append(used, 0.0)
        steps = []
        for *features, target in itertools.product([-level, 0.0, level], repeat=sparsity + 2):
            a = np.array(features)
            steps.append(rate / size * a * (a @ model - target))
        steps = np.array(steps)
        worst = max(worst, float((steps.max(axis=0) - steps.min(axis=0)).max()))
    assert worst == pytest.approx(2 * bound * rate / size)
    fit = private_hard_thresholding(
        np.ones((5, 6)), np.ones(5), budget(sparsity, learning_rate=rate, rounds=1), seeded(), level=level
    )
    assert fit.peeling.sensitivity == pytest.approx(worst)


def test_folds_are_disjoint_blocks_and_leave_the_remainder_out_t11():
    assert folds(10, 3) == [slice(0, 3), slice(3, 6), slice(6, 9)]
    assert folds(4, 4) == [slice(i, i + 1) for i in range(4)]
    assert [log_rounds(n) for n in (1, 2, 8, 200_000)] == [1, 1, 2, 12]


@pytest.mark.parametrize("changed", [0, 2, 3])
def test_a_record_changes_the_models_after_its_fold_alone_t11(changed):
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


def reference(features, targets, sparsity, rate, rounds):
    """Hard thresholding without privacy or truncation, on the same folds."""
    w = np.zeros(features.shape[1])
    for fold in folds(len(features), rounds):
        a, y = features[fold], targets[fold]
        w = w - rate * a.T @ (a @ w - y) / len(y)
        w[np.argsort(-np.abs(w))[sparsity:]] = 0.0
        w /= max(1.0, np.linalg.norm(w))
    return w


def test_without_noise_it_is_hard_thresholding_which_converges_linearly_t13():
    features, targets, truth = regression(40_000, 50, noise=0.0)
    features = features.astype(np.float64)
    settings = budget(rounds=10, epsilon=1e12)
    expected = reference(features, targets, 2, 2 / 3, 10)
    for noise in (Silent(), seeded()):
        fit = private_hard_thresholding(features, targets, settings, noise, level=100.0)
        np.testing.assert_allclose(fit.model, expected, atol=1e-6)
    gaps = np.linalg.norm(fit.iterates - truth, axis=1)
    assert (gaps[1:8] < 0.6 * gaps[:7]).all()
    assert gaps[-1] < 1e-3


def test_levels_by_hand():
    assert truncation_level(200_000, 1.0, 2, 12) == pytest.approx((200_000 / 24) ** 0.25)
    assert truncation_level(100, 2.0, 1, 1, fourth_moment=8.0) == pytest.approx(1600**0.25)
    unit = Peeling(6, 1.0, 1.0, 1e-5, "paper")
    m, cap = 5000, 4 * math.sqrt(2) / 3
    noise = cap / m * 2 * math.sqrt(3 * 6 * math.log(1e5)) * math.log(6 * 200 * 4 / 0.1)
    expected = math.sqrt(44 * (1 + 1 / 2.0) / 2 / (math.log(2 * 200 * 4 / 0.1) / m + noise))
    assert truncation_scale(m, 200, 4, unit, 44.0, 2.0, 0.1) == pytest.approx(expected)


# --- Algorithm 5 -----------------------------------------------------------------------------------------------------


def mean_gradients(truth, records, seed):
    """Gradients of ||x - w||^2 for records of entries w* + t(3)."""
    rows = truth + np.random.default_rng(seed).standard_t(3, (records, len(truth)))
    return lambda model, fold: 2 * (model - rows[fold])


def spikes(dimension=200):
    truth = np.zeros(dimension)
    truth[:3] = 2.0
    return truth


def test_without_noise_it_is_thresholding_of_the_robust_mean_t13():
    truth, gradients = spikes(30), mean_gradients(spikes(30), 8000, 1)
    settings = budget(3, epsilon=1e12, learning_rate=1 / 3, rounds=4)
    expected = np.zeros(30)
    for fold in folds(8000, 4):
        expected = expected - smoothed_truncation_mean(gradients(expected, fold), 30.0, 1.0) / 3
        expected[np.argsort(-np.abs(expected))[3:]] = 0.0
    for noise in (Silent(), seeded()):
        fit = private_sparse_optimisation(gradients, 8000, 30, settings, noise, scale=30.0)
        np.testing.assert_allclose(fit.model, expected, atol=1e-6)
    assert ((fit.model - truth) ** 2).sum() < 0.05


REGRESSION = {"features": np.ones((10, 3)), "targets": np.ones(10), "budget": budget(rounds=2), "noise": seeded()}
GRADIENTS = {"gradients": lambda model, fold: np.zeros((5, 4)), "records": 10, "dimension": 4, "noise": seeded()}
REFUSED = [
    *[
        (private_hard_thresholding, REGRESSION | changes, message)
        for changes, message in (
            ({"targets": np.zeros(9)}, r"targets must be \(10,\)"),
            ({"features": np.zeros(10)}, "features must be"),
            ({"level": -1.0}, "level = -1.0"),
            ({"level": math.nan}, "level = nan"),
            ({"start": np.ones(3)}, "start has 3 entries that are not zero: at most 2"),
            ({"start": np.array([0.0, 1.1, 0.0])}, "start has l2 norm 1.1"),
            ({"start": np.array([0.0, math.nan, 0.0])}, "start must be 3 finite numbers"),
            ({"start": np.zeros(2)}, "start must be 3 finite numbers"),
            ({"budget": budget(rounds=11)}, "rounds = 11"),
            ({"budget": budget(rounds=0)}, "rounds = 0"),
            ({"budget": budget(sparsity=4, rounds=1)}, "at least 4 entries"),
        )
    ],
    *[
        (private_sparse_optimisation, GRADIENTS | {"budget": budget(rounds=2)} | changes, message)
        for changes, message in (
            ({"gradients": lambda model, fold: np.zeros((3, 4))}, r"gradients must be \(5, 4\)"),
            ({"scale": 0.0}, "sensitivity = 0.0"),
            ({"inverse_variance": -1.0, "scale": 1.0}, "inverse_variance = -1.0"),
            ({"start": np.ones(4)}, "start has 4 entries"),
        )
    ],
    *[(budget, {"learning_rate": rate}, f"learning_rate = {rate}") for rate in (0.0, -1.0, math.nan, math.inf)],
]


@pytest.mark.parametrize(("make", "settings", "message"), REFUSED)
def test_what_does_not_fit_is_refused(make, settings, message):
    with pytest.raises(BadInput, match=message):
        make(**settings)
