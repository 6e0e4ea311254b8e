"""Detection of one person in two places, from salted digests of the labels that identify people.

A user-level guarantee bounds the influence of ONE index of 0..n-1. A person with two indices, in two silos, has twice
the influence, so the server compares digests before training. Equal labels give equal digests; different ones among n
labels collide with probability below n^2 / 2^129, and then the run stops without need.

Every run draws a new salt, so digests of two runs cannot be matched. They hide nothing from a party that knows the salt
and can guess labels: the server, which is trusted with much more.
"""

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16
_PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])


def identities(labels: Iterable[str], salt: bytes) -> NDArray[np.uint8]:
    """Return (U, 16) digests of normalised labels, under one salt of 16 to 64 random bytes for all silos."""
    texts = (unicodedata.normalize("NFKC", label).strip().encode() for label in labels)
    digests = b"".join(hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=salt).digest() for text in texts)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def repeated(digests: NDArray[np.uint8]) -> int:
    """Return how many of the (U, 16) digests have occurred before."""
    pairs = np.ascontiguousarray(digests).view(_PAIR).ravel()
    return len(pairs) - len(np.unique(pairs))
