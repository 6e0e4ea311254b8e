"""A coin for every sample, drawn on the sample's node: Poisson sampling of samples, independent of the layout.

Each round the server draws one key a user; a user's coins are Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011) at
counters 0, 1, 2, ... under that key. So coins depend neither on the users of a node nor on the number of workers, and a
node that knows the keys of its own users learns nothing about the coins of others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.checks import check_rate
from userdp.errors import BadInput
from userdp.sampling.base import check_whole

Keys = NDArray[np.uint64]
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_BUMPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


@dataclass(frozen=True, eq=False)
class SampleCoins:
    """The samples that take part in a round; raises `BadInput` for a rate or a limit out of range."""

    rate: float  # probability of each sample, in (0, 1]
    keys: Keys  # on the server (n,), one a user of the population; on a node (U,), those of the question's users
    most: int | None = None  # a user's samples beyond this number are never drawn; None for no such limit

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_whole(most=self.most)

    def draw(self, users: slice, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Draw which samples (N,) of users at positions ``users`` take part; `BadInput` unless keys fit ``sizes``."""
        keys = self.keys[users]
        if len(keys) != len(sizes):
            raise BadInput(f"{len(keys)} keys are given for the coins of {len(sizes)} users")
        numbers = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        drawn = uniforms(np.repeat(keys, sizes), numbers.astype(np.uint64)) < self.rate
        return drawn if self.most is None else drawn & (numbers < self.most)


def uniforms(keys: Keys, counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return (N,) uniform numbers of [0, 1), of 53 bits, each a function of its key and counter alone."""
    first, second = philox(keys, counters)[:2]
    return ((first << _WORD | second) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def philox(keys: Keys, counters: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], ...]:
    """Compute Philox 4x32-10 of 64-bit keys at counters below 2^64: four 32-bit words for each, held in 64 bits."""
    k0, k1 = keys & _LOW, keys >> _WORD
    c0, c1 = counters & _LOW, counters >> _WORD
    c2 = c3 = np.zeros_like(c0)
    for _ in range(10):
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (odd >> _WORD) ^ c1 ^ k0, odd & _LOW, (even >> _WORD) ^ c3 ^ k1, even & _LOW
        k0, k1 = (k0 + _BUMPS[0]) & _LOW, (k1 + _BUMPS[1]) & _LOW
    return c0, c1, c2, c3
