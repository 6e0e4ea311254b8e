"""Random groups of samples in a federation: what is private about them, who learns which, and what the descent does."""

import math

import numpy as np
import pytest
from helpers import (
    Wild,
    content_of,
    federation_of,
    final,
    gathered,
    local_grid,
    make,
    requested,
    rows_of,
    run,
    silenced,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from strategies import IterativeMeanSGD, SampleClippedSGD
from strategies.baselines.composition import calibrate_steps, share_of_group
from strategies.baselines.heavy_tailed.iterative_mean_sgd import spending
from strategies.baselines.heavy_tailed.partitions import shuffled, spread, spread_length
from strategies.baselines.heavy_tailed.shuffling import group_rho
from strategies.wire.questions import Reader, model_record
from userdp.accounting import Cost, Privacy, delta_of, epsilon_of, group_privacy, rho_for
from userdp.data import Block
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.partition import OUTSIDE, Partition
from userdp.problems import Bernoulli, Quadratic

SIZES = [3, 1, 4, 2]
FACTS = {"min_samples": 1, "max_samples": 4, "samples": 10}
MANY = {"min_samples": 1, "max_samples": 2, "samples": 20_000}
"""The facts of 10,000 users: enough for thousands of groups."""


def method_for(unit, problem=None, users=4, facts=None, delta=1e-2, epsilon=1.0, seed=0, **options):
    options = {"clip_norm": 0.7, "rounds": 3, "groups": 3} | options
    facts = facts or FACTS
    return make(
        IterativeMeanSGD, problem or Wild(2), users, epsilon, delta, unit=unit, facts=facts, seed=seed, **options
    )


def means(method, samples, sizes):
    sums = gathered(method, federation_of(samples, sizes=sizes), 0, np.zeros(2)).values
    return sums.reshape(3, 2) / method.scheme.divisor


# --- Formal guarantee ------------------------------------------------------------------------------------------------


def test_spread_slots_are_equally_likely_in_each_group():
    groups = spread(3000, 2, 5, np.random.default_rng(4)).groups
    for slot in groups.T:
        assert stats.chisquare(np.bincount(slot)).pvalue > 1e-4
    assert (
        stats.chisquare(np.bincount(5 * groups[:, 0] + groups[:, 1], minlength=25)[~np.eye(5, dtype=bool).ravel()])[1]
        > 1e-4
    )


def test_a_spread_user_costs_the_noise_of_its_length_and_no_more_than_simple_clipping_does():
    """The mean of all groups has exactly the noise of the simple clipping mean if k divides max_samples."""
    facts = {"max_samples": 40, "samples": 40_000}
    shape = {"rounds": 5, "clip_norm": 1.0}
    problem = Quadratic(2, 1.0, 1.0)
    ours, simple = (
        make(strategy, problem, 1000, 1.0, 1e-5, facts=facts, **shape).plan.numbers
        for strategy in (IterativeMeanSGD, SampleClippedSGD)
    )
    assert ours["noise_deviation"] / math.sqrt(ours["groups"]) == pytest.approx(simple["noise_deviation"])
    one = make(IterativeMeanSGD, problem, 1000, 1.0, 1e-5, unit="sample", facts=facts, **shape).plan.numbers
    assert ours["noise_deviation"] == pytest.approx(spread_length(40, 20) * one["noise_deviation"])


def test_by_shuffling_a_user_counts_as_all_its_samples_in_one_group():
    options = {"accounting": "calibrated_shuffle", "groups": 2000}
    method = method_for("user", Quadratic(2, 1.0, 1.0), 10_000, MANY, 1e-5, **options)
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(2 * 2 * 0.7 / 10)
    assert np.unique(requested(method, 0).computation.partition.groups, return_counts=True)[1].tolist() == [10] * 2000


def test_the_stated_sensitivity_is_attained_by_a_sample_that_is_in_a_group():
    method = method_for("sample")
    moved = []
    for which in range(10):
        samples = np.zeros((10, 2), dtype=int)
        samples[which, 0] = 1
        neighbour = np.zeros((10, 2), dtype=int)
        neighbour[which, 0] = 2
        moved.append(np.linalg.norm(means(method, samples, SIZES) - means(method, neighbour, SIZES)))
    assert max(moved) == pytest.approx(method.scheme.mechanism.l2_sensitivity, rel=1e-12)
    assert sorted(set(np.round(moved, 9))) in ([0.448], [0.0, 0.448])


@pytest.mark.parametrize("accounting", ["auto", "parallel", "calibrated_shuffle", "paper_shuffle"])
@pytest.mark.parametrize("unit", ["sample", "user"])
def test_the_plan_stays_within_the_budget_and_prints_both_units(unit, accounting):
    options = {"accounting": accounting, "groups": 2000, "rounds": 2}
    method = method_for(unit, Quadratic(2, 1.0, 1.0), 10_000, MANY, 1e-5, 0.8, **options)
    guarantee, numbers = method.plan.guarantee, method.plan.numbers
    assert guarantee.unit == unit
    assert guarantee.epsilon <= 0.8 * (1 + 1e-6)
    if accounting == "paper_shuffle":  # advanced composition of its budget, which exact composition finds unspent
        assert 0.1 * 0.8 < guarantee.epsilon < 0.2 * 0.8
    else:
        assert guarantee.epsilon >= 0.99 * 0.8
    assert numbers["group"] == (2 if unit == "user" else 1)
    assert ("group privacy for 2 samples" in guarantee.accountant) == (unit == "user")
    sample_level = numbers["sample_level_epsilon"]
    assert sample_level < 0.75 * guarantee.epsilon if unit == "user" else sample_level == guarantee.epsilon
    # Spread over groups, two samples cost less than group privacy makes of a shuffle for one.
    best = "parallel" if unit == "user" else "calibrated_shuffle"
    assert numbers["accounting"] == (best if accounting == "auto" else accounting)
    shuffles = numbers["accounting"] != "parallel"
    assert ("shuffling" in guarantee.accountant) == shuffles
    assert ("knows no sample's group" in guarantee.adversary) == shuffles
    assert any("secret" in assumption for assumption in guarantee.assumptions) == shuffles
    assert ("spread over groups" in guarantee.accountant) == (unit == "user" and not shuffles)


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("accounting", ["calibrated_shuffle", "paper_shuffle"])
def test_each_round_spends_what_group_privacy_and_composition_leave_it(accounting, together):
    privacy, rounds, groups = Privacy(0.9, 1e-5), 4, 20_000
    spent = spending(accounting, privacy, rounds, groups, together)
    assert delta_of(spent.cost, rounds, 0.9) <= 1e-5
    each, each_delta = spent.cost.pure_epsilon, spent.cost.failure_delta
    one = share_of_group(each, each_delta, together)
    assert group_privacy(*one, together) == pytest.approx((each, each_delta))
    assert spent.rho == group_rho(*one, groups, accounting, "exact")


def test_the_share_of_a_group_is_what_group_privacy_makes_the_whole():
    for epsilon in (0.0, 1e-3, 1.0, 30.0):
        for group in (1, 2, 7):
            each = share_of_group(epsilon, 1e-6, group)
            assert group_privacy(*each, group) == pytest.approx((epsilon, 1e-6))
    assert share_of_group(1e5, 1e-6, 2) == (5e4, 0.0)
    with pytest.raises(BadInput, match="group = 0"):
        share_of_group(1.0, 1e-6, 0)


def test_exact_composition_of_the_steps_spends_the_budget():
    for rounds, share in ((1, 0.5), (20, 0.5), (20, 0.0)):
        each = calibrate_steps(0.9, 1e-5, rounds, share * 1e-5 / rounds)
        spent = epsilon_of(Cost(pure_epsilon=each, failure_delta=share * 1e-5 / rounds), rounds, 1e-5)
        assert 0.9 * (1 - 1e-4) < spent <= 0.9
    for values, message in (((0.0, 1e-5, 2, 0.0), "epsilon = 0.0"), ((1.0, 1e-5, 2, 5e-6), "leave nothing of delta")):
        with pytest.raises(BadInput, match=message):
            calibrate_steps(*values)


def test_auto_takes_parallel_for_few_groups_and_shuffles_many():
    def found(groups):
        plan = method_for("sample", Quadratic(2, 1.0, 1.0), 10_000, MANY, 1e-5, groups=groups, rounds=1).plan
        return plan.numbers["accounting"], plan.numbers["group_rho"]

    assert found(20)[0] == "parallel"
    # An exact Gaussian: better than by zCDP.
    assert rho_for(1.0, 1e-5) < found(20)[1] < 2 * rho_for(1.0, 1e-5)
    assert found(10_000)[0] == "calibrated_shuffle"
    assert found(10_000)[1] > 3 * found(20)[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accounting": "paper_shuffle"}, r"groups = 3: .* holds from \d+ to \d+ groups"),
        ({"accounting": "calibrated_shuffle"}, r"groups = 3: shuffling amplifies from \d+ groups on"),
        ({"accounting": "paper_shuffle", "epsilon": 2.0}, "epsilon = 2.0"),
        ({"groups": 17}, "strategy.groups = 17: must lie between 1 and the 16 slots"),
        ({"facts": {"max_samples": 2, "samples": 10}}, "data.samples = 10: more than 4 users of at most 2 samples"),
        ({"share": 0.1}, "strategy.share = 0.1"),
        ({"share": 0.95}, "strategy.share = 0.95"),
        ({"inner_steps": 0}, "strategy.inner_steps = 0"),
    ],
)
def test_what_does_not_hold_is_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        method_for("sample", **changes)


