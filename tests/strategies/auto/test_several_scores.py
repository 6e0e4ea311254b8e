"""Steps across the scores of classes: where they lead without noise, and how far they dare with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.auto.several_scores import FLAT, split, step_of_scores
from userdp.problems import Softmax

K, D = 3, 4


def curved(shares=(0.5, 0.3, 0.2)):
    return split(Softmax(len(shares), 1, 2.0, 1.0).hessian_at(np.array(shares)))


def spread(across, move):
    return (across @ move.reshape(len(across), -1)).ravel()


@given(st.integers(0, 999))
def test_without_noise_steps_end_where_a_quadratic_loss_is_least(seed):
    rng = np.random.default_rng(seed)
    largest, across = curved()
    assert np.linalg.eigvalsh(across)[-1] == pytest.approx(1.0)
    assert 0 < largest <= 0.5
    best = rng.normal(size=(K, D))
    best -= best.mean(axis=0)
    z = np.zeros(K * D)
    for _ in range(100):
        z = z + step_of_scores(across, spread(across, best.ravel() - z), np.zeros(K * D), z)
    np.testing.assert_allclose(z, best.ravel(), atol=1e-9)


def test_nothing_is_added_to_all_classes_alike_and_rare_ones_make_no_leaps():
    rng = np.random.default_rng(1)
    _, across = curved((0.6, 0.399, 0.001))
    descent = rng.normal(size=K * D)
    step = step_of_scores(across, descent, np.zeros(K * D), np.zeros(K * D))
    np.testing.assert_allclose(step.reshape(K, D).sum(axis=0), 0.0, atol=1e-9)
    assert np.linalg.norm(step) <= np.linalg.norm(descent) / FLAT


def test_noise_alone_is_not_followed():
    rng = np.random.default_rng(2)
    _, across = curved()
    noise = rng.normal(size=K * 400)
    loud = step_of_scores(across, noise, np.full(K * 400, 1.21), np.zeros(K * 400))
    np.testing.assert_allclose(loud, 0.0, atol=1e-12)
    back = step_of_scores(across, np.zeros(K * 400), np.full(K * 400, 1e9), noise)
    assert float(back @ noise) < 0  # and what was followed of it is taken back


def test_of_signal_and_noise_the_share_of_the_signal_is_followed():
    """A repeated step ends at the James-Stein estimate of the way, in every direction across scores."""
    rng = np.random.default_rng(3)
    _, across = curved((1 / 3, 1 / 3, 1 / 3))
    whole = spread(across, rng.normal(size=K * 50))
    variance, z = np.full(K * 50, 0.1), np.zeros(K * 50)
    for _ in range(50):
        z = z + step_of_scores(across, whole - spread(across, z), variance, z)
    values, vectors = np.linalg.eigh(across)
    parts, ways = vectors.T @ whole.reshape(K, -1), vectors.T @ z.reshape(K, -1)
    for value, part, way in zip(values[1:], parts[1:], ways[1:], strict=True):
        np.testing.assert_allclose(value * way, (1 - 5.0 / float(part @ part)) * part, rtol=1e-9)
