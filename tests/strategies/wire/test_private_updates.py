"""Ordinary clients with the mod: what leaves a node, sums of masked updates, nodes that drop, and refusals."""

import logging
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from helpers_flower import ClientGrid
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import DropInAdaptiveClipping, DropInFedAvg, DropInRecentredClipping, private_updates
from strategies.wire import kept_key as kept_key_module
from strategies.wire import private_updates as private_updates_module
from strategies.wire.model_layout import ModelLayout
from strategies.wire.questions import Reader
from userdp.arrays.sparse_rows import clip_rows
from userdp.errors import BadInput, RunFailed
from userdp.masking.sums import MaskedSum, loudness, most_loudness

INITIAL = {"weight": np.array([[0.5, -1.0]], dtype=np.float32), "bias": np.array([0.25]), "count": np.array(3)}


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def clients(updates, clip_norm=None, silent=lambda node, server_round: False, mods=None):
    """Clients of which number i adds ``updates[i]`` to the model, and says more than it should."""
    app, seen = ClientApp(), []

    @app.train(mods=[private_updates(clip_norm)] if mods is None else mods)
    def train(message, context):
        node, content = context.node_config["partition-id"], message.content
        seen.append(sorted(content))
        if silent(node, content["config"]["server-round"]):
            raise ConnectionError
        move, sent = updates[node], {name: array.numpy() for name, array in content["arrays"].items()}
        trained = {
            "weight": (sent["weight"] + np.float32(move[:2])).astype(np.float32),
            "bias": sent["bias"] + move[2:],
            "count": sent["count"] + 1,
        }
        metrics = MetricRecord({"loss": float(move[0]), "num-examples": 40})
        return FlowerMessage(RecordDict({"arrays": record(trained), "metrics": metrics}), reply_to=message)

    return app, seen


class Listening(ClientGrid):
    """A grid that keeps what nodes say."""

    def __init__(self, app, nodes):
        super().__init__(app, nodes)
        self.replies = []

    def _deliver(self, messages, timeout):
        for reply in super()._deliver(messages, timeout):
            self.replies.append(reply)
            yield reply


def strategy(kind=DropInFedAvg, users=4, **options):
    given = {"epsilon": 4.0, "delta": 1e-4, "rounds": 2, "seed": 3, "clip_norm": 1.0, "roster_timeout": 1.0}
    given |= {"trust": "sum", "noise": "seeded"} | options
    patience = given.pop("roster_timeout")
    made = kind(users=users, **given)
    return lambda grid: made.start(grid, record(INITIAL), roster_timeout=patience)


def trained(result):
    return np.concatenate([result.arrays[name].numpy().ravel() for name in ("weight", "bias")])


UPDATES = np.array([[0.3, 0.0, -0.2], [0.0, 9.0, 0.0], [-0.1, 0.1, 0.1], [np.nan, 0.0, 0.0]])


@pytest.fixture
def quiet(monkeypatch):
    """Nodes that add no noise."""
    monkeypatch.setattr(MaskedSum, "_share", lambda self, length, first_user: np.zeros(length, dtype=np.int64))


@pytest.mark.parametrize("kind", [DropInFedAvg, DropInAdaptiveClipping])
@pytest.mark.parametrize("options", [{}, {"noise": "secure", "seed": None}], ids=["seeded", "secure"])
def test_a_masked_sum_trains_what_a_trusted_server_trains(quiet, kind, options):
    with ClientGrid(clients(UPDATES)[0], 4) as grid:
        masked = strategy(kind, **options)(grid)
    with ClientGrid(clients(UPDATES, mods=[])[0], 4) as grid:
        plain = strategy(kind, trust="server", epsilon=1e7)(grid)
    np.testing.assert_allclose(trained(masked), trained(plain), atol=5e-3)
    assert [one.missing_users for one in masked.rounds] == [0, 0]


