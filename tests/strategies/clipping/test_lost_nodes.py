"""Masked sums that survive silent nodes: what is released then, what it costs, what anybody sees, what is refused."""

import logging
import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, RecordDict
from flwr.app import Message as FlowerMessage
from helpers import (
    MARK,
    FaultyQuadratic,
    content_of,
    federation_of,
    final,
    forgive_ray,
    own_ray,
    requested,
    run,
    strategy_of,
)
from helpers_adversaries import Overheard, gaussian_epsilon
from helpers_flower import ClientGrid, run_on_flower
from resumable import Kept
from scipy import stats

import userdp.masking.sums
from simulations.engines.grids import LocalGrid
from simulations.engines.ray_grid import RayGrid
from strategies import AdaptiveClipping, DPFedAvg, DPFedSGD, PublicFacts, VoteDescent, client_app
from strategies.core.run_state import Resumed
from strategies.wire.questions import Reader, question_as_read
from strategies.wire.recovery import Recovery
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.masking.masks import MaskKey
from userdp.masking.shares import _own_mask, _round_key, _secrets
from userdp.masking.sums import threshold
from userdp.nodes.node import Node
from userdp.problems import Quadratic

PRIVACY = Privacy(2.0, 1e-3, trust="sum", lost_nodes=1)
PEOPLE = federation_of(np.random.default_rng(3).normal(size=(40, 3)))
LOSS = Quadratic(3, 9.0, 9.0)
KINDS = pytest.mark.parametrize("kind", [DPFedSGD, DPFedAvg, AdaptiveClipping, VoteDescent])
NODES = 5


def surviving(kind=DPFedSGD, problem=LOSS, users=40, privacy=PRIVACY, **options):
    options = {"rounds": 3, "clip_norm": 0.5, "max_missing": 0.7} | options
    if kind is VoteDescent:  # which has no clip and steps of its own
        options = {name: value for name, value in options.items() if name not in ("clip_norm", "server_optimiser")}
    return strategy_of(kind, problem, PublicFacts(users), privacy, seed=0, **options)


def nodes_of(problem=LOSS, people=PEOPLE, count=NODES):
    return [Node(problem, people, users) for users in np.array_split(np.arange(people.users), count)]


def stage_of(message):
    """(question, round) of a message; the round of the first question is -1."""
    for question in ("masked", "survivors"):
        if question in message.content:
            return question, message.content[question]["round"]
    return ("sharing" if "sharing" in message.content else "roster"), -1


class Lossy(Overheard):
    """Loses what ``silent`` says of (question, round, node from 0) on its way back; the nodes know nothing of it.

    ``change`` gets the same and the reply, and returns the reply that arrives.
    """

    def __init__(self, nodes, silent=lambda question, index, node: False, change=None):
        super().__init__(nodes)
        self.silent, self.change, self.late = silent, change, 0

    def _deliver(self, messages, timeout):
        for message, reply in zip(messages, super()._deliver(messages, timeout), strict=True):
            place = *stage_of(message), message.metadata.dst_node_id - 1
            if self.silent(*place):
                self.late += 1
            else:
                yield reply if self.change is None else self.change(*place, reply)

    @property
    def parts(self):
        """The parts that nodes sent, lost ones included, in the order of the messages."""
        return [reply.content["answer"]["masked"].numpy() for reply in self.answers if "answer" in reply.content]


def each_in_turn(question, index, node):
    """One part is lost in every round."""
    return question == "masked" and node == index % NODES


# --- What is released ---------------------------------------------------------------------------------------------


def test_a_node_lost_in_any_round_of_twenty_leaves_the_sum_of_the_others_to_the_bit():
    method, records, models = surviving(rounds=20), [], []
    with Lossy(nodes_of(), each_in_turn) as grid:
        found = final(method.start(grid, on_round=lambda one: (records.append(one), models.append(method.state.x))))
    x, plain, everybody = LOSS.initial(), surviving(rounds=20), Node(LOSS, PEOPLE, np.arange(40))
    blocks, memory = np.array_split(np.arange(40), NODES), plain.scheme.new_memory()
    asked = [Reader().request(message)[1] for message in grid.trained[::NODES]]
    assert [one.masked.round for one in asked] == list(range(20))
    for index, one in enumerate(asked):
        left = [users for node, users in enumerate(blocks) if node != index % NODES]
        rows = everybody.compute(x, np.concatenate(left), replace(one, masked=None, reduce="rows")).values
        total = one.masked.whole(rows).sum(axis=0)
        total += sum(one.masked._share(3, int(users[0])) for users in left)
        mean = one.masked.values(total.view(np.uint64)) / 40
        deviation = one.masked.deviation * math.sqrt(4 / 5) / 40
        x = LOSS.domain.project(memory.step(x, plain.scheme.gradient(0, mean), deviation))
        np.testing.assert_array_equal(models[index], x)
        assert records[index].facts == {"noise_deviation": pytest.approx(deviation, rel=1e-12)}
        assert records[index].missing_users == 8
    np.testing.assert_array_equal(found, x)
    assert method.spent_epsilon == pytest.approx(method.plan.guarantee.epsilon)


