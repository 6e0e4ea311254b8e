"""Exact epsilons of mechanisms with finitely many outputs: the claims hold, and some are attained."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from userdp.audit import choice_probabilities, exact_epsilon, halting_probabilities
from userdp.errors import BadInput
from userdp.estimators import RampKernel
from userdp.mechanisms import AboveThreshold, MinimumScore
from userdp.mechanisms.exponential import ExponentialMechanism

laws = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4).map(lambda weights: np.array(weights) / sum(weights))


def violated(first, second, epsilon, delta):
    """The largest violation of (epsilon, delta) over all 2^K events."""
    events = np.array(list(product([0.0, 1.0], repeat=len(first))))
    return float((events @ first - math.exp(epsilon) * (events @ second) - delta).max())


@given(laws, laws, st.floats(0.0, 0.5))
def test_no_event_violates_the_exact_epsilon_and_any_less_is_violated(first, second, delta):
    epsilon = exact_epsilon(first, second, delta)
    worst = max(violated(first, second, epsilon, delta), violated(second, first, epsilon, delta))
    assert worst <= 1e-9
    if epsilon > 1e-6:
        assert max(violated(*pair, epsilon - 1e-6, delta) for pair in ((first, second), (second, first))) > 0


def test_an_output_that_only_one_data_set_has_is_worth_infinity_or_delta():
    assert exact_epsilon([0.9, 0.1, 0.0], [0.9, 0.0, 0.1]) == math.inf
    assert exact_epsilon([0.9, 0.1, 0.0], [0.9, 0.0, 0.1], 0.1) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3), st.floats(0.1, 4.0))
def test_the_exponential_mechanism_spends_no_more_than_it_claims(scores, epsilon):
    """All shifts of the scores by at most the sensitivity, which a linear function attains in corners."""
    mechanism, values = ExponentialMechanism(0.5, epsilon), np.array(scores)
    law = choice_probabilities(mechanism, values)
    corners = [choice_probabilities(mechanism, values + 0.5 * np.array(move)) for move in product([-1, 1], repeat=3)]
    assert max(exact_epsilon(law, other) for other in corners) <= epsilon + 1e-9


def test_the_exponential_mechanism_over_very_many_candidates_attains_its_claim():
    mechanism = ExponentialMechanism(1.0, 1.0)
    above, below = np.full(100_000, -0.5), np.full(100_000, 0.5)
    above[0], below[0] = 0.5, -0.5
    assert exact_epsilon(choice_probabilities(mechanism, above), choice_probabilities(mechanism, below)) > 0.999


@pytest.mark.parametrize(("kind", "least"), [(AboveThreshold, 0.25), (MinimumScore, 0.99)])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_concentration_test_leaks_no_more_than_its_epsilon_and_not_much_less(kind, least, steps):
    test = kind(batch=100, kernel=RampKernel(1.0), epsilon=1.0, delta=0.01)
    leaked = []
    for middle in np.linspace(-30, 30, 61) * test.sensitivity:
        scores = np.full(steps, test.threshold + middle)
        one = halting_probabilities(test, scores + test.sensitivity / 2)
        leaked.append(exact_epsilon(one, halting_probabilities(test, scores - test.sensitivity / 2)))
    assert least < max(leaked) <= 1.0 + 1e-3  # far from the threshold probabilities are differences from 1


@pytest.mark.parametrize(
    ("first", "second", "delta"),
    [
        ([0.5, 0.5], [1.0], 0.0),
        ([0.5, 0.6], [0.5, 0.5], 0.0),
        ([-0.5, 1.5], [0.5, 0.5], 0.0),
        ([1.0], [1.0], 1.0),
        ([[1.0]], [[1.0]], 0.0),
    ],
)
def test_what_is_no_pair_of_laws_is_refused(first, second, delta):
    with pytest.raises(BadInput):
        exact_epsilon(first, second, delta)