# --- The partition ---------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 45), st.integers(0, 99))
def test_groups_have_exactly_the_same_number_of_slots(users, slots, count, seed):
    if count > users * slots:
        with pytest.raises(BadInput, match=f"strategy.groups = {count}"):
            shuffled(users, slots, count, np.random.default_rng(seed))
        return
    partition = shuffled(users, slots, count, np.random.default_rng(seed))
    found, sizes = np.unique(partition.groups, return_counts=True)
    size = users * slots // count
    assert partition.groups.shape == (users, slots)
    assert dict(zip(found.tolist(), sizes.tolist(), strict=True)) == {
        **dict.fromkeys(range(count), size),
        **({OUTSIDE: users * slots - count * size} if users * slots > count * size else {}),
    }


def test_all_partitions_are_equally_likely():
    """Four slots in two groups of two: six partitions."""
    rng = np.random.default_rng(8)
    drawn = [tuple(shuffled(2, 2, 2, rng).groups.ravel()) for _ in range(3000)]
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-4


def test_each_round_draws_anew_and_the_seed_repeats_it():
    first, same, other = method_for("sample"), method_for("sample"), method_for("sample", seed=1)
    groups = [
        requested(method, index).computation.partition.groups for method in (first, same, other) for index in (0, 1)
    ]
    np.testing.assert_array_equal(groups[0], groups[2])
    np.testing.assert_array_equal(groups[1], groups[3])
    assert not np.array_equal(groups[0], groups[1])
    assert not np.array_equal(groups[0], groups[4])


