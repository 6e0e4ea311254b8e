"""Secrets of rounds, shared among nodes: what survivors' parts add up to, and what nobody learns."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from userdp.errors import BadInput
from userdp.masking.masks import MaskKey
from userdp.masking.shares import (
    Sharing,
    Survivors,
    _own_mask,
    _round_key,
    _secrets,
    hiding,
    rebuilt,
    revealed,
    share,
    surplus,
)
from userdp.masking.sums import coalition, fewest_nodes, loudness, threshold, withstands_lies

UNIFORM = 1e-9
"""False alarms of tests whose keys have no seed."""


class Group:
    """Nodes that have shared their secrets."""

    def __init__(self, nodes, threshold, lost, rounds=2):
        self.nodes = [MaskKey() for _ in range(nodes)]
        self.keys, self.threshold = tuple(node.public for node in self.nodes), threshold
        self.given = [share(node, Sharing(self.keys, threshold, lost, rounds)) for node in self.nodes]

    def round_keys(self, index, members):
        return tuple(self.given[node][0][index].tobytes() for node in members)

    def parts(self, index, members, length, context=b""):
        """The masked vector of each member for a round, if it hides zeros."""
        keys = self.round_keys(index, members)
        return {node: hiding(self.nodes[node], index, keys, context, length) for node in members}

    def asked(self, node, index, members, silent):
        sealed = np.stack([self.given[member][1][index, node] for member in members])
        gone = np.array([member in silent for member in members])
        return Survivors(index, tuple(self.keys[member] for member in members), gone, sealed)

    def answers(self, index, members, silent, answering):
        return {node: revealed(self.nodes[node], self.asked(node, index, members, silent)) for node in answering}

    def secrets(self, answers, members):
        used = list(answers.items())[: self.threshold]
        return [rebuilt({node: answer[who] for node, answer in used}) for who in range(len(members))]


# --- Survivors' sums ----------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_survivors_masks_add_up_to_is_taken_off_to_the_bit_whoever_is_silent_and_whoever_answers(data):
    nodes = data.draw(st.integers(3, 6))
    lost = data.draw(st.integers(1, nodes - 2))
    group = Group(nodes, threshold(nodes, 0.0, lost), lost)
    members = data.draw(st.lists(st.integers(0, nodes - 1), min_size=lost + 2, max_size=nodes, unique=True))
    silent = set(data.draw(st.lists(st.sampled_from(members), max_size=lost, unique=True)))
    answering = data.draw(st.permutations(range(nodes)))[: data.draw(st.integers(group.threshold, nodes))]
    parts, gone = group.parts(1, members, 5, b"asked"), [member in silent for member in members]
    secrets = group.secrets(group.answers(1, members, silent, answering), members)
    found = surplus(group.round_keys(1, members), np.array(gone), secrets, b"asked", 5)
    left = [part for node, part in parts.items() if node not in silent]
    np.testing.assert_array_equal(np.sum(left, axis=0, dtype=np.uint64), found)


def test_a_wrong_share_of_a_round_key_is_noticed():
    group = Group(4, 3, 1)
    answers = group.answers(0, range(4), {0}, [1, 2, 3])
    answers[2] = answers[2] ^ np.uint8(1)
    with pytest.raises(BadInput, match="include this party's own"):
        surplus(
            group.round_keys(0, range(4)),
            np.arange(4) == 0,
            group.secrets(answers, range(4)),
            b"",
            3,
        )


# --- What nobody learns -------------------------------------------------------------------------------------------


def test_a_late_part_of_a_silent_node_stays_uniform_under_its_own_mask():
    """The server has all shares that honest nodes give, and those of one node on its side."""
    group = Group(4, 3, 1)
    parts = group.parts(0, range(4), 20_000)
    answers = group.answers(0, range(4), {0}, [1, 2, 3])
    secrets = group.secrets(answers, range(4))
    pairs, own = _secrets(group.nodes[0], 0)
    assert secrets[0] == pairs  # its pairs are rebuilt
    late = parts[0] - _round_key(pairs).mask(group.round_keys(0, range(4)), b"", 20_000)
    np.testing.assert_array_equal(late, _own_mask(own, b"", 20_000))
    assert stats.kstest(late / 2.0**64, "uniform").pvalue > UNIFORM
    # Of its own mask nobody gave a share: the shares given are those of the other secret.
    assert all(rebuilt({node: answers[node][0] for node in some}) != own for some in ((1, 2, 3), (3, 2, 1)))


def test_of_survivors_own_masks_alone_are_given_and_their_pairs_stay():
    group = Group(4, 3, 1)
    answers = group.answers(0, range(4), set(), range(4))
    for who, secret in enumerate(group.secrets(answers, range(4))):
        pairs, own = _secrets(group.nodes[who], 0)
        assert secret == own
        assert secret != pairs
    part = group.parts(0, range(4), 20_000)[1] - _own_mask(_secrets(group.nodes[1], 0)[1], b"", 20_000)
    assert stats.kstest(part / 2.0**64, "uniform").pvalue > UNIFORM


def test_fewer_shares_than_the_threshold_say_nothing():
    """Any secret fits one share too few: for each secret, some share of one more node gives it."""
    group = Group(5, 3, 1)
    answers = group.answers(0, range(5), {4}, [0, 1])
    two = [(node + 1, answers[node][4].tobytes()) for node in (0, 1)]
    for secret in (bytes(16), bytes(range(16)), b"\xff" * 16):
        # The polynomial through the secret at 0 and both shares, at a third place: by Lagrange in the field's own code.
        points = [(0, secret), *two]
        third = _at(points, 3)
        assert Shamir.combine([*two, (3, third)], ssss=False) == secret


def _at(points, x):
    """The value at ``x`` of the polynomial through (place, 16 bytes) in GF(2^128), independent of the library."""

    def times(a, b):
        product = 0
        while b:
            product ^= a if b & 1 else 0
            a <<= 1
            a ^= ((1 << 128) | 0x87) if a >> 128 else 0
            b >>= 1
        return product

    def inverse(a):
        result, power = 1, 2**128 - 2
        while power:
            result = times(result, a) if power & 1 else result
            a, power = times(a, a), power >> 1
        return result

    total = 0
    for place, value in points:
        term = int.from_bytes(value, "big")
        for other, _ in points:
            if other != place:
                term = times(term, times(x ^ other, inverse(place ^ other)))
        total ^= term
    return total.to_bytes(16, "big")


def test_secrets_of_rounds_and_nodes_are_all_different():
    group = Group(3, 2, 1, rounds=3)
    found = {secret for node in group.nodes for index in range(3) for secret in _secrets(node, index)}
    assert len(found) == 18
    assert len({public[index].tobytes() for public, _ in group.given for index in range(3)}) == 9


@pytest.mark.parametrize("change", ["receiver", "sender", "round", "bit"])
def test_a_share_opens_for_its_receiver_sender_and_round_alone(change):
    group = Group(4, 3, 1)
    asked = group.asked(1, 0, range(4), set())
    wrong = {
        "receiver": lambda: group.asked(2, 0, range(4), set()),
        "sender": lambda: replace(asked, sealed=asked.sealed[::-1]),
        "round": lambda: replace(asked, round=1),
        "bit": lambda: replace(asked, sealed=asked.sealed ^ np.uint8(1)),
    }[change]()
    with pytest.raises(BadInput, match="sealed for another node"):
        revealed(group.nodes[1], wrong)


# --- What a node refuses ------------------------------------------------------------------------------------------


def test_a_node_gives_one_set_of_shares_a_round_in_rising_order_and_remembers_it():
    group = Group(4, 3, 1, rounds=3)
    node = group.nodes[1]
    revealed(node, group.asked(1, 1, range(4), {0}))
    again = MaskKey(node.secret, node.answered, node.lost, node.unmasked)
    for one in (node, again):
        for index in (0, 1):
            with pytest.raises(BadInput, match="one set of shares per round"):
                revealed(one, group.asked(1, index, range(4), {2}))
        revealed(one, group.asked(1, 2, range(4), {2}))


def test_a_question_that_fails_is_spent_too():
    group = Group(4, 3, 1)
    asked = group.asked(1, 0, range(4), {0})
    with pytest.raises(BadInput, match="sealed for another"):
        revealed(group.nodes[1], replace(asked, sealed=asked.sealed ^ np.uint8(1)))
    with pytest.raises(BadInput, match="one set of shares"):
        revealed(group.nodes[1], asked)


@pytest.mark.parametrize("lost", [1, 2])
def test_no_more_nodes_are_named_as_silent_than_was_agreed(lost):
    group = Group(5, 3, lost)
    with pytest.raises(BadInput, match=f"{lost + 1} nodes of a round are named as silent: {lost} may be"):
        revealed(group.nodes[4], group.asked(4, 0, range(5), set(range(lost + 1))))


def test_a_node_is_named_once():
    group = Group(4, 3, 1)
    asked = group.asked(1, 0, range(4), set())
    for changes in ({"keys": (*asked.keys[:3], asked.keys[0])}, {"silent": asked.silent[:3]}, {"keys": asked.keys[:3]}):
        with pytest.raises(BadInput, match="must be distinct, each with its shares"):
            replace(asked, **changes)


def test_a_node_shares_its_secrets_once_and_among_its_own_group():
    group = Group(4, 3, 1)
    asked = Sharing(group.keys, 3, 1, 2)
    with pytest.raises(BadInput, match="shares its secrets once"):
        share(group.nodes[0], asked)
    with pytest.raises(BadInput, match="include its own"):
        share(MaskKey(), asked)
    kept = MaskKey(group.nodes[0].secret, -1, group.nodes[0].lost)
    with pytest.raises(BadInput, match="shares its secrets once"):
        share(kept, asked)


@pytest.mark.parametrize(
    "changes", [{"threshold": 1}, {"threshold": 4}, {"lost": 0}, {"lost": 4}, {"rounds": 0}, {"keys": (bytes(32),) * 4}]
)
def test_numbers_that_make_no_sharing_are_refused(changes):
    keys = tuple(bytes([number]) * 32 for number in range(4))
    with pytest.raises(BadInput, match="cannot be shared"):
        replace(Sharing(keys, 3, 1, 2), **changes)


# --- Thresholds ---------------------------------------------------------------------------------------------------


def gained(namings, needed):
    """The gain of a server that lies as it likes from honest nodes' answers, each a set of nodes named as silent.

    Args:
        namings: of each honest node.
        needed: shares of honest nodes that rebuild a secret.

    Returns:
        (whether of some node both secrets are rebuilt, how many round keys are), of all nodes that are named or not.
    """
    counts = {}
    for named in namings:
        for node in named:
            counts[node] = counts.get(node, 0) + 1
    both = any(count >= needed and len(namings) - count >= needed for count in counts.values())
    return both, sum(count >= needed for count in counts.values())


@pytest.mark.parametrize(("nodes", "colluding"), [(4, 0.0), (5, 0.0), (6, 0.0), (6, 0.34)])
def test_no_lie_about_one_silent_node_unmasks_a_node_or_two_round_keys(nodes, colluding):
    c = coalition(nodes, colluding)
    assert withstands_lies(nodes, colluding, 1)
    needed = threshold(nodes, colluding, 1) - c
    found = [gained(namings, needed) for namings in product([(), *((j,) for j in range(3))], repeat=nodes - c)]
    assert not any(both for both, _ in found)
    assert max(keys for _, keys in found) == 1
    # One share less and a lie gains something, so this test would see it.
    less = [gained(namings, needed - 1) for namings in product([(), *((j,) for j in range(3))], repeat=nodes - c)]
    assert any(both or keys > 1 for both, keys in less)


@pytest.mark.parametrize("colluding", [0.0, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("lost", [1, 2, 3, 5])
def test_thresholds_are_what_their_claims_need_and_no_more(colluding, lost):
    fewest = fewest_nodes(colluding, lost)
    with pytest.raises(BadInput, match=f"at least {fewest} nodes are needed"):
        threshold(fewest - 1, colluding, lost)
    for nodes in range(fewest, 80):
        c, t = coalition(nodes, colluding), threshold(nodes, colluding, lost)
        # The others can rebuild secrets, the coalition cannot.
        assert c < t <= nodes - lost
        proven = (t - c) * (lost + 1) > (nodes - c) * lost
        assert withstands_lies(nodes, colluding, lost) == proven
        if proven:
            assert 2 * t > nodes + c
            assert (t - 1 - c) * (lost + 1) <= (nodes - c) * lost  # one less would not do
        assert loudness(nodes, colluding, lost) == pytest.approx((nodes / (nodes - c - lost)) ** 0.5)


@pytest.mark.parametrize("threshold_of", [2, 3])
def test_two_sets_of_silent_nodes_unmask_a_single_node_only_below_the_threshold(threshold_of):
    """The attack: of four nodes 0 is called silent to some and present to others; with two shares that suffices."""
    group = Group(4, threshold_of, 1)
    one = group.answers(0, range(4), {0}, [1, 2])
    other = group.answers(0, range(4), set(), [0, 3])
    pairs, own = _secrets(group.nodes[0], 0)
    found = {bytes(rebuilt({node: answer[0] for node, answer in each.items()})) for each in (one, other)}
    assert (found == {pairs, own}) == (threshold_of == 2)
    assert threshold(4, 0.0, 1) == 3
