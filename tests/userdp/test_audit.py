"""P7: what runs tell about one user, against what is claimed; and mistakes planted on purpose, which must be found.

Each audit takes 20,000 runs of each of two neighbouring data sets through the strategy's own steps, with its own
streams of noise. Bounds hold with confidence 95%; seeds are fixed.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import afresh, federation_of, gathered, make, noise_again, taken, with_scheme
from helpers_audits import epsilon_lower_bound
from scipy import stats

from strategies import DPFedSGD, LocalizedRobustSGD, PublicFacts, RobustRounds
from strategies.wire.replies import Gathered
from userdp.accounting import Privacy
from userdp.arrays.sparse_rows import clip_rows
from userdp.estimators import RampKernel, Winsorized, concentration_score
from userdp.mechanisms import GaussianMechanism
from userdp.nodes import pipeline
from userdp.noise import SecureNoise
from userdp.problems import Linear

RUNS = 20_000
FAR = 1000.0


# --- The statistics of an audit ------------------------------------------------------------------------------------


def gaussian_scores(mu, runs=RUNS, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1, runs), rng.normal(0, 1, runs)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_bound_on_two_normals_stays_below_the_truth_and_comes_close(mu, delta):
    if delta == 0.0:
        # No finite epsilon is true at delta = 0; what 20,000 runs can show is limited.
        assert epsilon_lower_bound(*gaussian_scores(mu)) > mu
        return
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        hockey = stats.norm.cdf(mu / 2 - middle / mu) - math.exp(middle) * stats.norm.cdf(-mu / 2 - middle / mu)
        low, high = (middle, high) if hockey > delta else (low, middle)
    bound = epsilon_lower_bound(*gaussian_scores(mu), delta)
    assert bound <= high
    assert bound >= 0.6 * high - 0.1


@pytest.mark.slow
def test_the_bound_fails_no_more_often_than_its_confidence_allows():
    """Randomised response of epsilon 1 has the true epsilon 1; of 400 audits at 90% at most 10% may exceed it."""
    rng = np.random.default_rng(1)
    heads = 1 / (1 + math.exp(-1))
    failures = sum(
        epsilon_lower_bound(rng.random(300) < heads, rng.random(300) < 1 - heads, confidence=0.9) > 1.0
        for _ in range(400)
    )
    # 40 failures would be expected of an exact bound; 60 has probability below 1e-3.
    assert failures < 60


def test_equal_distributions_show_nothing():
    a, b = gaussian_scores(0.0)
    assert epsilon_lower_bound(a, b) < 0.2
    assert epsilon_lower_bound(np.zeros(100), np.zeros(100)) == 0.0
    assert epsilon_lower_bound(a, b, delta=0.3) == 0.0


def test_an_outcome_that_only_one_data_set_has_is_found_and_bounded_by_the_number_of_runs():
    few = epsilon_lower_bound(np.full(100, -np.inf), np.full(100, np.inf))
    many = epsilon_lower_bound(np.full(10_000, -np.inf), np.full(10_000, np.inf))
    # All of 50 against none of 50, each at level 2.5%: (0.025^(1/50)) / (1 - 0.025^(1/50)).
    edge = 0.025 ** (1 / 50)
    assert few == pytest.approx(math.log(edge / (1 - edge)))
    assert many > few + 4


# --- Strategies, end to end ----------------------------------------------------------------------------------------


def scores_of(method, values, first_seed, runs=RUNS):
    """One number per run: how far the model went in the direction in which the data sets differ.

    The model is the last iterate where every iterate is promised to be safe. Where only releases are, it is the
    release, and minus infinity in a run whose test failed.
    """
    scores = np.empty(runs)
    replies = [Gathered(rows, 0, 0) for rows in values]
    by_phase = isinstance(afresh(method).recipe, LocalizedRobustSGD)
    for run in range(runs):
        method.noise_seed = first_seed + run
        x, released = method.problem.initial(), None
        for index, reply in enumerate(replies):
            step = taken(method, index, x, reply)
            x, released = step.following, released if step.released is None else step.released
        scores[run] = (-np.inf if released is None else released.sum()) if by_phase else x.sum()
    return scores


def audit(method, values_a, values_b):
    delta = method.plan.guarantee.delta
    return epsilon_lower_bound(scores_of(method, values_a, 0), scores_of(method, values_b, RUNS), delta)


def rows_on_both_sides(users, dimension=1, outliers=0):
    """Everybody at zero but some far apart from each other, and one user at either end of the world."""
    rows = np.zeros((users, dimension))
    rows[1 : 1 + outliers] = 10.0 * np.arange(1, 1 + outliers)[:, None]
    above, below = rows.copy(), rows.copy()
    above[0], below[0] = FAR, -FAR
    return above, below


class Halved(GaussianMechanism):
    """Noise of half the standard deviation that was calibrated."""

    def release(self, value, noise):
        return value + (super().release(value, noise) - value) / 2


def half_the_noise(method, monkeypatch):
    mechanism = method.scheme.mechanism
    with_scheme(method, mechanism=Halved(mechanism.l2_sensitivity, mechanism.noise_multiplier))


def one_user_unclipped(method, monkeypatch):
    def first_as_it_is(total, rows, clip_norm, lengths):
        total += rows[0] + clip_rows(rows[1:], clip_norm).sum(axis=0)

    monkeypatch.setattr(pipeline, "add_clipped_rows", first_as_it_is)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "least", "most"),
    [(None, 0.6, 1.0), (half_the_noise, 1.3, math.inf), (one_user_unclipped, 3.0, math.inf)],
)
def test_dp_fed_sgd_leaks_no_more_than_it_claims_and_hardly_less_and_mistakes_are_found(
    mistake, least, most, monkeypatch
):
    """In units of what is claimed, for four users, one of whom is at either end of the world."""
    options = {"rounds": 2, "clip_norm": 1.0, "learning_rate": 1.0}
    method = make(DPFedSGD, Linear(1, FAR, radius=1e6), 4, epsilon=1.0, delta=0.02, **options)
    if mistake:
        mistake(method, monkeypatch)
    sums = [
        [gathered(method, federation_of(rows), index, np.zeros(1)).values for index in range(2)]
        for rows in rows_on_both_sides(4)
    ]
    claimed = method.plan.guarantee.epsilon
    assert least * claimed < audit(method, *sums) <= most * claimed


def robust_method(strategy, users, estimate, **options):
    own = {"rounds": 2, "epochs": 2} if strategy is RobustRounds else {"batch": users, "phases": 1}
    options = own | {"radius": 1.0, "learning_rate": 1.0, "failure": 0.2} | options
    problem = Linear(options.pop("dimension", 1), FAR, radius=1e6)
    epsilon = options.pop("epsilon", 3.0)
    return make(strategy, problem, users, epsilon=epsilon, delta=0.01, estimate=estimate, **options)


def robust_values(method, users, dimension=1, outliers=0):
    rounds = method.plan.rounds
    return [[rows] * rounds for rows in rows_on_both_sides(users, dimension, outliers)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [LocalizedRobustSGD, RobustRounds])
@pytest.mark.parametrize(("estimate", "least", "dimension"), [("winsorized", 1.0, 1), ("debiased", 1.7, 2)])
def test_robust_releases_leak_no_more_than_they_claim(strategy, estimate, least, dimension):
    """A batch that surely passes its test: all of the leak is the release's."""
    method = robust_method(strategy, 240, estimate, dimension=dimension)
    leaked = audit(method, *robust_values(method, 240, dimension))
    assert least < leaked <= method.plan.guarantee.epsilon


