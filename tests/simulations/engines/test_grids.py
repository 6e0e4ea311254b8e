"""P8: one seed, one answer, whichever grid carries the messages and however the users are laid out."""

import time
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import any_strategy
import numpy as np
import pytest
import torch
from any_strategy import USERS
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.run import Run
from helpers import PATIENCE, ShuffledGrid, content_of, federation_of, forgive_ray, local_grid, own_ray, run
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.engines import ray_grid as ray_grid_module
from simulations.engines.grids import MOST_NODES, InMachineGrid, LocalGrid, one_thread, shards, worthwhile_nodes
from simulations.engines.ray_grid import STARTS, RayGrid, begin_ray
from strategies import STRATEGIES
from strategies.wire.protocol import Holding, SharedArray, read_answer, roster_question
from strategies.wire.questions import PROTOCOL
from userdp.errors import BadInput, RunFailed
from userdp.neural.problem import TorchProblem
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Answer, Node
from userdp.problems import Quadratic

PROBLEM = Quadratic(2, 5.0, 2.0)
PAIR = [[1.0, 2.0], [4.0, 6.0]]
SIZES = np.resize([1, 40, 8, 3, 2, 17, 1, 5], USERS)
pytestmark = forgive_ray
FOR_ANY_LOSS = [name for name, kind in STRATEGIES.items() if kind.about.example_problem["kind"] == "quadratic"]
each_strategy = pytest.mark.parametrize("name", FOR_ANY_LOSS)


OPTIONS = {
    "localized_robust_sgd": {"batch": 100, "phases": 2, "learning_rate": 0.1},
    "stopped_sgd": {"oracle_share": 0.05},
}
"""Options with which these take steps."""


def population(middle=0.5):
    """Users who agree as far as robust strategies ask."""
    return federation_of(middle + 0.2 * np.random.default_rng(6).normal(size=(SIZES.sum(), 2)), SIZES.tolist())


def method_of(name, seed=3):
    facts = {"min_samples": 1, "max_samples": 40, "samples": int(SIZES.sum())}
    return any_strategy.method_of(name, PROBLEM, 50.0, 1e-3, seed=seed, facts=facts, **OPTIONS.get(name, {}))


def trace(grid, name, seed=3):
    released = []
    method = method_of(name, seed)
    result = method.start(
        grid, roster_timeout=PATIENCE, evaluate_fn=lambda number, arrays: released.append(arrays["x"].numpy()) or None
    )
    return np.array(released), [record.facts for record in result.rounds]


@pytest.fixture(scope="module")
def ray_grids():
    """Grids on one private Ray by name, made once: starting an actor takes seconds."""
    recipes = {
        "two workers": (population(), shards(USERS), 2),
        "many nodes": (population(), shards(USERS, 9), 1),
        "pair": (federation_of(PAIR), shards(2, 1), 1),
    }
    with own_ray(num_cpus=8):
        yield {name: RayGrid(PROBLEM, *recipe) for name, recipe in recipes.items()}


# --- A grid that starts Ray by itself --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_ray_grid_starts_and_stops_a_ray_of_its_own(monkeypatch):
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert not ray.is_initialized()
    with RayGrid(PROBLEM, population(), shards(USERS), workers=1) as grid:
        released, _ = trace(grid, "dp_fed_sgd")
    assert not ray.is_initialized()
    np.testing.assert_array_equal(released, trace(local_grid(PROBLEM, population()), "dp_fed_sgd")[0])


# --- The same answer -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each_strategy
def test_ray_gives_the_local_grids_answer_bit_for_bit_with_several_workers(name, ray_grids):
    released, facts = trace(local_grid(PROBLEM, population()), name)
    same, same_facts = trace(ray_grids["two workers"], name)
    np.testing.assert_array_equal(same, released)
    assert same_facts == facts
    assert len(released) > 1
    assert np.any(released[-1] != released[0])


@pytest.mark.sweep(1)
@each_strategy
@pytest.mark.parametrize("layout", [1, 7, 200, pytest.param("many nodes", marks=pytest.mark.slow)])
def test_other_layouts_give_the_same_answer_to_rounding(name, layout, request):
    released, _ = trace(local_grid(PROBLEM, population()), name)
    on_ray = isinstance(layout, str)
    grid = request.getfixturevalue("ray_grids")[layout] if on_ray else local_grid(PROBLEM, population(), layout)
    np.testing.assert_allclose(trace(grid, name)[0], released, rtol=1e-9, atol=1e-12)