def without_masks(monkeypatch):
    monkeypatch.setattr(userdp.masking.sums, "hiding", lambda *given: np.zeros(given[-1], dtype=np.uint64))
    monkeypatch.setattr(Recovery, "surplus", lambda *given: np.zeros(given[-1], dtype=np.uint64))


def anybody(question, index, node):
    """Two of ten parts are lost, and then shares of two others."""
    lost = np.random.default_rng((7, index + 1)).permutation(10)
    return (question == "masked" and node in lost[:2]) or (question == "survivors" and node in lost[2:4])


@KINDS
def test_parts_and_shares_that_are_lost_change_no_bit_of_the_sum_of_the_others(kind, monkeypatch):
    method = {"privacy": replace(PRIVACY, lost_nodes=2), "server_optimiser": "adam"}  # which notes the noise
    with Lossy(nodes_of(count=10), anybody) as grid:
        found = final(surviving(kind, **method).start(grid))
    # Two of ten are lost, and of the other eight two fall silent afterwards: six of eight shares come from them, and
    # two from the lost ones, whose parts were late.
    assert grid.late == 3 * 4
    without_masks(monkeypatch)
    with Lossy(nodes_of(count=10), anybody) as grid:
        np.testing.assert_array_equal(final(surviving(kind, **method).start(grid)), found)


@KINDS
def test_a_run_that_loses_nobody_has_the_model_of_one_without_masks(kind, monkeypatch):
    found = final(run(surviving(kind), PEOPLE, 8))
    without_masks(monkeypatch)
    np.testing.assert_array_equal(final(run(surviving(kind), PEOPLE, 8)), found)


def test_the_server_knows_the_question_as_nodes_read_it_whatever_kind_of_numbers_it_wrote():
    LocalGrid([])  # Flower's messages ask for an identity, which a grid sees to
    asked = requested(surviving(), 0).computation
    masked = replace(asked.masked, deviation=np.float64(asked.masked.deviation), keys=(bytes(32), bytes(range(32))))
    asked, x = replace(asked, clip_norm=np.float64(0.5), masked=masked), np.array([0.5, 0.25, -1.0])
    message = FlowerMessage(content_of(x, np.arange(2), asked), 1, "train")
    assert question_as_read(asked, x) == Reader().request(message)[1].question(Reader().model(message))


def test_rounds_of_some_of_the_nodes_survive_too():
    """Cohorts of eight among twelve nodes: most rounds lack some of them; these give shares if need be."""
    method, records = surviving(cohort=8, rounds=4), []

    def first(question, index, node):
        return question == "masked" and node == min(asked[index])

    asked = {}

    class Noting(Lossy):
        def _deliver(self, messages, timeout):
            for message in messages:
                if stage_of(message)[0] == "masked":
                    asked.setdefault(stage_of(message)[1], set()).add(message.metadata.dst_node_id - 1)
            yield from super()._deliver(messages, timeout)

    with Noting(nodes_of(count=12), first) as grid:
        method.start(grid, on_round=records.append)
    assert len({len(nodes) for nodes in asked.values()}) > 1
    assert not any("lost" in record.facts for record in records)
    assert all(record.missing_users >= 1 for record in records)
    shares = [message for message in grid.asked if stage_of(message)[0] == "survivors"]
    assert any(message.metadata.dst_node_id - 1 not in asked[stage_of(message)[1]] for message in shares)


# --- What it costs ------------------------------------------------------------------------------------------------

WIDE, CLIP, BLURRED = 4000, 0.5, 0.03
"""Coordinates whose deviation is then known to 1.2 %; the clip; and what is allowed for the blur."""


