"""Masked sums against everybody whom their guarantee names: epsilon from the noise that each of them cannot take off.

Each adversary gets its whole view of a run: the masked parts, the iterates, the parts and shares of its own nodes. It
knows all data but one user's. What is then left of each release is noise, whose size is measured.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from helpers import content_of, federation_of, final, requested
from helpers_adversaries import Overheard, gaussian_epsilon

from simulations.engines.grids import LocalGrid
from strategies import AdaptiveClipping, DPFedAvg, DPFedSGD, PublicFacts, VoteDescent, client_app
from strategies.wire.questions import Reader
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import Node
from userdp.problems import Quadratic

WIDE = 4000
"""Coordinates: the deviation of so many numbers is known to 1.2 %."""
BLURRED = 0.03
"""The relative error that is allowed for this; noise is seeded, so it is one fixed sample."""
DELTA = 1e-3
LOSS = Quadratic(WIDE, 1e4, 1e4)
ROUNDS = 2
CLIP = 0.5


@dataclass
class Seen:
    """A run of k nodes with two users each, and all that anybody could see of it."""

    nodes: int
    colluding: float
    users: int = 0

    def __post_init__(self):
        self.users = self.users or 2 * self.nodes
        privacy = Privacy(2.0, DELTA, trust="sum", colluding=self.colluding)
        self.method = DPFedSGD(rounds=ROUNDS, clip_norm=CLIP, learning_rate=1.0).strategy(
            LOSS, PublicFacts(self.users), privacy, seed=0
        )
        people = federation_of(np.random.default_rng(3).normal(size=(self.users, WIDE)))
        self.blocks = np.array_split(np.arange(self.users), self.nodes)
        self.everybody = Node(LOSS, people, np.arange(self.users))
        with Overheard([Node(LOSS, people, users) for users in self.blocks]) as grid:
            self.found = final(self.method.start(grid))
            self.keys = [node.key for node in grid._nodes]
        asked = [Reader().request(message)[1] for message in grid.trained]
        self.asked = [asked[index] for index in range(0, len(asked), self.nodes)]
        self.models = [Reader().model(message) for message in grid.trained[:: self.nodes]] + [self.found]
        answers = [reply.content["answer"]["masked"].numpy() for reply in grid.answers if "answer" in reply.content]
        self.masked = [answers[index : index + self.nodes] for index in range(0, len(answers), self.nodes)]

    def rows(self, index, users):
        """The sum of users' clipped vectors, in grid steps."""
        plain = replace(self.asked[index], masked=None, reduce="rows")
        rows = self.everybody.compute(self.models[index], users, plain).values
        return self.asked[index].masked.whole(rows).sum(axis=0)

    @cached_property
    def shares(self):
        """(T, k, p) the noise of each node in each round, which it alone knows: its part without mask and rows."""
        found = np.zeros((ROUNDS, self.nodes, WIDE))
        for index, asked in enumerate(self.asked):
            question = asked.question(self.models[index])
            for node, users in enumerate(self.blocks):
                mask = self.keys[node].mask(asked.masked.keys, question, WIDE)
                part = (self.masked[index][node] - mask).view(np.int64)
                found[index, node] = (part - self.rows(index, users)) * asked.masked.grid.step
        return found

    @cached_property
    def noisy_sums(self):
        """(T, p) the server: masked parts vanish from their sum, and leave it with the noise of all nodes."""
        sums = []
        for index, asked in enumerate(self.asked):
            total = np.sum(self.masked[index], axis=0, dtype=np.uint64).view(np.int64)
            sums.append((total - self.rows(index, np.arange(self.users))) * asked.masked.grid.step)
        return np.array(sums)

    @cached_property
    def noisy_steps(self):
        """(T, p) whoever sees every iterate: a step is the noisy mean."""
        steps = [before - after for before, after in zip(self.models, self.models[1:], strict=False)]
        rows = [self.rows(index, np.arange(self.users)) * self.asked[index].masked.grid.step for index in range(ROUNDS)]
        return np.array(steps) * self.users - np.array(rows)

    def epsilon(self, noise):
        """The epsilon of a run in which this noise is left in each round: one user moves each sum by twice the clip."""
        distances = [2 * CLIP / (one.std() * (1 + BLURRED)) for one in noise]
        return gaussian_epsilon(math.hypot(*distances), DELTA)

    @property
    def claimed(self):
        return self.method.plan.guarantee.epsilon

    @property
    def together(self):
        """The most nodes that may put together what they know, by the sentence of the guarantee."""
        return max(1, math.floor(round(self.colluding * self.nodes, 9)))


NODES = pytest.mark.parametrize(
    ("nodes", "colluding"), [(2, 0.0), (3, 0.0), (4, 0.0), (8, 0.0), (8, 0.1), (2, 0.4), (8, 0.3), (4, 0.5), (10, 0.3)]
)


