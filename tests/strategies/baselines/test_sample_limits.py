"""At user level no more than max_samples samples of anybody count, however many a node holds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import ChangedNode, federation_of, gathered, make, requested
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.engines.grids import LocalGrid
from strategies import (
    AveragedClipping,
    AveragedClippingRestarted,
    IterativeMeanSGD,
    PoissonSampleSGD,
    SampleClippedSGD,
    SmoothedTruncationGD,
)
from strategies.baselines.averaged_clipping.averaged_clipping_restarted import Runs
from strategies.baselines.samples.batch_rounds import price_of
from strategies.baselines.samples.poisson_samples import PoissonSamples, group_rate
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import Answer, Node
from userdp.problems import Quadratic

DRAWN = [AveragedClipping, AveragedClippingRestarted, PoissonSampleSGD]
"""Strategies that draw a coin for each sample."""
SUMMED = [SampleClippedSGD, IterativeMeanSGD, SmoothedTruncationGD]
"""Strategies that take all samples of a user up to the limit."""
OPTIONS = {
    AveragedClipping: {"rounds": 4, "batch": 8},
    AveragedClippingRestarted: {"rounds": 4, "runs": 2, "batch": 8, "strong_convexity": 1.0},
    PoissonSampleSGD: {"rounds": 4, "batch": 8, "clip_norm": 0.5},
    SampleClippedSGD: {"rounds": 2, "clip_norm": 0.5},
    IterativeMeanSGD: {"rounds": 2, "clip_norm": 0.5, "groups": 3},
    SmoothedTruncationGD: {"rounds": 2, "scale": 0.5},
}
USERS = 12
ORIGIN = np.zeros(2)


def method_for(kind, most, unit="user", **options):
    facts = {"max_samples": most, "samples": most * USERS}
    problem, options = Quadratic(2, 9.0, 9.0), OPTIONS[kind] | options
    return make(kind, problem, USERS, 4.0, 1e-3, unit=unit, facts=facts, seed=5, **options)


def sampler_of(method):
    scheme = method.scheme
    return scheme.run(0).sampler if isinstance(scheme, Runs) else scheme.sampler


def people(sizes, seed=0):
    """Users whose first samples are the same however many follow."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(USERS, 5, 2)) + 3
    more = rng.normal(size=(sum(sizes), 2)) + 3
    samples = [np.concatenate([first[user], more])[:size] for user, size in enumerate(sizes)]
    return federation_of(np.concatenate(samples), sizes=list(sizes))


def sums(method, federation):
    return [gathered(method, federation, index, ORIGIN).values for index in range(method.plan.rounds)]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("kind", [*DRAWN, IterativeMeanSGD])
def test_a_thousand_samples_more_than_declared_change_nothing_at_user_level(kind, most):
    method = method_for(kind, most)
    declared, holds_more = ([size] + [most] * (USERS - 1) for size in (most, most + 1000))
    for few, many in zip(sums(method, people(declared)), sums(method, people(holds_more)), strict=True):
        np.testing.assert_allclose(many, few, rtol=1e-12, atol=1e-12)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", DRAWN)
def test_with_one_sample_a_user_the_chance_to_take_part_is_the_rate_that_is_priced(kind):
    """A user with 1,000 samples, one of them declared, takes part so often in 2,000 rounds, within five deviations."""
    sampler = sampler_of(method_for(kind, 1))
    sampler = PoissonSamples(1, sampler.rate, 2000, seed=1, most=sampler.most, joint=sampler.joint)
    took_part = sum(sampler.coins(index).draw(slice(0, 1), np.array([1000])).any() for index in range(2000))
    rate = group_rate(sampler.rate, 1)
    assert abs(took_part - 2000 * rate) < 5 * math.sqrt(2000 * rate * (1 - rate))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
def test_the_sampler_promises_for_the_unit_that_was_asked_for(kind):
    for unit, most in (("user", 1), ("user", 3), ("sample", None)):
        method = method_for(kind, most or 3, unit)
        sampler = sampler_of(method)
        assert (sampler.most, sampler.unit, method.plan.guarantee.unit) == (most, unit, unit)
        assert requested(method, 0).computation.coins.most == most


