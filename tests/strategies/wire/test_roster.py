"""The roster waits for users, and lets nobody be in two places."""

import copy
import logging
import re
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from helpers import PATIENCE, federation_of, local_grid
from helpers_hostile import damage
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.engines.grids import InMachineGrid, LocalGrid, shards
from strategies.wire import asking as asking_module
from strategies.wire.protocol import roster_content
from strategies.wire.replies import Request, gather
from strategies.wire.roster import Roster
from userdp.accounting import Privacy
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node, identities
from userdp.problems import Quadratic


class ScriptedGrid(InMachineGrid):
    """Nodes 1..k answer with given contents; node i registers at the i-th look at the list, or at once."""

    def __init__(self, contents, *, one_by_one=False, silent=()):
        super().__init__(len(contents))
        self.contents, self.silent, self.looks = contents, silent, 0
        self.one_by_one, self.complete = one_by_one, not one_by_one

    def get_node_ids(self):
        self.looks += 1
        return self._node_ids[: self.looks] if self.one_by_one else list(self._node_ids)

    def _deliver(self, messages, timeout):
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.silent:
                yield Message(self.contents[node - 1], reply_to=message)


def holds(*users):
    return roster_content(np.array(users, dtype=np.int64), 10 * len(users))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(asking_module, "_POLL_SECONDS", 0.001)


@pytest.mark.parametrize(
    ("settings", "trusted", "asked"),
    [
        ({}, True, (True, False, 1)),
        ({}, False, (False, False, 1)),
        ({"trust": "sum"}, True, (False, True, 1)),
        ({"trust": "sum", "lost_nodes": 1}, True, (False, True, 2)),
    ],
)
def test_a_run_asks_for_counts_and_keys_as_its_sums_allow(settings, trusted, asked):
    roster = Roster(4)
    roster.expect(Privacy(1.0, 1e-5, **settings), 1, trusted=trusted)
    assert (roster.counts, roster.keys, roster.needs) == asked


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.randoms(use_true_random=False))
def test_every_user_of_a_cohort_is_asked_once_and_at_its_own_node(users, size, random):
    blocks = shards(users, size)
    grid = ScriptedGrid([holds(*block) for block in blocks])
    roster = Roster(users)
    roster.gather(grid, timeout=60)
    assert (roster.absent, roster.clipped_samples) == (0, 10 * users)
    cohort = np.array(sorted(random.sample(range(users), random.randint(1, users))))
    parts = roster.assign(cohort)
    assert len({node for node, _ in parts}) == len(parts)
    for node, part in parts:
        assert np.all(np.diff(part) > 0)
        assert set(part) <= set(blocks[node - 1])
    np.testing.assert_array_equal(np.sort(np.concatenate([part for _, part in parts])), cohort)


def test_it_waits_for_users_that_register_late_and_asks_each_node_once():
    grid = ScriptedGrid([holds(3, 4), holds(0), holds(1, 2)], one_by_one=True)
    roster = Roster(5)
    roster.gather(grid, timeout=60)
    assert roster.absent == 0
    assert grid._sent == 3
    assert [(node, list(part)) for node, part in roster.assign(np.arange(5))] == [(1, [3, 4]), (2, [0]), (3, [1, 2])]


@pytest.mark.parametrize("places", [False, True])
def test_empty_places_miss_nowhere_and_silent_users_do(places, caplog):
    """A number that nobody claims is an empty place if users may come and go; whoever was claimed may be missing."""
    problem, roster = Quadratic(2, 1.0, 1.0), Roster(6)
    roster.places = places
    nodes = [Node(problem, federation_of(np.ones((2, 2))), np.array(users), np.arange(2)) for users in ([0, 1], [2, 3])]
    with LocalGrid(nodes) as grid:
        roster.gather(grid, timeout=PATIENCE if places else 0.01)
    cohort = Request(np.arange(6), Computation("user_gradient", "sum", 1.0))
    assert roster.empty(cohort.users) == (2 if places else 0)
    with pytest.raises(RunFailed, match="too many users of a cohort did not answer"):
        gather(cohort, roster, [], 2, 0.5)
    assert gather(cohort, roster, [], 2, 0.9 if places else 1.0).missing == (4 if places else 6)
    assert ("have no node" in caplog.text) != places


class Life:
    """A node of a silo: registered from one look to another, it answers the n-th question it gets after some looks."""

    def __init__(self, silo, comes, leaves=None, answers=(1,)):
        self.silo, self.comes, self.leaves, self.answers = silo, comes, leaves, answers
        self.asked = 0


