"""Rounds with a coin for every sample: what is drawn, and what it costs one sample and a whole user."""

import itertools
import math

import numpy as np
import pytest
from any_strategy import problem_of
from scipy.integrate import trapezoid
from scipy.stats import norm

from strategies import STRATEGIES, PublicFacts
from strategies.baselines.samples.poisson_samples import PoissonSamples, group_rate, grouped_poisson_epsilon
from userdp.accounting import Cost, Privacy, epsilon_of
from userdp.errors import BadInput

SIZES = np.full(50, 40)


def coins_of(sampler, index):
    return sampler.coins(index).draw(slice(0, 50), SIZES).reshape(50, 40)


def test_every_round_throws_coins_of_its_own_for_samples():
    """2,000 coins of rate 0.5: two rounds agree in more than 1,200 of them once in 10^18 runs."""
    sampler = PoissonSamples(50, 0.5, 3, seed=1, joint=False)
    rounds = [coins_of(sampler, index) for index in range(3)]
    for first, second in itertools.combinations(rounds, 2):
        assert 800 < (first == second).sum() < 1200
    np.testing.assert_array_equal(rounds[1], coins_of(PoissonSamples(50, 0.5, 3, seed=1, joint=False), 1))


@pytest.mark.sweep(1)
def test_coins_from_a_seed_are_refused_where_noise_is_secure():
    sampler = PoissonSamples(90, 0.5, 2)
    noise = sampler.calibrate(1.0, 1e-3)
    with pytest.raises(BadInput, match="must stay secret and would come from the seed"):
        sampler.ledger(noise, Privacy(1.0, 1e-3, noise="secure"))
    assert sampler.ledger(noise, Privacy(1.0, 1e-3)).rounds == 0


@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.9), (1.0, 0.1), (50.0, 0.5)])
def test_sampling_never_costs_three_records_more_than_taking_part_every_time(noise, rate):
    plain = epsilon_of(Cost(noise), 20, 1e-5)  # with noise over what they move together
    assert grouped_poisson_epsilon(3 * noise, rate, 3, 20, 1e-5) <= plain
    assert grouped_poisson_epsilon(3 * noise, 1.0, 3, 20, 1e-5) == plain


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


def break_even(batch, samples, unit="user"):
    facts = PublicFacts(500, 1, 4, samples)
    options = {"rounds": 5, "batch": batch, "learning_rate": 0.1}
    budget = Privacy(2.0, 1e-5, unit)
    plan = (
        STRATEGIES["poisson_sample_sgd"](**options)
        .strategy(problem_of("poisson_sample_sgd"), facts, budget, seed=0)
        .plan
    )
    return plan.numbers.get("break_even")


def test_clipping_users_or_samples_is_even_where_everything_is_drawn_and_everybody_has_the_most_samples():
    assert break_even(2000, 2000) == pytest.approx(1.0, rel=1e-3)
    assert break_even(1000, 1000) == pytest.approx(2.0, rel=1e-3)  # noise for samples that users lack


def test_few_samples_drawn_speak_for_clipping_samples_even_if_a_users_samples_cancel():
    ratios = [break_even(batch, 2000) for batch in (20, 200, 1000)]
    assert ratios == sorted(ratios)
    assert 1 / 4 < ratios[0] < 4**-0.5 < ratios[1] < ratios[2] < 1.0


def test_single_samples_are_not_compared_with_users():
    assert break_even(20, 2000, unit="sample") is None
