"""The complementary log-log loss: derivatives, the proven bound on curvature, far scores, and grouped times."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from userdp.arrays.sparse_rows import dense
from userdp.data import Block
from userdp.problems.families import CloglogFamily
from userdp.problems.one_hot import OneHotCloglog

FAMILY = CloglogFamily()
SCORES = np.linspace(-12, 3.3, 20001)


def targets(value: float) -> np.ndarray:
    return np.full(len(SCORES), value)


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_slopes_are_derivatives_of_losses(target):
    ahead, behind = (FAMILY.losses(SCORES + step, targets(target)) for step in (1e-5, -1e-5))
    found = (ahead - behind) / 2e-5
    np.testing.assert_allclose(FAMILY.slopes(SCORES, targets(target)), found, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_curvature_lies_between_zero_and_the_bound_on_a_grid(target):
    ahead, behind = (FAMILY.slopes(SCORES + step, targets(target)) for step in (1e-5, -1e-5))
    found = (ahead - behind) / 2e-5
    assert found.min() > -1e-8
    assert (found <= np.exp(np.abs(SCORES)) * (1 + 1e-6)).all()
    if target == 1:  # the number that the proof bounds by 1 is far smaller
        assert found.max() == pytest.approx(0.4125, abs=2e-4)


@given(st.floats(0, 20), st.floats(-1, 1), st.sampled_from([0.0, 0.5, 1.0]))
def test_no_slope_within_reach_exceeds_the_bound(reach, part, target):
    slope = FAMILY.slopes(np.array([part * reach]), np.array([target]))
    assert abs(float(slope[0])) <= FAMILY.slope_bound(reach)


def test_curvatures_are_the_means_over_targets_of_these_hazards():
    hazard = FAMILY.predictions(SCORES)["probability"]
    steps = [[FAMILY.slopes(SCORES + step, targets(y)) for step in (1e-5, -1e-5)] for y in (0.0, 1.0)]
    none, event = ((ahead - behind) / 2e-5 for ahead, behind in steps)
    np.testing.assert_allclose(FAMILY.curvatures(SCORES), (1 - hazard) * none + hazard * event, rtol=1e-4, atol=1e-8)
    mean_slope = (1 - hazard) * FAMILY.slopes(SCORES, targets(0.0)) + hazard * FAMILY.slopes(SCORES, targets(1.0))
    np.testing.assert_allclose(mean_slope, 0, atol=1e-9)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_far_scores_have_the_limits(kind):
    far, one = np.array([-80.0, 80.0], dtype=kind), np.ones(2, dtype=kind)
    np.testing.assert_allclose(FAMILY.losses(far, one), [80.0, 0.0])
    np.testing.assert_allclose(FAMILY.slopes(far, one), [-1.0, 0.0])
    np.testing.assert_allclose(FAMILY.losses(far, 0 * one), [math.exp(-80), math.exp(80)], rtol=1e-5)
    assert FAMILY.slopes(far, one).dtype == kind
    with np.errstate(over="ignore", invalid="ignore"):  # as whatever asks for losses does
        assert FAMILY.losses(np.array([800.0]), np.ones(1)) == 0


def test_a_ratio_of_hazards_in_continuous_time_is_a_difference_of_scores():
    """Exponential times of rates r and 2 r, cut into periods: the log-log scores differ by log 2 in every period."""
    for rate, width in ((0.1, 1.0), (0.7, 2.0)):
        one, two = (FAMILY.score_of(1 - math.exp(-each * width)) for each in (rate, 2 * rate))
        assert two - one == pytest.approx(math.log(2))
    assert FAMILY.score_of(float(FAMILY.predictions(np.array([-1.3]))["probability"][0])) == pytest.approx(-1.3)


@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_a_gradient_of_any_target_errs_by_no_more_than_its_bound_on_rounding(radius):
    """Targets are float32 numbers, and 1 less such a number may be none."""
    problem, values = OneHotCloglog(1, radius), np.array([2.0**-25, 3 * 2.0**-25, 0.1, 0.4999, 0.7], dtype=np.float32)
    block = problem.bound(Block(np.zeros((len(values), 1), np.int32), np.arange(len(values) + 1), values))[0]
    for score in (-radius, 0.0, radius):
        found = dense(problem.user_gradients(np.array([score]), block))[:, 0]
        happens, wanted = math.exp(score), values.astype(np.float64)
        exact = (1 - wanted) * happens - wanted * happens / math.expm1(happens)
        assert np.abs(found - exact).max() <= problem.gradient_rounding