@pytest.mark.sweep(2)
@each_strategy
def test_the_order_of_replies_does_not_matter(name):
    shuffled = ShuffledGrid([Node(PROBLEM, population(), users) for users in shards(USERS, 11)])
    (released, facts), (same, same_facts) = (
        trace(grid, name) for grid in (local_grid(PROBLEM, population(), 11), shuffled)
    )
    np.testing.assert_array_equal(same, released)
    assert same_facts == facts


@pytest.mark.sweep(2)
@each_strategy
def test_flower_issue_3328_same_seed_same_bits_and_another_seed_other_noise(name):
    people = population(middle=0.0)  # about where training starts, so that noise decides even where signs are released
    runs = (trace(local_grid(PROBLEM, people), name, seed)[0] for seed in (3, 3, *range(4, 12)))
    first, again = next(runs), next(runs)
    np.testing.assert_array_equal(first, again)
    # Of some steps there are few, so not every seed leads elsewhere.
    assert any(np.any(other[-1] != first[-1]) for other in runs) == (name != "non_private")


# --- Layouts -----------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.integers(1, 300), st.none() | st.integers(1, 400), st.integers(1, 20))
def test_blocks_are_consecutive_and_hold_everybody_once(users, users_per_node, nodes):
    blocks = shards(users, users_per_node, nodes=nodes)
    np.testing.assert_array_equal(np.concatenate(blocks), np.arange(users))
    sizes = [len(block) for block in blocks]
    assert min(sizes) >= 1
    if users_per_node is None:
        assert len(blocks) == min(nodes, users)
        assert max(sizes) - min(sizes) <= 1
    else:
        assert max(sizes) <= users_per_node
        assert set(sizes[:-1]) <= {users_per_node}


def test_every_engine_has_the_same_layout_by_default():
    assert [len(block) for block in shards(100)] == [13] * 4 + [12] * 4
    assert len(shards(100)) == MOST_NODES


@pytest.mark.parametrize(("mebibytes", "nodes"), [(0, 1), (63, 1), (64, 2), (140, 4), (1000, 8)])
def test_small_populations_are_on_few_nodes_unless_their_arithmetic_is_large(mebibytes, nodes):
    people = SimpleNamespace(nbytes=100 + mebibytes * 2**20)
    assert worthwhile_nodes(PROBLEM, people) == nodes
    module = TorchProblem(partial(torch.nn.Linear, 250, 2), "cross_entropy", 250)
    assert worthwhile_nodes(module, people) == MOST_NODES


# --- A grid as Flower sees it ----------------------------------------------------------------------------------------


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def pair_grid(request):
    if request.param == "ray":
        return request.getfixturevalue("ray_grids")["pair"]
    return local_grid(PROBLEM, federation_of(PAIR), 1)


def question(user, node):
    content = content_of(np.zeros(2), np.array([user]), Computation())
    return Message(content, node, MessageType.TRAIN, group_id="1")


def test_messages_can_be_pushed_and_their_replies_pulled_once(pair_grid):
    assert list(pair_grid.get_node_ids()) == [1, 2]
    assert list(pair_grid.send_and_receive([])) == []
    ids = list(pair_grid.push_messages([question(1, 2), question(0, 1)]))
    replies = {reply.metadata.src_node_id: reply for reply in pair_grid.pull_messages(ids)}
    assert {reply.metadata.reply_to_message_id for reply in replies.values()} == set(ids)
    values = [read_answer(replies[node], np.array([node - 1]), Computation(), 2).values for node in (1, 2)]
    np.testing.assert_array_equal(values, [[[-1, -2]], [[-4, -5]]])  # the bound of the problem is 5
    assert list(pair_grid.pull_messages(ids)) == []


def test_rows_come_back_without_a_copy(pair_grid):
    (reply,) = pair_grid.send_and_receive([question(1, 2)])
    array = reply.content["answer"]["values"]
    assert isinstance(array, SharedArray)
    assert array.numpy() is array.numpy()
    # What Ray maps from its object store is read-only: a writable array would be a copy.
    assert array.numpy().flags.writeable == isinstance(pair_grid, LocalGrid)


