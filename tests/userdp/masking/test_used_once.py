"""Masks, seals, keys and nonces are used once: whoever asks for a second use is refused, and both directions differ."""

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from helpers import federation_of

from simulations.audit.one_run import Canaries
from userdp.errors import BadInput
from userdp.masking import shares
from userdp.masking.grid import IntegerGrid
from userdp.masking.masks import MaskKey
from userdp.masking.shares import Seal, Sharing, Survivors, hiding, revealed, share
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Quadratic

PROBLEM = Quadratic(2, 2.0, 5.0)


def again(key):
    """The key in the process after this one, from what its owner keeps."""
    return MaskKey(key.secret, key.answered, key.lost, key.unmasked)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("later", [(0, b"asked"), (0, b"another"), (1, b"asked")], ids=["same", "question", "earlier"])
def test_a_rounds_mask_is_made_once_whatever_is_asked_and_after_a_restart(later, shared, restarted):
    made = [MaskKey() for _ in range(3)]
    keys = tuple(one.public for one in made)
    if shared:
        given = [share(one, Sharing(keys, 2, 1, 3)) for one in made]
        keys = tuple(public[1].tobytes() for public, _ in given)
    hiding(made[0], 1, keys, b"asked", 4)
    key = again(made[0]) if restarted else made[0]
    with pytest.raises(BadInput, match="answers each round once"):
        hiding(key, *(later[0], keys, later[1], 4))


def asked_for(nodes, index=0):
    masked = MaskedSum(IntegerGrid(-40), 1.0, seed=1, round=index).among(tuple(node.key.public for node in nodes))
    return Computation("user_gradient", "sum", clip_norm=1.0, masked=masked)


def parties(kind):
    if kind == "canaries":
        pulls, coins = np.eye(2), np.ones(2, dtype=np.int64)
        return [Canaries(PROBLEM, np.arange(2) + 2 * node, pulls, coins, absent=False) for node in range(2)]
    data = federation_of(np.linspace(-1, 1, 8).reshape(4, 2))
    return [Node(PROBLEM, data, np.arange(2) + 2 * node) for node in range(2)]


@pytest.mark.parametrize("kind", ["nodes", "canaries"])
@pytest.mark.parametrize("second", ["same", "other model", "other users", "earlier"])
def test_a_node_answers_a_masked_round_once(kind, second):
    """Two parts of one round under one mask: their difference is that of two answers, with little noise."""
    nodes = parties(kind)
    node, x = nodes[0], PROBLEM.initial()
    node.compute(x, node.users, asked_for(nodes, 3))
    model, users = (x + 1 if second == "other model" else x), node.users[: 1 if second == "other users" else 2]
    with pytest.raises(BadInput, match="answers each round once"):
        node.compute(model, users, asked_for(nodes, 2 if second == "earlier" else 3))
    node.compute(x, node.users, asked_for(nodes, 4))


def test_two_directions_of_one_pair_have_two_keys_and_a_share_opens_in_its_own_alone():
    one, other = MaskKey(), MaskKey()
    there, back = Seal(one, one.public, other.public), Seal(other, other.public, one.public)
    text = bytes(32)
    boxes = [there.seal(0, text), back.seal(0, text), Seal(one, one.public, one.public).seal(0, text)]
    # Under one key and nonce the texts' difference would be that of the boxes: of equal texts, nothing.
    assert len({box[:32] for box in boxes}) == 3
    assert Seal(other, one.public, other.public).opened(0, boxes[0]) == text
    for wrong in (Seal(other, other.public, one.public), Seal(one, other.public, one.public)):
        with pytest.raises(InvalidTag):
            wrong.opened(0, boxes[0])


def test_every_share_of_a_run_is_sealed_under_a_key_and_nonce_of_its_own(monkeypatch):
    """Shares of all nodes, rounds and receivers, a node's share for itself included."""
    used, real = [], shares.ChaCha20Poly1305

    class Watched:
        def __init__(self, key):
            self.key, self.cipher = key, real(key)

        def encrypt(self, nonce, text, more):
            used.append((self.key, nonce))
            return self.cipher.encrypt(nonce, text, more)

        def decrypt(self, nonce, box, more):
            return self.cipher.decrypt(nonce, box, more)

    monkeypatch.setattr(shares, "ChaCha20Poly1305", Watched)
    made = [MaskKey() for _ in range(4)]
    keys = tuple(one.public for one in made)
    given = [share(one, Sharing(keys, 3, 1, 3)) for one in made]
    assert len(used) == 4 * 4 * 3 == len(set(used))
    sealed = np.stack([dealt[0, 2] for _, dealt in given])
    revealed(made[2], Survivors(0, keys, np.zeros(4, dtype=bool), sealed))
    secrets = {public[index].tobytes() for public, _ in given for index in range(3)}
    assert len(secrets) == 4 * 3  # a key of its own for each node and round


@pytest.mark.parametrize("index", [0, 1])
def test_a_seal_is_not_used_twice_for_a_round(index):
    one, other = MaskKey(), MaskKey()
    seal = Seal(one, one.public, other.public)
    seal.seal(1, b"text")
    with pytest.raises(BadInput, match="sealed before"):
        seal.seal(index, b"other")
    seal.seal(2, b"text")


def test_a_seal_of_two_others_is_refused():
    with pytest.raises(BadInput, match="one of the two"):
        Seal(MaskKey(), MaskKey().public, MaskKey().public)