def test_group_sums_are_those_of_the_samples_in_it():
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(10, 2)).astype(np.float32)
    method = method_for("sample", Quadratic(2, 5.0, 5.0))
    groups = requested(method, 0).computation.partition.groups
    found = gathered(method, federation_of(samples, sizes=SIZES), 0, np.zeros(2)).values.reshape(3, 2)
    expected, row = np.zeros((3, 2)), 0
    for user, size in enumerate(SIZES):
        for slot in range(size):
            length = np.linalg.norm(samples[row])
            if groups[user, slot] != OUTSIDE:
                expected[groups[user, slot]] -= samples[row] * min(1.0, 0.7 / length)
            row += 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_targets_go_with_their_samples():
    partition = Partition(np.array([[1, 0], [OUTSIDE, 1]], dtype=np.int32), 3)
    block = Block(np.arange(8.0, dtype=np.float32).reshape(4, 2), np.array([0, 2, 4]), np.arange(4, dtype=np.float32))
    present, regrouped = partition.regroup(block)
    np.testing.assert_array_equal(present, [0, 1])
    np.testing.assert_array_equal(regrouped.targets, [1, 0, 3])
    np.testing.assert_array_equal(regrouped.features[:, 0], [2, 0, 6])
    np.testing.assert_array_equal(regrouped.offsets, [0, 1, 3])


def test_users_in_no_group_add_nothing():
    nobody = Partition(np.full((2, 1), OUTSIDE, dtype=np.int32), 2)
    computation = Computation(
        "clipped_sample_sum", reduce="sum", parameters={"sample_clip_norm": 1.0}, partition=nobody
    )
    block = Block(np.ones((2, 2), dtype=np.float32), np.array([0, 1, 2]))
    np.testing.assert_array_equal(rows_of(Quadratic(2, 1.0, 1.0), np.zeros(2), block, computation)[0], np.zeros((1, 4)))


def test_a_node_is_told_the_groups_of_its_own_users_and_no_others(monkeypatch):
    method = method_for("sample", Quadratic(2, 5.0, 5.0))
    grid = local_grid(method.problem, federation_of(np.ones((10, 2)), sizes=SIZES), 2)
    method._roster.gather(grid, 1.0)
    messages = list(method.configure_train(1, model_record(np.zeros(2)), None, grid))
    groups = method._request.computation.partition.groups
    told = [Reader().request(message) for message in messages]
    assert [users.tolist() for users, _ in told] == [[0, 1], [2, 3]]
    for users, computation in told:
        np.testing.assert_array_equal(computation.partition.groups, groups[users])
        assert (computation.partition.count, computation.clip_norm) == (3, pytest.approx(0.7 * 4))


def test_wrong_partitions_are_refused():
    with pytest.raises(BadInput, match="numbers from -1 to 2"):
        Partition(np.array([[3]], dtype=np.int32), 3)
    with pytest.raises(BadInput, match="numbers from -1 to 2"):
        Partition(np.array([0], dtype=np.int32), 3)
    one = Partition(np.array([[0]], dtype=np.int32), 1)
    with pytest.raises(BadInput, match="a partition of 1 users was sent for 2"):
        one.regroup(Block(np.ones((2, 2), dtype=np.float32), np.array([0, 1, 2])))
    for changes in ({"name": "user_gradient"}, {"reduce": "rows"}, {"centre": np.zeros(2)}, {"l1_norm": 1.0}):
        settings = {"name": "clipped_sample_sum", "reduce": "sum", "partition": one} | changes
        with pytest.raises(BadInput, match="cannot be grouped: only plain sums over samples"):
            Computation(**settings)


