"""P6 and the mechanisms: noise that is what it says, tests whose probabilities are exact, classic mistakes caught."""

import itertools
import math
from dataclasses import replace
from functools import partial

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from strategies.baselines.peeling import Peeling
from userdp.accounting import Cost
from userdp.errors import BadInput
from userdp.estimators import ExpKernel, RampKernel, Winsorized, replacement_bound
from userdp.mechanisms import (
    AboveThreshold,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    MinimumScore,
    minimum_batch,
)
from userdp.mechanisms.toeplitz import FACTORISATIONS
from userdp.noise import Scores, SeededNoise

TESTS = [AboveThreshold, MinimumScore]
each_test = pytest.mark.parametrize("test_type", TESTS)
SIGMAS = 5  # two-sided confidence 1 - 6e-7 for each Monte Carlo comparison


def make(test_type, batch=300, epsilon=0.5, delta=1e-6, movement=0.0, kernel=None):
    return test_type(batch=batch, kernel=kernel or RampKernel(1.0), epsilon=epsilon, delta=delta, movement=movement)


def within_monte_carlo_error(share, probability, runs):
    return abs(share - probability) <= SIGMAS * math.sqrt(probability * (1 - probability) / runs) + 1 / runs


# --- Gaussian and Laplace ---------------------------------------------------------------------------------------


def test_gaussian_noise_has_the_standard_deviation_it_says():
    mechanism = GaussianMechanism(l2_sensitivity=0.5, noise_multiplier=3.0)
    noise = mechanism.release(np.full((100, 200), 7.0), SeededNoise(np.random.default_rng(1))) - 7.0
    assert noise.shape == (100, 200)
    assert mechanism.standard_deviation == 1.5
    statistic, size = (noise**2).sum() / 1.5**2, noise.size
    assert stats.chi2.ppf(1e-5, size) < statistic < stats.chi2.ppf(1 - 1e-5, size)
    assert stats.kstest(noise.ravel() / 1.5, "norm").pvalue > 1e-4
    assert mechanism.cost == Cost(noise_multiplier=3.0)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1, 1e-6), (4, 1e-5), (20, 1e-5), (0.5, 0.1)])
def test_calibrated_gaussian_is_exact_and_never_below(epsilon, delta):
    mechanism = GaussianMechanism.calibrated(2.0, epsilon, delta)
    exact = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert exact * (1 - 1e-9) <= mechanism.noise_multiplier <= exact * (1 + 1e-6)
    assert mechanism.standard_deviation == 2 * mechanism.noise_multiplier


def test_laplace_noise_has_the_scale_it_says():
    mechanism = LaplaceMechanism(sensitivity=2.0, epsilon=0.5)
    noise = mechanism.release(np.zeros(20_000), SeededNoise(np.random.default_rng(2)))
    assert mechanism.scale == 4.0
    assert stats.kstest(noise / 4.0, "laplace").pvalue > 1e-4
    assert mechanism.cost == Cost(pure_epsilon=0.5)


# --- The concentration tests: thresholds and laws ---------------------------------------------------------------


def test_scales_and_threshold_by_hand():
    test = make(AboveThreshold, batch=300, epsilon=1.0)
    delta = 2 * 299 / 300
    assert test.sensitivity == delta == replacement_bound(300)
    first = 1 / (1 + 2 ** (2 / 3))
    assert test.threshold_scale == pytest.approx(delta / first)
    assert test.query_scale == pytest.approx(2 * delta / (1 - first))
    assert test.threshold == pytest.approx(200 + delta + test.margin)
    minimum = make(MinimumScore, batch=300, epsilon=0.5, delta=1e-6)
    assert minimum.threshold == pytest.approx(200 + delta + delta / 0.5 * math.log(5e5))
    assert test.cost == Cost(pure_epsilon=1.0, failure_delta=1e-6)


@each_test
@pytest.mark.parametrize("movement", [0.0, 0.5])
def test_the_noise_scales_with_what_one_user_may_move_later_scores(test_type, movement):
    kernel = RampKernel(1.0)
    test = make(test_type, movement=movement, kernel=kernel)
    assert test.sensitivity == max(replacement_bound(300), kernel.movement_bound(300, movement))
    assert test.margin == pytest.approx(make(test_type).margin * test.sensitivity / replacement_bound(300))


@each_test
@pytest.mark.parametrize("kernel", [RampKernel(1.0), ExpKernel(1.0)])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.05, 0.4])
def test_a_neighbour_of_an_unaligned_batch_passes_with_probability_delta_exactly(test_type, kernel, delta):
    test = make(test_type, delta=delta, kernel=kernel)
    worst = kernel.unaligned_bound(300) + replacement_bound(300)
    assert test.pass_probability(worst) == pytest.approx(delta, rel=1e-7)
    # Other steps that agree fully cannot lift it above delta.
    assert test.pass_probability([300.0] * 5 + [worst]) <= delta * (1 + 1e-7)
    assert test.pass_probability(kernel.unaligned_bound(300)) < delta


