"""At most one line a minute about long work, for people who read standard error in a file, a pipe or a notebook."""

import sys
import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since some moment."""

FIRST, EVERY = 10.0, 60.0
"""Seconds before the first line, so that short work says nothing, and between two lines."""


class MinuteLines:
    """Says on standard error how far work is, and about how long the rest will take.

    Args:
        clock: what is looked at; tests have one of their own.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + FIRST
        self._began, self._base = clock(), 0

    def count_from(self, done: int, ago: float = 0.0) -> None:
        """Guess the time left by what is done from now on alone; lines come no sooner for it.

        Args:
            done: what was done before, by an earlier process or as preparation.
            ago: seconds before now at which what is counted began.
        """
        self._began, self._base = self._clock() - ago, done

    def tell(self, done: int, of: int, sentence: Callable[[], str]) -> None:
        """Write a line, if it is time for one.

        Args:
            done: of the work.
            of: how much there is.
            sentence: how far the work is; asked for where a line is written.
        """
        now = self._clock()
        if now < self._next:
            return
        self._next = now + EVERY
        left = ""
        if self._base < done < of:
            left = f", {time_left((now - self._began) / (done - self._base) * (of - done))}"
        sys.stderr.write(f"userdp: {sentence()}{left}\n")
        sys.stderr.flush()


def time_left(seconds: float) -> str:
    """A guess for people: no more exact than it is.

    >>> time_left(34.0), time_left(200.0), time_left(86400.0)
    ('about 30 seconds left', 'about 3 minutes left', 'about 24 hours left')
    """
    if seconds < 55:
        return f"about {max(10, 10 * round(seconds / 10))} seconds left"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"about {minutes} minute{'' if minutes == 1 else 's'} left"
    return f"about {round(seconds / 3600)} hours left"
