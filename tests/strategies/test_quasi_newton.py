"""Descent from gradients alone: it never goes uphill where curvature changes by orders of magnitude, and ends soon."""

import numpy as np
import pytest

from strategies.quasi_newton import BoxDescent


@pytest.mark.parametrize("counts", [[1e6], [1e6, 3.0, 1e-3]])
def test_losses_only_fall_where_curvature_is_learnt_too_late(counts):
    means = np.array(counts)
    descent = BoxDescent(np.zeros(len(means)), np.full(len(means), -500.0), np.full(len(means), 500.0), 1e-9, 0.0)
    losses = []
    while not descent.converged and len(losses) < 60:
        descent.tell(np.exp(descent.point) - means)
        losses.append(float(np.sum(np.exp(descent.best) - means * descent.best)))
    assert descent.converged
    np.testing.assert_allclose(np.exp(descent.best), means, rtol=0, atol=1e-9 * means.max())
    assert np.all(np.diff(losses) <= 1e-9 * abs(losses[-1]))


def test_a_start_that_is_a_minimiser_has_converged():
    descent = BoxDescent(np.zeros(2), np.zeros(2), np.full(2, np.inf), 1e-9, 0.0)
    descent.tell(np.array([1.0, 0.0]))  # the one bound holds what the gradient would lower
    assert descent.converged
    np.testing.assert_array_equal(descent.best, np.zeros(2))