def test_equal_shares_of_epsilon_are_the_printed_noises_for_a_score_that_moves_by_two():
    test = replace(make(AboveThreshold, epsilon=0.5), equal=True)
    moved = 2 * 299 / 300
    assert (test.threshold_scale, test.query_scale) == (2 / 0.5 * moved, 4 / 0.5 * moved)
    worst = test.kernel.unaligned_bound(300) + moved
    assert test.pass_probability(worst) == pytest.approx(1e-6, rel=1e-7)


@each_test
def test_a_threshold_can_be_raised_and_never_lowered(test_type):
    least = make(test_type)
    worst = least.kernel.unaligned_bound(300) + replacement_bound(300)
    raised = replace(least, raised=least.threshold + 1)
    assert raised.threshold == least.threshold + 1
    assert raised.pass_probability(worst) < least.pass_probability(worst)
    for number in (least.threshold - 1e-3, 1.0, -1.0, math.nan, math.inf):
        with pytest.raises(BadInput, match="users who disagree could pass such a threshold too often"):
            replace(least, raised=number)


@pytest.mark.parametrize("x", [0.3, 2.0, 17.0])
def test_margin_is_the_quantile_of_the_sum_of_two_laplaces(x):
    """Against numeric convolution, at three deltas made from the tail itself."""
    scales = make(AboveThreshold, epsilon=1.0)
    narrow, wide = scales.threshold_scale, scales.query_scale
    grid = np.linspace(-60 * narrow, 60 * narrow, 400_001)
    tail = np.trapezoid(stats.laplace.pdf(grid, scale=narrow) * stats.laplace.sf(x - grid, scale=wide), grid)
    assert make(AboveThreshold, epsilon=1.0, delta=float(tail)).margin == pytest.approx(x, rel=1e-6)


@pytest.mark.sweep(1)
@each_test
def test_sessions_pass_unaligned_batches_as_often_as_delta(test_type):
    runs, delta = 20_000, 0.05
    test = make(test_type, delta=delta)
    worst = test.kernel.unaligned_bound(300) + replacement_bound(300)
    rng = np.random.default_rng(5)
    passed = 0
    for _ in range(runs):
        session = test.session(SeededNoise(rng))
        session.observe(test.scored(worst, 300))
        passed += session.passed()
    assert within_monte_carlo_error(passed / runs, delta, runs)


@pytest.mark.slow
def test_above_threshold_halts_by_the_law_of_its_definition():
    """Survival of each step, of sessions and of the definition in numpy, against the exact probability."""
    test = make(AboveThreshold, epsilon=1.0)
    scores = test.threshold + np.array([12.0, 3.0, 20.0, -2.0, 8.0, 8.0])
    exact = np.array([test.pass_probability(scores[: step + 1]) for step in range(len(scores))])

    rng, runs = np.random.default_rng(6), 400_000
    noisy_threshold = test.threshold + rng.laplace(scale=test.threshold_scale, size=(runs, 1))
    top = scores + rng.laplace(scale=test.query_scale, size=(runs, len(scores))) >= noisy_threshold
    survival = np.logical_and.accumulate(top, axis=1).mean(axis=0)
    assert all(within_monte_carlo_error(s, p, runs) for s, p in zip(survival, exact, strict=True))

    runs = 10_000
    survived = np.zeros(len(scores))
    for _ in range(runs):
        session = test.session(SeededNoise(rng))
        for step, score in enumerate(scores):
            if not session.observe(test.scored(score, 300)):
                break
            survived[step] += 1
        assert session.passed() == (step == len(scores) - 1 and session.observe(test.scored(1e300, 300)))
    assert all(within_monte_carlo_error(s / runs, p, runs) for s, p in zip(survived, exact, strict=True))
    assert 0.05 < exact[-1] < 0.9  # the comparison is about something


def test_minimum_score_passes_by_the_law_of_its_definition():
    test, runs = make(MinimumScore), 10_000
    scores = test.threshold + np.array([9.0, 2.0, 30.0])
    rng = np.random.default_rng(7)
    passed = 0
    for _ in range(runs):
        session = test.session(SeededNoise(rng))
        assert all(session.observe(test.scored(score, 300)) for score in scores)  # it cannot stop early
        passed += session.passed()
    assert within_monte_carlo_error(passed / runs, test.pass_probability(scores), runs)
    assert test.pass_probability(scores) == pytest.approx(1 - 0.5 * math.exp(-2.0 / test.scale))


