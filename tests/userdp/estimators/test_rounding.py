"""The rounding of robust means: against exact arithmetic, on rows of any size, and on neighbours at the edges."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wild_rows import wild

from userdp.estimators import (
    Debiased,
    ExpKernel,
    RampKernel,
    Winsorized,
    concentration_score,
    replacement_bound,
    robust,
)

ESTIMATORS = {
    "winsorised": Winsorized,
    "debiased median": lambda radius: Debiased("median", radius),
    "debiased trimmed mean": lambda radius: Debiased("trimmed_mean", radius),
}
SEEDS = st.integers(0, 2**32 - 1)
RADII = st.sampled_from([1.0, 0.1, 3e-200, 7e200])


def exact_estimate(estimator, values):
    """The estimate of one coordinate, in fractions, with rows clipped to the estimator's reach."""
    reach, width = Fraction(robust.REACH * estimator.radius), Fraction(estimator.clip_width)
    ordered = sorted(min(max(Fraction(value), -reach), reach) for value in values.tolist())
    kept = ordered[(trim := estimator._trim(len(ordered))) : len(ordered) - trim]
    low, high = (sum(kept) / len(kept) + side * width for side in (-1, 1))
    if isinstance(estimator, Debiased):
        return min(max(sum(ordered) / len(ordered), low), high)
    return sum(min(max(value, low), high) for value in ordered) / len(ordered)


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=60)
@given(seed=SEEDS, batch=st.sampled_from([7, 8, 30, 101]), radius=RADII)
def test_a_computed_estimate_errs_by_less_than_half_of_what_is_stated(name, seed, batch, radius):
    estimator = ESTIMATORS[name](radius)
    values = wild(np.random.default_rng(seed), batch, radius)
    error = abs(Fraction(float(estimator(values[:, None])[0])) - exact_estimate(estimator, values))
    assert 2 * error <= Fraction(estimator.rounding(batch)) * Fraction(estimator.sup_sensitivity(batch))


@settings(max_examples=100)
@given(seed=SEEDS, batch=st.sampled_from([7, 30, 101]), radius=RADII)
def test_neighbours_of_whom_one_is_aligned_move_no_further_than_stated_to_the_last_bit(seed, batch, radius):
    """Two thirds stand in one ball, at both of its ends, wherever it lies; one of them goes anywhere."""
    rng = np.random.default_rng(seed)
    place = radius * rng.choice([0.0, 1.0, 1e3, 2.0**20 - 1, -1e6, 1e12])
    rows = place + radius * rng.choice([-1.0, 1.0, 0.25, np.nextafter(1.0, 0)], (batch, 1))
    rows = np.clip(rows, place - radius, place + radius)
    rows[: batch // 3] = wild(rng, (batch // 3, 1), radius)
    other = rows.copy()
    other[-1] = wild(rng, 1, radius)
    for make in ESTIMATORS.values():
        estimator = make(radius)
        moved = abs(Fraction(float(estimator(rows)[0])) - Fraction(float(estimator(other)[0])))
        # The ball's ends are floats: at a far place they are as far apart as floats are there.
        width = max(1, Fraction(float(np.ptp(rows[batch // 3 :]))) / 2 / Fraction(radius))
        assert moved <= width * Fraction(estimator.sup_sensitivity(batch)) * (1 + Fraction(estimator.rounding(batch)))


@pytest.mark.parametrize("estimator", [Winsorized(1.0), Debiased("median", 2.0)])
def test_rounding_is_small_grows_with_the_batch_and_does_not_depend_on_the_unit(estimator):
    found = [estimator.rounding(batch) for batch in (30, 100, 1000)]
    assert found == sorted(found)
    assert found[-1] < 1e-4
    scaled = Winsorized(1e-100) if isinstance(estimator, Winsorized) else None
    if scaled is not None:
        assert scaled.rounding(30) == pytest.approx(found[0])


@settings(max_examples=100)
@given(seed=SEEDS, batch=st.sampled_from([2, 7, 30, 101]), radius=RADII)
def test_computed_scores_of_neighbours_differ_by_at_most_the_sensitivity_and_their_last_bit(seed, batch, radius):
    rng = np.random.default_rng(seed)
    rows = wild(rng, (batch, 2), radius)
    other = rows.copy()
    other[-1] = wild(rng, 2, radius)
    for kernel in (RampKernel(radius), ExpKernel(radius)):
        moved = abs(Fraction(concentration_score(rows, kernel)) - Fraction(concentration_score(other, kernel)))
        assert moved <= Fraction(replacement_bound(batch)) * (1 + batch * Fraction(2) ** -52)


@pytest.mark.parametrize("batch", [7, 8, 11, 30, 1001])
@pytest.mark.parametrize(
    "estimator",
    [Debiased("median", 0.5), Debiased("trimmed_mean", 0.5, 2.0), Winsorized(3.0), Winsorized(3.0, 1.0)],
    ids=str,
)
def test_rounding_is_charged_by_the_formula_of_its_proof_for_each_of_two_neighbours(estimator, batch):
    kept = 2 - batch % 2 if getattr(estimator, "statistic", "") == "median" else batch - 2 * (batch // 3 + 1)
    farthest = 2.0**20 * estimator.radius
    error = 2.0**-53 * (1 + 2.0**-19) * ((batch + kept + 1) * farthest + estimator.clip_width)
    assert estimator.error(batch) >= error * (1 - 1e-12)
    assert estimator.rounding(batch) >= 2 * error / estimator.sup_sensitivity(batch) * (1 - 1e-12)


@pytest.mark.parametrize("batch", [2, 7, 100])
def test_the_largest_score_of_users_who_do_not_agree_has_room_for_the_grid_of_phi(batch):
    room = ExpKernel(1.0).unaligned_bound(batch) - batch * (2 + math.exp(-1)) / 3
    assert room >= batch * 2.0**-31 / 3
    for radius in (0.1, 1.0, 3.0, 1e6):
        kernel = ExpKernel(radius)
        assert kernel.unaligned_bound(batch) >= batch * (2 + kernel.values(np.array([radius]))[0]) / 3
