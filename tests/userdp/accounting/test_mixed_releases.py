"""Choices and Gaussians in one budget, attacked by the worst pairs of both."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from userdp.accounting import Cost
from userdp.accounting.mixed import MixedReleases
from userdp.errors import BadInput

DELTA = 1e-6


def exact_delta(epsilon: float, choice: float, count: int, top: float, mu: float) -> float:
    """Delta of a Gaussian pair at distance mu, and of ``count`` pairs with losses ``top`` and ``top - choice``."""
    low = (1 - math.exp(top - choice)) / (math.exp(top) - math.exp(top - choice))
    heads = np.arange(count + 1)
    losses = heads * top + (count - heads) * (top - choice)
    chances = stats.binom.pmf(heads, count, math.exp(top) * low)
    left = epsilon - losses
    if not mu:
        return float(chances @ np.maximum(0, -np.expm1(left)))
    gaussian = stats.norm.cdf(mu / 2 - left / mu) - np.exp(left) * stats.norm.cdf(-mu / 2 - left / mu)
    return float(chances @ gaussian)


@pytest.mark.parametrize("choices", [1, 4, 12, 40])
@pytest.mark.parametrize("gaussians", [0, 1, 3])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_worst_pairs_of_choices_and_gaussians_stay_within_the_budget(choices, gaussians, epsilon):
    failure = DELTA / 2 if gaussians else 0.0
    releases = MixedReleases.calibrated((1.0,) * choices, (2.0,) * gaussians, failure, epsilon, DELTA)
    each = releases.choice_epsilon(1.0)
    mu = math.sqrt(gaussians) / releases.noise_multiplier(2.0) if gaussians else 0.0
    assert releases.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-6)
    worst = max(exact_delta(epsilon, each, choices, top, mu) for top in np.linspace(0, each, 41)[1:-1])
    assert failure + worst <= DELTA * (1 + 1e-6)


def test_few_choices_are_priced_as_pure_and_many_as_concentrated():
    few, many = (MixedReleases.calibrated((1.0,) * count, (), 0.0, 1.0, DELTA) for count in (2, 50))
    assert few.choice_epsilon(1.0) == pytest.approx(0.5, rel=1e-3)
    assert 50 * many.choice_epsilon(1.0) > 2
    pure = MixedReleases.calibrated((1.0,) * 50, (), 0.0, 1.0, 0.0)
    assert pure.choice_epsilon(1.0) == pytest.approx(0.02)


@settings(max_examples=10)
@given(
    st.lists(st.floats(0.1, 10), max_size=5),
    st.lists(st.floats(0.1, 10), max_size=3),
    st.floats(0.05, 8),
    st.sampled_from([1e-9, 1e-5]),
)
def test_the_budget_is_kept_and_used(choices, gaussians, epsilon, delta):
    if not choices and not gaussians:
        return
    failure = delta / 4 if gaussians else 0.0
    releases = MixedReleases.calibrated(tuple(choices), tuple(gaussians), failure, epsilon, delta)
    assert epsilon * (1 - 1e-6) <= releases.epsilon(delta) <= epsilon
    cost = releases.cost
    assert cost.failure_delta == failure
    assert cost.pure_epsilon == pytest.approx(sum(map(releases.choice_epsilon, choices)))
    squares = sum(releases.noise_multiplier(weight) ** -2 for weight in gaussians)
    assert cost.noise_multiplier**-2 == pytest.approx(squares)


def test_no_release_and_failures_beyond_delta_are_refused():
    with pytest.raises(BadInput, match="there is nothing to release: name a column"):
        MixedReleases.calibrated((), (), 0.0, 1.0, DELTA)
    with pytest.raises(BadInput, match="needs more than the failures"):
        MixedReleases.calibrated((), (1.0,), DELTA, 1.0, DELTA)
    assert MixedReleases((1.0,), (1.0,), DELTA).epsilon(DELTA / 2) == math.inf
    assert MixedReleases((1.0,), ()).cost == Cost(pure_epsilon=math.sqrt(8))
