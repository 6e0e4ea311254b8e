"""Clipped samples: sensitivity at both units, the paper's numbers, and what user level costs."""

import math

import numpy as np
import pytest
from helpers import Wild, federation_of, gathered, make

from strategies import IterativeMeanSGD, SampleClippedSGD
from userdp.accounting import rho_for
from userdp.errors import BadInput
from userdp.problems import Bernoulli, Linear, Quadratic

SIZES = [3, 1, 4, 2]
FACTS = {"min_samples": 1, "max_samples": 4, "samples": 10}


def method_for(unit, problem=None, users=4, facts=None, delta=1e-2, **options):
    options = {"clip_norm": 0.7, "rounds": 3} | options
    return make(SampleClippedSGD, problem or Wild(2), users, delta=delta, unit=unit, facts=facts or FACTS, **options)


def mean(method, samples, sizes):
    return gathered(method, federation_of(samples, sizes=sizes), 0, np.zeros(2)).values / method.scheme.divisor


# --- Formal guarantee ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "replaced"), [("sample", slice(4, 5)), ("user", slice(4, 8))])
def test_the_stated_sensitivity_is_attained(unit, replaced):
    method = method_for(unit)
    samples = np.zeros((10, 2), dtype=int)
    samples[replaced, 0] = 1
    neighbour = np.zeros((10, 2), dtype=int)
    neighbour[replaced, 0] = 2
    distance = np.linalg.norm(mean(method, samples, SIZES) - mean(method, neighbour, SIZES))
    assert distance == pytest.approx(method.scheme.mechanism.l2_sensitivity, rel=1e-12)


# --- The plan ------------------------------------------------------------------------------------------------------


def test_user_level_costs_m_max_times_the_noise_and_says_so():
    plans = [method_for(unit, Quadratic(2, 1.0, 1.0)).plan for unit in ("sample", "user")]
    one, whole = (plan.numbers for plan in plans)
    assert whole["noise_deviation"] == pytest.approx(4 * one["noise_deviation"])
    assert whole["sample_level_epsilon"] < one["sample_level_epsilon"]
    assert ["group privacy for 4 samples" in plan.guarantee.accountant for plan in plans] == [False, True]
    assert ["one single sample (NOT a whole user)" in plan.guarantee.sentence() for plan in plans] == [True, False]
    assert [any("4 times that of sample level" in told for told in plan.warnings) for plan in plans] == [False, True]


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


# --- Behaviour -----------------------------------------------------------------------------------------------------


def test_a_sample_whose_gradient_is_not_finite_counts_as_zero():
    samples = np.ones((10, 2), dtype=int)
    samples[5] = 7
    method = method_for("sample")
    total = gathered(method, federation_of(samples, sizes=SIZES), 0, np.zeros(2)).values
    np.testing.assert_allclose(total, 9 * 0.7 / math.sqrt(2))
