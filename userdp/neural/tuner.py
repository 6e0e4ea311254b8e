"""Who is computed with whom, and how: memory, group sizes and timing. Nothing here knows of modules or of torch.

Several users at once save a module's calls where users are small, and waste work where they are large or the module has
no rule for it. Which is faster is found by a short measurement on made-up users, and kept.
"""

import logging
import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Execution = Literal["auto", "loop", "grouped"]
MEBIBYTE = 1 << 20
_GROUPS = {"cpu": (64, 512, 4096), "cuda": (512, 4096, 32768)}
"""Samples of a group that are tried, where groups are."""
_UNTIMED_GROUP = 512
"""Samples of a group as long as none was tried."""

_TRIED_USERS = 64
_TRIED_SECONDS, _TRIED_AGAIN, _NEAR, _ALIKE = 0.1, 2, 1.3, 1.1
"""Users on whom a way is tried, and for how long; how often again, if it takes at most so much of the fastest's time,
for other programs slow what is measured while they are busy; and within how much the one is taken that needs least
memory."""

log = logging.getLogger("userdp")


@dataclass(frozen=True)
class Choice:
    """How gradients are computed.

    Attributes:
        grouped: whether several users are computed at once.
        samples: most of a group.
        own_layers: whether layers are computed by `userdp.neural.kernels`.
        seconds: time of a sample when it was measured; None where there was no choice.
    """

    grouped: bool
    samples: int
    own_layers: bool
    seconds: float | None = None


Prepare = Callable[[Choice, int, int], Callable[[], object]]
"""From a choice, a number of made-up users and their samples each to what computes them once."""


class Tuner:
    """Puts users into groups that fit the memory, and finds the fastest way to compute them.

    Args:
        execution: one user after the other, several at once, or whichever is faster.
        own_layers: whether there are layers of `userdp.neural.kernels` to choose.
        together: whether users may share a call.
        typical: samples of a user on which ways are measured.
        memory: mebibytes that a piece may take.
        sample_bytes: bytes that the way back keeps of a sample.
        model_bytes: bytes of a user's parameters.

    Attributes:
        choice: how gradients are computed from now on.
    """

    def __init__(
        self,
        execution: Execution,
        *,
        own_layers: bool,
        together: bool,
        typical: int,
        memory: int,
        sample_bytes: int,
        model_bytes: int,
    ) -> None:
        self._execution, self._own_layers, self._together = execution, own_layers, together
        self._typical, self._budget = typical, memory * MEBIBYTE
        self._sample_bytes, self._model_bytes = sample_bytes, model_bytes
        self.choice = self._unmeasured()

    # Groups -----------------------------------------------------------------------------------------------------------

    @property
    def most_samples(self) -> int:
        """The samples that a piece may hold."""
        return max(1, self._budget // self._sample_bytes)

    def groups(self, sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Positions of users computed together, by falling size; none is twice as large as another."""
        return self._groups(self.choice, sizes)

    def _groups(self, choice: Choice, sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        order = np.argsort(sizes, kind="stable")
        if not choice.grouped:
            yield from order[::-1, None]
            return
        users = max(1, self._budget // (8 * self._model_bytes))
        sorted_sizes, last = sizes[order], len(order)
        while last > 0:
            largest = int(sorted_sizes[last - 1])
            room = max(1, min(choice.samples, self.most_samples) // largest)
            alike = int(np.searchsorted(sorted_sizes, (largest + 1) // 2))
            first = max(0, last - min(room, users), alike)
            yield order[first:last]
            last = first

    # The choice -------------------------------------------------------------------------------------------------------

    def keep_apart(self) -> None:
        """From now on no two users share a call; the choice is open again."""
        self._together = False
        self.choice = self._unmeasured()

    def unsettled(self) -> "Tuner":
        """A copy whose choice is open, for another device or another process."""
        other = copy(self)
        other.choice = other._unmeasured()
        return other

    def _unmeasured(self) -> Choice:
        """The choice as long as nothing was measured."""
        own_layers = self._own_layers and self._execution != "loop"
        grouped = self._execution == "grouped" and self._together
        return Choice(grouped=grouped, samples=_UNTIMED_GROUP, own_layers=own_layers)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be measured."""
        return self._execution != "auto" or self.choice.seconds is not None

    def settle(self, prepare: Prepare, clock: Callable[[], float], device: str) -> None:
        """Find the fastest way, once, on made-up users: it must not depend on anybody's data, nor on who is asked.

        Args:
            prepare: makes what is timed.
            clock: seconds of computing so far.
            device: its type, on which the sizes of groups depend that are tried.
        """
        if self.settled:
            return
        measured = [self._measured(way, prepare, clock) for way in self._ways(device)]
        for _ in range(_TRIED_AGAIN):
            near = _NEAR * min(map(_seconds, measured))
            again = (self._measured(way, prepare, clock) if _seconds(way) <= near else way for way in measured)
            measured = [min(pair, key=_seconds) for pair in zip(measured, again, strict=True)]
        enough = _ALIKE * min(map(_seconds, measured))
        self.choice = next(way for way in measured if _seconds(way) <= enough)
        log.info("the module is computed %s", self.choice)

    def _ways(self, device: str) -> list[Choice]:
        """What is tried, by rising need of memory."""
        layers = (False, True) if self._own_layers else (False,)
        ways = [Choice(grouped=False, samples=1, own_layers=own) for own in layers]
        if self._together:
            ways += [Choice(grouped=True, samples=samples, own_layers=layers[-1]) for samples in _GROUPS[device]]
        return ways

    def _measured(self, way: Choice, prepare: Prepare, clock: Callable[[], float]) -> Choice:
        """That way with its least time for a sample, for others are busy too; infinite where it cannot be gone."""
        spent, least, size = 0.0, math.inf, min(self._typical, self.most_samples)
        try:
            for users in self._groups(way, np.full(_TRIED_USERS, size)):
                compute = prepare(way, len(users), size)
                if not spent:
                    compute()  # the first call of anything is slow
                start = clock()
                compute()
                taken = clock() - start
                spent, least = spent + taken, min(least, taken / (len(users) * size))
                if spent > _TRIED_SECONDS:
                    break
        except Exception:  # whatever a module raises that has no rule for many users at once
            return replace(way, seconds=math.inf)
        return replace(way, seconds=least)


def _seconds(way: Choice) -> float:
    return math.inf if way.seconds is None else way.seconds
