"""Random streams, one for each role, all from one seed.

Streams of different roles or labels never overlap, and a stream does not depend on the number of workers or on the
order of calls. Nothing in userdp touches numpy's global state.

>>> import numpy as np
>>> from userdp.randomness import stream
>>> bool(np.all(stream(1, "noise", 3).normal(size=4) == stream(1, "noise", 3).normal(size=4)))
True
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["data", "truth", "split", "sampling", "noise", "initial"]
_ROLES: dict[str, int] = {"data": 0, "truth": 1, "split": 2, "sampling": 3, "noise": 4, "initial": 5}


def text_words(role: str, texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a pseudo-random word (N,) of each text: a function of the role and of that text alone."""
    salted = blake2b(role.encode(), digest_size=8)

    def word(text: str) -> int:
        own = salted.copy()
        own.update(b"\0" + text.encode("utf-8", "surrogatepass"))
        return int.from_bytes(own.digest(), "little")

    return np.fromiter(map(word, texts), dtype=np.uint64)


def seed_sequence(seed: int, role: Role, *labels: int) -> np.random.SeedSequence:
    """Make the `SeedSequence` of a role; ``labels`` (a round, a user, an epoch) spawn independent children."""
    return np.random.SeedSequence(seed, spawn_key=(_ROLES[role], *labels))


def stream(seed: int, role: Role, *labels: int) -> np.random.Generator:
    """Make a PCG64 generator for a role and labels; equal arguments give equal streams."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, role, *labels)))
