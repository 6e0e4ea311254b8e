"""The exponential mechanism: its law, its privacy and its utility; T6 of private Frank-Wolfe."""

import math
from itertools import permutations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_softmax, logsumexp, softmax

from strategies.baselines.high_dimensional.frank_wolfe import Hull, L1Ball, Simplex
from userdp.accounting import Cost, delta_of
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.noise import Scores, SecureNoise, SeededNoise

SCORES = np.array([0.0, 0.3, -1.0, 0.9, 0.85])


def seeded(seed=0):
    return SeededNoise(np.random.default_rng(seed))


def log_law(mechanism, scores):
    return log_softmax(mechanism.epsilon * scores / (2 * mechanism.sensitivity))


def polytopes():
    rng = np.random.default_rng(0)
    far = 100 + rng.normal(size=(6, 4))
    return [L1Ball(2.0, 4), Hull(far), Hull(np.concatenate([np.eye(4), -np.eye(4)])), Simplex(2.0, 4)]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("noise", [seeded(), SecureNoise()], ids=["seeded", "secure"])
def test_choices_follow_the_softmax_t06(noise):
    mechanism, draws = ExponentialMechanism(0.5, 1.5), 6000
    chosen = [mechanism.choose(Scores(SCORES, mechanism.sensitivity), noise) for _ in range(draws)]
    expected = draws * softmax(1.5 * SCORES)
    assert stats.chisquare(np.bincount(chosen, minlength=5), expected).pvalue > 1e-9


@pytest.mark.sweep(1)
@pytest.mark.parametrize("polytope", polytopes(), ids=["ball", "far", "hull", "simplex"])
@pytest.mark.parametrize("mode", ["tight", "paper"])
def test_no_two_gradients_that_close_are_told_apart_t06(polytope, mode):
    """Gradients near zero and far from it."""
    rng, gap, epsilon = np.random.default_rng(1), 0.3, 1.0
    mechanism = ExponentialMechanism(polytope.score_sensitivity(gap, mode), epsilon)
    worst = 0.0
    for _ in range(2000):
        gradient = rng.normal(size=4) * 10 ** rng.uniform(-1, 2)
        other = gradient + gap * rng.choice([-1.0, 1.0], size=4)
        ratio = log_law(mechanism, polytope.scores(gradient)) - log_law(mechanism, polytope.scores(other))
        worst = max(worst, float(np.abs(ratio).max()))
        assert np.ptp(ratio) <= epsilon * (1 + 1e-9)
    assert worst <= epsilon * (1 + 1e-9)
    if isinstance(polytope, (L1Ball, Simplex)):
        assert worst == pytest.approx(1.0 if mode == "tight" else 0.5, abs=0.05)


def test_less_than_half_the_diameter_would_not_be_private_t06():
    """The ball's sensitivity is the least: with nine tenths of it a pair is told apart by more than epsilon."""
    ball = L1Ball(1.0, 3)
    mechanism = ExponentialMechanism(0.9 * ball.score_sensitivity(0.3), 1.0)
    gradient = np.array([50.0, 0.0, 0.0])
    ratio = log_law(mechanism, ball.scores(gradient)) - log_law(mechanism, ball.scores(gradient - [0.3, 0, 0]))
    assert np.abs(ratio).max() > 1.05


def test_the_choice_misses_the_best_as_rarely_as_the_bound_says_t06():
    mechanism, noise, scores = ExponentialMechanism(0.2, 1.0), seeded(3), np.array([1.0] + [0.0] * 200)
    known = Scores(scores, 0.2)
    for failure in (0.5, 0.1):
        below = sum(scores[mechanism.choose(known, noise)] < 1 - mechanism.shortfall(201, failure) for _ in range(500))
        assert stats.binomtest(below, 500, failure, alternative="greater").pvalue > 1e-9
    assert mechanism.shortfall(201, 0.1) == pytest.approx(0.4 * math.log(2010))


