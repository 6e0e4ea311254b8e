"""Nodes that fail: counted as missing up to the allowed share, then the run stops and keeps what it has."""

import re
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict
from helpers import (
    MARK,
    PATIENCE,
    ChangedNode,
    FaultyQuadratic,
    federation_of,
    final,
    forgive_ray,
    local_grid,
    make,
    own_ray,
    run,
)

from simulations.engines import ray_grid
from simulations.engines.grids import LocalGrid, shards
from simulations.engines.ray_grid import ATTEMPTS, RayGrid
from strategies import DPFedSGD, PublicFacts, RobustRounds, model_vector
from strategies.wire.questions import Reader
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import Node
from userdp.problems import Quadratic
from userdp.randomness import stream

USERS, PER_NODE = 100, 10
PROBLEM = Quadratic(2, 1.0, 2.0)
FEDERATION = federation_of(np.full((USERS, 2), 0.5))
MARKED = federation_of(np.where(np.arange(2 * USERS).reshape(USERS, 2) == 2 * 95, MARK, 0.5))
"""The same people, but for user 95, whose first number a `FaultyQuadratic` stumbles on."""


def method_of(strategy=DPFedSGD, problem=PROBLEM, **options):
    options = ({"rounds": 3} if strategy is DPFedSGD else {"rounds": 1, "radius": 1.0}) | options
    return make(strategy, problem, USERS, 10.0, 1e-3, **options)


def nodes_with(change, nodes=(3,), problem=PROBLEM):
    healthy = [Node(problem, FEDERATION, users) for users in shards(USERS, PER_NODE)]
    return [ChangedNode(node, change) if at in nodes else node for at, node in enumerate(healthy)]


def grid_with(change, nodes=(3,)):
    return LocalGrid(nodes_with(change, nodes))


def trained(grid, **options):
    with grid:
        method = method_of(**options)
        return method, method.start(grid)


def failing(answer):
    raise OSError("disk of the clinic in Bern failed at user 34")


MISSING = "node 4 counts as missing"
FAULTS = {
    "raises": (failing, MISSING),
    "too few columns": (
        lambda answer: replace(answer, values=answer.values[:, :1]),
        r"values must be numbers of shape \((1|10), 2\)",
    ),
    "flat values": (lambda answer: replace(answer, values=answer.values.ravel()), MISSING),
    "a row too many": (lambda answer: replace(answer, values=np.vstack([answer.values, answer.values[:1]])), MISSING),
    "other users": (lambda answer: replace(answer, users=answer.users + 1), MISSING),
    "fewer users": (lambda answer: replace(answer, users=answer.users[:-1]), MISSING),
    "users twice": (
        lambda answer: replace(answer, users=np.concatenate([answer.users, answer.users])),
        r"users must be whole numbers of shape \(10\)",
    ),
    "no users": (lambda answer: replace(answer, users=answer.users[:0]), MISSING),
}
"""Fault -> what a node answers, and what the log says of it beside that the node counts as missing."""
SUM_FAULTS = {
    "a sum beyond the clip": lambda answer: replace(answer, values=answer.values * 0 + 11.0),
    "a sum that is not a number": lambda answer: replace(answer, values=answer.values * np.nan),
    "an infinite sum": lambda answer: replace(answer, values=answer.values + np.inf),
    "a sum whose square overflows": lambda answer: replace(answer, values=answer.values * 0 + 1e300),
    "rows for a sum": lambda answer: replace(answer, values=np.tile(answer.values, (PER_NODE, 1))),
}


@pytest.mark.sweep(10)
@pytest.mark.parametrize("strategy", [DPFedSGD, RobustRounds])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_faulty_node_counts_as_missing_and_the_run_goes_on(strategy, fault, caplog):
    change, told = FAULTS[fault]
    method, result = trained(grid_with(change), strategy=strategy)
    assert [record.missing_users for record in result.rounds] == [PER_NODE] * method.plan.rounds
    assert result.missing_users == PER_NODE * method.plan.rounds
    assert MISSING in caplog.text
    assert re.search(told, caplog.text)
    assert np.isfinite(final(result)).all()


@pytest.mark.parametrize("fault", SUM_FAULTS, ids=str)
def test_a_sum_that_clipped_users_cannot_add_up_to_counts_as_missing(fault):
    _, result = trained(grid_with(SUM_FAULTS[fault]))
    assert [record.missing_users for record in result.rounds] == [PER_NODE] * 3
    assert np.isfinite(final(result)).all()


def test_a_sum_that_clipped_users_just_can_add_up_to_is_taken():
    largest = np.array([[PER_NODE * 1.0, 0.0]])
    assert trained(grid_with(lambda answer: replace(answer, values=largest)))[1].missing_users == 0


