"""Local privacy: noise that each user adds, its budget, and its behaviour."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from helpers import ChangedNode, Wild, content_of, federation_of, make, requested
from helpers_flower import ClientGrid

from simulations.engines.grids import LocalGrid, shards
from strategies import DPFedSGD, LocalDP, client_app
from userdp.accounting import Cost, epsilon_of
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Node
from userdp.problems import Quadratic


def rows_of(method, federation, index=0):
    """The row that each user sends."""
    node = Node(method.problem, federation, np.arange(federation.users))
    asked = requested(method, index)
    single = Computation(clip_norm=asked.computation.clip_norm, noise=asked.computation.noise)
    return node.compute(method.problem.initial(), asked.users, single).values


def test_a_users_data_move_what_it_sends_by_at_most_the_sensitivity_its_noise_is_for():
    method = make(LocalDP, Wild(2), 6, delta=1e-3, clip_norm=0.7)
    rng = np.random.default_rng(0)
    most = 0.0
    for _ in range(200):
        data = rng.integers(0, 10, (6, 2))
        neighbour = data.copy()
        neighbour[2] = rng.integers(0, 10, 2)
        moved = rows_of(method, federation_of(data)) - rows_of(method, federation_of(neighbour))
        np.testing.assert_array_equal(np.delete(moved, 2, axis=0), 0.0)
        most = max(most, float(np.linalg.norm(moved[2])))
    assert 1.3 < most <= 1.4 * (1 + 1e-9)
    assert method.plan.numbers["noise_per_user"] == pytest.approx(1.4 * method.plan.numbers["noise_multiplier"])


@pytest.mark.parametrize(("rounds", "cohort", "takes_part"), [(1, None, 1), (4, None, 4), (4, 50, 2)])
def test_the_rounds_of_a_user_spend_the_budget(rounds, cohort, takes_part):
    method = make(LocalDP, Quadratic(2, 1.0, 1.0), 100, delta=1e-4, rounds=rounds, cohort=cohort)
    epsilon = epsilon_of(Cost(noise_multiplier=method.plan.numbers["noise_multiplier"]), takes_part, 1e-4)
    assert 0.999 < epsilon <= 1 + 1e-9
    assert method.plan.guarantee.epsilon == epsilon
    assert "the server included" in method.plan.guarantee.sentence()


def test_every_user_adds_independent_noise_of_the_stated_size():
    method = make(LocalDP, Quadratic(50, 1.0, 1.0), 400, delta=1e-4, rounds=2)
    federation = federation_of(np.zeros((400, 50)))
    first, second = (rows_of(method, federation, index) / method.plan.numbers["noise_per_user"] for index in (0, 1))
    assert first.std() == pytest.approx(1.0, abs=0.02)  # 20,000 normals: four standard errors
    for other in (second, np.roll(first, 1, axis=0), np.roll(first, 1, axis=1)):
        assert abs(np.mean(first * other)) < 4 / np.sqrt(first.size)


# What leaves a node -----------------------------------------------------------------------------------------------


class Fragile(Quadratic):
    """The gradient of a user whose first feature is negative is not a number."""

    def user_gradients(self, x, block):
        gradients = super().user_gradients(x, block)
        gradients[block.features[block.offsets[:-1], 0] < 0] = np.nan
        return gradients


def told(reply):
    """Everything in a message: (record, key, type, shape, content), and the error if it is one."""
    if reply.has_error():
        return {"error": (reply.error.code, reply.error.reason)}
    facts = {}
    for name, record in reply.content.items():
        facts[name] = type(record).__name__
        for key, value in record.items():
            array = value.numpy() if isinstance(record, ArrayRecord) else None
            facts[name, key] = value if array is None else (str(array.dtype), array.shape, array.tobytes())
    return facts


class Listening:
    """Keeps what every reply tells, in the order of rounds and nodes."""

    heard: list

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.heard += [told(reply) for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id)]
        return replies


class ListeningLocal(Listening, LocalGrid):
    pass


class ListeningClients(Listening, ClientGrid):
    pass


def heard(values, engine, kind=LocalDP, change=None):
    """Return all that leaves the two nodes of a run, and the strategy."""
    method = make(kind, Fragile(2, 1.0, 1.0), 6, delta=1e-3, rounds=2, clip_norm=0.7)
    federation = federation_of(values)
    nodes = [Node(method.problem, federation, users) for users in shards(6, 3)]
    nodes = nodes if change is None else [ChangedNode(nodes[0], change), nodes[1]]
    if engine == "grid":
        grid = ListeningLocal(nodes)
    else:
        grid = ListeningClients(client_app(lambda context: nodes[context.node_config["partition-id"]]), 2)
    grid.heard = []
    method.start(grid, roster_timeout=0)
    return grid.heard, method


@pytest.mark.parametrize("engine", ["grid", "app"])
@pytest.mark.parametrize("value", [[9.0, 0.1], [-0.5, 0.5], [0.9, -1.0]], ids=["clipped", "not finite", "plain"])
def test_nothing_but_what_is_noised_leaves_a_node(engine, value):
    """Every record of every reply is the same for two neighbours with the same noise, except for the noised values."""
    values = np.full((6, 2), 0.5)
    neighbour = values.copy()
    neighbour[1] = value
    (ours, method), (theirs, _) = heard(values, engine), heard(neighbour, engine)
    assert len(ours) == len(theirs) == 2 + 2 * 2  # two rosters, two rounds
    differences = set()
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        differences |= {key for key in one if one[key] != other[key]}
    assert differences == {("answer", "values")}
    assert set().union(*ours) == {
        "roster",
        ("roster", "users"),
        "answer",
        ("answer", "users"),
        ("answer", "values"),
        "facts",
        ("facts", "protocol"),
    }
    assert method.result.clipped_samples == method.result.non_finite_users == 0


def test_a_server_that_is_trusted_is_told_counts():
    values = np.full((6, 2), 0.5)
    values[1], values[2] = [9.0, 0.1], [-0.5, 0.5]
    messages, method = heard(values, "grid", DPFedSGD)
    assert (method.result.clipped_samples, method.result.non_finite_users) == (1, 2)
    assert messages[0]["facts", "clipped_samples"] == 1


def sick(answer):
    raise ValueError("patient 34 of Bern weighs 171 kg")


@pytest.mark.parametrize("engine", ["grid", "app"])
def test_a_run_does_not_tell_which_error_a_node_met(engine):
    """The kind of error may depend on the data."""
    with pytest.raises(RunFailed, match=r"did not answer \(its app failed: error 1 \(see that node's log\)\)"):
        heard(np.full((6, 2), 0.5), engine, change=sick)


def test_a_node_that_fails_says_only_that_it_did():
    node = ChangedNode(Node(Fragile(2, 1.0, 1.0), federation_of(np.zeros((6, 2))), np.arange(6)), sick)
    noisy = Computation(clip_norm=1.0, noise=LocalNoise(1.0, 1, 0))
    grid, context = LocalGrid([node]), Context(1, 1, {}, RecordDict(), {})
    message = Message(content_of(np.zeros(2), np.arange(6), noisy), 1, MessageType.TRAIN)
    replies = [client_app(lambda _: node)(message, context), *grid.send_and_receive([message])]
    assert [told(reply) for reply in replies] == [{"error": (1, None)}] * 2