@pytest.mark.parametrize(
    ("nodes", "lost", "colluding"), [(3, 1, 0.0), (4, 1, 0.0), (5, 1, 0.0), (8, 2, 0.0), (8, 1, 0.3), (10, 2, 0.3)]
)
def test_with_the_most_lost_and_the_most_colluding_epsilon_is_the_promised_one(nodes, lost, colluding):
    """Epsilon from first principles: noise is the release less the true sum and the shares that the coalition knows."""
    privacy = replace(PRIVACY, lost_nodes=lost, colluding=colluding)
    wide, rounds = Quadratic(WIDE, 1e4, 1e4), 2
    people = federation_of(np.random.default_rng(5).normal(size=(2 * nodes, WIDE)))
    method = surviving(problem=wide, users=2 * nodes, privacy=privacy, rounds=rounds, learning_rate=1.0)
    with Lossy(nodes_of(wide, people, nodes), lambda question, _, node: question == "masked" and node < lost) as grid:
        found = final(method.start(grid))
        keys = [node.key for node in grid._nodes]
    shared = [message.content["sharing"]["threshold"] for message in grid.asked if "sharing" in message.content]
    assert shared == [threshold(nodes, colluding, lost)] * nodes
    models = [Reader().model(message) for message in grid.trained[::nodes]] + [found]
    together = max(1, math.floor(round(colluding * nodes, 9)))
    coalition = range(nodes - together, nodes)
    everybody, blocks = Node(wide, people, np.arange(2 * nodes)), np.array_split(np.arange(2 * nodes), nodes)
    seen = []
    for index in range(rounds):
        asked = Reader().request(grid.trained[index * nodes])[1]
        plain, step = replace(asked, masked=None, reduce="rows"), asked.masked.grid.step
        sent = [everybody.compute(models[index], users, plain).values for users in blocks]
        rows = [asked.masked.whole(one).sum(axis=0) for one in sent]
        released = (models[index] - models[index + 1]) * 2 * nodes - sum(rows[lost:]) * step
        for node in coalition:  # takes both masks, which it knows, and its rows off its part
            pairs, own = _secrets(keys[node], index)
            mask = _round_key(pairs).mask(asked.masked.keys, asked.question(models[index]), WIDE)
            mask += _own_mask(own, asked.question(models[index]), WIDE)
            part = grid.parts[index * nodes + node] - mask
            released = released - (part.view(np.int64) - rows[node]) * step
        seen.append(2 * CLIP / (released.std() * (1 + BLURRED)))
    measured = gaussian_epsilon(math.hypot(*seen), 1e-3)
    assert 0.93 * method.plan.guarantee.epsilon <= measured <= method.plan.guarantee.epsilon


@pytest.mark.parametrize(("nodes", "lost", "colluding"), [(4, 1, 0.0), (10, 2, 0.3), (40, 5, 0.1)])
def test_the_server_alone_learns_no_more_than_its_own_epsilon_when_the_most_are_lost(nodes, lost, colluding):
    method = surviving(privacy=replace(PRIVACY, lost_nodes=lost, colluding=colluding), rounds=2)
    asked = method.scheme.query(0).masked.among(tuple(map(bytes, range(nodes))), colluding, lost)
    left = asked.deviation * math.sqrt((nodes - lost) / nodes)
    epsilon = gaussian_epsilon(math.sqrt(2) * 2 * CLIP / left, 1e-3)
    assert epsilon <= method.plan.numbers["server_epsilon"] <= method.plan.guarantee.epsilon


# --- What is seen -------------------------------------------------------------------------------------------------


@KINDS
def test_parts_are_uniform_also_the_late_one_without_the_masks_that_the_server_takes_off(kind):
    wide, people = Quadratic(5000, 9.0, 9.0), federation_of(np.random.default_rng(0).normal(size=(8, 5000)))
    with Lossy(nodes_of(wide, people, 4), lambda question, _, node: question == "masked" and node == 1) as grid:
        surviving(kind, problem=wide, users=8, rounds=1).start(grid)
        keys = [node.key for node in grid._nodes]
    asked = Reader().request(grid.trained[0])[1]
    question = asked.question(Reader().model(grid.trained[0]))
    pairs = _round_key(_secrets(keys[1], 0)[0]).mask(asked.masked.keys, question, len(grid.parts[1]))
    for seen in (*grid.parts, grid.parts[1] - pairs):
        assert stats.kstest(seen / 2.0**64, "uniform").pvalue > 1e-9  # keys have no seed


