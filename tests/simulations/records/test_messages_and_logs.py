"""Data that leave by messages and logs: found in runs and in the source, and looked up in the lists."""

import ast
import logging
import re
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from any_strategy import halves, options_of, problem_of
from flwr.app import Message, MessageType
from helpers import content_of
from scipy.sparse import csr_array

from docs.making.message_fields import KNOWLEDGE, MESSAGE_FIELDS, MessageField
from simulations.engines.grids import LocalGrid
from strategies import STRATEGIES
from strategies.core.public_facts import PublicFacts
from strategies.wire.claims import Claim
from strategies.wire.protocol import answer_content, failed, roster_content, roster_question
from strategies.wire.shares import shares_content, sharing_question, survivors_question
from userdp.accounting import Privacy
from userdp.data.federation import ColumnarFederation
from userdp.masking.grid import IntegerGrid
from userdp.masking.masks import MaskKey
from userdp.masking.shares import Sharing, Survivors
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Answer, Node
from userdp.nodes.partition import Partition
from userdp.problems.in_coordinates import Coordinates
from userdp.sampling.coins import SampleCoins

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("userdp", "strategies", "simulations")
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def calls(*packages):
    for path in sorted(path for package in packages for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def names_in(content):
    return {f"{record}.{key}" for record, values in content.items() for key in values}


def strategy_of(name):
    privacy = Privacy(8.0, 1e-4, unit=STRATEGIES[name].about.units[0])
    return STRATEGIES[name](**options_of(name)).strategy(problem_of(name), PublicFacts(400, 1, 1, 400), privacy, seed=1)


# Messages ----------------------------------------------------------------------------------------------------------


def message_field(message: str, sender: str, name: str) -> MessageField:
    for field in MESSAGE_FIELDS:
        same = field.name == name or (field.name.endswith(".") and name.startswith(field.name))
        if same and (field.message, field.sender) == (message, sender):
            return field
    raise LookupError(f"{message}, {sender}: {name} is not in docs/making/message_fields.py: add it with its kind")


class Recorded(LocalGrid):
    def _deliver(self, messages, timeout):
        self.seen = getattr(self, "seen", set())
        for message in messages:
            self.note(message, "server")
        for reply in super()._deliver(messages, timeout):
            self.note(reply, "node")
            yield reply

    def note(self, message, sender):
        kind = message.metadata.message_type.partition(".")[0]
        self.seen |= {(kind, sender, name) for name in names_in(message.content)}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_field_of_the_messages_of_a_run_is_listed(name):
    strategy = strategy_of(name)
    problem, people = strategy.original, halves(strategy.original)
    with Recorded([Node(problem, people, np.arange(200)), Node(problem, people, np.arange(200, 400))]) as grid:
        strategy.start(grid)
    assert {kind for kind, _, _ in grid.seen} == {"query", "train"}
    for field in sorted(grid.seen):
        assert message_field(*field).told


CLAIM = Claim("auto", "secure", "server", "user", "replace_one", 1.0, 1e-6, "digest", "run")
KEYS, ONES = np.arange(4, dtype=np.uint64), np.ones(2)
COMPUTATIONS = (
    Computation("local_update", "sum", 1.0, 1.0, {"steps": 2.0}, ONES, "unclipped", LocalNoise(1.0, 3, 1), True),
    Computation("clipped_sample_sum", "sum", 1.0, coins=SampleCoins(0.5, KEYS, 2), arrays={"scale": ONES}),
    Computation("clipped_sample_sum", "sum", 1.0, partition=Partition(np.zeros((4, 1), dtype=np.int32), 1)),
    Computation(
        "user_gradient",
        "sum",
        1.0,
        statistic="unclipped",
        masked=MaskedSum(IntegerGrid(-40), 1.0, 3, 1, (bytes(32),), weight=0.5),
        counted=True,
    ),
    Computation("user_gradient", clip_norm=1.0, lengths=True, coordinates=Coordinates(np.zeros(2), np.eye(2))),
)
"""Computations that have, together, everything that a computation can have."""


def every_message():
    """(message, sender, content) of the functions that make messages, each with everything it can have."""
    users = np.arange(4)
    dense = Answer(users, np.ones((4, 2)), 0, np.ones(4))
    sparse = replace(dense, values=csr_array(np.ones((4, 2))))
    masked = replace(dense, masked=np.ones(2, dtype=np.uint64))
    yield "query", "server", roster_question(b"salt", counts=True, keys=True, claim=CLAIM)
    yield "query", "node", roster_content(users, 3, np.zeros((4, 16), dtype=np.uint8), bytes(32))
    for computation in COMPUTATIONS:
        yield "train", "server", content_of(ONES, users, computation)
    for answer in (dense, sparse, masked):
        yield "train", "node", answer_content(answer, counts=True, share=False)
    yield from every_message_about_shares()


def every_message_about_shares():
    LocalGrid([])  # gives messages of this process the identity that Flower asks for
    keys = [MaskKey() for _ in range(3)]
    public = tuple(key.public for key in keys)
    questions = [sharing_question(Sharing(public, 2, 1, 1))]
    answers = [shares_content(key, Message(questions[0], 1, MessageType.TRAIN)) for key in keys]
    sealed = np.stack([answer["shares"]["sealed"].numpy()[0, 0] for answer in answers])
    questions.append(survivors_question(Survivors(0, public, np.zeros(3, dtype=np.bool_), sealed)))
    answers.append(shares_content(keys[0], Message(questions[1], 1, MessageType.TRAIN)))
    yield from (("train", "server", content) for content in questions)
    yield from (("train", "node", content) for content in answers)


def test_the_list_of_messages_is_what_the_protocol_can_say():
    found = {(message, sender, name) for message, sender, content in every_message() for name in names_in(content)}
    listed = {message_field(*one) for one in found}
    assert listed == {field for field in MESSAGE_FIELDS if field.message != "error"}


def test_every_part_of_a_computation_is_in_some_of_these_messages():
    """A part that stayed at its default would not be seen to travel."""
    plain = Computation()
    for part in fields(Computation):
        assert any(repr(getattr(one, part.name)) != repr(getattr(plain, part.name)) for one in COMPUTATIONS), part.name


def test_an_error_tells_its_kind_and_nothing_else():
    with LocalGrid([Node(problem_of("dp_fed_sgd"), halves(problem_of("dp_fed_sgd")), np.arange(4))]):
        pass  # gives messages of this process the identity that Flower asks for
    asked = Message(roster_question(b"salt", counts=True), 1, MessageType.QUERY)
    reply = failed(asked, "MemoryError")
    assert (reply.error.reason, reply.has_content()) == ("MemoryError", False)
    silent = Message(roster_question(b"salt", counts=False), 1, MessageType.QUERY)
    assert failed(silent, "MemoryError").error.reason is None


# Logs --------------------------------------------------------------------------------------------------------------


def log_calls():
    """(module, level, text, values as the source has them) of every call of a logger."""
    for path, call in calls(*PACKAGES):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        logger = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if logger and call.func.attr in METHODS and (logger in {"log", "logger", "logging"} or "getLogger" in logger):
            text, *values = call.args
            assert isinstance(text, ast.Constant), f"{module}: what a line says stands in the source, not in a variable"
            assert not call.keywords, f"{module}: keywords of a log call are not looked at"
            yield module, call.func.attr, text.value, tuple(ast.unparse(value) for value in values)


@pytest.fixture(scope="module")
def log_lines(module_of):
    return module_of("making.log_lines")


def test_every_line_of_a_log_is_listed_with_the_values_that_it_shows(log_lines):
    """A new line, another value in a line or another level is not in the list until somebody says what it tells."""
    found = Counter(set(log_calls()))
    listed = Counter((line.module, line.level, line.text, tuple(line.values)) for line in log_lines.LOG_LINES)
    assert not found - listed, "list these in docs/making/log_lines.toml"
    assert not listed - found, "these are not written any more"


def test_every_line_says_on_whose_machine_it_is_and_of_what_kind(log_lines):
    for line in log_lines.LOG_LINES:
        assert (line.place in log_lines.PLACES, line.kind in log_lines.LINE_KINDS) == (True, True)
        assert len(re.findall(r"%[sd]", line.text)) == line.text.count("%") == len(line.values)
        assert all(line.values.values())


def test_no_other_way_to_print_is_used_below_the_command_line():
    """`print` and `warnings` would pass the list by; the commands alone talk to people."""
    for path, call in calls("userdp", "strategies"):
        assert ast.unparse(call.func) not in {"print", "warnings.warn", "sys.stderr.write"}, path


def written_by(lines, message):
    patterns = {line.text: ".*".join(map(re.escape, re.split(r"%[sd]", line.text))) for line in lines}
    return [line for line in lines if re.fullmatch(patterns[line.text], message, flags=re.DOTALL)]


@pytest.mark.parametrize("name", ["dp_fed_sgd", "recentred_clipping", "robust_rounds", "local_dp"])
def test_lines_of_the_server_are_the_same_whatever_one_user_holds(name, caplog, log_lines):
    """Noise alone may differ; what is logged of a run is not of users' numbers."""
    caplog.set_level(logging.DEBUG, logger="userdp")
    problem, logs = problem_of(name), []
    for worst in (False, True):
        caplog.clear()
        people = halves(problem)
        if worst:
            people = ColumnarFederation(replace(people.block(np.arange(400)), features=spoilt(people)))
        strategy = strategy_of(name)
        with LocalGrid([Node(problem, people, np.arange(400))]) as grid:
            strategy.start(grid)
        strategy.summary()
        logs.append([(record.levelno, record.getMessage()) for record in caplog.records])
    assert logs[0] == logs[1]
    assert logs[0]
    for _, message in logs[0]:
        assert {line.kind for line in written_by(log_lines.LOG_LINES, message)} != {"private"}


def spoilt(people):
    features = people.block(np.arange(400)).features.copy()
    features[7] = 1e30
    return features


# The kinds ---------------------------------------------------------------------------------------------------------


def test_fields_of_messages_are_listed_once_and_say_who_may_know_them():
    assert len({(field.message, field.sender, field.name) for field in MESSAGE_FIELDS}) == len(MESSAGE_FIELDS)
    assert {field.kind for field in MESSAGE_FIELDS} == set(KNOWLEDGE)
    assert all(field.told for field in MESSAGE_FIELDS)
    with pytest.raises(LookupError, match=r"facts.heights is not in docs/making/message_fields.py"):
        message_field("train", "node", "facts.heights")