def test_a_question_for_foreign_users_is_an_error_reply_and_one_to_nobody_is_refused(pair_grid, caplog):
    (reply,) = pair_grid.send_and_receive([question(1, 1)])
    assert reply.has_error()
    assert reply.error.reason == "BadInput"
    assert "users that it does not hold" in caplog.text
    with pytest.raises(BadInput, match="there is no node 3"):
        pair_grid.send_and_receive([question(0, 3)])


def test_a_grid_makes_messages_and_keeps_its_run():
    with local_grid(PROBLEM, federation_of(PAIR), 1) as grid:
        message = grid.create_message(RecordDict({"c": ConfigRecord()}), MessageType.TRAIN, 2, "7")
        assert (message.metadata.dst_node_id, message.metadata.group_id) == (2, "7")
        grid.set_run(Run.create_empty(12))
        assert grid.run.run_id == 12


def test_blas_gets_its_threads_back():
    from threadpoolctl import threadpool_info

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    with one_thread():
        assert set(threads()) <= {1}
    assert threads() == before


@pytest.mark.slow
@pytest.mark.parametrize("late", [STARTS - 1, STARTS])
def test_a_ray_whose_processes_are_late_is_started_again(monkeypatch, late):
    import ray

    began = Mock(side_effect=[Exception("The current node timed out during startup")] * late + [None])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", began)
    monkeypatch.setattr(ray, "shutdown", ended := Mock())
    if late < STARTS:
        assert begin_ray("no Ray") == (ray, True)
    else:
        with pytest.raises(RunFailed, match=r"no Ray \(The current node timed out"):
            begin_ray("no Ray")
    assert (began.call_count, ended.call_count) == (STARTS, STARTS - 1)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1"])
def test_a_cluster_that_nobody_answers_for_is_a_failed_run_at_once(monkeypatch, address):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would try for minutes"))
    with pytest.raises(RunFailed, match=r"Ray cannot be .*; engine.kind = .local. runs without it") as told:
        RayGrid(PROBLEM, population(), shards(USERS), address=address)
    assert f"engine.address = {address!r}" in str(told.value)


def test_whoever_waits_for_ray_is_told_what_runs_without_it(monkeypatch, caplog):
    import ray

    monkeypatch.setattr(ray_grid_module, "PATIENCE", 0.01)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: time.sleep(0.5))
    begin_ray("no Ray", "; --workers 0 runs without it")
    assert "Ray has not started after 0.01 s, and is waited for; --workers 0 runs without it" in caplog.text


@pytest.mark.slow
def test_workers_share_the_nodes_and_are_never_more_than_them(ray_grids):
    assert len(ray_grids["pair"]._workers) == 1
    assert [sorted(users) for users in ray_grids["two workers"]._users] == [[1, 3, 5, 7], [2, 4, 6, 8]]
    with RayGrid(PROBLEM, population(), shards(USERS, 200), workers=5) as grid:
        assert len(grid._workers) == 2


@pytest.mark.slow
def test_global_numpy_state_is_not_touched_by_any_strategy():
    before = np.random.get_state()[1].copy()  # noqa: NPY002 -- what this test is about
    for name in FOR_ANY_LOSS:
        run(method_of(name), population())
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_ray_grid_leaves_counts_out_where_they_are_not_asked_for():
    """The grid's reply to an actor's outcome; no actor is needed for that."""
    grid = RayGrid.__new__(RayGrid)
    InMachineGrid.__init__(grid, 1)
    noisy = Computation(reduce="sum", clip_norm=1.0, noise=LocalNoise(1.0, 1, 0))
    users, values = np.arange(2), np.zeros((1, 2))
    for computation, facts in ((noisy, {}), (Computation(reduce="sum", clip_norm=1.0), {"non_finite": 1})):
        content = content_of(np.zeros(2), users, computation)
        reply = grid._reply(Message(content, 1, MessageType.TRAIN), Answer(users, values, 1))
        assert dict(reply.content["facts"]) == facts
    for counts, facts in ((False, {}), (True, {"clipped_samples": 1})):
        query = Message(roster_question(b"", counts=counts), 1, MessageType.QUERY)
        assert dict(grid._reply(query, Holding(users, 1)).content["facts"]) == facts | {"protocol": PROTOCOL}
    query = Message(roster_question(b"", counts=True), 1, MessageType.QUERY)
    assert grid._reply(query, "ValueError").error.reason == "ValueError"
