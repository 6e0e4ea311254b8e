"""Clipped samples: sensitivity at both units, the paper's numbers, and what user level costs."""

import math

import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, final, gathered, make, run, silenced
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import IterativeMeanSGD, SampleClippedSGD
from userdp.accounting import rho_for
from userdp.errors import BadInput
from userdp.problems import Bernoulli, Linear, Quadratic

SIZES = [3, 1, 4, 2]
FACTS = {"min_samples": 1, "max_samples": 4, "samples": 10}
codes = st.integers(0, len(WILD) - 1)


def method_for(unit, problem=None, users=4, facts=None, delta=1e-2, **options):
    options = {"clip_norm": 0.7, "rounds": 3} | options
    return make(SampleClippedSGD, problem or Wild(2), users, delta=delta, unit=unit, facts=facts or FACTS, **options)


def mean(method, samples, sizes):
    return gathered(method, federation_of(samples, sizes=sizes), 0, np.zeros(2)).values / method.scheme.divisor


# --- Formal guarantee ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=100)
@given(arrays(np.int64, (10, 2), elements=codes), arrays(np.int64, (2,), elements=codes), st.integers(0, 9))
def test_replacing_one_sample_moves_the_mean_by_at_most_2r_over_n(samples, other, which):
    method = method_for("sample")
    neighbour = samples.copy()
    neighbour[which] = other
    distance = np.linalg.norm(mean(method, samples, SIZES) - mean(method, neighbour, SIZES))
    assert distance <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-12)
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(2 * 0.7 / 10)


@pytest.mark.slow
@settings(max_examples=100)
@given(arrays(np.int64, (10, 2), elements=codes), st.lists(st.tuples(codes, codes), min_size=1, max_size=4))
def test_replacing_one_user_of_any_size_moves_the_mean_by_at_most_2r_m_max_over_n(samples, other):
    """The new user may hold fewer or more samples than the old one; N stays the public number."""
    method = method_for("user")
    neighbour = np.concatenate([np.array(other), samples[3:]])
    moved = mean(method, samples, SIZES) - mean(method, neighbour, [len(other), *SIZES[1:]])
    assert np.linalg.norm(moved) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-12)
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(2 * 0.7 * 4 / 10)


@pytest.mark.parametrize(("unit", "replaced"), [("sample", slice(4, 5)), ("user", slice(4, 8))])
def test_the_stated_sensitivity_is_attained(unit, replaced):
    method = method_for(unit)
    samples = np.zeros((10, 2), dtype=int)
    samples[replaced, 0] = 1
    neighbour = np.zeros((10, 2), dtype=int)
    neighbour[replaced, 0] = 2
    distance = np.linalg.norm(mean(method, samples, SIZES) - mean(method, neighbour, SIZES))
    assert distance == pytest.approx(method.scheme.mechanism.l2_sensitivity, rel=1e-12)


def test_a_user_with_more_samples_than_declared_is_held_to_what_was_declared():
    method = method_for("user")
    samples = np.full((20, 2), 4)
    total = gathered(method, federation_of(samples, sizes=[17, 1, 1, 1]), 0, np.zeros(2)).values
    assert np.linalg.norm(total) <= 0.7 * (4 + 3) * (1 + 1e-9)


# --- The plan ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["sample", "user"])
@pytest.mark.parametrize(("epsilon", "rounds"), [(0.5, 1), (1.0, 20), (6.0, 50)])
def test_the_plan_spends_the_budget_and_not_more(unit, epsilon, rounds):
    facts = {"max_samples": 5, "samples": 4000}
    method = make(SampleClippedSGD, Quadratic(2, 1.0, 1.0), 1000, epsilon, 1e-5, unit=unit, facts=facts, rounds=rounds)
    guarantee = method.plan.guarantee
    assert guarantee.unit == unit
    assert 0.99 * epsilon < guarantee.epsilon <= epsilon
    assert ("group privacy for 5 samples" in guarantee.accountant) == (unit == "user")
    assert any("5 times that of sample level" in warning for warning in method.plan.warnings) == (unit == "user")


def test_user_level_costs_m_max_times_the_noise():
    plans = [method_for(unit, Quadratic(2, 1.0, 1.0)).plan.numbers for unit in ("sample", "user")]
    assert plans[1]["noise_deviation"] == pytest.approx(4 * plans[0]["noise_deviation"])
    assert plans[1]["sample_level_epsilon"] < plans[0]["sample_level_epsilon"]


