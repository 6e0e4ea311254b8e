"""One AboveThreshold over rounds that release something: its claim, against all that is seen, computed exactly."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from userdp.accounting import Cost, delta_of
from userdp.estimators import RampKernel, replacement_bound
from userdp.mechanisms import AboveThreshold, MinimumScore
from userdp.noise import SeededNoise

TEST = AboveThreshold(batch=60, kernel=RampKernel(1.0), epsilon=1.0, delta=0.01)
NOISE = 3.0
"""The noise of each release, over its sensitivity."""
PASSED = TEST.kernel.unaligned_bound(60) + replacement_bound(60)
"""The most that a batch of a doubtful round can score."""

gaps = st.floats(-15.0, 60.0)
user_rounds = st.sampled_from(["another's", "agreed", "doubtful"])
moves = st.floats(-1.0, 1.0).map(lambda move: float(np.sign(move)) if abs(move) > 0.3 else move)
rounds = st.lists(st.tuples(user_rounds, gaps, moves), min_size=1, max_size=5)


def gaussian_delta(mu, x):
    """Hockey-stick divergence of order e^x between normal laws that lie mu of their deviations apart."""
    if mu == 0:
        return max(0.0, 1 - math.exp(min(x, 0.0)))
    return norm.cdf(mu / 2 - x / mu) - math.exp(x) * norm.cdf(-mu / 2 - x / mu)


def divergence(first, second, kinds, x, noise=NOISE):
    """The divergence of order e^x between two neighbours' runs; a doubtful round that passes gives the user away.

    Args:
        first: (T,) scores of one data set.
        second: (T,) of its neighbour.
        kinds: of the rounds; each "agreed" one that passes releases a Gaussian whose mean the user moves.
        x: order.
        noise: of each release, over its sensitivity.
    """
    survived = [
        [1.0, *(TEST.pass_probability(scores[:end]) for end in range(1, len(scores) + 1))] for scores in (first, second)
    ]
    total, mu = 0.0, 0.0

    def seen(p, q):
        return p * gaussian_delta(mu, x + math.log(q / p)) if min(p, q) > 1e-12 else p

    for number, kind in enumerate(kinds):
        one, other = (law[number] - law[number + 1] for law in survived)
        total += seen(one, other)
        if kind == "doubtful":
            return total + survived[0][number + 1]
        mu = math.hypot(mu, (kind == "agreed") / noise)
    return total + seen(survived[0][-1], survived[1][-1])


def scores_of(planned):
    """The scores of both neighbours: near the threshold where the user's round is not doubtful."""
    first = np.array([PASSED if kind == "doubtful" else TEST.threshold + gap for kind, gap, _ in planned])
    moved = [0.0 if kind == "another's" else move * TEST.sensitivity for kind, _, move in planned]
    second = first + np.array(moved)
    doubtful = np.array([kind == "doubtful" for kind, _, _ in planned])
    return first, np.where(doubtful, np.minimum(second, PASSED), second)


@settings(max_examples=60)
@given(rounds, st.floats(0.0, 2.5))
def test_a_user_of_several_rounds_pays_for_the_test_once(planned, x):
    kinds = [kind for kind, _, _ in planned]
    participations = sum(kind != "another's" for kind in kinds)
    assume(participations)
    first, second = scores_of(planned)
    claimed = delta_of(Cost(NOISE, failure_delta=TEST.delta, shared_epsilon=TEST.epsilon), participations, x)
    for pair in ((first, second), (second, first)):
        assert divergence(*pair, kinds, x) <= claimed + 1e-9


class Louder(SeededNoise):
    """Adds nothing, and says that it draws a twentieth more than it is asked for."""

    slack = 0.05

    def laplace(self, value, scale):
        return np.asarray(value)


@pytest.mark.parametrize("kind", [AboveThreshold, MinimumScore])
def test_the_threshold_rises_with_the_noise_of_its_source(kind):
    test = kind(batch=60, kernel=RampKernel(1.0), epsilon=1.0, delta=0.01)
    noise = Louder(np.random.default_rng(1))
    session, least = test.session(noise), test.threshold + 2 * noise.slack * test.margin
    for score, passed in ((least * (1 + 1e-12), True), (least * (1 - 1e-12), False)):
        session.observe(test.scored(score, 60))
        assert session.passed() == passed


@pytest.mark.parametrize("kind", [AboveThreshold, MinimumScore])
def test_a_session_goes_on_with_the_noise_that_it_has_drawn(kind):
    """A killed run keeps its threshold: another draw would be a second release of the earlier scores."""
    test = kind(batch=60, kernel=RampKernel(1.0), epsilon=1.0, delta=0.01)
    outcomes = set()
    for seed in range(40):
        one, other = (test.session(SeededNoise(np.random.default_rng(each))) for each in (seed, seed + 1000))
        for score in (60.0, test.threshold + 2.0):
            one.observe(test.scored(score, 60))
        other.restore(one.state())
        for score in (test.threshold + 1.0, test.threshold):
            assert one.observe(test.scored(score, 60)) == other.observe(test.scored(score, 60))
            assert one.passed() == other.passed()
            outcomes.add(one.passed())
        assert one.state() == other.state()
    assert outcomes == {True, False}