@each_test
@pytest.mark.parametrize("steps", [1, 7, 20, 1000])
def test_pass_probability_of_equal_scores_is_that_of_their_list(test_type, steps):
    test = make(test_type)
    for gap in (-30.0, 0.0, 25.0, 80.0):
        score = test.threshold + gap
        assert test.pass_probability(score, steps) == pytest.approx(test.pass_probability([score] * steps), rel=1e-12)
    assert test.pass_probability([score, score + 1], 2) == pytest.approx(
        test.pass_probability([score, score + 1, score + 1, score]), rel=1e-12
    )


@pytest.mark.slow
def test_pass_probability_of_above_threshold_matches_plain_quadrature():
    test = make(AboveThreshold)
    for gap, steps in itertools.product((-20.0, 5.0, 60.0), (1, 20, 400)):
        grid = np.linspace(-60, 60, 2_000_001) * test.threshold_scale
        tail = stats.laplace.sf(grid - gap, scale=test.query_scale) ** steps
        plain = np.trapezoid(stats.laplace.pdf(grid, scale=test.threshold_scale) * tail, grid)
        assert test.pass_probability(test.threshold + gap, steps) == pytest.approx(plain, rel=1e-6)


@each_test
def test_a_score_that_is_not_finite_fails_the_test(test_type):
    for scores in ([math.nan], [300.0, math.nan], [math.nan, 300.0], [math.inf]):
        test = make(test_type, epsilon=100.0)
        session = test.session(SeededNoise(np.random.default_rng(0)))
        answers = [session.observe(test.scored(score, 300)) for score in scores]
        assert not all(answers)
        assert not session.passed()


@each_test
def test_a_session_without_scores_has_not_passed_and_asking_twice_draws_no_noise(test_type):
    test = make(test_type)
    assert not test.session(SeededNoise(np.random.default_rng(0))).passed()
    for seed in range(50):
        session = test.session(SeededNoise(np.random.default_rng(seed)))
        session.observe(test.scored(test.threshold, 300))
        assert len({session.passed() for _ in range(20)}) == 1


def test_above_threshold_stays_halted():
    test = make(AboveThreshold, epsilon=100.0)
    session = test.session(SeededNoise(np.random.default_rng(0)))
    assert session.observe(test.scored(300.0, 300))
    assert not session.observe(test.scored(0.0, 300))
    assert not session.observe(test.scored(300.0, 300))
    assert not session.passed()


# --- Their privacy, computed exactly ----------------------------------------------------------------------------


def outcome_probabilities(pass_all, scores):
    """Probabilities of halting at each step, then of passing all."""
    survival = np.array([1.0, *(pass_all(scores[: t + 1]) for t in range(len(scores)))])
    return np.append(-np.diff(survival), survival[-1])


def aligned_pairs(test, steps):
    """Scores of aligned neighbours: each differs by at most the sensitivity, with the signs that hurt."""
    for gap in (-30.0, -5.0, 0.0, 10.0, 40.0):
        base = test.threshold + np.full(steps, gap)
        for signs in itertools.product((-1, 1), repeat=steps):
            yield base, base + test.sensitivity * np.array(signs)


def largest_privacy_loss(pass_all, test, steps):
    losses = []
    for own, other in aligned_pairs(test, steps):
        p, q = outcome_probabilities(pass_all, own), outcome_probabilities(pass_all, other)
        visible = (p > 1e-9) & (q > 1e-9)  # smaller ones are differences lost to rounding
        losses.append(np.abs(np.log(p[visible] / q[visible])).max())
    return max(losses)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("movement", [0.0, 0.02])
def test_above_threshold_of_aligned_neighbours_is_epsilon_private(movement, equal):
    test = replace(make(AboveThreshold, epsilon=0.7, movement=movement), equal=equal)
    test = replace(test, raised=test.threshold * 1.1)
    loss = largest_privacy_loss(test.pass_probability, test, steps=4)
    assert 0.35 < loss <= 0.7 * (1 + 1e-6)


def test_minimum_score_of_aligned_neighbours_is_epsilon_private():
    test = make(MinimumScore, epsilon=0.7)
    losses = []
    for own, other in aligned_pairs(test, 3):
        p, q = test.pass_probability(own), test.pass_probability(other)
        losses += [abs(math.log(p / q)), abs(math.log((1 - p) / (1 - q)))]
    assert max(losses) == pytest.approx(0.7, rel=1e-9)


# --- How many users it takes ------------------------------------------------------------------------------------


