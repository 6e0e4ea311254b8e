"""The clip goes where the paper sends it, and count and sum together cost what one Gaussian does."""

import math

import numpy as np
import pytest
from helpers import WILD, afresh, federation_of, gathered, make, requested, run, silenced, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_fed_sgd import share

from strategies import AdaptiveClipping
from strategies.wire.replies import Gathered
from userdp.accounting import Cost, epsilon_of
from userdp.arrays.sparse_rows import clip_rows
from userdp.data import Gaussian, SyntheticFederation
from userdp.nodes.statistics import unclipped
from userdp.problems import Linear, Quadratic
from userdp.randomness import stream

# --- Formal guarantee: count and sum are one Gaussian mechanism ------------------------------------------------------


def test_that_move_is_attained_by_a_user_on_the_sphere_and_one_beyond_it():
    problem = Linear(1, 5.0)
    method = make(AdaptiveClipping, problem, 5, delta=1e-3, clip_norm=0.75)
    users = np.array([[0.1], [0.2], [0.75], [0.0], [3.0]])
    neighbour = users.copy()
    neighbour[2] = -4.0
    rounds = [gathered(method, federation_of(data), 0, np.zeros(1)).values for data in (users, neighbour)]
    assert share(method, rounds[0] - rounds[1]) == pytest.approx(1)
    np.testing.assert_allclose(rounds[0][-1], 4 * 0.5 - 0.5)
    np.testing.assert_allclose(rounds[1][-1], 3 * 0.5 - 2 * 0.5)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("sampling", "factor"), [("disjoint", 2), ("fixed_size", 2), ("poisson", 1)])
def test_the_multiplier_of_the_sum_follows_from_both_and_from_the_relation(sampling, factor):
    method = make(AdaptiveClipping, Quadratic(3, 5.0, 2.0), 1000, 2.0, 1e-5, sampling=sampling, cohort=500, rounds=10)
    numbers = method.plan.numbers
    z, sum_multiplier, count_noise = (numbers[name] for name in ("noise_multiplier", "sum_multiplier", "count_noise"))
    assert count_noise == 500 / 20
    assert sum_multiplier == pytest.approx((z**-2 - (2 * count_noise / factor) ** -2) ** -0.5)
    assert z < sum_multiplier < 1.2 * z
    assert 0.999 * 2 < method.plan.guarantee.epsilon <= 2
    if sampling == "disjoint":
        assert method.plan.guarantee.epsilon == epsilon_of(Cost(z), method.scheme.sampler.epochs, 1e-5)


def test_noise_of_a_small_cohorts_count_is_raised_to_what_the_budget_allows():
    method = make(AdaptiveClipping, Quadratic(3, 5.0, 2.0), 20, 1.0, 1e-3)
    numbers = method.plan.numbers
    assert numbers["count_noise"] == pytest.approx(2 * numbers["noise_multiplier"])
    assert numbers["sum_multiplier"] == pytest.approx(numbers["noise_multiplier"] / math.sqrt(3 / 4))


# --- Where the clip goes --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_without_noise_the_clip_settles_at_the_quantile(quantile):
    norms = np.linspace(0.5, 4.5, 400)
    method = silenced(
        make(AdaptiveClipping, Linear(1, 5.0), 400, 8.0, 1e-4, clip_norm=1.0, rounds=200, quantile=quantile)
    )
    rounds = run(method, federation_of(norms[:, None])).rounds
    path = np.array([record.facts["clip_norm"] for record in rounds])
    assert path[-1] == pytest.approx(np.quantile(norms, quantile), rel=0.03)


def test_one_update_of_the_clip_by_hand():
    method = make(
        AdaptiveClipping, Linear(1, 5.0), 100, 4.0, 1e-3, clip_norm=1.0, rounds=2, clip_rate=0.3, quantile=0.4
    )
    federation = federation_of(np.where(np.arange(100) < 70, 0.5, 3.0)[:, None])
    answers = gathered(method, federation, 0, np.zeros(1))
    np.testing.assert_allclose(answers.values, [-(70 * 0.5 + 30), 70 * 0.5 - 30 * 0.5])
    before = method.scheme.mechanism(method.memory.clip).standard_deviation
    facts = taken(method, 0, np.zeros(1), answers).facts
    count_noise = method.plan.numbers["count_noise"]
    share = 0.7 + stream(0, "noise", 0, 1).normal(scale=count_noise / 100, size=1)[0]
    assert facts["unclipped_share"] == pytest.approx(share)
    assert method.memory.clip == pytest.approx(math.exp(-0.3 * (share - 0.4)))
    assert facts["noise_deviation"] == before


@pytest.mark.parametrize("more", [{}, {"local_steps": 2}], ids=["gradients", "updates"])
def test_flower_each_round_is_clipped_at_the_clip_in_force_in_it_and_noised_for_it(more):
    method = make(AdaptiveClipping, Quadratic(3, 5.0, 2.0), 2000, 4.0, 1e-5, clip_norm=0.2, rounds=8, **more)
    asked, ask = [], method.request_of
    method.request_of = lambda index: asked.append(ask(index)) or asked[-1]
    users = SyntheticFederation(Gaussian(dimension=3), users=2000, seed=1, samples_per_user=20)
    facts = [record.facts for record in run(method, users).rounds]
    assert len({fact["clip_norm"] for fact in facts}) == 8
    for request, fact in zip(asked, facts, strict=True):
        assert request.computation.clip_norm == fact["clip_norm"]
        deviation = method.plan.numbers["sum_multiplier"] * 2 * fact["clip_norm"] / 2000
        assert fact["noise_deviation"] == pytest.approx(deviation)


def test_the_clip_stays_within_its_public_bounds_even_if_the_count_is_far_off():
    method = make(AdaptiveClipping, Linear(1, 5.0), 100, 4.0, 1e-3, clip_low=0.5, clip_high=2.0)
    for total, bound in ((1e9, 0.5), (-1e9, 2.0)):
        taken(afresh(method), 0, np.zeros(1), Gathered(np.array([0.0, total]), 0, 0))
        assert method.memory.clip == pytest.approx(bound)
        assert requested(method, 1).computation.clip_norm == method.memory.clip


def test_who_does_not_answer_adds_nothing_to_the_count():
    method = silenced(make(AdaptiveClipping, Linear(1, 5.0), 100, 4.0, 1e-3))
    step = taken(method, 0, np.zeros(1), Gathered(np.array([0.0, 0.0]), 100, 0))
    assert step.facts["unclipped_share"] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=100)
@given(arrays(np.int64, (5, 3), elements=st.integers(0, 6)), st.floats(1e-6, 1e6))
def test_a_row_counts_as_unclipped_exactly_when_the_clip_leaves_it(choices, clip_norm):
    rows = WILD[choices]
    same = np.isclose(clip_rows(rows, clip_norm), rows, rtol=1e-12, atol=0).all(axis=1)
    np.testing.assert_array_equal(unclipped(rows, clip_norm), np.where(same, 0.5, -0.5))