class LivingGrid(ScriptedGrid):
    """Nodes that come, leave, fail, are silent or late, as behind Flower's SuperLink; every look is a second."""

    complete = False

    def __init__(self, lives, clock, people):
        super().__init__([None] * len(lives))
        self.complete, self.lives, self.clock, self.people, self.waiting = False, lives, clock, people, []
        self.rosters = {}

    def get_node_ids(self):
        self.clock.now += 1
        there = [life.comes <= self.clock.now and not self.gone(life) for life in self.lives]
        return [number for number, present in enumerate(there, 1) if present]

    def gone(self, life):
        return life.leaves is not None and life.leaves <= self.clock.now

    def push_messages(self, messages):
        for message in messages:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = str(self._sent)
            life = self.lives[message.metadata.dst_node_id - 1]
            answer = life.answers[min(life.asked, len(life.answers) - 1)]
            life.asked += 1
            self.waiting.append((None if answer is None else self.clock.now + abs(answer), answer, life, message))
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        for waiting in list(self.waiting):
            at, answer, life, message = waiting
            if at is None or at > self.clock.now or message.metadata.message_id not in message_ids:
                continue
            self.waiting.remove(waiting)
            salt, users = message.content["question"]["salt"], self.people[life.silo]
            told = roster_content(np.array(users), 1, identities([f"person {user}" for user in users], salt))
            yield Message(Error(1, "OSError") if answer < 0 else told, reply_to=message)


A, B = 0, 1  # silos, of which the second also stands for the one that is started anew
LIVES = {
    "killed while it is asked": ([Life(A, 0), Life(B, 0, answers=(None,)), Life(B, 8)], 60, (1, 3)),
    "killed, and gone later": ([Life(A, 0), Life(B, 0, 30, answers=(None,)), Life(B, 8)], 60, (1, 3)),
    "left after its answer": ([Life(A, 20), Life(B, 0, 10), Life(B, 12)], 60, (1, 3)),
    "killed after its answer": ([Life(A, 20), Life(B, 0, 40), Life(B, 12)], 60, (1, 3)),
    "fails once": ([Life(A, 0), Life(B, 0, answers=(-1, 1))], 60, (1, 2)),
    "slow": ([Life(A, 0), Life(B, 0, answers=(40,))], 60, (1, 2)),
    "one of two leaves": ([Life(A, 0), Life(B, 0), Life(B, 0, 8)], 60, (1, 2)),
    "two that stay": ([Life(A, 0), Life(B, 0), Life(B, 0)], 60, "node 3 claims a user that is claimed already"),
    "never comes": ([Life(A, 0)], 20, r"roster_timeout = 20 s \(1 nodes were registered\)"),
    "silent": ([Life(A, 0), Life(B, 0, answers=(None,))], 20, "roster_timeout = 20 s .*node 2 did not answer"),
    "leaves": ([Life(A, 0), Life(B, 0, 9, answers=(None,))], 20, "roster_timeout = 20 s .*node 2 left before"),
    "fails": ([Life(A, 0), Life(B, 0, answers=(-1,))], 20, "roster_timeout = 20 s .*node 2: its app failed: OSError"),
    "nobody": ([], 20, r"roster_timeout = 20 s \(0 nodes were registered\)"),
}


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        """The looks of the grid take the time."""


@pytest.mark.parametrize(("lives", "timeout", "ends"), LIVES.values(), ids=LIVES)
def test_a_silo_that_is_started_anew_counts_once_and_every_trouble_says_what_was_seen_of_whom(
    lives, timeout, ends, monkeypatch
):
    lives = copy.deepcopy(lives)
    monkeypatch.setattr(asking_module, "time", clock := Clock())
    grid, roster = LivingGrid(lives, clock, people := [[0, 1], [2, 3, 4]]), Roster(5, max_missing=0.5)
    if isinstance(ends, str):
        with pytest.raises(RunFailed, match=ends) as told:
            roster.gather(grid, timeout)
        assert "roster_timeout" in str(told.value)
        return
    roster.gather(grid, timeout)
    assert clock.now < timeout
    assert {node: list(part) for node, part in roster.assign(np.arange(5))} == dict(zip(ends, people, strict=True))
    assert roster.clipped_samples == 2
    assert max(life.asked for life in lives) <= 60 // 5


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("nodes", [0, 2, 3])
def test_a_silo_that_stays_away_is_missed_where_users_come_and_go_if_it_was_declared(places, complete, nodes, caplog):
    """Empty places cannot tell; where nobody declared how many silos there are, the log says so, and no number."""
    grid, roster = ScriptedGrid([holds(0, 1), holds(2, 3)]), Roster(6)
    grid.complete, roster.places, roster.nodes = complete, places, nodes
    if nodes == 3:
        with pytest.raises(RunFailed, match="fewer than nodes = 3 nodes said whom they hold after roster_timeout"):
            roster.gather(grid, timeout=0.01)
        return
    roster.gather(grid, timeout=0.01)
    assert ("nothing tells whether a node stayed away" in caplog.text) == (places and not complete and not nodes)