@pytest.mark.long
@pytest.mark.slow
def test_a_robust_release_with_secure_noise_leaks_no_more_than_it_claims():
    """Noise has no seed: the confidence is such that no bound exceeds its claim by chance, and the runs so many that
    the bound, 1.2 give or take .1, is above half by seven deviations.
    """
    private = Privacy(3.0, 0.01, noise="secure", allow_large_delta=True)
    options = {"rounds": 1, "radius": 1.0, "learning_rate": 1.0, "failure": 0.2, "estimate": "debiased"}
    method = RobustRounds(**options).strategy(Linear(1, FAR, radius=1e6), PublicFacts(240), private)
    assert isinstance(noise_again(method, 0), SecureNoise)
    sides = [scores_of(method, values, 0, runs=8000) for values in robust_values(method, 240)]
    leaked = epsilon_lower_bound(*sides, method.plan.guarantee.delta, confidence=1 - 1e-9)
    assert 0.5 < leaked <= method.plan.guarantee.epsilon


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [LocalizedRobustSGD, RobustRounds])
def test_robust_releases_with_half_the_noise_are_found(strategy):
    method = robust_method(strategy, 240, "debiased")
    if strategy is LocalizedRobustSGD:
        phases = (replace(phase, mechanism=halved(phase.mechanism)) for phase in method.scheme.phases)
        with_scheme(method, phases=tuple(phases))
    else:
        with_scheme(method, mechanism=halved(method.scheme.mechanism))
    assert audit(method, *robust_values(method, 240)) > 1.2 * method.plan.guarantee.epsilon


