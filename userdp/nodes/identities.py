"""Whether one person's data lie in two places, told from salted digests of the labels that people are known by.

A user-level guarantee bounds what ONE index of 0..n-1 can do. Somebody who is two indices, in two silos, can do twice
as much, so the server compares digests before anything is trained. Equal labels give equal digests; different ones
among n labels collide with probability below n^2 / 2^129, and then the run stops although it need not.

The salt is drawn anew for every run, so digests of two runs cannot be matched. They hide nothing from whoever knows the
salt and can guess labels: the server, which is trusted with much more.
"""

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16
_PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])


def identities(labels: Iterable[str], salt: bytes) -> NDArray[np.uint8]:
    """(U, 16) digests of labels; spaces around a label and the way its letters are encoded do not matter.

    Args:
        labels: what each user is called, the same in every silo.
        salt: 16 to 64 random bytes, the same for all who are compared.
    """
    texts = (unicodedata.normalize("NFKC", label).strip().encode() for label in labels)
    digests = b"".join(hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=salt).digest() for text in texts)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def repeated(digests: NDArray[np.uint8]) -> int:
    """How many of the (U, 16) digests have occurred before."""
    pairs = np.ascontiguousarray(digests).view(_PAIR).ravel()
    return len(pairs) - len(np.unique(pairs))