def test_how_many_nodes_were_silent_is_not_told_where_users_come_and_go(caplog):
    """One person more is one node more, where each node is a user."""
    said = []
    for users in ([0, 1, 2], [0, 1, 2, 3]):
        roster = Roster(6)
        roster.places = True
        caplog.clear()
        roster.gather(ScriptedGrid([holds(one) for one in users], silent=(2,)), timeout=0.01)
        said.append(caplog.messages)
    assert any("some nodes did not say whom they hold" in one for one in said[0])
    assert said[0] == said[1]


def renewed(lives, monkeypatch, rounds=((10, 30),), **settings):
    """Gather a roster of these lives, renew it at these moments, and return it with its grid."""
    monkeypatch.setattr(asking_module, "time", clock := Clock())
    grid, roster = LivingGrid(copy.deepcopy(lives), clock, [[0, 1], [2, 3, 4], [2, 3]]), Roster(5)
    vars(roster).update(settings)
    roster.gather(grid, 5)
    for at in rounds:
        clock.now = max(clock.now, at)
        roster.renew(grid)
    return roster, grid


C = 2  # a silo with some of the people of the second
RENEWED = {
    "nothing happens": ([Life(A, 0), Life(B, 0)], (30,), (1, 2)),
    "it left": ([Life(A, 0), Life(B, 0, 20)], (30,), (1, 2)),
    "started anew": ([Life(A, 0), Life(B, 0, 20), Life(B, 25)], (30,), (1, 3)),
    "while it seems to be there": ([Life(A, 0), Life(B, 0, 40), Life(B, 25)], (30,), (1, 2)),
    "until it has left": ([Life(A, 0), Life(B, 0, 40), Life(B, 25)], (30, 50), (1, 3)),
    "slow": ([Life(A, 0), Life(B, 0, 20), Life(B, 25, answers=(3,))], (30,), (1, 3)),
    "fails once": ([Life(A, 0), Life(B, 0, 20), Life(B, 25, answers=(-1, 1))], (30, 60), (1, 3)),
    "silent": ([Life(A, 0), Life(B, 0, 20), Life(B, 25, answers=(None,))], (30, 60), (1, 2)),
    "twice": ([Life(A, 0), Life(B, 0, 20), Life(B, 25, 40), Life(B, 45)], (30, 60), (1, 4)),
    "two newcomers": ([Life(A, 0), Life(B, 0, 20), Life(B, 25), Life(B, 25)], (30, 60), (1, 3)),
    "other people": ([Life(A, 0), Life(B, 0, 20), Life(C, 25)], (30,), (1, 2)),
    "people of one who stayed": ([Life(A, 0), Life(B, 0, 20), Life(A, 25)], (30,), (1, 2)),
    "two after another": ([Life(A, 0, 20), Life(B, 0, 40), Life(B, 25)], (30, 50), (1, 3)),
    "both": ([Life(A, 0, 20), Life(B, 0, 20), Life(B, 25), Life(A, 26)], (30,), (4, 3)),
}


@pytest.mark.parametrize(("lives", "rounds", "ends"), RENEWED.values(), ids=RENEWED)
def test_a_node_started_anew_after_the_roster_answers_for_the_same_people_once_its_former_node_left(
    lives, rounds, ends, monkeypatch
):
    roster, grid = renewed(lives, monkeypatch, rounds)
    people = [[0, 1], [2, 3, 4]]
    assert {node: list(part) for node, part in roster.assign(np.arange(5))} == dict(zip(ends, people, strict=True))
    assert (roster.absent, roster.clipped_samples) == (0, 2)
    assert [life.asked for life in grid.lives[:2]] == [1, 1]  # nobody is asked again whose people are known
    assert all(life.asked <= len(life.answers) for life in grid.lives)