@each_test
@settings(max_examples=30)
@given(
    epsilon=st.floats(0.05, 20),
    delta=st.floats(1e-12, 0.3),
    steps=st.integers(1, 200),
    failure=st.floats(1e-4, 0.5),
    movement=st.floats(0, 1e-3),
)
def test_the_smallest_batch_passes_and_one_user_fewer_does_not(test_type, epsilon, delta, steps, failure, movement):
    settings_ = {"epsilon": epsilon, "delta": delta}
    try:
        batch = minimum_batch(
            test_type, RampKernel(1.0), steps=steps, failure=failure, movement=movement, at_most=10**7, **settings_
        )
    except BadInput:
        batch = 10**7
        largest = make(test_type, batch=batch, movement=movement, **settings_)
        assert largest.pass_probability(batch, steps) < 1 - failure
        return
    assert make(test_type, batch=batch, movement=movement, **settings_).pass_probability(batch, steps) >= 1 - failure
    if batch > 7:
        fewer = make(test_type, batch=batch - 1, movement=movement, **settings_)
        assert fewer.pass_probability(batch - 1, steps) < 1 - failure


def test_movement_may_depend_on_the_batch_through_the_estimator():
    def movement(batch):
        return 2 * Winsorized(1.0).sup_sensitivity(batch)

    chosen = {"epsilon": 0.5, "delta": 1e-6, "steps": 20, "failure": 0.01}
    batch = minimum_batch(MinimumScore, RampKernel(1.0), movement=movement, **chosen)
    test = make(MinimumScore, batch=batch, movement=movement(batch))
    assert test.sensitivity > replacement_bound(batch)
    assert test.pass_probability(batch, 20) >= 0.99
    assert batch > minimum_batch(MinimumScore, RampKernel(1.0), **chosen)


def test_a_smaller_start_may_already_suffice_and_an_impossible_wish_is_refused():
    chosen = {"epsilon": 0.5, "delta": 1e-6, "steps": 20, "failure": 0.01}
    assert minimum_batch(MinimumScore, RampKernel(1.0), at_least=5000, **chosen) == 5000
    with pytest.raises(BadInput, match="no batch of up to 1000 users"):
        minimum_batch(MinimumScore, RampKernel(1.0), movement=0.5, at_most=1000, **chosen)
    with pytest.raises(BadInput, match="failure = 1"):
        minimum_batch(MinimumScore, RampKernel(1.0), **{**chosen, "failure": 1.0})


# --- What is refused ---------------------------------------------------------------------------------------------


def peeling(**wrong):
    return Peeling(**{"sparsity": 3, "sensitivity": 0.1, "epsilon": 1.0, "delta": 1e-5, "accounting": "tight"} | wrong)


def each(make, **wrong):
    """Each of these values of an argument, one at a time; the message names it."""
    return [(partial(make, **{name: value}), name) for name, values in wrong.items() for value in values]


REFUSED = [
    *each(partial(GaussianMechanism.calibrated, epsilon=1.0, delta=1e-6), l2_sensitivity=[0.0, math.nan, math.inf]),
    *each(peeling, sparsity=[0], sensitivity=[0.0, math.nan], epsilon=[math.inf], delta=[1.0, math.nan]),
    (lambda: peeling(accounting="loose"), "accounting = 'loose'"),
    (lambda: peeling(accounting="paper", delta=0.0), "delta = 0"),
    *[row for test in TESTS for row in each(partial(make, test), batch=[1], delta=[0.5])],
    *[
        (partial(make(MinimumScore).pass_probability, *asked), "at least one")
        for asked in (([], 1), ([math.nan], 1), (3.0, 0))
    ],
    *[(partial(kind, *numbers), "at least 1") for kind in FACTORISATIONS.values() for numbers in ((0, 1), (3, 0))],
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_is_no_mechanism_is_refused_by_the_name_of_its_argument(make, words):
    with pytest.raises(BadInput, match=words):
        make()


RELEASES = {
    "gaussian": GaussianMechanism(1.0, 1.0).release,
    "laplace": LaplaceMechanism(1.0, 1.0).release,
    "exponential": lambda values, noise: ExponentialMechanism(1e-100, 1.0).choose(Scores(values, 1e-100), noise),
    "peeling": lambda values, noise: peeling().release(Scores(values, 0.1), noise),
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_values_that_are_not_finite_are_not_released(release, value):
    with pytest.raises(BadInput, match="not finite"):
        release(np.array([0.0, value, 1.0, 2.0]), SeededNoise(np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("release", "value"),
    [
        (RELEASES["exponential"], [1e300, 0.0]),
        *[(RELEASES["peeling"], np.zeros(s)) for s in (2, (3, 3))],
    ],
)
def test_values_that_overflow_or_have_another_shape_are_not_released(release, value):
    with pytest.raises(BadInput, match=r"shape|not finite"):
        release(np.array(value), SeededNoise(np.random.default_rng(0)))