def test_nodes_noise_is_the_planned_one():
    sums = []
    for seed in range(60):
        with ClientGrid(clients(np.zeros((4, 3)))[0], 4) as grid:
            made = strategy(rounds=1, seed=seed)
            sums.append(trained(made(grid)) - [0.5, -1.0, 0.25])
    planned = DropInFedAvg(users=4, epsilon=4, delta=1e-4, rounds=1, trust="sum", clip_norm=1.0).plan.numbers
    # The plan states the noise of the fewest nodes.
    of_four = planned["noise_deviation"] * loudness(4, 0.0) / most_loudness(0.0)
    assert np.std(sums) == pytest.approx(of_four, rel=0.2)


def test_nothing_but_masked_whole_numbers_and_a_key_leaves_a_node():
    app, seen = clients(UPDATES)
    with Listening(app, 4) as grid:
        strategy()(grid)
    keys, answers = grid.replies[:4], grid.replies[4:]
    assert all(set(reply.content) == {"roster", "facts"} for reply in keys)
    assert len(answers) == 8
    for reply in answers:
        assert set(reply.content) == {"answer", "facts"}
        assert not reply.content["facts"]
        assert set(reply.content["answer"]) == {"users", "masked"}
        masked = reply.content["answer"]["masked"].numpy()
        assert masked.dtype == np.uint64
        # Uniform residues: the smallest of these would be as small as an update with a chance of 1e-6 at most.
        assert np.abs(masked.view(np.int64).astype(float)).min() > 2.0**40
    assert seen == [["arrays", "config"]] * 8  # the client's code sees what Flower's FedAvg sends


MOVE = st.floats(-1e3, 1e3, width=16)


@settings(max_examples=60)
@given(st.lists(st.tuples(MOVE, MOVE), min_size=2, max_size=2), st.sampled_from(["f2", "f4", "f8"]), st.floats(1e-3, 9))
def test_rounding_to_the_models_type_makes_no_clipped_update_longer(moves, dtype, clip):
    sent, by = np.array(moves).T
    layout = ModelLayout(record({"weight": sent.astype(dtype), "scale": np.array(1024.0, dtype=dtype)}))
    start, update = layout.vector(layout.record(np.append(sent, 1024.0))), clip_rows(np.append(by, 0.6)[None], clip)[0]
    moved = layout.vector(layout.moved(start, update)) - start
    assert np.linalg.norm(moved) <= clip * (1 + 1e-12)
    assert np.all(np.abs(moved - update) <= np.spacing(np.abs(start + update).astype(dtype)).astype(float))


def test_the_guarantee_says_who_is_protected_against_whom():
    promise = DropInFedAvg(users=4, epsilon=2, delta=1e-4, rounds=1, trust="sum").plan.guarantee
    said = " ".join([promise.adversary, *promise.assumptions])
    assert "a node is a user" in said
    assert "sees every user's model" not in said
    assert "curious, not active" in said


# --- Nodes that drop, and refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DropInFedAvg, DropInAdaptiveClipping])
def test_a_round_survives_as_many_silent_nodes_as_it_may_and_they_come_back(quiet, kind):
    options = {"users": 6, "rounds": 3, "max_missing": 0.2, "lost_nodes": 1}
    app, seen = clients(np.full((6, 3), 0.1), silent=lambda node, number: node == 4 and number == 2)
    with Listening(app, 6) as grid:
        result = strategy(kind, **options)(grid)
    assert [one.missing_users for one in result.rounds] == [0, 1, 0]
    # Six users move the model in the first round and in the third, five in the second; the divisor is public.
    np.testing.assert_allclose(trained(result) - [0.5, -1.0, 0.25], 0.1 * (1 + 5 / 6 + 1), atol=1e-3)
    assert seen == [["arrays", "config"]] * 18  # the client's code sees nothing of shares
    kinds = [set(reply.content) for reply in grid.replies if reply.has_content()]
    assert all(sum(name in kind for kind in kinds) == count for name, count in {"shares": 6, "revealed": 17}.items())


