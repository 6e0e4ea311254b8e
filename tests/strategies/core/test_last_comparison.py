"""The last comparison with the initial model: what one user can do, what it costs, which model comes out."""

import math

import numpy as np
import pytest
from any_strategy import FACTS, halves, method_of
from helpers import federation_of, final, make, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from strategies import STRATEGIES, DPFedSGD
from strategies.core.program import SHARE, LastComparison
from strategies.wire.replies import Gathered
from userdp.errors import BadInput
from userdp.mechanisms import LaplaceMechanism
from userdp.nodes.node import Node
from userdp.noise import SecureNoise, SeededNoise
from userdp.problems import Quadratic

COMPARING = sorted(name for name, kind in STRATEGIES.items() if kind.about.without_comparison is None)


def compared(name, **more):
    asked = {"unit": STRATEGIES[name].about.units[0], "compare_with_initial": True}
    return method_of(name, epsilon=8.0, delta=1e-3, **asked | more)


# --- Formal guarantee ------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=9),
    st.floats(-3, 3) | st.just(math.nan) | st.just(math.inf),
    st.booleans(),
)
def test_replacing_adding_or_removing_a_user_moves_the_sum_by_at_most_one(values, other, removed):
    problem = Quadratic(1, 10.0, 10.0)
    comparison = LastComparison(0.1, len(values))
    request = comparison.ask(0, np.zeros(1))

    def total(samples):
        federation = federation_of(np.array(samples)[:, None])
        node = Node(problem, federation, np.arange(len(samples)))
        return float(node.compute(np.array([0.7]), np.arange(len(samples)), request.computation).values[0][0])

    neighbour = values[1:] if removed else [other, *values[1:]]
    assert abs(total(values) - total(neighbour)) <= comparison.mechanism.sensitivity


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARING)
def test_strategy_and_comparison_together_keep_to_the_budget_and_the_ledger_says_so(name):
    method, plain = compared(name), compared(name, compare_with_initial=False)
    promised = method.plan.guarantee
    assert promised.holds
    assert promised.epsilon <= 8.0 * (1 + 1e-6)
    assert promised.delta == plain.plan.guarantee.delta
    assert promised.relation == plain.plan.guarantee.relation
    assert method.plan.numbers["comparison_epsilon"] == pytest.approx(SHARE * 8.0)
    result = run(method, halves(method.problem))
    spent = [record.spent_epsilon for record in result.rounds]
    assert spent[-1] == pytest.approx(promised.epsilon, rel=1e-6)
    assert spent[-1] - spent[-2] == pytest.approx(SHARE * 8.0, rel=1e-6)
    assert len(result.rounds) == method.plan.rounds


def chosen(comparison, votes, seed):
    """The facts of a choice between zero and one with that sum of votes."""
    noise = SeededNoise(np.random.default_rng(seed))
    return comparison.take(0, np.ones(1), np.zeros(1), Gathered(np.array([votes]), 0, 0), lambda _: noise).facts


def test_what_the_margin_says_is_how_often_the_choice_is_wrong():
    comparison = LastComparison(0.5, 100)
    votes = 100 * comparison.numbers()["comparison_margin"]
    back = [chosen(comparison, votes, seed)["went_back"] for seed in range(2000)]
    low, high = stats.binom(2000, 0.05).ppf([1e-5, 1 - 1e-5])
    assert low <= sum(back) <= high


@pytest.mark.parametrize("noisy", [-3.0, 3.0])
def test_which_model_is_released_follows_from_the_noisy_sum_alone(noisy, monkeypatch):
    monkeypatch.setattr(LaplaceMechanism, "release", lambda *_: np.array([noisy]))
    steps = [
        LastComparison(0.5, 10).take(0, np.ones(1), np.zeros(1), Gathered(np.array([votes]), 0, 0), lambda _: None)
        for votes in (-5.0, 0.0, 5.0)
    ]
    assert {(float(step.released[0]), tuple(step.facts.items())) for step in steps} == {
        (float(noisy > 0), (("improved_share", 0.5 + noisy / 10), ("went_back", float(noisy < 0))))
    }


def test_secure_noise_can_be_had():
    votes = Gathered(np.array([500.0]), 0, 0)
    step = LastComparison(1.0, 10).take(0, np.ones(1), np.zeros(1), votes, lambda _: SecureNoise())
    assert step.released == [1.0]


# --- What comes out --------------------------------------------------------------------------------------------------


def test_a_model_that_most_users_are_worse_off_with_is_taken_back():
    method = make(
        DPFedSGD,
        Quadratic(2, 10.0, 50.0),
        400,
        20.0,
        clip_norm=1.0,
        rounds=1,
        learning_rate=40.0,
        compare_with_initial=True,
    )
    result = run(method, federation_of(np.full((400, 2), 0.5)))
    assert result.rounds[-1].facts["went_back"] == 1.0
    assert result.rounds[-1].facts["improved_share"] < 0.3
    np.testing.assert_array_equal(final(result), [0.0, 0.0])


def test_a_better_model_stays_to_the_bit():
    setting = {"clip_norm": 1.0, "rounds": 3, "learning_rate": 0.5}
    problem, users = Quadratic(2, 10.0, 50.0), federation_of(np.full((400, 2), 0.5))
    plain = make(DPFedSGD, problem, 400, 20.0 * (1 - SHARE), **setting)
    method = make(DPFedSGD, problem, 400, 20.0, compare_with_initial=True, **setting)
    result = run(method, users)
    assert result.rounds[-1].facts["went_back"] == 0.0
    np.testing.assert_array_equal(final(result), final(run(plain, users)))


def test_it_is_the_released_model_that_is_compared_not_the_last_point():
    """Averages of points are released; the last point is another model."""
    setting = {"clip_norm": 10.0, "rounds": 2, "learning_rate": 2.0, "output": "average"}
    method = make(
        STRATEGIES["sample_clipped_sgd"],
        Quadratic(1, 10.0, 50.0),
        400,
        1e4,
        unit="sample",
        facts=FACTS,
        compare_with_initial=True,
        **setting,
    )
    # From 0 to 2 to 0 and so on about 1: the average of the first two points is 1, and perfect.
    result = run(method, federation_of(np.ones((400, 1))))
    assert result.rounds[-1].facts["improved_share"] == pytest.approx(1.0, abs=0.05)
    assert final(result) == pytest.approx([1.0], abs=0.05)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_server_that_is_not_trusted_learns_no_exact_count(name):
    about = STRATEGIES[name].about
    assert about.server_trusted or about.without_comparison is not None


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - set(COMPARING)))
def test_where_it_makes_no_sense_it_is_refused_with_the_reason(name):
    with pytest.raises(BadInput, match="compare_with_initial"):
        compared(name)