@pytest.mark.parametrize("settings", [{"keys": True}, {"needs": 9}], ids=str)
def test_where_sums_are_masked_or_it_is_of_an_older_version_a_node_started_anew_takes_nobodys_place(
    settings, monkeypatch
):
    """Others' masks are for the key that left."""
    roster, grid = renewed([Life(A, 0), Life(B, 0, 20), Life(B, 25)], monkeypatch, rounds=())
    vars(roster).update(settings)
    grid.clock.now = 30
    roster.renew(grid)
    assert [node for node, _ in roster.assign(np.arange(5))] == [1, 2]
    assert grid.lives[2].asked == (0 if "keys" in settings else 1)


@settings(max_examples=150)
@given(st.data())
def test_whatever_nodes_do_no_person_is_in_two_of_them(data):
    """Nodes come, leave, fail and answer late; silos may share a person, who has one number or two."""
    some = st.lists(st.sampled_from(range(6)), unique=True, max_size=3)
    people = [data.draw(some) for _ in range(3)]
    moment, answer = st.integers(0, 30), st.sampled_from([1, 2, 9, -1, None])
    lives = [
        Life(
            data.draw(st.integers(0, 2)),
            data.draw(moment),
            data.draw(st.none() | moment),
            data.draw(st.tuples(answer, answer)),
        )
        for _ in range(data.draw(st.integers(0, 6)))
    ]
    clock, roster = Clock(), Roster(6)
    grid = LivingGrid(lives, clock, people)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking_module, "time", clock)
        try:
            roster.gather(grid, 40)
        except RunFailed as error:
            assert "claims a user" in str(error) or "twice" in str(error)  # noqa: PT017
            return
        absent = roster.absent
        for _ in range(data.draw(st.integers(0, 2))):
            clock.now += 10
            roster.renew(grid)
            assert roster.absent == absent
    parts = {node: list(part) for node, part in roster.assign(np.arange(6))}
    assert all(sorted(people[lives[node - 1].silo]) == part for node, part in parts.items())
    assert sum(map(len, parts.values())) == 6 - roster.absent
    assert roster.clipped_samples == sum(1 for _ in roster._nodes)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("named", [False, True])
def test_a_silo_without_users_changes_nothing(place, named):
    """It need not say who its users are where others do, nor may its saying so bind others."""
    roster, nobody = Roster(2), np.empty(0, dtype=np.int64)
    people = [identities([name], roster._salt) if named else None for name in "ab"]
    silos = [roster_content(np.array([user]), 10, digests) for user, digests in enumerate(people)]
    empty = roster_content(nobody, 0, None if named else np.empty((0, 16), dtype=np.uint8))
    roster.gather(ScriptedGrid([*silos[:place], empty, *silos[place:]]), timeout=1)
    assert roster.absent == 0
    assert [part.tolist() for _, part in roster.assign(np.arange(2))] == [[0], [1]]


class EchoingGrid(ScriptedGrid):
    """Hands over each reply twice, the second time with other users, and replies to messages of somebody else."""

    def send_and_receive(self, messages, *, timeout=None):
        sent, others = list(messages), []
        for node, message in enumerate(sent, 1):
            other = Message(RecordDict(), node, "query")
            other.metadata.__dict__["_message_id"] = f"of another run, {node}"
            others += [Message(holds(5), reply_to=message), Message(holds(4), reply_to=other)]
        return [*super().send_and_receive(sent, timeout=timeout), *others]


def test_the_first_answer_to_a_question_counts_and_answers_to_others_do_not():
    roster = Roster(6, max_missing=0.5)
    roster.gather(EchoingGrid([holds(0, 1), holds(2, 3)]), timeout=0)
    assert {node: part.tolist() for node, part in roster.assign(np.arange(6))} == {1: [0, 1], 2: [2, 3]}
    assert roster._enter(2, Message(holds(4), reply_to=Message(RecordDict(), 2, "query"))) == ""
    assert (roster.absent, roster.clipped_samples) == (2, 40)


@pytest.mark.usefixtures("flower_identity")
def test_a_node_that_left_may_come_back_with_its_key_and_no_other_node_has_it():
    roster, reply = Roster(2), Message(RecordDict(), 1, "query")
    roster.counts, roster.keys = False, True
    one, two = (roster_content(np.array([user]), None, None, bytes(32)) for user in (0, 1))
    assert roster._enter(1, Message(one, reply_to=reply)) == ""
    assert roster._enter(2, Message(two, reply_to=reply)) == "its key is that of another node"
    roster._free(1)
    assert roster._enter(1, Message(one, reply_to=reply)) == ""