def test_a_choice_costs_its_epsilon_and_an_eighth_of_its_square():
    mechanism = ExponentialMechanism(1.0, 0.8)
    assert mechanism.cost == Cost(pure_epsilon=0.8)
    assert mechanism.rho == pytest.approx(0.08)
    rng = np.random.default_rng(4)
    for _ in range(300):
        scores = rng.normal(size=6) * 3
        one, other = log_law(mechanism, scores), log_law(mechanism, scores + rng.choice([-1.0, 1.0], size=6))
        for order in (1.01, 2.0, 8.0, 100.0):
            renyi = logsumexp(order * one - (order - 1) * other) / (order - 1)
            assert renyi <= mechanism.rho * order + 1e-12


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0, 40.0])
def test_a_choice_is_no_worse_than_the_gaussian_that_it_is_charged_as(epsilon):
    mu = 1 / ExponentialMechanism(1.0, epsilon, as_gaussian=True).cost.noise_multiplier
    # Two coins whose log odds differ by epsilon, of all biases.
    tilts = np.linspace(-12 - epsilon, 12, 4001)
    heads = stats.norm.ppf(expit(tilts + epsilon)) - stats.norm.ppf(expit(tilts))
    assert heads[np.isfinite(heads)].max() <= mu * (1 + 1e-9)
    assert stats.norm.ppf(expit(epsilon / 2)) * 2 == pytest.approx(mu, rel=1e-8)


def test_choices_between_neighbours_lie_below_the_gaussian_curve():
    mechanism, rng = ExponentialMechanism(1.0, 0.8, as_gaussian=True), np.random.default_rng(0)
    cost = mechanism.cost
    for _ in range(200):
        scores = rng.uniform(-5, 5, 6)
        moved = scores + rng.choice([-1.0, 1.0, 0.0], 6)
        first, second = (np.exp(log_law(mechanism, one)) for one in (scores, moved))
        for epsilon in (0.0, 0.1, 0.3, 0.6):
            apart = np.maximum(first - math.exp(epsilon) * second, 0).sum()
            assert apart <= delta_of(cost, 1, epsilon) + 1e-12


@pytest.mark.parametrize("multiplier", [1e-3, 0.5, 4.0, 1e4])
def test_a_choice_like_a_gaussian_costs_no_more_than_it(multiplier):
    cost = ExponentialMechanism.like_gaussian(2.0, multiplier).cost
    assert cost.noise_multiplier >= multiplier
    assert cost.noise_multiplier == pytest.approx(multiplier, rel=1e-6)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("noise", [seeded(), SecureNoise()], ids=["seeded", "secure"])
def test_permute_and_flip_has_its_law_and_its_privacy(noise):
    def law(scores):
        """The chances of each choice, over all orders."""
        accepted = np.exp(1.5 * (scores - scores.max()) / 2)
        found = np.zeros(len(scores))
        for order in permutations(range(len(scores))):
            left = 1.0
            for k in order:
                found[k] += left * accepted[k]
                left *= 1 - accepted[k]
        return found / math.factorial(len(scores))

    mechanism, draws = ExponentialMechanism(1.0, 1.5, flips=True), 4000
    chosen = [mechanism.choose(Scores(SCORES, mechanism.sensitivity), noise) for _ in range(draws)]
    assert stats.chisquare(np.bincount(chosen, minlength=5), draws * law(SCORES)).pvalue > 1e-9
    rng = np.random.default_rng(1)
    for _ in range(50):
        first, second = law(SCORES), law(SCORES + rng.choice([-1.0, 0.0, 1.0], 5))
        assert np.abs(np.log(first / second)).max() <= 1.5 + 1e-9
    assert law(SCORES) @ SCORES >= softmax(0.75 * SCORES) @ SCORES
    with pytest.raises(BadInput, match="no price as a Gaussian"):
        ExponentialMechanism(1.0, 1.5, as_gaussian=True, flips=True)
