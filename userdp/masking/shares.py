"""Masks of silent nodes that the others can take off together: secrets of single rounds, shared among all nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from userdp.errors import BadInput
from userdp.masking.grid import Residues
from userdp.masking.masks import KEY_BYTES, MaskKey, derived, residues

SEED_BYTES = 16
"""Bytes of a secret of one round, and of a share of it."""
SEALED_BYTES = 3 * SEED_BYTES  # Shares of both secrets, and the tag of Poly1305
_SECRETS, _KEY, _OWN = b"userdp secrets of round ", b"userdp key of a round", b"userdp own mask "
_SEAL = b"userdp sealed shares "

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Sharing:
    """The question, once before the first round, to share the secrets of all rounds among N nodes.

    For each round a node derives two secrets: of a key for its pairwise masks, the round key, and of a mask of its own,
    the own mask. Its part has both masks on it. It deals Shamir shares of both secrets to all nodes, sealed for each of
    them, and the server keeps them. After the parts of a round have come, each node gives the server its shares of the
    own masks of nodes whose part is there, and of the round keys of those that fell silent, for one set of silent
    nodes. From t shares of each the server rebuilds these secrets, and takes off what is left of the masks.

    *Formal guarantees.* Let at most c of the N nodes collude, with or without the server, and each node name at most L
    nodes of a round as silent. *Claim.* (a) *Completeness.* From t nodes' answers `surplus` computes exactly what the
    survivors' masks add up to. (b) *A curious server*, which tells all nodes the same set: if t > c, it learns of the
    parts of nodes that do not collude the sum of the survivors' alone, and of a silent node's part, though it may come
    late, nothing. (c) *A server that lies about who fell silent*, to each node in another way: if
    ``(t - c) (L + 1) > (N - c) L``, it learns at most one sum of such parts, and no more than L of them are missing
    from it. *Why.*

    1. *Secrets.* Model HKDF, and the residues that follow from a secret, as random functions, since a server that lies
       chooses what to rebuild after it has seen the parts. So secrets are independent of each other, and masks of all
       that is seen before their secret is rebuilt; for pairs see `MaskKey` (b).
    2. *Shares.* Fewer than t shares are independent of their secret (Shamir 1979). The server sees them sealed, by
       ChaCha20-Poly1305 with a key from the X25519 secret of both ends (their own, for one's own share), one for each
       direction, and the round as nonce. A node shares once with a key, and `Seal` refuses a round that it sealed, so
       each nonce is used once.
    3. *One of two.* A node answers once per round, and gives one of two shares of each node. Under (b) all answers name
       the same set, so of no node are both secrets rebuilt: the other one has at most c < t shares.
    4. *Under lies.* The h = N - c others give one answer each. To rebuild a secret takes those of t - c of them. Both
       secrets of one node take 2 (t - c) > h answers, as ``(t - c) > h L / (L + 1) >= h / 2``. Round keys of m nodes
       take m (t - c) namings of silent nodes, of which there are h L: so m <= L.
    5. *What is left.* Consider nodes of the round that do not collude. A part whose own mask is not rebuilt is uniform
       and independent of all else. The round keys of the others are not rebuilt, so the pairs among them, and those
       with nodes of which neither secret is, still share uniform residues. If there is such a node, all these parts
       are jointly uniform; if there is none, they are so among those with the same sum (`MaskKey` (b)). In it are the
       parts of all whose round keys are not rebuilt.

    *Assumptions.* Those of `MaskKey`. The server passes the keys of both kinds and the sealed shares on as they are;
    N, L and t are the plan's. Raises `BadInput` for keys that are not distinct, or numbers that make no sharing.
    """

    keys: tuple[bytes, ...]  # public keys of all N nodes, in one order
    threshold: int  # t: shares that rebuild a secret
    lost: int  # L: most nodes of a round that may be named as silent
    rounds: int  # of the run

    def __post_init__(self) -> None:
        nodes = len(self.keys)
        if len(set(self.keys)) < nodes or not (1 < self.threshold <= nodes - self.lost < nodes and self.rounds > 0):
            raise BadInput(f"secrets of {nodes} keys cannot be shared so that {self.threshold} of them rebuild one")


class Seal:
    """The cipher of all shares from one node to another: it seals rounds in rising order, each once.

    Its key names who sends and who receives, so what travels the other way has another key. Raises `BadInput` unless
    the owner of ``key`` is one of the two, or if the other's is no key.
    """

    def __init__(self, key: MaskKey, sender: bytes, receiver: bytes) -> None:
        if key.public not in (sender, receiver):
            raise BadInput("shares are sealed by their sender or their receiver: give a key of one of the two")
        other = receiver if sender == key.public else sender
        self._cipher = ChaCha20Poly1305(derived(key.agreed(other), _SEAL + sender + receiver))
        self._sealed = -1

    def seal(self, round_index: int, shares: bytes) -> bytes:
        """Return a round's sealed shares; `BadInput` if it, or a later round, was sealed."""
        if round_index <= self._sealed:
            raise BadInput(f"shares of round {round_index} were sealed before: two texts under one nonce hide neither")
        self._sealed = round_index
        return self._cipher.encrypt(_nonce(round_index), shares, None)

    def opened(self, round_index: int, box: bytes) -> bytes:
        """Return a round's shares; `InvalidTag` if they were sealed for another round, or by or for others."""
        return self._cipher.decrypt(_nonce(round_index), box, None)


@dataclass(frozen=True)
class Survivors:
    """The question after the parts of a round have come, with the sealed shares for one node.

    Raises `BadInput` unless it names each node once, and comes with its shares.
    """

    round: int
    keys: tuple[bytes, ...]  # (k,) public keys of the nodes of the sum; not those of the round
    silent: NDArray[np.bool_]  # (k,) whether each fell silent
    sealed: Bytes  # (k, 48) the shares that it dealt to the node that is asked

    def __post_init__(self) -> None:
        nodes = len(self.keys)
        if len(set(self.keys)) < nodes or (len(self.silent), *self.sealed.shape) != (nodes, nodes, SEALED_BYTES):
            raise BadInput("the nodes of a round must be distinct, each with its shares")


def share(key: MaskKey, asked: Sharing) -> tuple[Bytes, Bytes]:
    """Return a node's public round keys (T, 32), and its shares of both secrets (T, N, 48), sealed for each node.

    Raises `BadInput` if the key shared its secrets before, or is not among those. A round takes two polynomials at N
    places: 1.5 ms for 10 nodes, 15 ms for 30.
    """
    if key.lost or key.public not in asked.keys:
        raise BadInput("a node shares its secrets once, with keys that include its own: begin another run")
    key.lost = asked.lost
    seals = [Seal(key, key.public, other) for other in asked.keys]
    public = np.empty((asked.rounds, KEY_BYTES), dtype=np.uint8)
    sealed = np.empty((asked.rounds, len(seals), SEALED_BYTES), dtype=np.uint8)
    for index in range(asked.rounds):
        pairs, own = _secrets(key, index)
        public[index] = np.frombuffer(_round_key(pairs).public, dtype=np.uint8)
        dealt = (Shamir.split(asked.threshold, len(seals), secret, ssss=False) for secret in (pairs, own))
        for place, ((_, one), (_, other)) in enumerate(zip(*dealt, strict=True)):
            sealed[index, place] = np.frombuffer(seals[place].seal(index, one + other), dtype=np.uint8)
    return public, sealed


def hiding(key: MaskKey, round_index: int, keys: Sequence[bytes], context: bytes, length: int) -> Residues:
    """Return a node's (length,) mask of a round, as `MaskKey.mask`; ``keys`` are round keys where secrets are shared.

    The round is spent, whatever comes after: there is no second mask of it, for another part or the same. Raises
    `BadInput` as `MaskKey.mask` and `MaskKey.spend` do.
    """
    key.spend(round_index)
    if not key.lost:
        return key.mask(keys, context, length)
    pairs, own = _secrets(key, round_index)
    return _round_key(pairs).mask(keys, context, length) + _own_mask(own, context, length)


def revealed(key: MaskKey, asked: Survivors) -> Bytes:
    """Return a node's (k, 16) shares: of silent nodes' round keys, and of survivors' own masks.

    Raises `BadInput` if a round was answered already, or a later one; if more nodes are named as silent than may be; or
    if a share was sealed for somebody else.
    """
    if asked.silent.sum() > key.lost:
        raise BadInput(f"{asked.silent.sum()} nodes of a round are named as silent: {key.lost} may be")
    if asked.round <= key.unmasked:
        raise BadInput(
            f"round {asked.round} of a masked sum came after the shares of round {key.unmasked}: a node gives one set "
            "of shares per round, because two of them together may unmask a single node; begin another run"
        )
    key.unmasked = asked.round
    shares = np.empty((len(asked.keys), SEED_BYTES), dtype=np.uint8)
    for place, (sender, silent) in enumerate(zip(asked.keys, asked.silent, strict=True)):
        try:
            both = Seal(key, sender, key.public).opened(asked.round, asked.sealed[place].tobytes())
        except InvalidTag:
            raise BadInput("a share was sealed for another node, another round or by another key") from None
        shares[place] = np.frombuffer(both[:SEED_BYTES] if silent else both[SEED_BYTES:], dtype=np.uint8)
    return shares


def rebuilt(shares: Mapping[int, Bytes]) -> bytes:
    """Return the secret of exactly t shares (16,), by the places of their holders, from 0, among all N nodes."""
    return Shamir.combine([(place + 1, one.tobytes()) for place, one in shares.items()], ssss=False)


def surplus(
    keys: Sequence[bytes], silent: NDArray[np.bool_], secrets: Sequence[bytes], context: bytes, length: int
) -> Residues:
    """Return the (length,) residues that the survivors' masks of a round add up to.

    Args:
        keys: the (k,) public round keys of the nodes of the sum, in its order.
        silent: (k,) whether each fell silent.
        secrets: of each silent node, that of its round key; of each other, that of its own mask.
        context: names the sum, as in `hiding`.
        length: of the masks.

    Raises `BadInput` if the secret of a silent node is not that of its round key.
    """
    total = np.zeros(length, dtype=np.uint64)
    for place, secret in enumerate(secrets):
        if silent[place]:  # what survivors' masks with it lack to cancel
            pairs = [key for other, key in enumerate(keys) if other == place or not silent[other]]
            total -= _round_key(secret).mask(pairs, context, length)
        else:
            total += _own_mask(secret, context, length)
    return total


def _secrets(key: MaskKey, round_index: int) -> tuple[bytes, bytes]:
    """Return the secrets of the round key and of the own mask."""
    both = derived(key.secret, _SECRETS + _nonce(round_index))
    return both[:SEED_BYTES], both[SEED_BYTES:]


def _round_key(secret: bytes) -> MaskKey:
    return MaskKey(derived(secret, _KEY))


def _own_mask(secret: bytes, context: bytes, length: int) -> Residues:
    return residues(secret, _OWN + context, length)


def _nonce(round_index: int) -> bytes:
    return round_index.to_bytes(12, "big")
