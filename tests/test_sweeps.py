"""The arithmetic of sweeps: slopes with their standard errors."""

import numpy as np
import pytest


@pytest.fixture
def slopes(module_of):
    return module_of("sweeps.slopes")


def test_a_power_is_its_own_slope(slopes):
    at = np.array([1.0, 10.0, 100.0, 1000.0])
    assert slopes.slope(at, 3 * at**-0.75) == pytest.approx((-0.75, 0), abs=1e-7)
    assert slopes.slope_of_runs(at, np.outer(3 * at**1.5, np.ones(5))) == pytest.approx((1.5, 0), abs=1e-7)


def test_the_standard_error_over_seeds_is_how_far_slopes_scatter(slopes):
    at, rng = np.array([1.0, 3.0, 9.0]), np.random.default_rng(3)
    found = np.array([slopes.slope_of_runs(at, rng.exponential(at[:, None], (3, 30))) for _ in range(300)])
    scatter = found[:, 0].std()
    assert found[:, 1].mean() == pytest.approx(scatter, rel=0.15)  # a variance of 300 is known to about 8 %