@pytest.fixture(scope="module")
def seen():
    runs = {}
    return lambda nodes, colluding: runs.setdefault((nodes, colluding), Seen(nodes, colluding))


@NODES
def test_the_server_on_its_own_learns_no_more_than_its_own_epsilon(seen, nodes, colluding):
    run = seen(nodes, colluding)
    measured = run.epsilon(run.noisy_sums)
    assert measured <= run.method.plan.numbers["server_epsilon"] < run.claimed
    assert f"on its own epsilon is at most {run.method.plan.numbers['server_epsilon']:.4g}" in (
        run.method.plan.guarantee.sentence()
    )
    # Its view of a round has the noise of all nodes, and no part alone tells anything.
    np.testing.assert_allclose(run.noisy_sums, run.shares.sum(axis=1), rtol=0, atol=1e-9)
    # Whoever sees every iterate sees the same.
    np.testing.assert_allclose(run.noisy_steps, run.noisy_sums, rtol=0, atol=1e-9)
    assert run.epsilon(run.noisy_steps) <= run.claimed


@NODES
def test_no_node_nor_the_largest_coalition_learns_more_than_is_claimed_with_the_server_or_without(
    seen, nodes, colluding
):
    run = seen(nodes, colluding)
    assert "any one other node" in run.method.plan.guarantee.sentence()
    for size in {1, run.together}:
        for first in range(nodes):
            # They take their own shares off what they see.
            known = run.shares[:, [(first + place) % nodes for place in range(size)]].sum(axis=1)
            left = [run.epsilon(view - known) for view in (run.noisy_steps, run.noisy_sums)]
            assert max(left) <= run.claimed
            assert size < run.together or min(left) >= 0.93 * run.claimed  # the noise is no larger than it need be


def test_one_node_more_than_the_sentence_names_learns_more_so_these_tests_see_a_share_too_few(seen):
    run = seen(8, 0.3)
    known = run.shares[:, : run.together + 1].sum(axis=1)
    assert run.epsilon(run.noisy_sums - known) > 1.04 * run.claimed


@pytest.mark.parametrize("kind", [DPFedAvg, AdaptiveClipping, VoteDescent])
@pytest.mark.parametrize(("nodes", "colluding"), [(2, 0.0), (5, 0.0), (5, 0.4)])
def test_every_masked_strategy_asks_for_shares_that_are_enough_without_those_of_a_coalition(kind, nodes, colluding):
    privacy = Privacy(2.0, DELTA, trust="sum", colluding=colluding)
    loss = Quadratic(3, 9.0, 9.0)
    options = {"rounds": 3} | ({} if kind is VoteDescent else {"clip_norm": CLIP})
    method = kind(**options).strategy(loss, PublicFacts(20), privacy, seed=0)
    people = federation_of(np.random.default_rng(3).normal(size=(20, 3)))
    with Overheard([Node(loss, people, users) for users in np.array_split(np.arange(20), nodes)]) as grid:
        method.start(grid)
    square = 0.0
    for message in grid.trained[::nodes]:
        asked = Reader().request(message)[1]
        left = asked.masked.deviation * math.sqrt(1 - max(1, round(colluding * nodes)) / nodes)
        weight = asked.masked.weight or 0.0
        # Opposite votes in three coordinates are a root of three apart.
        moved = math.sqrt(3) if kind is VoteDescent else 2 * math.hypot(asked.clip_norm, weight / 2)
        square += (moved / left) ** 2
    measured = gaussian_epsilon(math.sqrt(square), DELTA)
    assert 0.99 * method.plan.guarantee.epsilon <= measured <= method.plan.guarantee.epsilon * (1 + 1e-6)


def test_sums_of_fewer_nodes_keep_as_much_noise_from_each():
    # Cohorts of four among five nodes of unequal size: a sum has two to four nodes.
    loss, blocks = Quadratic(2, 9.0, 9.0), np.split(np.arange(24), [2, 4, 6, 12])
    method = DPFedSGD(rounds=6, cohort=4, clip_norm=CLIP).strategy(
        loss, PublicFacts(24), Privacy(2.0, DELTA, trust="sum"), seed=0
    )
    with Overheard([Node(loss, federation_of(np.zeros((24, 2))), users) for users in blocks]) as grid:
        method.start(grid)
    numbers = set()
    for message in grid.trained:
        asked = Reader().request(message)[1].masked
        nodes = len(asked.keys)
        numbers.add(nodes)
        left = asked.deviation * math.sqrt((nodes - 1) / nodes)
        assert 0.99 * method.plan.guarantee.epsilon <= gaussian_epsilon(2 * CLIP / left, DELTA)
        assert gaussian_epsilon(2 * CLIP / left, DELTA) <= method.plan.guarantee.epsilon * (1 + 1e-6)
    assert len(numbers) > 1


# --- A sum of one node --------------------------------------------------------------------------------------


