"""The settings `trim` and `width`: what they refuse, and sensitivities that follow them, by brute force."""

import numpy as np
import pytest
from helpers import Wild, make
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import LocalizedRobustSGD, RobustRounds
from strategies.robust.passing import AgreementOptions
from userdp.errors import BadInput, PopulationTooSmall
from userdp.problems import Linear, Quadratic

RADIUS = 0.5
SHAPES = [
    AgreementOptions(estimate=estimate, trim=trim, width=width)
    for estimate in ("winsorized", "debiased")
    for trim in (None, 0.34, 0.4, 0.45)
    for width in (None, 0.25, 1.0, 2.0, 5.0)
] + [AgreementOptions(estimate="debiased", statistic="median", width=width) for width in (None, 0.25, 3.0)]
numbers = st.one_of(st.floats(-1.0, 1.0), st.sampled_from([-1e300, -5.0, 5.0, 1e300]))


@pytest.mark.sweep(8)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.model_dump(exclude_unset=True)))
@settings(max_examples=60)
@given(st.data())
def test_replacing_a_user_of_an_aligned_batch_moves_the_estimate_by_at_most_the_sensitivity(shape, data):
    """Two thirds of the users lie within a radius of zero, the others and the replaced one anywhere."""
    batch = data.draw(st.integers(shape.minimum_batch, 40))
    outside = batch // 3
    rows = np.array(data.draw(st.lists(numbers, min_size=batch, max_size=batch)))
    rows[outside:] = np.clip(rows[outside:], -RADIUS, RADIUS)
    other = rows.copy()
    other[data.draw(st.integers(0, batch - 1))] = data.draw(numbers)
    estimator = shape.estimator(batch, RADIUS)
    moved = float(np.abs(estimator(rows[:, None]) - estimator(other[:, None])).max())
    assert moved <= estimator.sup_sensitivity(batch) * (1 + estimator.rounding(batch)) + 1e-12


@pytest.mark.parametrize(("trim", "kept"), [(None, 32), (0.34, 32), (0.4, 20), (0.45, 10)])
def test_a_share_trims_that_many_users_and_the_sensitivity_is_for_those_kept(trim, kept):
    estimator = AgreementOptions(estimate="debiased", trim=trim).estimator(100, RADIUS)
    rows = np.full((100, 1), RADIUS)
    rows[: (100 - kept) // 2] = -RADIUS
    rows[:33] = -9.0
    moved = rows.copy()
    moved[-1] = -9.0
    centre = AgreementOptions(estimate="debiased", trim=trim, width=1e-6).estimator(100, RADIUS)
    step = float(np.abs(centre(rows) - centre(moved)).max())
    assert step == pytest.approx(2 * RADIUS / kept, rel=1e-3)  # attained
    assert estimator.sup_sensitivity(100) == pytest.approx(2 * RADIUS / kept + 2 * RADIUS)


@pytest.mark.parametrize(("width", "movers"), [(1.0, 60), (2.0, 20), (4.0, 20)])
def test_the_width_is_a_number_of_radii(width, movers):
    """Only the users outside the ball, a third of all, move with the centre if the width is two radii or more."""
    estimator = AgreementOptions(width=width).estimator(60, RADIUS)
    assert estimator.clip_width == width * RADIUS
    assert estimator.sup_sensitivity(60) == pytest.approx((movers * 2 / 18 + 2 * width) / 60 * RADIUS)


@pytest.mark.parametrize("trim", [0.34, 0.4, 0.45, 0.499])
def test_from_the_smallest_batch_on_somebody_is_left(trim):
    shape = AgreementOptions(trim=trim)
    for batch in range(shape.minimum_batch, shape.minimum_batch + 50):
        shape.estimator(batch, RADIUS).check(batch)


# --- In the strategies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"trim": 0.3}, r"strategy\.trim = 0\.3: must lie above 1/3"),
        ({"trim": 1 / 3}, r"strategy\.trim = 0\.333333: must lie above 1/3"),
        ({"trim": 0.5}, r"strategy\.trim = 0\.5: .* below 1/2"),
        ({"trim": float("nan")}, r"strategy\.trim = nan"),
        ({"trim": 0.4, "statistic": "median", "estimate": "debiased"}, r"strategy\.trim = 0\.4: the median"),
        ({"statistic": "median"}, r"strategy\.statistic = 'median': the winsorised estimate is proven for"),
        ({"width": 0.0}, r"strategy\.width = 0: must be a positive number of radii"),
        ({"width": -1.0}, r"strategy\.width = -1"),
        ({"width": float("inf")}, r"strategy\.width = inf"),
        ({"width": float("nan")}, r"strategy\.width = nan"),
    ],
)
@pytest.mark.parametrize("strategy", [RobustRounds, LocalizedRobustSGD])
def test_settings_without_a_proof_are_refused(strategy, options, told):
    with pytest.raises(BadInput, match=told):
        make(strategy, Linear(2, 1.0), 20_000, 4.0, **options)


@pytest.mark.parametrize("options", [{}, {"trim": 0.45}, {"width": 1.0}, {"trim": 0.4, "width": 4.0}])
def test_noise_follows_the_settings(options):
    """Both strategies release with the sensitivity of the estimator that they use."""
    shape = AgreementOptions(**options)
    rounds = make(RobustRounds, Wild(3), 4000, 8.0, 1e-5, rounds=2, radius=RADIUS, **options)
    batch = rounds.scheme.sampler.batch
    assert rounds.scheme.agreement.estimator == shape.estimator(batch, RADIUS)
    sensitivity = 3**0.5 * shape.estimator(batch, RADIUS).sup_sensitivity(batch)
    assert rounds.scheme.mechanism.l2_sensitivity == pytest.approx(sensitivity)
    problem = Quadratic(3, 1.0, 1.0)
    phases = make(LocalizedRobustSGD, problem, 4000, 8.0, 1e-5, batch=500, phases=1, radius=RADIUS, **options)
    (phase,) = phases.scheme.phases
    assert phase.gradient == shape.estimator(500, RADIUS)
    unit = shape.estimator(500, RADIUS).sup_sensitivity(500)
    assert phase.mechanism.l2_sensitivity == pytest.approx(3**0.5 * phase.learning_rate * unit)
    assert phase.test.movement == pytest.approx(2 * phase.learning_rate * unit)


def test_a_batch_of_which_the_trim_leaves_nobody_is_refused():
    """At 49.9% only batches of a thousand users keep some."""
    with pytest.raises(PopulationTooSmall, match="cohorts of 500 users; a cohort that passes its test takes 1000"):
        make(RobustRounds, Wild(1), 500, 20.0, 1e-3, rounds=1, radius=1.0, trim=0.499)
    assert make(RobustRounds, Wild(1), 1000, 20.0, 1e-3, rounds=1, radius=1.0, trim=0.499).plan.guarantee.holds
    with pytest.raises(PopulationTooSmall, match=r"strategy\.batch = 500"):
        make(LocalizedRobustSGD, Linear(1, 1.0), 4000, 20.0, 1e-3, batch=500, trim=0.499)