def test_a_missing_node_leaves_zeros_the_planned_divisor_and_the_planned_noise():
    method, result = trained(grid_with(failing), rounds=1, clip_norm=5.0, learning_rate=1.0, seed=8)
    noise = stream(8, "noise", 0, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=2)
    np.testing.assert_allclose(final(result), np.clip(0.5 * 90 / 100 - noise, -2, 2), rtol=1e-12)
    assert method.scheme.mechanism.l2_sensitivity == 2 * 5.0 / USERS


@pytest.mark.parametrize("nodes", [2, 3])
def test_as_many_missing_as_allowed_go_and_one_node_more_fails_closed(nodes):
    with grid_with(failing, nodes=range(nodes)) as grid:
        method = method_of(max_missing=0.2)
        if nodes == 2:
            assert len(method.start(grid).rounds) == 3
            return
        with pytest.raises(RunFailed, match=r"too many users of a cohort did not answer .*max_missing = 0.2"):
            method.start(grid)
    assert method.result.rounds == []
    assert 0 < method.spent_epsilon < method.plan.guarantee.epsilon  # whoever was asked is charged


def test_a_run_that_fails_keeps_what_was_released_and_recorded_before():
    calls = []

    def fails_from_the_third_round(answer):
        calls.append(1)
        if len(calls) > 2 * 3:
            failing(answer)
        return answer

    seen = []
    with grid_with(fails_from_the_third_round, nodes=(1, 2, 3)) as grid:
        method = method_of(rounds=5)
        with pytest.raises(RunFailed):
            method.start(grid, on_round=seen.append)
    result = method.result
    assert [record.round for record in result.rounds] == [1, 2]
    assert seen == result.rounds
    assert result.guarantee.holds
    # The third round was asked, and is charged although nothing was released.
    assert result.rounds[-1].spent_epsilon < method.spent_epsilon == method.program.own.ledger.epsilon()
    assert method.spent_epsilon < result.guarantee.epsilon
    assert np.any(final(result) != 0)
    shorter = method_of(rounds=5)
    with grid_with(lambda answer: answer) as grid:
        released = []
        shorter.start(grid, evaluate_fn=lambda number, arrays: released.append(model_vector(arrays)) or None)
    np.testing.assert_array_equal(final(result), released[2])


def test_error_messages_name_the_kind_of_failure_and_no_data(caplog):
    with pytest.raises(RunFailed, match="OSError") as error:
        method_of().start(grid_with(failing, nodes=range(10)))
    assert "Bern" not in str(error.value) + caplog.text


class Quoting(LocalGrid):
    """Some nodes reply as Flower's own engine does for an app that raises: with the error's text."""

    def __init__(self, nodes, quoting):
        super().__init__(nodes)
        self.quoting = quoting

    def _deliver(self, messages, timeout):
        for reply in super()._deliver(messages, timeout):
            train = reply.metadata.message_type == MessageType.TRAIN
            if train is not self.quoting.get(reply.metadata.src_node_id):
                yield reply
                continue
            question = next(sent for sent in messages if sent.metadata.dst_node_id == reply.metadata.src_node_id)
            yield Message(Error(2, "<class 'ValueError'>:<'patient 34 of Bern weighs 171.5 kg'>"), reply_to=question)


@pytest.mark.parametrize("train", [True, False], ids=["in a round", "asked whom it holds"])
def test_what_an_app_says_when_it_fails_is_neither_logged_nor_told(train, caplog):
    """Texts of errors may quote data, whoever's app it is; their kind does not."""
    nodes = nodes_with(None, nodes=())
    with pytest.raises(RunFailed, match=r"users of a cohort did not answer|too few users have a node") as error:
        method_of().start(Quoting(nodes, dict.fromkeys(range(1, 6), train)), roster_timeout=0)
    seen = caplog.text + str(error.value)
    assert "its app failed: ValueError (see that node's log)" in seen
    assert "Bern" not in seen
    assert "171.5" not in seen