def small(**options):
    options = {"rounds": 3, "clip_norm": CLIP} | options
    return DPFedSGD(**options).strategy(
        Quadratic(2, 9.0, 9.0), PublicFacts(8), Privacy(2.0, DELTA, trust="sum"), seed=0
    )


def people_of(blocks):
    return [Node(Quadratic(2, 9.0, 9.0), federation_of(np.zeros((8, 2))), np.array(users)) for users in blocks]


def test_a_single_node_is_refused_before_it_is_asked():
    with (
        Overheard(people_of([range(8)])) as grid,
        pytest.raises(RunFailed, match=r"privacy.trust = 'sum': .* at least two must hold users of a round"),
    ):
        small().start(grid)
    assert not grid.trained


def test_a_round_that_one_node_alone_would_answer_is_refused_and_the_ones_before_stand():
    method, records = small(cohort=2, rounds=4), []
    first, second = (method.scheme.sampler.cohort(index).tolist() for index in range(2))
    held = {*second, first[0]}
    with (
        Overheard(people_of([sorted(held), sorted(set(range(8)) - held)])) as grid,
        pytest.raises(RunFailed, match="at least two must hold users"),
    ):
        method.start(grid, on_round=records.append)
    assert len(records) == 1
    assert len(grid.trained) == 2


def test_cohorts_of_one_user_are_refused_before_any_data_are_seen():
    with pytest.raises(BadInput, match=r"strategy.cohort = 1 with privacy.trust = 'sum'"):
        small(cohort=1)


# --- One answer per round -------------------------------------------------------------------------------------


def questions(nodes, x=0.0, index=0, **changes):
    """A masked round for these nodes."""
    asked = requested(small(), 0).computation
    masked = replace(asked.masked, round=index).among(tuple(node.key.public for node in nodes))
    return np.full(2, x), replace(asked, masked=masked, **changes)


@pytest.mark.parametrize("second", [{}, {"x": 1.0}, {"clip_norm": 0.4}], ids=["the same", "a model", "a clip"])
def test_a_node_answers_one_question_of_a_round(second):
    nodes = people_of([range(4), range(4, 8)])
    x, asked = questions(nodes, index=1)
    nodes[0].compute(x, nodes[0].users, asked)
    for index in (0, 1):
        again, other = questions(nodes, index=index, **second)
        with pytest.raises(BadInput, match="answers each round once"):
            nodes[0].compute(again, nodes[0].users, other)
    nodes[0].compute(*(questions(nodes, index=2)[0], nodes[0].users, questions(nodes, index=2)[1]))


def test_a_question_that_failed_before_its_mask_was_drawn_may_be_asked_again_and_is_answered_once():
    class Failing(Quadratic):
        def user_gradients(self, x, block):
            raise BadInput("out of order")

    nodes = people_of([range(4), range(4, 8)])
    x, asked = questions(nodes)
    problem, nodes[0].problem = nodes[0].problem, Failing(2, 9.0, 9.0)
    for _ in range(2):  # nothing left the node
        with pytest.raises(BadInput, match="out of order"):
            nodes[0].compute(x, nodes[0].users, asked)
    nodes[0].problem = problem
    nodes[0].compute(x, nodes[0].users, asked)
    with pytest.raises(BadInput, match="answers each round once"):
        nodes[0].compute(x, nodes[0].users, asked)


def test_a_node_of_flower_remembers_between_messages_and_forgets_its_key_with_what_it_answered():
    LocalGrid([])  # Flower's messages ask for an identity, which a grid sees to
    nodes = people_of([range(4), range(4, 8)])
    app, state = client_app(lambda _: people_of([range(4), range(4, 8)])[0]), RecordDict()

    def requested(content, kind, held):
        return app(Message(content, 1, kind), Context(1, 1, {}, held, {}))

    question = RecordDict({"question": ConfigRecord({"salt": bytes(32), "counts": False, "keys": True})})
    for held in (state, state, RecordDict()):
        key = requested(question, MessageType.QUERY, held).content["roster"]["key"].numpy().tobytes()
        if held is state:
            mine = key
    assert key != mine  # without its state it is nobody's node, and cannot answer in this run
    x, computation = questions(nodes)
    keys = (mine, nodes[1].key.public)
    computation = replace(computation, masked=replace(computation.masked, keys=keys))
    content = content_of(x, np.arange(4), computation)
    assert not requested(content, MessageType.TRAIN, state).has_error()
    for _ in range(2):
        assert requested(content, MessageType.TRAIN, state).has_error()
    assert requested(content, MessageType.TRAIN, RecordDict()).has_error()


def test_a_grid_of_this_machine_begins_another_run_with_other_keys():
    nodes = people_of([range(4), range(4, 8)])
    with LocalGrid(nodes) as grid:
        first, keys = final(small().start(grid)), [node.key.public for node in nodes]
        np.testing.assert_array_equal(final(small().start(grid)), first)
    assert not set(keys) & {node.key.public for node in nodes}
