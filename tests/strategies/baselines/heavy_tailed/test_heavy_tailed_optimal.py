"""Private optimisation with heavy-tailed data (Zhao, Wu, Liu, Wang, Fan, Li): its properties V1 to V21, by number."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from strategies.baselines.composition import advanced_composition, step_budget, zcdp_to_epsilon_simple
from strategies.baselines.heavy_tailed import depth
from strategies.baselines.heavy_tailed.depth import geometric_median, needed, order_statistic, reach
from strategies.baselines.heavy_tailed.estimators import (
    CONTRACTION,
    arrived,
    deep_centre,
    group_radius,
    simple_radius,
)
from strategies.baselines.heavy_tailed.options import wanted_rounds
from strategies.baselines.heavy_tailed.reference.descent import (
    Descent,
    dp_sco_clip,
    iterative_descent,
    simple_descent,
)
from strategies.baselines.heavy_tailed.reference.estimators import (
    clip_samples,
    group_means,
    iterative_mean,
    random_partition,
    sample_mechanism,
    simple_clip_mean,
)
from strategies.baselines.heavy_tailed.shuffling import (
    amplifies,
    calibrated_group_rho,
    group_rho,
    paper_group_range,
    paper_group_rho,
    shuffled,
    shuffled_guarantee,
)
from userdp.accounting import Cost, delta_of, epsilon_of, rho_for
from userdp.arrays.sparse_rows import clip_rows
from userdp.errors import BadInput

WILD = [0.0, 1.0, -1.0, 0.3, 1e200, -1e300, 5e-324, np.nan, np.inf, -np.inf]
SHARES = [0.5, 0.9]
wild = st.sampled_from(WILD)
quick = settings(max_examples=60)
each_share = pytest.mark.parametrize("share", SHARES)
planes = arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.floats(-5, 5, width=16))


def student(samples, dimension, freedom, rng):
    scale = np.sqrt(rng.chisquare(freedom, samples) / freedom)
    return rng.standard_normal((samples, dimension)) / scale[:, None]


def on_ball(radius):
    return lambda w: w * min(1.0, radius / max(np.linalg.norm(w), 1e-300))


# --- Exact -----------------------------------------------------------------------------------------------------------


@quick
@given(arrays(np.float64, (5, 3), elements=wild | st.floats(-3, 3)), st.sampled_from([0.1, 1.0, 1e3]))
def test_each_record_that_is_finite_is_projected_on_a_ball_and_each_other_becomes_zero_v01(samples, radius):
    finite = np.where(np.isfinite(samples).all(axis=1)[:, None], samples, 0.0)
    np.testing.assert_array_equal(clip_samples(samples, radius), clip_rows(finite, radius))


@quick
@given(arrays(np.float64, (4, 2), elements=wild), arrays(np.float64, (2,), elements=wild), st.integers(0, 3))
def test_replacing_any_record_moves_the_simple_mean_by_at_most_2r_over_n_v02(samples, other, which):
    neighbour = samples.copy()
    neighbour[which] = other
    rng = np.random.default_rng(0)
    means = [simple_clip_mean(data, 0.7, math.inf, rng) for data in (samples, neighbour)]
    assert np.linalg.norm(means[0] - means[1]) <= 2 * 0.7 / 4 * (1 + 1e-12)
    assert sample_mechanism(0.7, 4, 0.5).l2_sensitivity == pytest.approx(2 * 0.7 / 4)


def test_the_bound_is_attained_v02():
    samples = np.zeros((4, 2))
    ends = []
    for record in ([9.0, 9.0], [-9.0, -9.0]):
        samples[1] = record
        ends.append(simple_clip_mean(samples, 0.7, math.inf, np.random.default_rng(0)))
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(2 * 0.7 / 4, rel=1e-12)


@quick
@given(arrays(np.float64, (11, 2), elements=wild), arrays(np.float64, (2,), elements=wild), st.integers(0, 10))
def test_replacing_a_record_moves_at_most_one_group_and_by_at_most_2r_over_m_v03(samples, other, which):
    partition = random_partition(11, 3, np.random.default_rng(2))
    neighbour = samples.copy()
    neighbour[which] = other
    means = [group_means(data, partition, 0.7, math.inf, np.random.default_rng(0)) for data in (samples, neighbour)]
    moved = np.linalg.norm(means[0] - means[1], axis=1)
    assert np.count_nonzero(moved) <= 1
    assert moved.max() <= 2 * 0.7 / 3 * (1 + 1e-12)
    if which not in partition:
        assert not moved.any()


def test_groups_are_disjoint_of_one_size_and_leave_out_random_samples_v03():
    left = np.zeros(11)
    for seed in range(600):
        partition = random_partition(11, 3, np.random.default_rng(seed))
        assert partition.shape == (3, 3)
        assert len(np.unique(partition)) == 9
        left[np.setdiff1d(np.arange(11), partition)] += 1
    assert stats.chisquare(left).pvalue > 1e-4


def test_the_estimators_add_gaussian_noise_of_variance_2r2_over_rho_n2_v04():
    samples = np.arange(24.0).reshape(12, 2) / 24
    for make, divisor in (
        (lambda rho, rng: simple_clip_mean(samples, 1.0, rho, rng), 12),
        (lambda rho, rng: group_means(samples, np.arange(12).reshape(3, 4), 1.0, rho, rng), 4),
    ):
        noise = make(0.3, np.random.default_rng(1)) - make(math.inf, np.random.default_rng(1))
        deviation = math.sqrt(2 / (0.3 * divisor**2))
        mechanism = sample_mechanism(1.0, divisor, 0.3)
        assert mechanism.standard_deviation == pytest.approx(deviation)
        for alpha in (1.5, 2.0, 32.0):  # rho-zCDP: Renyi divergences of a shift by the sensitivity
            assert alpha * mechanism.l2_sensitivity**2 / (2 * deviation**2) == pytest.approx(0.3 * alpha)
        np.testing.assert_allclose(noise, np.random.default_rng(1).normal(scale=deviation, size=noise.shape))


@quick
@given(st.floats(1e-4, 1.0), st.floats(1e-12, 0.5), st.integers(1, 10_000))
def test_conversions_and_the_split_over_steps_stay_within_the_budget_v05(epsilon, delta, steps):
    paper, tight = rho_for(epsilon, delta, "paper"), rho_for(epsilon, delta)
    assert paper <= tight
    assert zcdp_to_epsilon_simple(paper, delta) <= epsilon * (1 + 1e-12)
    assert zcdp_to_epsilon_simple(tight, delta) == pytest.approx(epsilon, rel=1e-9)
    # A second accountant: the exact Gaussian of that rho.
    assert epsilon_of(Cost(noise_multiplier=1 / math.sqrt(2 * tight)), 1, delta) <= epsilon
    each, each_delta = step_budget(epsilon, delta, steps)
    total, total_delta = advanced_composition(each, each_delta, steps, delta / 2)
    assert total <= epsilon
    assert total_delta <= delta * (1 + 1e-12)


@pytest.mark.parametrize("steps", [1, 7, 100])
def test_exact_composition_of_the_steps_is_within_advanced_composition_v05(steps):
    each, each_delta = step_budget(0.8, 1e-5, steps)
    assert delta_of(Cost(pure_epsilon=each, failure_delta=each_delta), steps, 0.8) <= 1e-5


@quick
@given(st.floats(1e-3, 1.0), st.floats(1e-10, 1e-3), st.floats(0, 1))
def test_the_papers_group_rho_stays_within_the_budget_over_its_whole_region_v05(epsilon, delta, where):
    low, high = paper_group_range(epsilon, delta)
    groups = min(math.floor(high), math.ceil(low * (high / low) ** where))
    rho = paper_group_rho(epsilon, delta, groups)
    each = delta / (12 * groups)
    assert zcdp_to_epsilon_simple(rho, each) <= 1
    assert amplifies(zcdp_to_epsilon_simple(rho, each), groups, delta / 2)
    total, total_delta = shuffled_guarantee(rho, delta, groups)
    # What is spent, and how little of it: less than a tenth of epsilon, about seven tenths of delta.
    assert 0 < total <= 0.095 * epsilon
    assert 0.69 * delta <= total_delta <= 0.7501 * delta


@quick
@given(st.floats(0.01, 4.0), st.floats(1e-10, 1e-2), st.floats(2, 7))
def test_the_calibrated_group_rho_spends_the_budget_and_not_more_v05(epsilon, delta, magnitude):
    groups = int(10**magnitude)
    try:
        rho = calibrated_group_rho(epsilon, delta, groups)
    except BadInput:
        assert not amplifies(0.0, groups, 0.98 * delta)
        return
    totals, at_its_limit = [], False
    for share in (0.1, 0.5, 0.9, 0.99):
        each = (1 - share) * delta / ((math.exp(epsilon) + 1) * 1.5 * groups)
        randomiser = zcdp_to_epsilon_simple(rho, each)
        totals.append(shuffled(randomiser, each, groups, share * delta))
        at_its_limit |= not amplifies(randomiser * (1 + 1e-6), groups, share * delta)
    within = [total for total, spent in totals if total <= epsilon * (1 + 1e-9) and spent <= delta * (1 + 1e-9)]
    assert within
    assert max(within) >= 0.999 * epsilon or at_its_limit
    assert rho <= calibrated_group_rho(epsilon, delta, groups, "exact")
    assert calibrated_group_rho(epsilon, delta, 2 * groups) >= rho * (1 - 1e-9)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("epsilon", "groups"), [(0.2, 500), (0.5, 2000), (1.0, 2000), (2.0, 6000)])
@pytest.mark.parametrize("slack", [1e-3, 1e-6])
def test_a_second_accountant_finds_shuffled_randomisers_at_least_as_private_v05(epsilon, groups, slack):
    """Hiding among clones, summed exactly: the number of clones, and how many of them look like either input.

    Each of the other k - 1 randomisers is a clone of the two inputs with chance e^-epsilon, of either one with equal
    chance (Feldman, McMillan, Talwar 2021); the closed form is an upper bound of this.
    """
    assert amplifies(epsilon, groups, slack)
    total, _ = shuffled(epsilon, 0.0, groups, slack)
    right = 1 / (1 + math.exp(-epsilon))
    clones = np.arange(groups)
    chances = stats.binom.pmf(clones, groups - 1, math.exp(-epsilon))
    spent = 0.0
    for count, chance in zip(clones[chances > 1e-18], chances[chances > 1e-18], strict=True):
        ahead = np.concatenate([[0.0], stats.binom.pmf(np.arange(count + 1), count, 0.5)])
        behind = np.append(ahead[1:], 0.0)
        first, second = right * ahead + (1 - right) * behind, (1 - right) * ahead + right * behind
        spent += chance * np.maximum(0.0, first - math.exp(total) * second).sum()
    assert spent <= slack


def test_the_paper_gains_from_about_1e5_groups_only_where_they_are_allowed_v05():
    def gains(groups, delta, epsilon=0.1):
        return paper_group_rho(epsilon, delta, groups) > rho_for(epsilon, delta, "paper")

    assert not gains(95_000, 1e-5)
    assert gains(97_500, 1e-5)
    assert not gains(103_000, 1e-6)
    assert gains(105_000, 1e-6)
    assert paper_group_range(1.0, 1e-5)[1] == pytest.approx(4.5e4, rel=0.01)
    # Over 100 steps of a run with epsilon = 1, against rho_15 / 100.
    each = step_budget(1.0, 1e-5, 100)
    bars = [paper_group_rho(*each, int(k)) / (rho_for(1.0, 1e-5, "paper") / 100) for k in (1.7e7, 1.9e7)]
    assert bars[0] < 1 < bars[1]


@pytest.mark.parametrize(
    ("epsilon", "groups", "ratio"), [(1, 1e3, 1.3), (1, 3e3, 3.5), (1, 1e4, 6.2), (0.1, 1e3, 2.3), (0.1, 1e4, 15)]
)
def test_golden_ratio_of_the_calibrated_group_rho_to_no_amplification_v05(epsilon, groups, ratio):
    found = calibrated_group_rho(epsilon, 1e-5, int(groups)) / rho_for(epsilon, 1e-5)
    assert found == pytest.approx(ratio, rel=0.035)


def test_group_rhos_grow_with_groups_and_epsilon_and_auto_takes_the_largest_v05():
    assert paper_group_rho(0.2, 1e-5, 4000) > paper_group_rho(0.2, 1e-5, 2000)
    assert paper_group_rho(0.4, 1e-5, 2000) == pytest.approx(4 * paper_group_rho(0.2, 1e-5, 2000))
    assert group_rho(1.0, 1e-5, 20) == rho_for(1.0, 1e-5) == group_rho(1.0, 1e-5, 20, "parallel")
    assert group_rho(1.0, 1e-5, 20, "parallel", "paper") == rho_for(1.0, 1e-5, "paper")
    assert group_rho(1.0, 1e-5, 20, form="exact") > rho_for(1.0, 1e-5)
    assert group_rho(1.0, 1e-5, 5000) == group_rho(1.0, 1e-5, 5000, "calibrated_shuffle") > rho_for(1.0, 1e-5)
    assert group_rho(0.5, 1e-5, 5000, "paper_shuffle") == paper_group_rho(0.5, 1e-5, 5000)


def test_outside_its_proviso_shuffling_amplifies_nothing_v05():
    """The amplification theorem says nothing of randomisers that weak, nor of so few of them."""
    groups, slack = 2000, 5e-6
    limit = math.log(groups / (16 * math.log(4 / slack)))
    assert shuffled(limit * (1 + 1e-9), 1e-12, groups, slack) == (limit * (1 + 1e-9), 1e-12)
    assert shuffled(limit * (1 - 1e-9), 1e-12, groups, slack)[0] < limit
    assert shuffled(0.1, 1e-12, 100, slack) == (0.1, 1e-12)


@each_share
@pytest.mark.parametrize("dimension", [1, 2, 4])
@pytest.mark.parametrize("groups", [1, 20])
def test_one_common_point_is_approached_by_a_quarter_each_step_v06(share, dimension, groups):
    point, start = np.arange(1.0, dimension + 1), np.full(dimension, -2.0)
    distance = np.linalg.norm(point - start)
    centre = deep_centre(np.tile(point, (groups, 1)), share, 12, start)
    np.testing.assert_allclose(centre.distances, distance * 0.75 ** np.arange(13), rtol=1e-9)
    np.testing.assert_allclose(centre.point, point + 0.75**12 * (start - point), rtol=1e-9, atol=1e-12)


@pytest.mark.sweep(1)
@each_share
@given(points=planes)
@quick
def test_on_a_line_the_reach_is_that_of_brute_force_and_in_the_plane_of_a_fine_grid_v07(share, points):
    line = np.sort(points[:, 0])
    first, last = line[needed(len(line), share) - 1], line[-needed(len(line), share)]
    assert reach(points[:, :1], share, np.random.default_rng(0)).distance == pytest.approx(max(last, -first), abs=1e-12)
    found = reach(points, share, np.random.default_rng(0))
    angles = np.linspace(0, 2 * math.pi, 7200, endpoint=False)
    rank = needed(len(points), share)
    brute = order_statistic(points, np.column_stack([np.cos(angles), np.sin(angles)]), rank).max()
    largest = np.linalg.norm(points, axis=1).max(initial=0)
    assert brute - 1e-9 <= found.distance <= brute + largest * math.pi / 7200 + 1e-9
    check_feasible(points, found, rank)


def check_feasible(points, found, rank):
    assert np.linalg.norm(found.direction) == pytest.approx(1)
    slack = 1e-9 * (1 + np.abs(points).max())
    assert np.count_nonzero(points @ found.direction >= found.distance - slack) >= rank


@each_share
def test_the_ascent_in_the_plane_never_exceeds_the_exact_reach_and_comes_within_a_thousandth_v07(share):
    """The default starts suffice if the exact reach is positive; else the result is lower, which ends the iteration."""
    rng = np.random.default_rng(3)
    positive = 0
    for _ in range(40):
        points = rng.standard_t(3, (int(rng.integers(5, 100)), 2)) + rng.standard_normal(2) * rng.choice([0.3, 1, 3])
        rank = needed(len(points), share)
        exact = depth._plane(points, rank).distance
        ascent = depth._ascents(points, rank, rng, 8, None)
        check_feasible(points, ascent, rank)
        assert ascent.distance <= exact + 1e-12
        if exact > 0:
            positive += 1
            assert ascent.distance >= exact * (1 - 1e-3)
    assert positive >= 10


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_iterates_that_may_all_be_far_are_never_taken_for_one_that_arrived(ratio):
    """The slowest that is proven, with distances off by up to r_0: early ones too small, the last ones too large."""
    settled, far = 1.0, 100.0 * CONTRACTION ** np.arange(200)
    far = far[far > 4 * settled]
    off = np.concatenate([np.full(len(far) - 1, -ratio), [ratio]])
    measured = far + off * settled
    assert not any(arrived(measured[:count]) for count in range(1, len(measured) + 1))
    # One more, as large as the first, cannot be.
    assert arrived([*measured, measured[0]])


@each_share
def test_the_centre_moves_turns_and_scales_with_the_points_v10(share):
    rng = np.random.default_rng(7)
    points, start, shift = rng.standard_t(3, (25, 2)), np.array([4.0, -3.0]), np.array([10.0, 20.0])
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    plain = deep_centre(points, share, 30, start).point
    np.testing.assert_allclose(deep_centre(points + shift, share, 30, start + shift).point, plain + shift, atol=1e-6)
    np.testing.assert_allclose(deep_centre(points @ turn.T, share, 30, turn @ start).point, turn @ plain, atol=1e-6)
    np.testing.assert_allclose(deep_centre(7 * points, share, 30, 7 * start).point, 7 * plain, atol=1e-5)
    np.testing.assert_allclose(deep_centre(points[::-1], share, 30, start).point, plain, atol=1e-6)


def test_the_estimators_scale_with_the_samples_and_repeat_with_the_seed_v10():
    samples = np.random.default_rng(0).standard_t(3, (200, 2))

    def simple(data, radius, seed=4):
        return simple_clip_mean(data, radius, 0.1, np.random.default_rng(seed))

    def iterative(data, radius, seed=4):
        return iterative_mean(data, radius, 10, 0.1, np.random.default_rng(seed))

    for estimate in (simple, iterative):
        np.testing.assert_allclose(estimate(3 * samples, 6.0), 3 * estimate(samples, 2.0), rtol=1e-6)
        np.testing.assert_array_equal(estimate(samples, 2.0), estimate(samples, 2.0))
        assert not np.array_equal(estimate(samples, 2.0), estimate(samples, 2.0, seed=5))
    assert simple_radius(500, 3, 2.5, 0.01, moment=3.0) == pytest.approx(3 * simple_radius(500, 3, 2.5, 0.01))
    noiseless = simple_clip_mean(samples[::-1], 2.0, math.inf, np.random.default_rng(0))
    np.testing.assert_allclose(noiseless, simple_clip_mean(samples, 2.0, math.inf, np.random.default_rng(0)))


@pytest.mark.parametrize("samples", [50, 2000, 30_000])
def test_the_numbers_of_a_descent_v11(samples):
    d, shape = 5, {"smoothness": 2.0, "diameter": 3.0, "moment": 1.5}
    plan = simple_descent(samples, d, 4.0, 0.9, 1e-5, **shape)
    rho = rho_for(0.9, 1e-5, "paper")
    assert isinstance(plan.rounds, int)
    assert plan.rounds == max(1, math.ceil(plan.wanted_rounds))
    assert plan.step_size == pytest.approx(1 / (2.0 * math.sqrt(2 * plan.rounds)))
    assert plan.rho * plan.rounds == pytest.approx(rho)
    assert plan.clip_norm == pytest.approx(simple_radius(samples, d, 4.0, rho, 1.5))
    power = d * sample_mechanism(plan.clip_norm, samples, plan.rho).standard_deviation ** 2
    assert power == pytest.approx(2 * 36 * plan.rounds / plan.wanted_rounds)
    printed = simple_descent(samples, d, 4.0, 0.9, 1e-5, **shape, paper_units=True)
    power = d * sample_mechanism(printed.clip_norm, samples, printed.rho).standard_deviation ** 2
    assert power == pytest.approx(2 * printed.rounds / printed.wanted_rounds)
    assert simple_descent(samples, d, 4.0, 0.9, 1e-5, **shape, max_rounds=3).rounds <= 3


def test_the_numbers_of_the_iterative_descent_v11():
    shape = {"groups": 20, "smoothness": 2.0, "diameter": 3.0, "moment": 1.5}
    n, d = 20_000, 5
    plan = iterative_descent(n, d, 3.0, 0.9, 1e-5, **shape)
    rho = rho_for(0.9, 1e-5, "paper")
    assert plan.rho * plan.rounds == pytest.approx(rho)
    assert plan.wanted_rounds == pytest.approx(rho * (n * 6 / plan.clip_norm) ** 2 / d / 20)
    # The noise of the mean of all groups has the same power as that of the simple mean.
    power = d * sample_mechanism(plan.clip_norm, n / 20, plan.rho).standard_deviation ** 2 / 20
    assert power == pytest.approx(2 * 36 * plan.rounds / plan.wanted_rounds)
    shape = {"groups": 2000, "smoothness": 2.0, "diameter": 1.0, "accounting": "paper_shuffle"}
    paper = iterative_descent(n, d, 3.0, 0.9, 1e-5, **shape, paper_units=True, max_rounds=50)
    assert paper.rho == paper_group_rho(*step_budget(0.9, 1e-5, paper.rounds), 2000)
    assert paper.wanted_rounds == pytest.approx((n * 0.9 / math.sqrt(d)) ** (2 - 2 / 3) / d)


def test_without_noise_and_clip_it_is_averaged_gradient_descent_v12():
    rng = np.random.default_rng(2)
    data = student(300, 3, 5.0, rng) + np.array([0.3, 0.0, 0.0])
    mean, rounds = data.mean(axis=0), 25
    step = 1 / math.sqrt(2 * rounds)
    plan = Descent(math.inf, rounds, rounds, step, math.inf)
    found = dp_sco_clip(lambda w: w - data, on_ball(1.0), np.zeros(3), plan, rng)
    w, total = np.zeros(3), np.zeros(3)
    for _ in range(rounds):
        total += w
        w = on_ball(1.0)(w - step * (w - mean))
    np.testing.assert_allclose(found, total / rounds, atol=1e-12)
    best = on_ball(1.0)(mean)
    risk = 0.5 * (np.sum((found - mean) ** 2) - np.sum((best - mean) ** 2))
    assert risk <= 2.0**2 * math.sqrt(2 / rounds)


def test_the_radius_switches_branch_exactly_where_rho_is_one_over_d_v13():
    n, d, p = 10_000, 8, 3.0
    first = [math.sqrt(d) * (n * math.sqrt(rho / d)) ** (1 / p) for rho in (0.5 / d, 1 / d, 2 / d)]
    second = math.sqrt(d) * (n / d) ** (1 / p)
    found = [simple_radius(n, d, p, rho) for rho in (0.5 / d, 1 / d, 2 / d)]
    np.testing.assert_allclose(found, [first[0], second, second])
    assert first[1] == pytest.approx(second)
    assert simple_radius(n, d, p, 0.001, form="directional") == pytest.approx(
        d ** (1 / 2 - 1 / 3) * (n * math.sqrt(0.001)) ** (1 / 3)
    )


def test_closed_form_of_rounds_limits_and_growth_v13():
    n, d, epsilon = 50_000, 6, 0.7
    for p in (2.0, 3.5):
        radius = group_radius(n, d, p, epsilon**2)
        assert radius == pytest.approx(math.sqrt(d) * (n * epsilon / math.sqrt(d)) ** (1 / p))
        rounds = wanted_rounds(n, d, epsilon**2, radius)
        assert rounds == pytest.approx((n * epsilon / math.sqrt(d)) ** (2 - 2 / p) / d)
    assert simple_radius(n, d, math.inf, 0.01) == pytest.approx(math.sqrt(d))
    assert group_radius(n, d, math.inf, 0.01) == pytest.approx(math.sqrt(d))
    for make in (simple_radius, group_radius):
        assert make(n, d, 3.0, 0.01) < make(2 * n, d, 3.0, 0.01)
        assert make(n, d, 3.0, 0.01) < make(n, d, 3.0, 0.02)
        assert make(n, d, 4.0, 0.01) < make(n, d, 3.0, 0.01)
    for rho in (0.01, 0.05):
        rounds = [wanted_rounds(m, d, rho, simple_radius(m, d, 3.0, rho)) for m in (n, 2 * n)]
        assert rounds[0] < rounds[1]


# --- Statistical -----------------------------------------------------------------------------------------------------


def test_shuffled_gaussians_lose_no_more_than_is_claimed_v21():
    """All other records zero: the density ratio is known, and delta at epsilon is the mean of its excess.

    With the group known the same noise would lose more than delta.
    """
    epsilon, delta, groups = 0.25, 1e-3, 3000
    rho = calibrated_group_rho(epsilon, delta, groups, "exact")
    shift = math.sqrt(2 * rho)  # of the altered group, in standard deviations, from -shift/2 to shift/2
    rng = np.random.default_rng(213)
    noise = rng.standard_normal((1500, groups))
    noise[:, 0] += shift / 2
    ratio = np.exp(-shift / 2 * noise).mean(axis=1) / np.exp(shift / 2 * noise).mean(axis=1)
    excess = np.maximum(0.0, 1 - math.exp(epsilon) * ratio)
    assert excess.mean() + 4 * excess.std() / math.sqrt(len(excess)) <= delta
    assert delta_of(Cost(noise_multiplier=1 / shift), 1, epsilon) > 3 * delta


# --- Edges -----------------------------------------------------------------------------------------------------------

ROWS = np.ones((4, 2))
NOISE = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: paper_group_rho(1.0, 1e-5, 591), r"groups = 591: .* holds from 592 to 45073 groups"),
        (lambda: paper_group_rho(1.0, 1e-5, 45_074), r"from 592 to 45073 groups"),
        (lambda: paper_group_rho(1.1, 1e-5, 1000), r"epsilon = 1.1: .* from 0 to 1"),
        (lambda: calibrated_group_rho(1.0, 1e-5, 200), r"groups = 200: shuffling amplifies from \d+ groups on"),
        (lambda: calibrated_group_rho(0.0, 1e-5, 2000), "epsilon = 0.0"),
        (lambda: group_rho(1.0, 1e-5, 5, "random"), "accounting = 'random': must be 'auto', 'parallel'"),
        (lambda: group_rho(1.0, 1e-5, 0, "parallel"), "groups = 0"),
        (lambda: group_rho(1.1, 1e-5, 5, "parallel", "paper"), "epsilon = 1.1"),
        (lambda: shuffled(1.0, 1.0, 5, 0.1), "not a guarantee"),
        (lambda: shuffled(1.0, 1e-9, 5, 1.0), "delta = 1.0"),
        (lambda: step_budget(1.1, 1e-5, 3), "epsilon = 1.1"),
        (lambda: step_budget(1.0, 0.0, 3), "delta = 0.0"),
        (lambda: step_budget(1.0, 1e-5, 0), "steps = 0"),
        (lambda: advanced_composition(0.1, 1e-7, 0, 1e-6), "steps = 0"),
        (lambda: advanced_composition(0.1, 1e-7, 1, 0.0), "delta = 0.0"),
        (lambda: zcdp_to_epsilon_simple(-1.0, 1e-5), "rho = -1.0"),
        (lambda: simple_clip_mean(np.zeros((0, 2)), 1.0, 1.0, NOISE), "at least one row"),
        (lambda: simple_clip_mean(np.zeros(3), 1.0, 1.0, NOISE), r"got shape \(3,\)"),
        (lambda: simple_clip_mean(ROWS, 0.0, 1.0, NOISE), "clip_norm = 0.0"),
        (lambda: simple_clip_mean(ROWS, 1.0, 0.0, NOISE), "rho = 0.0"),
        (lambda: simple_clip_mean(ROWS, math.inf, 1.0, NOISE), "l2_sensitivity = inf"),
        (lambda: iterative_mean(ROWS, 1.0, 5, 1.0, NOISE), "groups = 5: must be at least 1 and at most the 4"),
        (lambda: iterative_mean(ROWS, 1.0, 0, 1.0, NOISE), "groups = 0"),
        (lambda: iterative_mean(ROWS, 1.0, 2, 1.0, NOISE, share=0.1), "share = 0.1"),
        (lambda: iterative_mean(ROWS, 1.0, 2, 1.0, NOISE, steps=0), "steps = 0"),
        (lambda: simple_radius(10, 2, 1.9, 1.0), "moment_order = 1.9"),
        (lambda: simple_radius(10, 2, 2.0, 0.0), "rho = 0.0"),
        (lambda: simple_radius(10, 2, 2.0, 1.0, form="best"), "form = 'best'"),
        (lambda: simple_radius(0, 2, 2.0, 1.0), "samples = 0"),
        (lambda: group_radius(10, 2, 2.0, -1.0), "rho = -1.0"),
        (lambda: group_radius(10, 2, 2.0, 1.0, moment=0.0), "moment = 0.0"),
        (lambda: reach(np.zeros((0, 2)), 0.5, NOISE), "non-empty matrix"),
        (lambda: reach(np.full((2, 2), np.nan), 0.5, NOISE), "finite numbers"),
        (lambda: reach(ROWS, 0.0, NOISE), "share = 0.0"),
        (lambda: geometric_median(np.zeros((0, 2))), "non-empty matrix"),
        (lambda: geometric_median(ROWS, steps=0), "steps at least 1"),
        (lambda: simple_descent(10, 2, 2.0, 1.5, 1e-5, smoothness=1.0, diameter=1.0), "epsilon = 1.5"),
        (lambda: simple_descent(10, 2, 2.0, 1.0, 1.0, smoothness=1.0, diameter=1.0), "delta = 1.0"),
        (lambda: simple_descent(10, 2, 2.0, 1.0, 0.0, smoothness=1.0, diameter=1.0), "delta = 0.0"),
        (lambda: simple_descent(10, 2, 2.0, 1.0, 1e-5, smoothness=0.0, diameter=1.0), "smoothness = 0.0"),
        (lambda: simple_descent(10, 2, 2.0, 1.0, 1e-5, smoothness=1.0, diameter=math.inf), "diameter = inf"),
    ],
)
def test_what_does_not_hold_is_refused_by_name_and_value_v05(make, message):
    with pytest.raises(BadInput, match=message):
        make()


def test_edges_that_are_allowed():
    rng = np.random.default_rng(1)
    assert simple_clip_mean(np.full((1, 1), 0.25), 1.0, math.inf, rng) == pytest.approx([0.25])
    assert iterative_mean(np.full((7, 3), 0.25), 1.0, 3, math.inf, rng) == pytest.approx(np.full(3, 0.25))
    assert simple_descent(10, 2, 2.0, 3.0, 1e-5, smoothness=1.0, diameter=1.0, form="tight").rounds >= 1
    for dimension in (1, 2, 3):
        assert reach(np.zeros((4, dimension)), 0.5, rng).distance == 0
        assert np.linalg.norm(reach(np.zeros((4, dimension)), 0.5, rng).direction) == 1


def test_baseline_the_geometric_median_has_the_least_sum_of_distances():
    corners = np.array([[1.0, 0.0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]])
    np.testing.assert_allclose(geometric_median(corners + 7.0), [7.0, 7.0], atol=1e-6)
    assert geometric_median(np.array([[0.0], [1.0], [50.0]])) == pytest.approx([1.0], abs=1e-6)
    np.testing.assert_array_equal(geometric_median(np.full((3, 2), 4.0)), [4.0, 4.0])
    points = np.random.default_rng(5).standard_t(2, (30, 3))
    found = geometric_median(points)
    directions = (points - found) / np.linalg.norm(points - found, axis=1)[:, None]
    assert np.linalg.norm(directions.sum(axis=0)) < 1e-5
    points[:3] = 1e9
    assert np.linalg.norm(geometric_median(points)) < 1.5
    assert np.linalg.norm(geometric_median(points, steps=1)) < 1.5


def test_the_geometric_median_moves_by_twice_what_its_points_move():
    """The example of Ghazi, Kumar, Liu, Manurangsi (2025), B.10, at alpha = 1/2."""
    first = geometric_median(np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.5]]))
    second = geometric_median(np.array([[0.0, 0.0], [0.0, 0.5], [1.0, 0.0], [1.0, 0.0]]))
    np.testing.assert_allclose([first, second], [[0, 0], [1, 0]], atol=1e-6)


def test_edges_of_the_ascent(monkeypatch):
    """The ascent stops if the hull of the points that count holds the centre: there is no better direction."""

    def raising(*_):
        raise RuntimeError("Maximum number of iterations reached.")

    square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert depth.nearest_direction(square) is None
    assert depth.nearest_direction(np.zeros((3, 2))) is None
    start = np.array([1.0, 0.0])
    stayed = depth.ascend(square, start[None], 4)
    assert stayed.distance == -1.0
    np.testing.assert_array_equal(stayed.direction, start)
    assert depth.ascend(square + np.array([3.0, 0.0]), np.array([[0.0, 1.0]]), 4, most=1).distance == pytest.approx(2.0)
    assert depth.nearest_direction(square + np.array([3.0, 0.0])) == pytest.approx([1.0, 0.0])
    large = np.random.default_rng(0).standard_normal((401, 2)) + np.array([2.0, 0.0])
    monkeypatch.setattr("scipy.optimize.nnls", raising)
    assert depth.nearest_direction(square + np.array([3.0, 0.0])) is None
    monkeypatch.undo()
    exact, found = depth._plane(large, 201), reach(large, 0.5, np.random.default_rng(0))
    assert exact.distance * (1 - 1e-3) <= found.distance <= exact.distance + 1e-12
