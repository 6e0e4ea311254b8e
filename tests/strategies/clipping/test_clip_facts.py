"""Facts about a clip (users shortened, their lengths, size of the noise) are exact, and only simulations show them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from any_strategy import options_of
from flwr.app import Message, MessageType
from helpers import content_of, federation_of, final, local_grid, make, requested, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from strategies import STRATEGIES, DPFedSGD, LocalDP, PublicFacts
from strategies.clipping.clip_facts import CLIP_FACTS, clip_facts
from strategies.core.recipe import notes_of
from strategies.drop_in import ClientWire
from strategies.wire.protocol import answer_message, read_answer
from strategies.wire.replies import Gathered, Request, gather
from strategies.wire.roster import Roster
from userdp.accounting import Privacy
from userdp.data import Block, ColumnarFederation
from userdp.errors import BadInput
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Node
from userdp.problems import Quadratic, SparseLogistic, Squared

TELLING = sorted(name for name, strategy in STRATEGIES.items() if "clipped_share_private" in notes_of(strategy))
ASKED = Computation(reduce="sum", clip_norm=0.5, lengths=True)


def people(users=40, seed=0, *, bad=False):
    rng = np.random.default_rng(seed)
    samples = rng.uniform(-1, 1, (users, 3, 2))
    if bad:
        samples[0] = np.nan
    return federation_of(samples, targets=rng.uniform(-1, 1, users * 3))


def strategy_of(name, users=40, noise="seeded", **settings):
    problem = Squared(2, 2.0, 2.0, low=-1.0, high=1.0)
    privacy = Privacy(4.0, 1e-3, noise=noise)
    return STRATEGIES[name](**{**options_of(name), **settings}).strategy(problem, PublicFacts(users), privacy, seed=0)


def lengths_by_hand(problem, federation, x, centre=0.0):
    block = problem.bound(federation.block(np.arange(federation.users)))[0]
    return np.linalg.norm(problem.user_gradients(x, block) - centre, axis=1)


def test_the_clipping_family_and_auto_tell():
    assert {"dp_fed_sgd", "dp_fed_avg", "adaptive_clipping", "recentred_clipping", "dp_ftrl", "auto"} <= set(TELLING)
    assert "local_dp" not in TELLING
    assert all(name.endswith("_private") and fact.kind == "private" for name, fact in CLIP_FACTS.items())


def test_the_facts_of_a_round_by_hand():
    federation = people()
    method = make(DPFedSGD, Squared(2, 2.0, 2.0, low=-1.0, high=1.0), 40, delta=1e-3, clip_norm=0.4, rounds=1)
    facts = run(method, federation, users_per_node=7).rounds[0].facts
    lengths = lengths_by_hand(method.problem, federation, method.problem.initial())
    assert 0 < facts["clipped_share_private"] < 1
    assert facts["clipped_share_private"] == np.mean(lengths > 0.4)
    assert facts["median_length_private"] == pytest.approx(np.median(lengths))
    block = method.problem.bound(federation.block(np.arange(40)))[0]
    rows = method.problem.user_gradients(method.problem.initial(), block)
    mean = (rows * np.minimum(1, 0.4 / lengths)[:, None]).mean(axis=0)
    noise = method.scheme.mechanism.standard_deviation * math.sqrt(2)
    assert facts["noise_over_signal_private"] == pytest.approx(noise / np.linalg.norm(mean))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", TELLING)
def test_telling_changes_no_bit_of_what_is_released(name, monkeypatch):
    problem = {"dp_ftrl": {"rounds": 3}}.get(name, {})
    told = run(strategy_of(name, **problem), people())
    facts = [record.facts for record in told.rounds if "clipped_share_private" in record.facts]
    assert facts
    for one in facts:
        assert 0 <= one["clipped_share_private"] <= 1
        assert one["median_length_private"] > 0
        assert one["noise_over_signal_private"] > 0
    silent = strategy_of(name, **problem)
    silent.wire.asks_more = False
    untold = run(silent, people())
    np.testing.assert_array_equal(final(told), final(untold))
    for one, other in zip(told.rounds, untold.rounds, strict=True):
        assert {key: value for key, value in one.facts.items() if key not in CLIP_FACTS} == other.facts


def test_about_a_centre_it_is_the_distance_that_counts():
    federation = people()
    method = strategy_of("recentred_clipping", rounds=3)
    asked = []
    original = method.request_of
    method.request_of = lambda index: asked.append((method.state.x, original(index))) or asked[-1][1]
    rounds = run(method, federation).rounds
    for (x, request), record in zip(asked, rounds, strict=True):
        lengths = lengths_by_hand(method.problem, federation, x, request.computation.centre)
        assert record.facts["median_length_private"] == pytest.approx(np.median(lengths))
        assert record.facts["clipped_share_private"] == np.mean(lengths > request.computation.clip_norm)


# Who tells, and who asks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TELLING)
def test_only_simulations_ask_for_lengths(name):
    number = next(
        index
        for index in range(strategy_of(name).plan.rounds)
        if requested(strategy_of(name), index).computation.lengths
    )
    if STRATEGIES[name].about.without_secure_noise is None:
        secure = strategy_of(name, noise="secure")
        assert not requested(secure, number).computation.lengths
    deployed = strategy_of(name)
    deployed.require_identities = True
    assert not requested(deployed, number).computation.lengths
    clients = strategy_of(name)
    clients.wire = ClientWire()
    assert not requested(clients, number).computation.lengths


def test_users_who_do_not_trust_the_server_are_not_asked():
    assert not requested(make(LocalDP, Quadratic(2, 1.0, 1.0), 40, delta=1e-3), 0).computation.lengths
    with pytest.raises(BadInput, match="lengths need a clip_norm and exclude noise"):
        replace(ASKED, noise=LocalNoise(1.0, None, 0))
    with pytest.raises(BadInput, match="lengths need a clip_norm"):
        Computation(lengths=True)


def question(x, users, computation=ASKED):
    return Message(content_of(x, users, computation), 1, MessageType.TRAIN)


def test_a_node_on_another_machine_tells_no_lengths_whatever_it_is_asked():
    with local_grid(Quadratic(2, 1.0, 1.0), people()):  # gives this process Flower's identity
        node, x, users = Node(Quadratic(2, 1.0, 1.0), people(), np.arange(40)), np.zeros(2), np.arange(9)
        asked = question(x, users)
        near, far = (answer_message(node, asked, share=share) for share in (True, False))
        assert "lengths" in near.content["answer"]
        assert set(far.content["answer"]) == {"users", "values"}
        first, second = (read_answer(reply, users, ASKED, 2) for reply in (near, far))
        np.testing.assert_array_equal(first.values, second.values)
        assert second.lengths is None
        # Who was not asked and tells all the same does not follow the protocol.
        with pytest.raises(BadInput, match="answer must be one ArrayRecord of users, values"):
            read_answer(near, users, replace(ASKED, lengths=False), 2)


def test_a_silo_that_is_asked_for_lengths_answers_without_them():
    labels = [f"person {user}" for user in range(40)]
    silo = Node(Quadratic(2, 1.0, 1.0), people(), np.arange(40), labels=labels)
    with local_grid(Quadratic(2, 1.0, 1.0), people()):
        reply = answer_message(silo, question(np.zeros(2), np.arange(5)), share=True)
    assert set(reply.content["answer"]) == {"users", "values"}


@pytest.mark.parametrize("lengths", [np.full(9, np.nan), np.full(9, -1.0), np.zeros(8), np.zeros((9, 1))])
def test_lengths_that_cannot_be_make_an_answer_none(lengths):
    with local_grid(Quadratic(2, 1.0, 1.0), people()):
        node, users = Node(Quadratic(2, 1.0, 1.0), people(), np.arange(40)), np.arange(9)
        asked = question(np.zeros(2), users)
        node.compute = lambda *arguments: replace(Node.compute(node, *arguments), lengths=lengths)
        with pytest.raises(BadInput):
            read_answer(answer_message(node, asked, share=True), users, ASKED, 2)


def test_users_who_do_not_answer_are_left_out_of_the_figures():
    gathered = Gathered(np.ones(2), 1, 0, 0, np.array([0.1, np.nan, 3.0, 2.0]))
    assert clip_facts(gathered, 1.0, np.array([3.0, 4.0]), 10.0) == {
        "clipped_share_private": pytest.approx(2 / 3),
        "median_length_private": 2.0,
        "noise_over_signal_private": 2.0,
    }
    assert clip_facts(gathered, 1.0, np.zeros(2), 10.0)["noise_over_signal_private"] == math.inf
    assert clip_facts(replace(gathered, lengths=None), 1.0, np.ones(2), 1.0) == {}


def test_a_round_in_which_no_node_tells_has_no_figures():
    federation, x = people(), np.zeros(2)
    with local_grid(Quadratic(2, 1.0, 1.0), federation, users_per_node=10) as grid:
        roster = Roster(40)
        roster.gather(grid, 5)
        request = Request(np.arange(40), ASKED)
        messages = [
            Message(content_of(x, users, ASKED), node, MessageType.TRAIN)
            for node, users in roster.assign(request.users)
        ]
        for far in (False, True):
            nodes = [Node(Quadratic(2, 1.0, 1.0), federation, node.users) for node in grid._nodes]
            replies = []
            for message in messages:
                node = nodes[message.metadata.dst_node_id - 1]
                replies.append(answer_message(node, message, share=not far))
            found = gather(request, roster, replies, 2, 0.0)
            assert (found.lengths is None) == far


# What a node computes ------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    seed=st.integers(0, 99),
    reduce=st.sampled_from(["sum", "rows"]),
    centre=st.booleans(),
    statistic=st.sampled_from([None, "log_distance", "unclipped"]),
    l1_norm=st.sampled_from([None, 0.3]),
    name=st.sampled_from(["user_gradient", "local_update"]),
    bad=st.booleans(),
)
def test_lengths_are_those_before_the_clip_and_change_nothing_else(seed, reduce, centre, statistic, l1_norm, name, bad):
    federation = people(12, seed, bad=bad)
    problem = Squared(2, 2.0, 2.0, low=-1.0, high=1.0)
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, 2)
    asked = Computation(
        name,
        reduce,
        0.5,
        l1_norm,
        {"steps": 2.0, "step_size": 0.1} if name == "local_update" else {},
        centre=rng.uniform(-1, 1, 2) if centre else None,
        statistic=statistic,
        lengths=True,
    )
    node = Node(problem, federation, np.arange(12))
    told, plain = (node.compute(x, np.arange(12), one) for one in (asked, replace(asked, lengths=False)))
    np.testing.assert_array_equal(told.values, plain.values)
    assert told.non_finite == plain.non_finite == bad
    made = "rough_user_gradient" if name == "user_gradient" else name
    unclipped = replace(asked, name=made, reduce="rows", clip_norm=None, l1_norm=None, statistic=None, lengths=False)
    rows = node.compute(x, np.arange(12), unclipped).values
    np.testing.assert_allclose(told.lengths, np.linalg.norm(rows, axis=1), rtol=1e-12)


@pytest.mark.parametrize("reduce", ["sum", "rows"])
def test_sparse_rows_stay_sparse_and_have_their_lengths(reduce):
    rng = np.random.default_rng(3)
    features = csr_array((rng.random((30, 50)) < 0.1).astype(np.float32))
    features.sort_indices()
    block = Block(features, np.arange(0, 31, 3), rng.integers(0, 2, 30).astype(np.float32))
    node = Node(SparseLogistic(50, 3.0, 8), ColumnarFederation(block), np.arange(10))
    asked = replace(ASKED, reduce=reduce, clip_norm=0.2)
    told, plain = (node.compute(np.zeros(50), np.arange(10), one) for one in (asked, replace(asked, lengths=False)))
    assert type(told.values) is type(plain.values)
    np.testing.assert_array_equal(
        told.values.toarray() if reduce == "rows" else told.values,
        plain.values.toarray() if reduce == "rows" else plain.values,
    )
    rows = node.compute(np.zeros(50), np.arange(10), Computation()).values.toarray()
    np.testing.assert_allclose(told.lengths, np.linalg.norm(rows, axis=1), rtol=1e-6)


def test_a_huge_user_is_long_and_no_error():
    node = Node(Quadratic(2, math.inf, 1.0), federation_of([[3e38, 3e38], [1.0, 0.0]]), np.arange(2))
    told = node.compute(np.zeros(2), np.arange(2), ASKED).lengths
    assert told == pytest.approx([math.hypot(3e38, 3e38), 1.0], rel=1e-6)
