"""Recentred clipping: its guarantee on brute-force neighbours, its budget, its gain over a clip about zero."""

import math

import numpy as np
import pytest
from helpers import ChangedNode, Wild, federation_of, final, gathered, make, requested, rows_of, run, taken

from simulations.engines.grids import LocalGrid
from strategies import RecentredClipping
from strategies.wire.replies import Gathered
from userdp.data import Block, ColumnarFederation
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer, Node
from userdp.problems import Logistic, Quadratic
from userdp.sampling import WeightedBatches


def about(method, centre, radius):
    """The strategy as if earlier releases had led to this centre and radius."""
    method.memory.point, method.memory.radius = np.asarray(centre, dtype=np.float64), radius
    return method


def of_means(m, seed, users, dimension, *, unit=False, outliers=0.0):
    """Users of m standard normal samples each, by their means alone: the losses used here see nothing else."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=dimension) if unit else rng.uniform(-1, 1, dimension)
    truth = truth / np.linalg.norm(truth) if unit else truth
    means = truth + rng.normal(size=(users, dimension)) / math.sqrt(m)
    means[: round(outliers * users)] += 10
    block = Block(means.astype(np.float32), np.arange(users + 1), None)
    return ColumnarFederation(block, population_mean=truth)


# --- Formal guarantee: sensitivities about a centre ----------------------------------------------------------------


@pytest.mark.parametrize(("relation", "moved"), [("replace_one", 3.5), ("add_or_remove", 2.5)])
def test_the_number_of_a_user_moves_the_mean_by_what_its_noise_is_made_for(relation, moved):
    scheme = make(RecentredClipping, Quadratic(2, 1.0, 2.0), 40, relation=relation).scheme
    assert scheme.distance_mechanism(1.0).l2_sensitivity == pytest.approx(moved / 40)


def test_one_local_step_of_all_samples_is_a_step_along_clipped_gradients():
    """Then ``x - T(x)`` is the gradient times the local rate, and so is all that is clipped and followed."""
    rate, centre, federation = 0.25, [0.5, -0.25], of_means(4, 1, 30, 2)
    problem = Quadratic(2, 50.0, 50.0)
    own, plain = (
        about(
            make(RecentredClipping, problem, 30, 1e6, 1e-3, clip_norm=1.0, **options), scale * np.array(centre), scale
        )
        for options, scale in (({"local_steps": 1, "local_rate": rate}, rate), ({"learning_rate": rate}, 1.0))
    )
    steps = []
    for method in (own, plain):
        x = np.array([1.0, 2.0])
        steps.append(taken(method, 0, x, gathered(method, federation, 0, x)))
    np.testing.assert_allclose(steps[0].facts["distance"], rate * steps[1].facts["distance"], rtol=1e-4)
    np.testing.assert_allclose(steps[0].released, steps[1].released, atol=1e-3)
    assert np.linalg.norm(steps[0].released - [1.0, 2.0]) > 0.1


def test_training_in_minibatches_finds_the_users_mean_in_one_model():
    problem, federation = Quadratic(3, 50.0, 50.0), of_means(4, 2, 400, 3)
    options = {"local_epochs": 3, "local_batch": 2, "local_rate": 0.5, "rounds": 8, "clip_norm": 2.0}
    method = make(RecentredClipping, problem, 400, 50.0, 1e-3, **options)
    assert method.memory.geometry.rate == 1.0
    assert (method.memory.geometry.low, method.memory.geometry.high) == (0.0, 1.0)
    model = final(run(method, federation))
    assert np.linalg.norm(model - federation.population_mean) < 0.2
    first, second = (requested(method, index).computation.parameters["key"] for index in (0, 1))
    assert first != second


def test_the_stated_sensitivities_are_attained():
    method = about(make(RecentredClipping, Wild(2), 5, delta=1e-3), [0.5, 0.0], 0.7)
    data = np.zeros((5, 2), dtype=int)
    data[2, 0] = 4  # 1e300
    opposite = data.copy()
    opposite[2, 0] = 5
    means = [gathered(method, federation_of(users), 0, np.zeros(2)).values / 5 for users in (data, opposite)]
    assert np.linalg.norm(means[0][:2] - means[1][:2]) == pytest.approx(2 * 0.7 / 5)
    at_centre = data.copy()
    at_centre[2] = 7  # not finite: counts as the centre
    near = gathered(method, federation_of(at_centre), 0, np.zeros(2))
    assert near.non_finite == 1
    assert means[0][2] - near.values[2] / 5 == pytest.approx(method.scheme.distance_mechanism(1.0).l2_sensitivity)


def test_a_missing_user_counts_as_the_centre_and_changes_neither_divisor_nor_noise():
    methods = [make(RecentredClipping, Quadratic(2, 1.0, 2.0), 20, delta=1e-3, rounds=3) for _ in range(2)]
    values = np.array([1.0, 0.0, -3.0])
    steps = [
        taken(method, 0, np.zeros(2), Gathered(values, missing, 0))
        for method, missing in zip(methods, (0, 5), strict=True)
    ]
    np.testing.assert_array_equal(methods[0].memory.point, methods[1].memory.point)
    assert steps[0].facts == steps[1].facts


# --- Formal guarantee: the budget -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [(), (0.5, 0.5), (0.0,), (1.1,), (float("nan"),)])
def test_shares_that_are_no_shares_are_refused(shares):
    with pytest.raises(BadInput, match="shares"):
        WeightedBatches(10, 10, 1, shares=shares)


# --- Behaviour ------------------------------------------------------------------------------------------------------


def test_a_loss_whose_curvature_is_not_known_exactly():
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (4000, 3)).astype(np.float32)
    targets = (rng.random(4000) < 1 / (1 + np.exp(-features @ [2.0, -2.0, 0.0]))).astype(np.float32)
    federation = federation_of(features, sizes=[4] * 1000, targets=targets)
    problem = Logistic(3, 3.0, 5.0)
    method = make(RecentredClipping, problem, 1000, epsilon=4.0, clip_norm=1.0, rounds=20, learning_rate=4.0)
    x = final(run(method, federation))
    block = problem.bound(federation.block(np.arange(1000)))[0]
    losses = [problem.sample_losses(model, block).mean() for model in (np.zeros(3), x)]
    assert losses[1] < losses[0] - 0.1
    assert x[0] > 0.7
    assert x[1] < -0.7


def test_a_clip_that_is_far_too_small_or_too_large_mends_itself():
    problem = Quadratic(10, 90.0, 90.0)
    federation = of_means(100, 5, 2000, 10)
    for clip_norm in (0.5, 50.0):
        method = make(RecentredClipping, problem, 2000, clip_norm=clip_norm, rounds=8)
        result = run(method, federation)
        assert problem.excess_risk(final(result), federation) < 0.01
        assert 0.2 < result.rounds[-1].facts["radius"] < 0.5  # users spread over sqrt(10 / 100) = 0.32


@pytest.mark.slow
def test_users_without_any_spread_do_not_underflow():
    problem = Quadratic(2, 1.0, 1.0)
    result = run(make(RecentredClipping, problem, 200, rounds=60), federation_of(np.full((200, 2), 0.5)))
    assert np.isfinite(final(result)).all()
    assert result.rounds[-1].facts["radius"] >= 1e-9


def test_a_centre_that_is_no_vector_of_the_problem_is_refused():
    block = federation_of([[0.0, 0.0]]).block(np.arange(1))
    for centre in (np.zeros(3), np.array([0.0, np.inf])):
        with pytest.raises(BadInput, match="centre must be 2 finite numbers"):
            rows_of(Quadratic(2, 1.0, 1.0), np.zeros(2), block, Computation(clip_norm=1.0, centre=centre))
    with pytest.raises(BadInput, match="statistic 'median' is unknown"):
        rows_of(Quadratic(2, 1.0, 1.0), np.zeros(2), block, Computation(clip_norm=1.0, statistic="median"))


@pytest.mark.parametrize("forged", [20.1, -50.1, float("nan")])
def test_a_node_whose_log_distances_exceed_what_its_users_can_add_up_to_counts_as_missing(forged):
    problem, federation = Quadratic(2, 1.0, 1.0), federation_of(np.full((40, 2), 0.5))

    def forge(answer):
        values = answer.values.copy()
        values[0, -1] = forged
        return Answer(answer.users, values, answer.non_finite)

    honest, liar = (Node(problem, federation, np.arange(first, first + 20)) for first in (0, 20))
    method = make(RecentredClipping, problem, 40, delta=1e-3, rounds=1, max_missing=0.6)
    with LocalGrid([honest, ChangedNode(liar, forge)]) as grid:
        result = method.start(grid)
    assert result.rounds[0].missing_users == 20
    assert np.isfinite(final(result)).all()


# --- Claims ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("users", "factor"), [(30, 1.0), (200, 1.33), (100_000, 2.0)])
def test_the_radius_is_wider_where_users_are_many_enough_to_pay_for_it(users, factor):
    """At epsilon 1 and d = 3 the noise of all rounds is 15 radii over n, and a tenth is spared for a wider radius."""
    classifier = Logistic(3, 1.0, 5.0)
    assert make(RecentredClipping, classifier, users).plan.numbers["radius_factor"] == pytest.approx(factor, rel=0.05)
    assert make(RecentredClipping, Quadratic(3, 2.0, 2.0), users).plan.numbers["radius_factor"] == 1.0
    chosen = make(RecentredClipping, classifier, users, radius_factor=1.5)
    assert chosen.plan.numbers["radius_factor"] == 1.5
