"""Vote descent: how far a user moves the votes, what hostile users cannot turn round, steps, and masked sums."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, final, gathered, make, run, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import DPFedSGD, VoteDescent
from strategies.robust.vote_descent import VoteSteps
from strategies.wire.replies import Gathered
from userdp.nodes.node import Node
from userdp.problems import Quadratic
from userdp.randomness import stream

UP, DOWN, UNKNOWN, INFINITE = 1, 2, 7, 8  # Codes of `WILD`: slopes of 1 and -1, NaN, infinity
codes = st.integers(0, len(WILD) - 1)


def votes(method, data):
    """(U, p) of each user, from the node's own code."""
    asked, users = method.scheme.query(0), np.arange(len(data))
    return Node(Wild(3), federation_of(data), users).compute(np.zeros(3), users, replace(asked, reduce="rows")).values


# --- Formal guarantees: what one user moves --------------------------------------------------------------------------


@settings(max_examples=60)
@given(arrays(np.int64, (5, 3), elements=codes), arrays(np.int64, (3,), elements=codes), st.integers(0, 4))
def test_one_user_moves_the_votes_by_at_most_the_sensitivity_of_either_relation(users, other, who):
    neighbour = users.copy()
    neighbour[who] = other
    replaced, added = (
        make(VoteDescent, Wild(3), 5, delta=1e-3, **options) for options in ({}, {"sampling": "poisson", "cohort": 4})
    )
    assert (replaced.plan.guarantee.relation, added.plan.guarantee.relation) == ("replace_one", "add_or_remove")
    one, two = (gathered(replaced, federation_of(data), 0, np.zeros(3)).values for data in (users, neighbour))
    assert np.linalg.norm(one - two) / 5 <= replaced.scheme.mechanism.l2_sensitivity
    longest = np.linalg.norm(votes(added, users), axis=1).max()
    assert longest / 4 <= added.scheme.mechanism.l2_sensitivity * (1 + 1e-12)


@pytest.mark.parametrize(("relation", "moved"), [("replace_one", 1.0), ("add_or_remove", 0.5)])
def test_that_sensitivity_is_attained(relation, moved):
    sampling = {} if relation == "replace_one" else {"sampling": "poisson", "cohort": 5}
    method = make(VoteDescent, Wild(3), 5, delta=1e-3, **sampling)
    one, two = votes(method, np.array([[UP] * 3, [DOWN] * 3]))
    change = one - two if relation == "replace_one" else one
    assert np.linalg.norm(change) == moved * math.sqrt(3)
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(moved * math.sqrt(3) / 5, rel=1e-12)
    deviation = method.plan.numbers["noise_deviation"]
    assert (method.plan.signal, method.plan.noise) == (math.sqrt(3) / 2, deviation * math.sqrt(3))


def test_a_vote_has_no_length_and_unusable_gradients_have_no_vote():
    method = make(VoteDescent, Wild(3), 4, delta=1e-3)
    data = np.array([[4, 5, 0], [6, 3, DOWN], [UNKNOWN, UP, UP], [UP, INFINITE, UP]])  # of sizes 1e300 to 5e-324
    np.testing.assert_array_equal(
        votes(method, data), [[0.5, -0.5, 0.0], [0.5, 0.5, -0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    )
    assert gathered(method, federation_of(data), 0, np.zeros(3)).non_finite == 2


# --- Robustness ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 5), st.data())
def test_any_data_of_a_share_of_users_do_not_outvote_enough_of_the_others(hostile, data):
    honest = 12 - hostile
    for_it = data.draw(st.integers(7, honest))  # a share of 1 / (2 (1 - hostile / 12)) of the honest users are 6
    answers = data.draw(arrays(np.int64, (hostile, 1), elements=codes))
    method = make(VoteDescent, Wild(1), 12, delta=1e-3)
    rows = np.vstack([np.full((for_it, 1), UP), np.full((honest - for_it, 1), DOWN), answers])
    assert gathered(method, federation_of(rows), 0, np.zeros(1)).values[0] > 0
    tied = np.vstack([np.full((6, 1), UP), np.full((6 - hostile, 1), DOWN), np.full((hostile, 1), DOWN)])
    assert gathered(method, federation_of(tied), 0, np.zeros(1)).values[0] == 0  # one honest user fewer may not do


def test_outliers_move_the_model_by_a_bounded_rank_and_clipped_means_of_the_same_settings_further():
    rng = np.random.default_rng(5)
    people = 1.0 + 0.1 * rng.standard_t(3, size=(2000, 5))
    people[:200] = -50.0  # a tenth of them, far away
    honest, loss = people[200:], Quadratic(5, 200.0, 200.0)
    found = final(run(make(VoteDescent, loss, 2000, 2.0, 1e-5), federation_of(people)))
    low, high = np.quantile(honest, [1 - 1 / 1.8, 1 / 1.8], axis=0)  # 1 / (2 (1 - a)) for a tenth
    noise = 0.01
    assert (found > low - noise).all()
    assert (found < high + noise).all()
    clipped = final(run(make(DPFedSGD, loss, 2000, 2.0, 1e-5), federation_of(people)))
    assert np.linalg.norm(found - 1.0) < 0.5 * np.linalg.norm(clipped - 1.0)


# --- Steps -----------------------------------------------------------------------------------------------------------


def test_steps_grow_while_votes_agree_and_shrink_when_they_turn_round():
    memory, x = VoteSteps(0.5, 3), np.zeros(3)
    x = memory.step(x, np.array([0.5, -0.25, 0.0]), 0.1)
    np.testing.assert_allclose(x, [-0.5, 0.25, 0.0])
    x = memory.step(x, np.array([0.5, 0.25, 0.1]), 0.1)
    np.testing.assert_allclose(x, [-0.5 - 0.6, 0.25 - 0.15, -0.1])
    for _ in range(60):
        memory.step(x, np.full(3, 0.5), 0.1)
    np.testing.assert_allclose(memory.step(x, np.full(3, 0.5), 0.1), x - 50.0)  # a hundred first steps at most


def test_a_round_by_hand_and_one_that_is_lost():
    problem, people = Quadratic(3, 5.0, 2.0), np.random.default_rng(2).normal(size=(60, 3))
    method = make(VoteDescent, problem, 60, seed=9, rounds=1, cohort=20, learning_rate=0.25)
    result = run(method, federation_of(people))
    cohort = method.scheme.sampler.cohort(0)
    shares = np.sign(-people[cohort]).sum(axis=0) / 2 / 20  # gradients at zero are x minus the user's point
    noise = stream(9, "noise", 0, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=3)
    np.testing.assert_allclose(final(result), np.clip(-0.25 * 2 * (shares + noise), -2, 2), rtol=1e-9)
    lost = taken(method, 0, np.ones(3), Gathered(np.zeros(3), 20, 0, lost=True))
    np.testing.assert_array_equal(lost.following, np.ones(3))