def test_without_lost_nodes_messages_are_what_they_were():
    with Lossy(nodes_of()) as grid:
        surviving(privacy=replace(PRIVACY, lost_nodes=0)).start(grid)
    assert {stage_of(message)[0] for message in grid.asked} == {"roster", "masked"}
    keys = [node.key.public for node in grid._nodes]
    for message in grid.trained:
        assert message.content["masked"]["keys"] == b"".join(keys)
        assert set(message.content["masked"]) == {"exponent", "keys", "deviation", "round", "seed"}


# --- Who falls silent, and when -----------------------------------------------------------------------------------


def test_one_node_more_loses_the_round_which_is_charged_and_the_run_goes_on_without_them(caplog):
    method, records = surviving(rounds=4), []
    grid = Lossy(nodes_of(count=8), lambda question, index, node: question == "masked" and index == 1 and node < 2)
    with grid:
        method.start(grid, on_round=records.append)
    assert [record.facts.get("lost", 0.0) for record in records] == [0.0, 1.0, 0.0, 0.0]
    assert [record.missing_users for record in records] == [0, 40, 10, 10]
    assert "a round is lost" in caplog.text
    assert method.spent_epsilon == pytest.approx(method.plan.guarantee.epsilon)
    assert not any(stage_of(message) == ("survivors", 1) for message in grid.asked)


def test_a_node_that_comes_back_takes_part_again():
    records = []
    with Lossy(nodes_of(), lambda question, index, node: question == "masked" and index == 0 and node == 2) as grid:
        surviving().start(grid, on_round=records.append)
    assert [record.missing_users for record in records] == [8, 0, 0]


def test_too_few_shares_lose_the_round_and_the_next_one_is_read():
    records = []
    with Lossy(nodes_of(), lambda question, index, node: question == "survivors" and index == 0 and node < 3) as grid:
        surviving().start(grid, on_round=records.append)
    assert [record.facts.get("lost", 0.0) for record in records] == [1.0, 0.0, 0.0]


def test_a_node_that_does_not_share_its_secrets_is_left_out():
    records = []
    with Lossy(nodes_of(), lambda question, _, node: question == "sharing" and node == 3) as grid:
        surviving().start(grid, on_round=records.append)
    assert [record.missing_users for record in records] == [8, 8, 8]


def test_a_node_that_fails_where_secrets_are_shared_is_left_out():
    def change(question, index, node, reply):
        if question != "sharing" or node != 3:
            return reply
        failed = FlowerMessage(Error(1, "OSError"), reply_to=FlowerMessage(RecordDict(), node + 1, "train"))
        failed.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return failed

    records = []
    with Lossy(nodes_of(), change=change) as grid:
        surviving().start(grid, on_round=records.append)
    assert [record.missing_users for record in records] == [8, 8, 8]


def test_of_answers_that_come_twice_the_first_counts():
    class Echoing(Lossy):
        def send_and_receive(self, messages, *, timeout=None):
            for reply in super().send_and_receive(messages, timeout=timeout):
                yield reply
                if "revealed" in reply.content:
                    wrong = reply.content["revealed"]["shares"].numpy() ^ np.uint8(1)
                    reply.content = RecordDict({"revealed": ArrayRecord({"shares": Array(wrong)})})
                yield reply

    models = []
    for kind in (Lossy, Echoing):
        with kind(nodes_of(), each_in_turn) as grid:
            models.append(final(surviving().start(grid)))
    np.testing.assert_array_equal(*models)


def test_too_few_nodes_to_take_masks_off_end_the_run():
    method = surviving(rounds=6, max_missing=0.9, privacy=replace(PRIVACY, lost_nodes=2))
    grid = Lossy(nodes_of(count=8), lambda question, index, node: question == "masked" and index == 1 and node < 3)
    with grid, pytest.raises(RunFailed, match=r"fewer than 6 of 8 nodes are left"):
        method.start(grid)
    assert len(method.result.rounds) == 1


def test_a_node_that_lost_its_key_is_silent_and_its_round_survives():
    nodes, records = nodes_of(), []

    def restart(record):
        records.append(record)
        nodes[3].key = MaskKey()

    with LocalGrid(nodes) as grid:
        surviving().start(grid, on_round=restart)
    assert [record.missing_users for record in records] == [0, 8, 8]
    assert not any("lost" in record.facts for record in records)


