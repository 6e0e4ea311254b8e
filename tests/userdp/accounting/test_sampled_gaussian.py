"""The price of samples drawn one by one, at user level."""

import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import norm

from userdp.accounting.sampled_gaussian import group_rate, grouped_poisson_epsilon


def hockey_stick(first, second, epsilon):
    return trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), GRID)


GRID = np.linspace(-30, 30, 60_001)


def test_the_rate_of_a_user():
    assert group_rate(0.1, 1) == pytest.approx(0.1)
    assert group_rate(0.1, 3) == pytest.approx(1 - 0.9**3)
    assert group_rate(1.0, 3) == 1.0
    assert group_rate(1e-12, 5) == pytest.approx(5e-12)


def test_the_price_of_a_group_by_integration():
    """One round, 3 samples of rate 0.3: the mixture of Gaussians that the price speaks of."""
    chances = [0.7**3, 3 * 0.3 * 0.49, 3 * 0.09 * 0.7, 0.027]
    mixture = sum(chance * norm.pdf(GRID, count, 2.0) for count, chance in enumerate(chances))
    epsilon = grouped_poisson_epsilon(2.0, 0.3, 3, 1, 1e-2)
    spent = max(hockey_stick(mixture, norm.pdf(GRID, 0, 2.0), epsilon),
                hockey_stick(norm.pdf(GRID, 0, 2.0), mixture, epsilon))  # fmt: skip
    assert spent <= 1e-2
    assert spent == pytest.approx(1e-2, rel=0.02)
