"""Grouping of users by memory and speed, without any knowledge of modules or torch.

Several users at once save a module's calls if users are small, and waste work if they are large or the module has no
rule for it. A short measurement on made-up users finds the faster way, once.
"""

import logging
import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Execution = Literal["auto", "loop", "grouped"]
MEBIBYTE = 1 << 20
_GROUPS = {"cpu": (64, 512, 4096), "cuda": (512, 4096, 32768)}  # Samples of a group to try.
_UNTIMED_GROUP = 512  # Samples of a group before any measurement.
_TRIED_USERS, _TRIED_SECONDS = 64, 0.1  # The users of a trial, and its length.
_TRIED_AGAIN, _NEAR = 2, 1.3  # Further trials of ways near the fastest, because other programs disturb measurements.
_ALIKE = 1.1  # Times the fastest; among such ways the one with the least memory wins.

log = logging.getLogger("userdp")


@dataclass(frozen=True)
class Choice:
    """A way of computing gradients."""

    grouped: bool
    """True if several users are computed at once."""
    samples: int
    """Most samples of a group."""
    own_layers: bool
    """True if `userdp.neural.kernels` computes layers."""
    seconds: float | None = None
    """Measured time of a sample; None without a measurement."""


# A choice, a number of made-up users and their samples each -> a function that computes them once.
Prepare = Callable[[Choice, int, int], Callable[[], object]]


@dataclass(eq=False)
class Tuner:
    """Puts users into groups that fit the memory, and finds the fastest way to compute them."""

    execution: Execution
    """One user after the other, several at once, or the faster of the two."""
    own_layers: bool
    """True if `userdp.neural.kernels` may be chosen."""
    together: bool
    """True if users may share a call."""
    typical: int
    """Samples of a user in the measurement."""
    memory: int
    """Mebibytes that a piece may take."""
    sample_bytes: int
    """Bytes that the backward pass keeps of a sample."""
    model_bytes: int
    """Bytes of a user's parameters."""
    padded: bool = True
    """True if users may be padded to the size of others, which calls for no more than twice the work."""
    doubled: bool = False
    """True if users are padded to the next power of two, and share calls with such users alone."""
    choice: Choice = field(init=False)
    """The present way of computing gradients."""

    def __post_init__(self) -> None:
        self.choice = self._unmeasured()

    @property
    def most_samples(self) -> int:
        """The most samples of a piece."""
        return max(1, self.memory * MEBIBYTE // self.sample_bytes)

    @property
    def most_users(self) -> int:
        """The most users of a call: their parameters take an eighth of the memory."""
        return max(1, self.memory * MEBIBYTE // (8 * self.model_bytes))

    def groups(self, sizes: NDArray[np.int64], choice: Choice | None = None) -> Iterator[NDArray[np.int64]]:
        """Yield positions of users computed together, by falling size; none is twice as large as another.

        Without ``padded`` all of a group have the same size.
        """
        choice = choice or self.choice
        order = np.argsort(sizes, kind="stable")
        if not choice.grouped:
            yield from order[::-1, None]
            return
        sorted_sizes, last = sizes[order], len(order)
        while last > 0:
            largest = int(sorted_sizes[last - 1])
            least = (largest + 1) // 2 if self.padded else largest
            if self.doubled:
                largest = 1 << (largest - 1).bit_length()
                least = largest // 2 + 1
            room = max(1, min(choice.samples, self.most_samples) // largest)
            alike = int(np.searchsorted(sorted_sizes, least))
            first = max(0, last - min(room, self.most_users), alike)
            yield order[first:last]
            last = first

    def keep_apart(self) -> None:
        """Let no two users share a call from now on; the choice is open again."""
        self.together = False
        self.choice = self._unmeasured()

    def unsettled(self) -> "Tuner":
        """Return a copy whose choice is open, for another device or another process."""
        other = copy(self)
        other.choice = other._unmeasured()
        return other

    def _unmeasured(self) -> Choice:
        own_layers = self.own_layers and self.execution != "loop"
        grouped = self.execution == "grouped" and self.together
        return Choice(grouped=grouped, samples=_UNTIMED_GROUP, own_layers=own_layers)

    @property
    def settled(self) -> bool:
        """True if nothing is left to be measured."""
        return self.execution != "auto" or self.choice.seconds is not None

    def settle(self, prepare: Prepare, clock: Callable[[], float], device: str) -> None:
        """Find the fastest way, once, on made-up users: it must not depend on anybody's data, nor on the cohort.

        ``prepare`` makes the function to time, ``clock`` tells the seconds of computing so far, and the ``device`` type
        determines the group sizes tried.
        """
        if self.settled:
            return
        timed = {way: self._measured(way, prepare, clock) for way in self._ways(device)}
        for _ in range(_TRIED_AGAIN):
            near = _NEAR * min(timed.values())
            again = [way for way, least in timed.items() if least <= near]
            timed |= {way: min(timed[way], self._measured(way, prepare, clock)) for way in again}
        enough = _ALIKE * min(timed.values())
        self.choice = next(replace(way, seconds=least) for way, least in timed.items() if least <= enough)
        log.info("the module is computed %s", self.choice)

    def _ways(self, device: str) -> list[Choice]:
        """Return the ways to try, by rising need of memory."""
        layers = (False, True) if self.own_layers else (False,)
        ways = [Choice(grouped=False, samples=1, own_layers=own) for own in layers]
        if self.together:
            sizes = _GROUPS[device]
            kept = [size for less, size in pairwise((0, *sizes)) if less < self.most_samples]  # the others are the same
            ways += [Choice(grouped=True, samples=samples, own_layers=layers[-1]) for samples in kept]
        return ways

    def _measured(self, way: Choice, prepare: Prepare, clock: Callable[[], float]) -> float:
        """Return the way's least time for a sample, as other programs disturb it; infinite if it fails."""
        spent, least, size = 0.0, math.inf, min(self.typical, self.most_samples)
        try:
            for users in self.groups(np.full(_TRIED_USERS, size), way):
                compute = prepare(way, len(users), size)
                if not spent:
                    compute()  # the first call is slow
                start = clock()
                compute()
                taken = clock() - start
                spent, least = spent + taken, min(least, taken / (len(users) * size))
                if spent > _TRIED_SECONDS:
                    break
        except Exception:  # any error of the module, such as a missing rule for many users at once
            return math.inf
        return least