@pytest.mark.parametrize("fault", ["short", "float", "records", "wrong"])
def test_shares_that_break_the_protocol_count_as_silence_and_wrong_ones_lose_the_round(fault, caplog):
    def change(question, index, node, reply):
        if (question, index, node) == ("survivors", 1, 0):
            shares = reply.content["revealed"]["shares"].numpy()
            changed = {"short": shares[1:], "float": shares / 2.0}.get(fault, shares ^ np.uint8(1))
            name = "revealed" if fault != "records" else "shares"
            reply.content = RecordDict({name: ArrayRecord({"shares": Array(changed)})})
        return reply

    records, nodes = [], nodes_of(count=8)
    with Lossy(nodes, lambda question, _, node: question == "masked" and node == 4, change) as grid:
        surviving().start(grid, on_round=records.append)
    assert [record.facts.get("lost", 0.0) for record in records] == [0.0, float(fault == "wrong"), 0.0]
    assert ("gave wrong shares" if fault == "wrong" else "node 1 gives no shares of secrets") in caplog.text


@pytest.mark.parametrize("kind", [DPFedSGD, AdaptiveClipping])
def test_a_killed_run_goes_on_to_the_bit_and_asks_nothing_again(kind):
    keeper = Kept()
    with Lossy(nodes_of(), each_in_turn) as grid:
        whole = final(surviving(kind).start(grid, keeper=keeper))
    for done, state in enumerate(keeper.kept):
        with Lossy(nodes_of(), each_in_turn) as grid:
            np.testing.assert_array_equal(final(surviving(kind).start(grid, resumed=Resumed(state))), whole)
        rounds = {index for question, index in map(stage_of, grid.asked) if question in ("masked", "survivors")}
        assert rounds == set(range(done, 3))


def test_a_resumed_run_with_secret_noise_skips_the_round_under_way():
    method = surviving(privacy=replace(PRIVACY, noise="secure"))
    method.state.lost = 1
    records = []
    with Lossy(nodes_of(), each_in_turn) as grid:
        method.start(grid, on_round=records.append)
    assert [record.facts.get("lost", 0.0) for record in records] == [1.0, 0.0, 0.0]
    assert {index for question, index in map(stage_of, grid.asked) if question == "survivors"} == {1, 2}


# --- Other engines ------------------------------------------------------------------------------------------------


class LossyClients(ClientGrid):
    """Loses parts as `each_in_turn` says; nodes are loaded anew for every message and keep their state."""

    def _deliver(self, messages, timeout):
        for message, reply in zip(messages, super()._deliver(messages, timeout), strict=True):
            if not each_in_turn(*stage_of(message), message.metadata.dst_node_id - 1):
                yield reply


def own_app():
    return client_app(lambda context: nodes_of()[int(context.node_config["partition-id"])])


@KINDS
def test_clients_that_are_loaded_anew_for_every_message_survive_alike(kind):
    with Lossy(nodes_of(), each_in_turn) as grid:
        here = final(surviving(kind).start(grid))
    with LossyClients(own_app(), NODES) as grid:
        np.testing.assert_array_equal(final(surviving(kind).start(grid)), here)


def test_a_node_of_flower_answers_each_question_once_whoever_loads_it():
    with LossyClients(own_app(), NODES) as grid:
        surviving().start(grid)
        for question, complaint in (("sharing", "sharing"), ("survivors", "survivors")):
            asked = next(message for message in grid.sent if question in message.content)
            (again,) = grid.send_and_receive([FlowerMessage(asked.content, 2, "train")])
            assert again.has_error(), complaint


@pytest.mark.long
@pytest.mark.slow
@forgive_ray
def test_the_run_is_the_same_on_ray_whose_node_fails_in_a_round(tmp_path):
    values, runs = np.random.default_rng(3).normal(size=(40, 3)), []
    values[39, 0] = MARK
    people, blocks = federation_of(values), np.array_split(np.arange(40), NODES)
    for engine in ("local", "ray"):
        problem, records = FaultyQuadratic(3, "raise", tmp_path / engine), []
        with own_ray(num_cpus=2) if engine == "ray" else nullcontext():
            local = LocalGrid([Node(problem, people, users) for users in blocks])
            with local if engine == "local" else RayGrid(problem, people, blocks, workers=2) as grid:
                runs.append(final(surviving(problem=problem).start(grid, on_round=records.append)))
        assert [record.missing_users for record in records] == [8, 0, 0]
        assert not any("lost" in record.facts for record in records)
    np.testing.assert_array_equal(*runs)