def test_a_computation_without_groups_travels_without_any():
    content = content_of(np.zeros(2), np.arange(3), Computation())
    assert "partition" not in content


# --- Behaviour -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("output", "end"), [("average", 5 / 3), ("last", 3.5)])
@pytest.mark.parametrize(("strategy", "own"), [(SampleClippedSGD, {}), (IterativeMeanSGD, {"groups": 1})])
def test_it_returns_the_average_of_its_points_or_the_last_iterate(strategy, own, output, end):
    """Halving the distance to 4 gives 0, 2, 3, at which gradients are taken, and 3.5."""
    options = {"clip_norm": 100.0, "rounds": 3, "learning_rate": 0.5, "output": output} | own
    facts = {"max_samples": 4, "samples": 16}
    method = silenced(make(strategy, Quadratic(1, 10.0, 10.0), 4, delta=1e-2, facts=facts, **options))
    assert final(run(method, federation_of(np.full((16, 1), 4.0), sizes=[4] * 4))) == pytest.approx([end])


@pytest.mark.parametrize("strategy", [SampleClippedSGD, IterativeMeanSGD])
def test_one_round_of_rate_one_on_a_quadratic_is_mean_estimation(strategy):
    rng = np.random.default_rng(6)
    data = rng.standard_t(4, (20_000, 2)) + np.array([0.5, -0.25])
    options = {"rounds": 1, "learning_rate": 1.0, "output": "last", "clip_norm": 10.0}
    facts = {"min_samples": 5, "max_samples": 5, "samples": 20_000}
    method = make(strategy, Quadratic(2, 100.0, 1.0), 4000, 1.0, 1e-5, unit="sample", facts=facts, **options)
    result = run(method, federation_of(data, sizes=[5] * 4000))
    assert np.linalg.norm(final(result) - [0.5, -0.25]) < 0.08


def test_the_papers_radius_and_rounds_by_hand():
    facts = {"max_samples": 2, "samples": 20_000}
    options = {"clip_norm": None, "rounds": None, "groups": 10, "moment": 1.5, "moment_order": 3.0, "max_rounds": 300}
    method = method_for("user", Bernoulli(4, 2.0), 10_000, facts, 1e-5, **options)
    rho = rho_for(1.0, 1e-5) / 2 / 10
    clip = 1.5 * 2 * (20_000 * math.sqrt(rho / 4)) ** (1 / 3)
    assert method.plan.numbers["clip_norm"] == pytest.approx(clip)
    assert method.plan.rounds == min(300, math.ceil(rho * (20_000 * 0.25 * 2 * 2.0 * 2 / clip) ** 2 / 4))
    options |= {"accounting": "paper_shuffle", "groups": 1000, "max_rounds": 5}
    paper = method_for("sample", Bernoulli(4, 2.0), 10_000, facts, 1e-5, **options).plan
    assert paper.numbers["clip_norm"] == pytest.approx(1.5 * 2 * (20_000 / 2) ** (1 / 3))
    assert paper.rounds == 5


def test_the_directional_radius_is_smaller_in_many_dimensions():
    facts = {"max_samples": 1, "samples": 10_000}
    clips = [
        make(SampleClippedSGD, Quadratic(50, 1.0, 1.0), 10_000, 1.0, 1e-5, facts=facts, radius=radius).plan.numbers[
            "clip_norm"
        ]
        for radius in ("paper", "directional")
    ]
    assert clips[1] < clips[0]


@pytest.mark.parametrize("centre", ["deep", "geometric_median", "coordinate_median", "mean"])
def test_outlying_groups_do_not_move_it_far_where_they_move_the_mean(centre):
    """Two samples of 4000 lie far off, in two groups of 40 at most; the mean of the groups alone follows them."""
    rng = np.random.default_rng(9)
    data = rng.normal(size=(4000, 1)) * 0.1
    data[:2] = 900.0
    facts = {"max_samples": 1, "samples": 4000}
    options = {"rounds": 1, "learning_rate": 1.0, "output": "last", "clip_norm": 1000.0, "groups": 40}
    options |= {"facts": facts, "users": 4000, "epsilon": 1e5, "inner_steps": 50, "centre": centre}
    found = final(run(method_for("sample", Quadratic(1, 1000.0, 50.0), **options), federation_of(data)))
    assert abs(data.mean()) > 0.4
    assert abs(found[0]) > 0.4 if centre == "mean" else abs(found[0]) < 0.1
