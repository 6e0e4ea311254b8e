"""The door of a node: what every strategy asks passes it, and a node behind it remembers what it let in."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from any_strategy import halves, options_of, problem_of
from flwr.app import Context, Message, MessageType, RecordDict
from helpers import content_of, federation_of

from simulations.engines.grids import LocalGrid
from strategies import STRATEGIES, DPFedSGD, PublicFacts
from strategies.wire.claims import Claim, Door, Refused, check_question, kept_claim
from strategies.wire.protocol import answer_message, roster_question
from strategies.wire.shares import sharing_question, survivors_question
from userdp.accounting import Privacy
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.shares import SEALED_BYTES, Sharing, Survivors
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Node
from userdp.problems import Quadratic

CLAIM = Claim("auto", "secure", "server", "user", "replace_one", 1.0, 1e-6, "digest", "run")
SECURE = [
    name
    for name in STRATEGIES
    if STRATEGIES[name].about.without_secure_noise is None and "user" in STRATEGIES[name].about.units
]


class Open(Door):
    """Admits every run."""

    def admit(self, claim):
        pass


class Heard(LocalGrid):
    def _deliver(self, messages, timeout):
        for reply in super()._deliver(messages, timeout):
            assert not reply.has_error()
            yield reply


def behind_doors(problem, people, users):
    nodes = [Node(problem, people, part) for part in np.array_split(np.arange(users), 2)]
    for node in nodes:
        node.door = Open()
    return nodes


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SECURE)
def test_what_a_strategy_asks_with_secure_noise_passes_the_door(name):
    privacy = Privacy(8.0, 1e-4, noise="secure")
    strategy = STRATEGIES[name](**options_of(name)).strategy(problem_of(name), PublicFacts(400, 1, 1, 400), privacy)
    strategy.claim = CLAIM
    with Heard(behind_doors(strategy.original, halves(strategy.original), 400)) as grid:
        strategy.start(grid)
    assert strategy.result.rounds


@pytest.mark.parametrize("more", [{"trust": "sum"}, {"held_out": 10}], ids=str)
def test_masked_sums_and_questions_to_held_out_users_pass_too(more):
    trust, held_out = more.get("trust", "server"), more.get("held_out", 0)
    problem, people = Quadratic(2, 1.0, 1.0), federation_of(np.full((50, 2), 0.5))
    privacy = Privacy(8.0, 1e-4, noise="secure", trust=trust)
    strategy = DPFedSGD(rounds=2, clip_norm=1.0).strategy(
        problem, PublicFacts(50 - held_out, 1, 1), privacy, held_out=held_out
    )
    strategy.claim = replace(CLAIM, trust=trust)
    with Heard(behind_doors(problem, people, 50)) as grid:
        strategy.start(grid)
    assert strategy.result.rounds


@pytest.mark.parametrize("groups", [{"clip_norm": None}, {"clip_norm": None, "l1_norm": float("inf")}])
def test_a_sum_needs_a_bound(groups):
    asked = Computation("user_gradient", "sum", 1.0, separate=True)
    check_question(CLAIM, asked)
    with pytest.raises(Refused, match="no clip bounds"):
        check_question(CLAIM, replace(asked, **groups))


def test_a_door_remembers_a_run_between_messages_and_forgets_one_that_was_refused():
    context = partial(Context, 1, 1, {})
    state, door = RecordDict(), Open()
    with kept_claim(context(state, {}), door, 5):
        door.claims[5] = CLAIM
    for run, known in ((5, {5: CLAIM}), (5, {5: CLAIM})):
        anew = Open()
        with kept_claim(context(state, {}), anew, run):
            assert anew.claims == known
    anew = Open()
    with kept_claim(context(state, {}), anew, 5):
        anew.claims.pop(5)
    assert not state
    with kept_claim(context(state, {}), None, 5):
        pass


# Messages -----------------------------------------------------------------------------------------------------------

GOOD = Computation("user_gradient", "sum", 1.0, separate=True)
MASKED = replace(GOOD, masked=MaskedSum(IntegerGrid(-40), 1.0, keys=(bytes(32), bytes(32))))
ROSTER = roster_question(b"s" * 16, counts=True, claim=CLAIM)


def question(computation, kind=MessageType.TRAIN):
    return Message(content_of(np.zeros(2), np.arange(4), computation), 1, kind)


@pytest.fixture
def node(flower_identity):
    (made, _) = behind_doors(Quadratic(2, 1.0, 1.0), federation_of(np.full((8, 2), 0.5)), 8)
    return made


@pytest.fixture
def admitted(node):
    reply = answer_message(node, Message(ROSTER, 1, MessageType.QUERY))
    assert len(reply.content["roster"]["users"].numpy()) == 4
    return node


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE, "train.further", "evaluate.further"])
def test_nothing_is_answered_before_a_run_was_admitted(node, kind):
    keys = tuple(bytes([number] * 32) for number in range(3))
    contents = [
        question(GOOD).content,
        sharing_question(Sharing(keys, 2, 1, 2)),
        survivors_question(Survivors(0, keys, np.zeros(3, dtype=bool), np.zeros((3, SEALED_BYTES), dtype=np.uint8))),
        RecordDict({}),
        ROSTER,
    ]
    for content in contents:
        with pytest.raises(Refused, match="before it has said what its run promises"):
            answer_message(node, Message(content, 1, kind))


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (replace(GOOD, clip_norm=None), "no clip bounds"),
        (replace(GOOD, clip_norm=float("inf")), "no clip bounds"),
        (Computation("sample_sum", "sum", separate=True), "no clip bounds"),
        (replace(GOOD, separate=False), "seeded noise, or for users in one block"),
        (replace(GOOD, noise=LocalNoise(1.0, 3, 1)), "seeded noise"),
        (replace(MASKED, masked=replace(MASKED.masked, seed=3)), "seeded noise"),
        (replace(GOOD, reduce="rows", lengths=True), "exact lengths"),
        (replace(GOOD, name="all_samples"), "unknown"),
    ],
)
def test_questions_that_no_admitted_run_asks_are_refused(admitted, kind, asked, told):
    with pytest.raises(BadInput, match=told):
        answer_message(admitted, question(asked, kind))
    assert not answer_message(admitted, question(GOOD, kind)).has_error()


def test_messages_of_another_run_need_a_claim_of_their_own(admitted):
    other = question(GOOD)
    other.metadata.__dict__["_run_id"] = 7
    with pytest.raises(Refused, match="before it has said"):
        answer_message(admitted, other)
    with pytest.raises(Refused, match="does not say"):  # and a question without one ends what was admitted
        answer_message(admitted, Message(roster_question(b"s" * 16, counts=True), 1, MessageType.QUERY))
    with pytest.raises(Refused, match="before it has said"):
        answer_message(admitted, question(GOOD))


@pytest.mark.parametrize("before", [False, True])
def test_a_run_that_was_refused_gets_no_answer_to_whatever_it_asks_next(node, before, monkeypatch):
    """The run may have been admitted before: its policy may have changed, or its claim."""
    if before:
        answer_message(node, Message(ROSTER, 1, MessageType.QUERY))

    def refuse(claim):
        raise Refused("not this one")

    monkeypatch.setattr(node.door, "admit", refuse)
    with pytest.raises(Refused, match="not this one"):
        answer_message(node, Message(ROSTER, 1, MessageType.QUERY))
    assert node.door.claims == {}
    for kind in (MessageType.TRAIN, MessageType.EVALUATE):
        with pytest.raises(Refused, match="before it has said"):
            answer_message(node, question(GOOD, kind))


def test_what_a_run_claims_binds_that_run_alone(node):
    """Two runs at one node: of one it sees sums alone."""
    for run, trust in ((5, "server"), (6, "sum"), (7, "server")):
        claim, counts = replace(CLAIM, trust=trust), trust == "server"
        asked = Message(roster_question(b"s" * 16, counts=counts, claim=claim), 1, MessageType.QUERY)
        asked.metadata.__dict__["_run_id"] = run
        answer_message(node, asked)
    for run in (5, 6, 7):
        asked = question(GOOD)
        asked.metadata.__dict__["_run_id"] = run
        if run == 6:
            with pytest.raises(Refused, match="without a mask"):
                answer_message(node, asked)
        else:
            assert not answer_message(node, asked).has_error()


def test_where_only_sums_are_seen_every_value_is_masked(node):
    claim = replace(CLAIM, trust="sum")
    with pytest.raises(Refused, match="asks for exact counts"):
        answer_message(node, Message(roster_question(b"s" * 16, counts=True, claim=claim), 1, MessageType.QUERY))
    assert node.door.claims == {}
    answer_message(node, Message(roster_question(b"s" * 16, counts=False, claim=claim), 1, MessageType.QUERY))
    for open_sum in (GOOD, replace(GOOD, reduce="rows"), replace(GOOD, reduce="rows", noise=LocalNoise(1.0, None, 1))):
        with pytest.raises(Refused, match="asks for values without a mask"):
            answer_message(node, question(open_sum))


@pytest.mark.parametrize("text", ["a" * 201, "\x1b[2Jauto", "auto\nauto", "\u202eotua"], ids=ascii)
def test_texts_of_a_claim_are_short_and_printable(text):
    """A node keeps them, and its holder reads them at a terminal, which obeys some letters."""
    assert Claim.of(vars(CLAIM)) == CLAIM
    for name in ("strategy", "run", "declarations"):
        with pytest.raises(Refused, match="does not say what its run promises"):
            Claim.of(vars(CLAIM) | {name: text})
