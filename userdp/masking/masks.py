"""Pairwise masks: each of some parties adds noise-like residues that vanish from the sum of all of them.

>>> import numpy as np
>>> from userdp.masking.masks import MaskKey
>>> parties = [MaskKey() for _ in range(3)]
>>> keys = [party.public for party in parties]
>>> int(sum(party.mask(keys, b"round 1", 2) for party in parties)[0])
0
"""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from userdp.errors import BadInput
from userdp.masking.grid import Residues

KEY_BYTES = 32
_PURPOSE = b"userdp pairwise mask "
_NONCE = bytes(16)
_WORD = np.dtype("<u8")


class MaskKey:
    """One party's half of every pair, for one run: a key of X25519, drawn by the operating system.

    *Formal guarantees.* (a) *Cancelling.* In each pair, the party earlier in the list of keys adds what the later one
    subtracts, modulo 2^64, so the masks of all parties add up to zero. (b) *Hiding.* Let an adversary see all public
    keys and masked vectors, know the private keys of some parties, and not change what is sent. Model HKDF of the
    X25519 secret of two others as a random key (hashed Diffie-Hellman, Abdalla, Bellare, Rogaway 2001), and ChaCha20
    under it as random bytes; each key is for one context, so it makes one stream. Then each pair of others shares
    uniform residues. These pairs connect all others, so their masked vectors are jointly uniform among those with the
    same sum: the adversary sees that sum and nothing else of their vectors (Bonawitz et al. 2017, Lemma 6.1). This
    holds against adversaries that cannot break these primitives, while the private key is secret. (c) *Once.* `spend`
    lets rounds pass in rising order, each once; `userdp.masking.shares.hiding` alone makes the mask of a round, and
    spends it. A party gives at most one answer per round, to any questions.
    *Assumption.* Key and rounds are kept together: a party that loses one loses the other, and no run continues with
    its old key; nobody restores an older copy of both. Raises `BadInput` for a secret of another length.

    Args:
        secret: 32 bytes of an earlier key; None for a fresh key.
        answered: the last round that was answered with it; -1 before the first.
        lost: how many nodes of a sum may fall silent; 0 until secrets are shared (`userdp.masking.shares`).
        unmasked: the last round whose shares were given away; -1 before the first.

    Attributes:
        public: 32 bytes for everybody.
        answered, lost, unmasked: as above.
    """

    def __init__(self, secret: bytes | None = None, answered: int = -1, lost: int = 0, unmasked: int = -1) -> None:
        if secret is not None and len(secret) != KEY_BYTES:
            raise BadInput(f"the secret of a mask key must be {KEY_BYTES} bytes, got {len(secret)}: leave it out")
        self._private = X25519PrivateKey.generate() if secret is None else X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()
        self.answered, self.lost, self.unmasked = answered, lost, unmasked

    @property
    def secret(self) -> bytes:
        """The 32 bytes that make the key again, for its owner's own machine alone."""
        return self._private.private_bytes_raw()

    def spend(self, round_index: int) -> None:
        """Record that a round is answered, before the answer leaves.

        Raises `BadInput` if it, or a later one, was answered already.
        """
        if round_index <= self.answered:
            raise BadInput(
                f"round {round_index} of a masked sum came after the answer to round {self.answered}: a node answers "
                "each round once, because two answers together would have less noise; begin another run"
            )
        self.answered = round_index

    def mask(self, keys: Sequence[bytes], context: bytes, length: int) -> Residues:
        """Return this party's (length,) mask; all parties pass the same arguments.

        ``keys`` are the public keys of all parties in one order, and ``context`` names the sum; no two sums may share
        one. Raises `BadInput` if this party's key is not among the keys, one is there twice, or one is no key.
        """
        if len(set(keys)) < len(keys) or self.public not in keys:
            raise BadInput("the keys of a masked sum must be distinct and include this party's own")
        place, mask = keys.index(self.public), np.zeros(length, dtype=np.uint64)
        for other, key in enumerate(keys):
            if other > place:
                mask += self._shared(key, context, length)
            elif other < place:
                mask -= self._shared(key, context, length)
        return mask

    def agreed(self, key: bytes) -> bytes:
        """Return the 32 bytes that only this party and the owner of a public key know; `BadInput` for no such key."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(key))
        except ValueError:  # of another length, or one with which every secret is the same
            raise BadInput("a key of a masked sum is not a public X25519 key: leave its party out") from None

    def _shared(self, key: bytes, context: bytes, length: int) -> Residues:
        return residues(self.agreed(key), _PURPOSE + context, length)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Return the 32 bytes that follow from a secret for one purpose (HKDF-SHA256)."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def residues(secret: bytes, purpose: bytes, length: int) -> Residues:
    """Return the (length,) residues that follow from a secret for one purpose: the stream of ChaCha20."""
    stream = Cipher(algorithms.ChaCha20(derived(secret, purpose), _NONCE), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(length * _WORD.itemsize)), dtype=_WORD).astype(np.uint64)