def test_users_that_never_come_are_asked_of_nobody(caplog):
    roster = Roster(5)
    with caplog.at_level(logging.WARNING, logger="userdp"):
        roster.gather(ScriptedGrid([holds(0, 1), holds(2, 3, 4)], silent=(2,)), timeout=0.01)
    assert roster.absent == 3
    assert (
        "some of the 5 users have no node after roster_timeout = 0.01 s (2 nodes were registered; node 2 did not"
        in (caplog.text)
    )
    assert [(node, list(part)) for node, part in roster.assign(np.array([1, 2, 4]))] == [(1, [1])]
    assert roster.assign(np.array([2, 4])) == []


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([holds(0, 1), holds(1, 2)], "node 2 claims a user that is claimed already"),
        ([holds(0, 1, 1)], "node 1 claims a user that is claimed already"),
        ([holds(0, 5)], r"node 1 claims users outside 0\.\.4"),
        ([holds(-1)], r"node 1 claims users outside 0\.\.4"),
        ([holds(0, 1, 2, 3, 4, 0)], r"node 1 claims users outside 0\.\.4"),
    ],
)
def test_users_in_two_places_and_foreign_users_are_refused(contents, message):
    with pytest.raises(RunFailed, match=message):
        Roster(5).gather(ScriptedGrid(contents), timeout=1)


def test_a_node_that_claims_very_many_users_takes_no_memory():
    """16 MiB of users on the wire, which would be 128 as the numbers that are used here."""
    claimed = RecordDict({"roster": ArrayRecord({"users": Array(np.zeros(1 << 24, dtype=np.int8))})})
    claimed["facts"] = MetricRecord({"clipped_samples": 0})
    grid = ScriptedGrid([claimed])
    tracemalloc.start()
    with pytest.raises(RunFailed, match="claims users outside"):
        Roster(5).gather(grid, timeout=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


BROKEN = {
    "another kind of record": RecordDict({"roster": ConfigRecord({"users": [0]}), "facts": MetricRecord()}),
    "nothing": RecordDict(),
    "more records": RecordDict({**holds(2), "more": MetricRecord()}),
    "no users": RecordDict({"roster": ArrayRecord(), "facts": MetricRecord({"clipped_samples": 0})}),
    "no facts": RecordDict({"roster": ArrayRecord({"users": Array(np.array([0]))})}),
    "no count": RecordDict({"roster": ArrayRecord({"users": Array(np.array([0]))}), "facts": MetricRecord()}),
    "a table": RecordDict(
        {"roster": ArrayRecord({"users": Array(np.array([[0]]))}), "facts": MetricRecord({"clipped_samples": 0})}
    ),
    "fractions": RecordDict(
        {"roster": ArrayRecord({"users": Array(np.array([0.5]))}), "facts": MetricRecord({"clipped_samples": 0})}
    ),
    "no bytes": RecordDict(
        {
            "roster": ArrayRecord({"users": Array(dtype="int64", shape=(1,), stype="numpy.ndarray", data=b"")}),
            "facts": MetricRecord({"clipped_samples": 0}),
        }
    ),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_the_users_of_a_node_that_answers_the_query_with_something_else_are_absent(content, caplog):
    """They count as missing in every round, which `max_missing` limits; the others are asked."""
    roster = Roster(4)
    with caplog.at_level(logging.WARNING, logger="userdp"):
        roster.gather(ScriptedGrid([holds(3), content, holds(0, 1)]), timeout=0)
    assert [(node, list(part)) for node, part in roster.assign(np.arange(4))] == [(1, [3]), (3, [0, 1])]
    assert (roster.absent, roster.clipped_samples) == (1, 30)
    assert "node 2: a reply does not follow the protocol" in caplog.text


@pytest.mark.parametrize("count", [-1, 2**53, 10**18, 1.0, np.nan, [], [1]], ids=str)
def test_a_count_of_clipped_samples_is_a_whole_number_that_files_hold_exactly(count):
    content = holds(0)
    content["facts"] = MetricRecord({"clipped_samples": count})
    roster = Roster(2)
    roster.gather(ScriptedGrid([content]), timeout=0)
    assert (roster.absent, roster.clipped_samples) == (2, 0)
    most = holds(0)
    most["facts"] = MetricRecord({"clipped_samples": 2**53 - 1})
    roster = Roster(2)
    roster.gather(ScriptedGrid([most]), timeout=0)
    assert (roster.absent, roster.clipped_samples) == (1, 2**53 - 1)


def test_a_roster_that_asks_for_no_counts_takes_none():
    told, untold = holds(0), roster_content(np.array([1]), None)
    roster = Roster(2)
    roster.counts = False
    roster.gather(ScriptedGrid([told, untold]), timeout=0)
    assert [(node, list(part)) for node, part in roster.assign(np.arange(2))] == [(2, [1])]
    assert roster.clipped_samples == 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("named", [False, True])
def test_damaged_rosters_end_no_run_unless_they_claim_what_others_hold(named, caplog):
    """Node 2 is damaged: what it says is taken, or refused, or (two claims of one user) ends the run."""
    caplog.set_level(logging.ERROR)
    users = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5, 6, 7])]
    digests = np.random.default_rng(1).integers(0, 256, (8, 16), dtype=np.uint8)
    honest = [roster_content(some, 1, digests[some] if named else None) for some in users]
    rng, seen = np.random.default_rng(7), {"taken": 0, "absent": 0, "claims": 0}
    for _ in range(500):
        # Of a node that names no version, so that one fact is damaged at a time.
        one = roster_content(users[1], 1, digests[users[1]] if named else None, versioned=False)
        contents = [honest[0], one, honest[2]]
        damage(contents[1], rng)
        roster = Roster(8)
        try:
            roster.gather(ScriptedGrid(contents), timeout=0)
        except RunFailed as error:
            assert re.search("claims|says|say who|twice", str(error))  # noqa: PT017
            seen["claims"] += 1
            continue
        parts = {node: list(part) for node, part in roster.assign(np.arange(8))}
        assert parts.pop(1) == [0, 1, 2]
        assert parts.pop(3) == [5, 6, 7]
        seen["taken" if parts else "absent"] += 1
    assert min(seen.values()) > 0


