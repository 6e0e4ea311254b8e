"""Progress of long work on standard error: a bar on a terminal, else a line a minute at most."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Clock = Callable[[], float]  # returns seconds since some fixed moment

FIRST, EVERY = 10.0, 60.0  # seconds before the first line, so that short work prints none, and between two lines


@contextmanager
def progress_on_terminal(*first: str) -> Iterator[Progress | None]:
    """Show bars with these texts before them; None if standard error is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (*map(TextColumn, first), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[beside]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as shown:
        yield shown


class MinuteLines:
    """Prints on standard error how far work is and how long the rest will take."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + FIRST
        self._began, self._base = clock(), 0

    def count_from(self, done: int, ago: float = 0.0) -> None:
        """Estimate the time left only from work beyond ``done``, which began ``ago`` seconds before now."""
        self._began, self._base = self._clock() - ago, done

    def tell(self, done: int, of: int, sentence: Callable[[], str]) -> None:
        """Print the sentence with the time left, if a line is due; ``done`` ``of`` all work is done."""
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
    """Format an estimated duration, rounded to its accuracy.

    >>> time_left(34.0), time_left(200.0), time_left(86400.0)
    ('about 30 seconds left', 'about 3 minutes left', 'about 24 hours left')
    """
    if seconds < 55:
        return f"about {max(10, 10 * round(seconds / 10))} seconds left"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"about {minutes} minute{'' if minutes == 1 else 's'} left"
    return f"about {round(seconds / 3600)} hours left"