def halved(mechanism):
    """The same with half its noise."""
    return Halved(mechanism.l2_sensitivity, mechanism.noise_multiplier)


class OneUnclipped(Winsorized):
    """Forgets to clip the first user."""

    def __call__(self, rows):
        return super().__call__(rows) + (rows[0] - np.clip(rows[0], -self.clip_width, self.clip_width)) / len(rows)


@pytest.mark.long
@pytest.mark.slow
def test_a_robust_release_with_one_user_unclipped_is_found():
    method = robust_method(RobustRounds, 240, "winsorized")
    unclipped = OneUnclipped(method.scheme.agreement.estimator.radius)
    with_scheme(method, estimator=lambda rows, noise: unclipped(rows))
    assert audit(method, *robust_values(method, 240)) > 2 * method.plan.guarantee.epsilon


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("test", ["min_score", "above_threshold"])
def test_a_test_that_may_go_either_way_and_its_release_together_leak_no_more_than_is_claimed(test):
    """Outliers bring the score to the threshold; one user joins the crowd or goes far away."""
    method = robust_method(LocalizedRobustSGD, 240, "debiased", test=test)
    part = method.scheme.phases[0].test
    by_score = [
        abs(concentration_score(rows_on_both_sides(240, 1, count)[0], part.kernel) - part.threshold)
        for count in range(80)
    ]
    above, _ = rows_on_both_sides(240, 1, int(np.argmin(by_score)))
    inside = above.copy()
    inside[0] = 0.0
    leaked = audit(method, [above], [inside])
    assert 0.02 < part.pass_probability(concentration_score(above, part.kernel)) < 0.98
    assert leaked <= method.plan.guarantee.epsilon


class Lenient(RampKernel):
    """A planted mistake: a threshold that every score reaches."""

    def unaligned_bound(self, batch):
        return -10.0 * batch


def two_camps(users):
    """No ball holds two thirds of them, and the one user who changes camp decides where the median lies."""
    rows = np.zeros((users + 1, 1))
    rows[users // 2 + 1 :] = 500.0
    other = rows.copy()
    other[0] = 500.0
    return rows, other


def divided(strategy):
    """The paper's estimate about the median, on the two camps."""
    method = robust_method(strategy, 61, "debiased", statistic="median", epsilon=6.0)
    return method, [[rows] * method.plan.rounds for rows in two_camps(60)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [LocalizedRobustSGD, RobustRounds])
def test_users_that_do_not_agree_are_protected_by_the_test(strategy):
    method, values = divided(strategy)
    assert audit(method, *values) <= 0.1


@pytest.mark.long
@pytest.mark.slow
def test_a_threshold_that_everybody_reaches_is_found():
    """Without the test the release of users that do not agree would give one of them away."""
    method, values = divided(RobustRounds)
    agreement = method.scheme.agreement
    estimates = [agreement.estimator(rows[0]) for rows in values]
    assert np.abs(estimates[0] - estimates[1]) > 100 * agreement.estimator.sup_sensitivity(61)
    lenient = replace(agreement, test=replace(agreement.test, kernel=Lenient(1.0)))
    with_scheme(method, agreement=lenient)
    assert audit(method, *values) > method.plan.guarantee.epsilon