class Offline(Node):
    """Its data cannot be read at all."""

    @property
    def users(self):
        raise OSError("the patients' folder is gone")

    @users.setter
    def users(self, value):
        pass


@pytest.mark.slow
def test_a_node_that_fails_at_the_query_leaves_its_users_absent(caplog):
    problem, federation = Quadratic(1, 1.0, 1.0), federation_of(np.zeros((4, 1)))
    broken = Offline.__new__(Offline)
    grid = LocalGrid([Node(problem, federation, np.arange(2)), broken])
    roster = Roster(4)
    with caplog.at_level(logging.WARNING, logger="userdp"):
        roster.gather(grid, timeout=3)
    assert roster.absent == 2
    assert "node 2: its app failed: OSError (see that node's log)" in caplog.text
    assert "patients" not in caplog.text


def test_a_roster_of_a_finished_grid_is_not_asked_again():
    grid = local_grid(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((4, 1))), 2)
    roster = Roster(4)
    roster.gather(grid, timeout=60)
    sent = grid._sent
    roster.gather(grid, timeout=60)
    assert grid._sent == sent == 2


def test_nobody_is_asked_in_a_round_with_an_empty_cohort():
    local_grid(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((1, 1)))).close()
    roster, nobody = Roster(5), np.array([], dtype=np.int64)
    assert roster.assign(nobody) == []
    total = gather(Request(nobody, Computation(reduce="sum", clip_norm=1.0)), roster, [], 3, 0.0)
    np.testing.assert_array_equal(total.values, np.zeros(3))
    assert total.missing == 0


def test_somebody_in_two_silos_ends_the_run():
    def silo(users, names):
        return roster_content(np.array(users), 0, identities(names, roster._salt))

    roster = Roster(4)
    grid = ScriptedGrid([silo([0, 1], ["anna", "bert"]), silo([2, 3], ["carl", " anna "])])
    with pytest.raises(RunFailed, match="holds somebody twice or together with another silo"):
        roster.gather(grid, timeout=5)


@pytest.mark.parametrize("named", ["first", "last", "amid", "required"])
def test_either_every_node_says_who_its_users_are_or_none_does(named):
    """Comparing some would find nobody in two silos; where people have names, nobody may keep them back."""
    roster, grids = Roster(6), []
    whole = [roster_content(np.array([at]), 0, identities([name], roster._salt)) for at, name in enumerate("abc")]
    bare = [holds(at) for at in range(3, 6)]
    grids = {"first": [*whole, *bare], "last": [*bare, *whole], "amid": [*whole[:2], bare[0], whole[2]]}
    roster.require_identities = named == "required"
    grid = ScriptedGrid(grids.get(named, bare))
    with pytest.raises(RunFailed, match="every silo must give its users' labels"):
        roster.gather(grid, timeout=5)