APP = """
import numpy as np
from flwr.serverapp import ServerApp

from strategies import DPFedSGD, PublicFacts, client_app, model_vector
from userdp.accounting import Privacy
from userdp.data import Block, ColumnarFederation
from userdp.nodes.node import Node
from userdp.problems import Quadratic

PEOPLE = np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32)
FEDERATION = ColumnarFederation(Block(PEOPLE, np.arange(41)))


class Failing(Node):
    def compute(self, x, users, computation):
        answer = super().compute(x, users, computation)
        if computation.masked.round % 5 == self.users[0] // 8:
            raise OSError("the part does not leave")
        return answer


def load(context):
    first = 8 * int(context.node_config["partition-id"])
    return Failing(Quadratic(3, 9.0, 9.0), FEDERATION, np.arange(first, first + 8))


client = client_app(load)
server = ServerApp()


@server.main()
def main(grid, context):
    privacy = Privacy(2.0, 1e-3, trust="sum", lost_nodes=1)
    recipe = DPFedSGD(rounds=10, clip_norm=0.5, max_missing=0.7)
    strategy = recipe.strategy(Quadratic(3, 9.0, 9.0), PublicFacts(40), privacy, seed=0)
    result = strategy.start(grid, roster_timeout=600)
    assert not any("lost" in one.facts or one.missing_users != 8 for one in result.rounds)
    np.save(context.run_config["output"], model_vector(result.arrays))
"""
SETTINGS = """
[project]
name = "lossy"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
[tool.flwr.app.config]
output = ""
"""


@pytest.mark.long
@pytest.mark.slow
def test_flowers_own_engine_loses_a_node_in_each_round_and_gives_the_same_bits(tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "app.py").write_text(APP)
    (app / "pyproject.toml").write_text(SETTINGS)
    run_on_flower(tmp_path / "flower", app, NODES, {"output": str(tmp_path / "model.npy")})
    with Lossy(nodes_of(), each_in_turn) as grid:
        here = final(surviving(rounds=10).start(grid))
    np.testing.assert_array_equal(np.load(tmp_path / "model.npy"), here)


# --- What is refused ----------------------------------------------------------------------------------------------


def test_lost_nodes_are_for_masked_sums():
    for changes in ({"trust": "server"}, {"lost_nodes": -1}):
        with pytest.raises(BadInput, match=r"set privacy\.trust = 'sum'"):
            replace(PRIVACY, **changes)
    with pytest.raises(BadInput, match=r"privacy.lost_nodes = 1 with strategy.max_missing = 0"):
        surviving(max_missing=0.0)


@KINDS
def test_cohorts_too_small_for_the_promise_are_refused_before_any_data_are_seen(kind):
    surviving(kind, cohort=3)
    with pytest.raises(BadInput, match=r"privacy.lost_nodes = 1 with 2 users in a round: at least 3 nodes"):
        surviving(kind, cohort=2)


def test_too_few_nodes_are_refused_before_they_are_asked():
    with (
        Lossy(nodes_of(count=2)) as grid,
        pytest.raises(RunFailed, match=r"2 nodes are too few for privacy\.lost_nodes = 1 .* at least 3 nodes"),
    ):
        surviving().start(grid)
    assert {stage_of(message)[0] for message in grid.asked} == {"roster"}


@pytest.mark.parametrize(("count", "told"), [(3, True), (4, False)])
def test_the_log_and_the_guarantee_say_against_which_server_the_promise_holds(count, told, caplog):
    with caplog.at_level(logging.WARNING), LocalGrid(nodes_of(count=count)) as grid:
        method = surviving()
        method.start(grid)
    assert ("rely on the server to tell all of them the same" in caplog.text) == told
    (assumption,) = [one for one in method.plan.guarantee.assumptions if "who fell silent" in one]
    assert "with more than 2 nodes that keep their secrets it may lie about that" in assumption


@KINDS
@pytest.mark.parametrize("lost", [0, 1])
def test_the_plan_names_the_coalition_and_what_the_server_alone_learns(kind, lost):
    for colluding in (0.0, 0.3):
        plan = surviving(kind, privacy=replace(PRIVACY, colluding=colluding, lost_nodes=lost)).plan
        promise = plan.guarantee
        assert f"on its own epsilon is at most {plan.numbers['server_epsilon']:.4g}" in promise.adversary
        told = [promise.adversary, *(one for one in promise.assumptions if "no more than one" in one)]
        assert len(told) == 2 + lost
        assert all(("0.3" in one) == (colluding > 0) for one in told)


def test_a_single_share_of_the_noise_left_is_refused_in_a_round_that_too_few_nodes_hold():
    """Five nodes, and cohorts of three users who may live on two of them."""
    method = surviving(cohort=3, rounds=12)
    with Lossy(nodes_of()) as grid, pytest.raises(RunFailed, match="at least 3 nodes are needed"):
        method.start(grid)