class TwoFaced(LocalGrid):
    """Node 2 answers twice, the second time with a lie; node 99, whom nobody asked, answers as well."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        asked = [message for message in messages if message.metadata.dst_node_id == 2]
        if asked and "cohort" in asked[0].content:
            users, _ = Reader().request(asked[0])
            lie = ArrayRecord({"users": Array(users), "values": Array(np.full((1, 2), 9.0))})
            content = RecordDict({"answer": lie, "facts": MetricRecord({"non_finite": 0})})
            replies.append(Message(content, reply_to=asked[0]))
            stranger = Message(content, reply_to=asked[0])
            stranger.metadata.__dict__["_src_node_id"] = 99
            replies.append(stranger)
        return replies


def test_a_second_answer_and_an_answer_nobody_asked_for_are_ignored(caplog):
    _, result = trained(TwoFaced(nodes_with(None, nodes=())))
    assert result.missing_users == 0
    np.testing.assert_array_equal(final(result), final(run(method_of(), FEDERATION, PER_NODE)))
    for node in (2, 99):
        assert f"node {node} counts as missing: it was not asked, or answered twice" in caplog.text


def test_a_local_grid_whose_time_is_up_asks_nobody_else(caplog):
    with local_grid(PROBLEM, FEDERATION, PER_NODE) as grid:
        method = method_of()
        with pytest.raises(RunFailed, match="did not answer"):
            method.start(grid, timeout=-1.0)
    assert "time is up: the remaining nodes were not asked" in caplog.text


# --- Arguments of a run ------------------------------------------------------------------------------------------


def test_a_number_of_rounds_that_is_not_the_plans_is_refused():
    with local_grid(PROBLEM, FEDERATION) as grid:
        with pytest.raises(BadInput, match="num_rounds = 7, the plan has 3: leave num_rounds out"):
            method_of().start(grid, num_rounds=7)
        assert len(method_of().start(grid, num_rounds=3).rounds) == 3


# --- Ray: nodes that hang or die ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def actors():
    with own_ray(num_cpus=8):
        yield


PATIENT = {"timeout": PATIENCE, "roster_timeout": PATIENCE}
LAST = [np.arange(90), np.arange(90, USERS)]
"""Two nodes, of which the second has the marked user."""


def on_ray(caplog, method, blocks=LAST, workers=2, **patient):
    with RayGrid(method.original, MARKED, blocks, workers) as grid:
        return method.start(grid, **PATIENT | patient)


@pytest.mark.parametrize("fault", ["raise", "sleep"])
@pytest.mark.slow
@forgive_ray
@pytest.mark.usefixtures("actors")
def test_a_node_that_fails_once_is_missing_for_one_round_and_back_in_the_next(fault, tmp_path, caplog):
    """Alone with its actor; after a hang a fresh actor takes its place."""
    timeout = 60 if fault == "sleep" else PATIENCE  # in which a fresh actor has to start, too
    result = on_ray(caplog, method_of(problem=FaultyQuadratic(2, fault, tmp_path / "happened")), timeout=timeout)
    assert [record.missing_users for record in result.rounds] == [10, 0, 0]
    assert "node 2 counts as missing: its app failed" in caplog.text or fault == "sleep"
    wanted = {"raise": "node 2 counts as missing", "sleep": "an actor did not answer in time"}
    assert wanted[fault] in caplog.text


@pytest.mark.slow
@forgive_ray
@pytest.mark.usefixtures("actors")
def test_an_actor_that_dies_amid_a_round_changes_no_bit(tmp_path, caplog):
    """Another in its place is asked the same, and computes the same."""
    problem = FaultyQuadratic(2, "exit", tmp_path / "happened")
    result = on_ray(caplog, method_of(problem=problem), shards(USERS, PER_NODE), workers=3)
    assert problem.once.exists()
    assert "an actor died" in caplog.text
    assert result.missing_users == 0
    with local_grid(problem, MARKED, PER_NODE) as grid:
        whole = method_of(problem=problem).start(grid)
    np.testing.assert_array_equal(final(result), final(whole))


@pytest.mark.slow
@forgive_ray
@pytest.mark.usefixtures("actors")
def test_an_actor_that_dies_loses_a_masked_sum(tmp_path, caplog, monkeypatch):
    """Its key died with it, and the masks of the others were made for that."""
    questions, answers = [], RayGrid._answers
    monkeypatch.setattr(
        RayGrid, "_answers", lambda grid, asked, *how: questions.append(asked) or answers(grid, asked, *how)
    )
    problem = FaultyQuadratic(2, "exit", tmp_path / "happened")
    method = DPFedSGD(rounds=1, clip_norm=1.0).strategy(
        problem, PublicFacts(USERS), Privacy(10.0, 1e-3, trust="sum"), seed=0
    )
    result = on_ray(caplog, method)
    assert caplog.text.count("an actor died") == 1
    assert sum(any(map(ray_grid._masked, asked.values())) for asked in questions) == 1  # nobody is asked in its place
    assert "a round is lost" in caplog.text
    assert result.missing_users == USERS


@pytest.mark.slow
@forgive_ray
@pytest.mark.usefixtures("actors")
def test_an_actor_that_dies_of_every_attempt_leaves_its_users_missing_and_too_many_stop_the_run(caplog):
    method = method_of(problem=FaultyQuadratic(2, "exit"), rounds=1)
    assert on_ray(caplog, method).missing_users == 10
    assert caplog.text.count("an actor died") == ATTEMPTS
    method = method_of(problem=method.original)
    with pytest.raises(RunFailed, match=r"too many users of a cohort .*ActorDied"):
        on_ray(caplog, method, [np.arange(50), np.arange(50, USERS)])
    assert not method.result.rounds
