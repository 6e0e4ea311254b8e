"""Progress of long work on standard error: a bar on a terminal, else a line a minute at most."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from simulations.records.observer import Observer
from simulations.reports.explain import METRICS, shown, shown_claim
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord
from userdp.errors import BadInput

Clock = Callable[[], float]  # returns seconds since some fixed moment
OnStep = Callable[[int, int, str], None]  # called with the steps done, the number of steps, and what is said of them
Bar = Callable[[str, str], Callable[[int, int], None]]  # (audited strategy, counted unit) -> function of (done, of)

FIRST, EVERY = 10.0, 60.0  # seconds before the first line, so that short work prints none, and between two lines


class HowFar:
    """Shows how far work is, and how long the rest will take: by a ``bar``, else by lines on standard error."""

    def __init__(self, clock: Clock = time.monotonic, bar: Progress | None = None) -> None:
        self.clock, self._bar = clock, bar
        self._task: TaskID | None = None
        self._next = clock() + FIRST
        self.count_from(0)

    def begin(self, name: str = "", beside: str = "starting") -> None:
        """Begin a piece of work, with words for its bar."""
        self.count_from(0)
        if self._bar is not None:
            self._task = self._bar.add_task(name, total=None, beside=beside)

    def count_from(self, done: int, ago: float = 0.0) -> None:
        """Estimate the time left only from work beyond ``done``, which began ``ago`` seconds before now."""
        self._began, self._base = self.clock() - ago, done

    def tell(self, done: int, of: int, sentence: Callable[[], str], beside: Callable[[], str]) -> None:
        """Move the bar, with new words ``beside`` it; or print the sentence with the time left, if a line is due."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=of, beside=beside())
            return
        now = self.clock()
        if now < self._next:
            return
        self._next = now + EVERY
        left = ""
        if self._base < done < of:
            left = f", {time_left((now - self._began) / (done - self._base) * (of - done))}"
        sys.stderr.write(f"userdp: {sentence()}{left}\n")
        sys.stderr.flush()


@contextmanager
def how_far(first: str, clock: Clock = time.monotonic) -> Iterator[HowFar]:
    """Provide what shows how far work is; on a terminal the text ``first`` stands before its bars."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield HowFar(clock)
        return
    columns = (TextColumn(first), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[beside]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        yield HowFar(clock, bar)


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


def wanted(progress: bool) -> bool:
    """Return whether progress is shown; raise `BadInput` for what is neither True nor False, such as "no"."""
    if not isinstance(progress, bool):
        raise BadInput(f"progress = {progress!r}: must be True or False")
    return progress


@contextmanager
def progress_bar(progress: bool = True, clock: Clock = time.monotonic) -> Iterator[Observer]:
    """Yield the observer that shows how far a run is, if ``progress``."""
    if not wanted(progress):
        yield Observer()
        return
    with how_far("round", clock) as told:
        told.begin()
        yield Rounds(told)


@contextmanager
def audit_bar(clock: Clock = time.monotonic) -> Iterator[Bar]:
    """Yield the function that begins an audit, and returns the one that is called with its progress."""
    with how_far("{task.description}", clock) as told:

        def begin(name: str, unit: str) -> Callable[[int, int], None]:
            told.begin(name, unit)
            return lambda done, of: told.tell(
                done, of, lambda: f"audit of {name}: {done} of {of} {unit} done", lambda: unit
            )

        yield begin


@contextmanager
def counting_bar(title: str, line: str, clock: Clock = time.monotonic) -> Iterator[OnStep]:
    """Yield the function that is called with every step; ``line`` is filled with {done}, {of}, {beside}."""
    with how_far(title, clock) as told:
        told.begin()
        yield lambda done, of, beside: told.tell(
            done, of, lambda: line.format(done=done, of=of, beside=beside), lambda: beside
        )


class Rounds(Observer):
    """Shows the rounds of a run."""

    def __init__(self, told: HowFar) -> None:
        self._told = told
        self._last: float | None = None

    def on_round(self, record: RoundRecord) -> None:
        """See `Observer`."""
        now, planned = self._told.clock(), self.plan
        # A round that comes sooner than its own seconds was taken over from a killed process.
        if self._last is None or now - self._last < record.seconds / 2:
            self._told.count_from(record.round - 1, ago=record.seconds)
        self._last = now
        name = next((name for name in METRICS if name in record.metrics), None)
        measured = f"{name} {shown(record.metrics[name])}  " if name else ""
        self._told.tell(
            record.round,
            planned.rounds,
            lambda: f"round {record.round} of {planned.rounds}, {_spent(record, planned)}",
            lambda: measured + _spent(record, planned),
        )


def _spent(record: RoundRecord, planned: Plan) -> str:
    if (spent := record.spent_epsilon) is None:
        return "no privacy"
    shown_spent, whole = shown_claim(spent), shown_claim(planned.guarantee.epsilon)
    if record.round < planned.rounds and shown_spent == whole:
        return f"epsilon spent {whole}, which pays for all rounds"
    return f"epsilon spent {shown_spent}" + (f" of {whole}" if planned.guarantee.holds else "")