def test_a_client_with_the_key_of_another_counts_as_absent(monkeypatch, caplog):
    """Between the two there would be no mask that hides either."""
    made, real = [], kept_key_module.MaskKey

    def keyed(secret=None, *counts):
        made.append(secret)
        return real(bytes([min(len(made), 3)]) * 32 if secret is None else secret, *counts)

    monkeypatch.setattr(kept_key_module, "MaskKey", keyed)
    with ClientGrid(clients(UPDATES)[0], 4) as grid, pytest.raises(RunFailed) as told:
        strategy(max_missing=0.2, roster_timeout=0.01)(grid)
    assert "node 4: sent no key of its own: another node has the same" in str(told.value)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_key_was_used_for_is_kept_between_messages(fails):
    """A node that forgot would answer a round, or give its shares away, a second time."""
    context, used = Context(1, 1, {}, RecordDict(), {}), {"answered": 5, "lost": 2, "unmasked": 4}
    with suppress(RuntimeError), kept_key_module.kept_key(context) as key:
        vars(key).update(used)
        if fails:
            raise RuntimeError
    with kept_key_module.kept_key(context) as again:
        assert again.public == key.public
        assert {name: value for name, value in vars(again).items() if name in used} == used


def test_clients_without_the_mod_are_named_before_the_run(caplog):
    with (
        caplog.at_level(logging.WARNING),
        ClientGrid(clients(UPDATES, mods=[])[0], 4) as grid,
        pytest.raises(RunFailed, match=r"mods=\[private_updates\(\)\]"),
    ):
        strategy()(grid)
    assert "sent no key of its own" in caplog.text


def test_a_server_that_asks_for_the_model_gets_a_clipped_one_or_none():
    with ClientGrid(clients(UPDATES)[0], 4) as grid, pytest.raises(RunFailed):
        strategy(trust="server")(grid)
    with Listening(clients(UPDATES, clip_norm=0.5)[0], 4) as grid:
        strategy(trust="server", rounds=1)(grid)
    start = np.concatenate([INITIAL["weight"].ravel(), INITIAL["bias"]])
    for reply, update in zip(grid.replies, UPDATES, strict=True):
        assert dict(reply.content["metrics"]) == {"num-examples": 1}
        arrays = reply.content["arrays"]
        moved = np.concatenate([arrays[name].numpy().ravel() for name in ("weight", "bias")]) - start
        length = np.linalg.norm(np.nan_to_num(update)) if np.isfinite(update).all() else 0.0
        assert np.linalg.norm(moved) == pytest.approx(min(length, 0.5), abs=1e-6)
        assert arrays["count"].numpy() == 3


@pytest.mark.parametrize("asked", [{"clip_norm": None}, {"masked": None}, {"users": 2}, {"users": 0}], ids=str)
def test_a_server_that_asks_for_something_else_than_one_clipped_masked_update_gets_nothing(monkeypatch, asked):
    """Neither the length of an update nor whom it is of is for the server to choose; the client is not even called."""
    app, seen = clients(UPDATES)

    def changed(reader, message):
        users, computation = Reader.request(reader, message)
        users = np.arange(asked["users"]) if "users" in asked else users
        return users, replace(computation, **{name: None for name in asked if name != "users"})

    monkeypatch.setattr(private_updates_module, "Reader", type("Changed", (Reader,), {"request": changed}))
    with Listening(app, 4) as grid, pytest.raises(RunFailed):
        strategy()(grid)
    assert seen == []
    answers = grid.replies[4:]
    assert answers
    assert all(reply.has_error() for reply in answers)


def test_what_cannot_be_promised_is_refused():
    with pytest.raises(BadInput, match="must be a positive number"):
        private_updates(0.0)
    with pytest.raises(BadInput, match="the server would know the noise"):
        DropInFedAvg(users=4, epsilon=1, delta=1e-4, trust="sum", noise="seeded")
    with pytest.raises(BadInput, match="trust"):
        DropInRecentredClipping(users=4, epsilon=1, delta=1e-4, trust="sum", clip_norm=1.0)