def test_a_promise_for_samples_is_never_printed_as_one_for_users():
    method = method_for(PoissonSampleSGD, 3)
    made = price_of(method.program.own.given, PoissonSamples(USERS, 0.1, 4, joint=False), 50.0, ())
    assert made.guarantee.unit == "sample"
    assert PoissonSamples(USERS, 0.1, 4, most=1).guarantee(5.0, 1e-3, "anybody", ()).unit == "user"


# --- What one user moves -------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.sampled_from(SUMMED), st.integers(1, 4), st.integers(1, 1001), st.integers(0, 99))
def test_a_user_of_any_size_moves_the_mean_by_at_most_the_sensitivity(kind, most, size, seed):
    method = method_for(kind, most)
    before, after = ([held] + [most] * (USERS - 1) for held in (1, size))
    mean = method.scheme.mean or (lambda total: total / method.scheme.divisor)
    other = people(before, seed + 100).block(np.arange(1)).features
    features = np.concatenate([-other, people(before, seed).block(np.arange(1, USERS)).features])
    neighbours = federation_of(features, sizes=before), people(after, seed)
    for first, second in zip(*(sums(method, federation) for federation in neighbours), strict=True):
        assert np.linalg.norm(mean(first) - mean(second)) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("kind", [SampleClippedSGD, SmoothedTruncationGD])
def test_a_users_sum_is_held_to_what_its_declared_samples_can_reach(kind):
    """These two take every sample that a user holds, and then clip the sum: as if all declared ones were extreme."""
    method = method_for(kind, 2)
    sizes = [1000] + [1] * (USERS - 1)
    samples = np.zeros((sum(sizes), 2))
    samples[:1000] = 9.0
    total = gathered(method, federation_of(samples, sizes=sizes), 0, ORIGIN).values
    reach = {SampleClippedSGD: 2 * 0.5, SmoothedTruncationGD: 2 * requested(method, 0).computation.clip_norm / 2}[kind]
    assert np.linalg.norm(total) == pytest.approx(reach)


@pytest.mark.slow
def test_a_user_moves_the_sum_of_clipped_samples_by_one_clip_for_each_declared_sample_drawn():
    method = method_for(PoissonSampleSGD, 3, batch=18)
    heavy = federation_of(np.full((1003, 2), 9.0), sizes=[1003])
    counts = []
    for index in range(method.plan.rounds):
        computation = requested(method, index).computation
        coins = replace(computation.coins, keys=computation.coins.keys[:1])
        drawn = coins.draw(slice(0, 1), np.array([1003]))
        assert not drawn[3:].any()
        node = Node(method.problem, heavy, np.array([0]))
        values = node.compute(ORIGIN, np.array([0]), replace(computation, coins=coins)).values
        assert np.linalg.norm(values) == pytest.approx(0.5 * drawn.sum())
        counts.append(drawn.sum())
    assert max(counts) > 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", [PoissonSampleSGD, SampleClippedSGD, IterativeMeanSGD, SmoothedTruncationGD])
def test_a_node_that_sends_more_than_its_users_can_add_up_to_counts_as_missing(kind):
    method = method_for(kind, 2)
    most = requested(method, 0).computation.clip_norm
    assert math.isfinite(most)

    def far(answer):
        return Answer(answer.users, np.full_like(np.asarray(answer.values), 2 * USERS * most), 0)

    node = Node(method.problem, people([2] * USERS), np.arange(USERS))
    with LocalGrid([ChangedNode(node, far)]) as grid, pytest.raises(RunFailed, match="exceeds what its clipped users"):
        method.start(grid)


# --- Coins are thrown anew each round --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
def test_every_round_throws_coins_of_its_own(kind):
    method = method_for(kind, 2, "sample")
    keys = [requested(method, index).computation.coins.keys for index in range(method.plan.rounds)]
    assert len({int(key) for row in keys for key in row}) == method.plan.rounds * USERS
    sampler = sampler_of(method)
    own = [sampler.coins(index).keys for index in range(sampler.rounds)]
    np.testing.assert_array_equal(keys, own)


def test_a_round_that_there_is_not_has_no_coins():
    with pytest.raises(BadInput, match="there are 2"):
        PoissonSamples(5, 0.3, 2).coins(2)