@pytest.mark.parametrize("unit", ["sample", "user"])
def test_the_papers_accounting_never_exceeds_the_budget_and_spends_its_rho(unit):
    facts = {"max_samples": 3, "samples": 3000}
    options = {"accounting": "paper", "rounds": 10}
    method = make(SampleClippedSGD, Quadratic(2, 1.0, 1.0), 1000, 0.8, 1e-5, unit=unit, facts=facts, **options)
    assert 0 < method.plan.guarantee.epsilon <= 0.8
    multiplier = method.plan.numbers["noise_multiplier"]
    assert 10 / (2 * multiplier**2) == pytest.approx(rho_for(0.8, 1e-5, "paper"))


def test_the_papers_clip_and_rounds_by_hand():
    facts = {"max_samples": 1, "samples": 10_000}
    method = make(SampleClippedSGD, Bernoulli(4, 2.0), 10_000, 1.0, 1e-5, facts=facts, moment=1.5, max_rounds=30)
    rho = rho_for(1.0, 1e-5)
    clip = 1.5 * 2 * min(math.sqrt(10_000 * math.sqrt(rho / 4)), math.sqrt(10_000 / 4))
    assert method.plan.numbers["clip_norm"] == pytest.approx(clip)
    wanted = rho * (10_000 * 0.25 * 2 * 2.0 * 2 / clip) ** 2 / 4
    assert method.plan.rounds == min(30, max(1, math.ceil(wanted)))
    assert method.plan.numbers["learning_rate"] == pytest.approx(4 / math.sqrt(2 * method.plan.rounds))


@pytest.mark.parametrize(("missing", "unit"), [("samples", "sample"), ("max_samples", "user")])
def test_public_numbers_that_the_sensitivity_needs_must_be_declared(missing, unit):
    facts = {key: value for key, value in FACTS.items() if key != missing}
    with pytest.raises(BadInput, match=f"data.{missing} must be declared"):
        method_for(unit, facts=facts)


@pytest.mark.parametrize(("kind", "own"), [(SampleClippedSGD, {}), (IterativeMeanSGD, {"groups": 3})])
def test_smoothness_must_be_declared_where_the_loss_certifies_none_and_something_is_set_by_it(kind, own):
    def method_of(**options):
        return make(kind, Linear(2, 1.0, radius=1.0), 4, delta=1e-2, facts=FACTS, clip_norm=0.7, **own, **options)

    for options in ({}, {"rounds": 3}, {"learning_rate": 0.1}):
        with pytest.raises(BadInput, match=r"strategy\.smoothness must be declared"):
            method_of(**options)
    assert method_of(rounds=3, learning_rate=0.1).plan.numbers["learning_rate"] == 0.1
    steps = {L: method_of(rounds=3, smoothness=L).plan.numbers["learning_rate"] for L in (0.5, 2.0)}
    assert steps == pytest.approx({L: 1 / (L * math.sqrt(6)) for L in (0.5, 2.0)})


def test_noise_that_drowns_the_clip_is_a_warning():
    method = method_for("user", Quadratic(50, 1.0, 1.0), rounds=50)
    assert any("all rounds together" in warning for warning in method.plan.warnings)


# --- Behaviour -----------------------------------------------------------------------------------------------------


def test_it_returns_the_average_of_the_points_at_which_gradients_were_taken():
    problem = Quadratic(1, 10.0, 10.0)
    method = silenced(method_for("sample", problem, clip_norm=100.0, rounds=3, learning_rate=0.5))
    result = run(method, federation_of(np.full((10, 1), 4.0), sizes=SIZES))
    # Halving the distance to 4 gives 0, 2, 3: the third step's own point, 3.5, is not among them.
    assert final(result) == pytest.approx([5 / 3])


def test_a_sample_whose_gradient_is_not_finite_counts_as_zero():
    samples = np.ones((10, 2), dtype=int)
    samples[5] = 7
    method = method_for("sample")
    total = gathered(method, federation_of(samples, sizes=SIZES), 0, np.zeros(2)).values
    np.testing.assert_allclose(total, 9 * 0.7 / math.sqrt(2))


def test_sample_level_is_printed_as_the_weaker_promise():
    assert "one single sample (NOT a whole user)" in method_for("sample").plan.guarantee.sentence()
