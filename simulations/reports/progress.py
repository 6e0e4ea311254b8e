"""Progress of long work on standard error: a bar on a terminal, else a line a minute at most."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.records.observer import Observer
from simulations.reports.explain import METRICS, shown, shown_claim
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord

Clock = Callable[[], float]  # returns seconds since some fixed moment
OnStep = Callable[[int, int, str], None]  # called with the steps done, the number of steps, and what is said of them
Bar = Callable[[str, str], Callable[[int, int], None]]  # (audited strategy, counted unit) -> function of (done, of)

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


@contextmanager
def progress_bar(clock: Clock = time.monotonic) -> Iterator[Observer]:
    """Yield the observer that shows how far a run is."""
    with progress_on_terminal("round") as bar:
        yield RoundLines(clock) if bar is None else RoundBar(bar)


@contextmanager
def audit_bar(clock: Clock = time.monotonic) -> Iterator[Bar]:
    """Yield the function that begins an audit, and returns the one that is called with its progress."""
    lines = MinuteLines(clock)
    with progress_on_terminal("{task.description}") as bar:

        def begin(name: str, unit: str) -> Callable[[int, int], None]:
            if bar is None:
                lines.count_from(0)
                return lambda done, of: lines.tell(done, of, lambda: f"audit of {name}: {done} of {of} {unit} done")
            task = bar.add_task(name, total=None, beside=unit)
            return lambda done, of: bar.update(task, completed=done, total=of)

        yield begin


@contextmanager
def counting_bar(title: str, line: str, clock: Clock = time.monotonic) -> Iterator[OnStep]:
    """Yield the function that is called with every step; ``line`` is filled with {done}, {of}, {beside}."""
    with progress_on_terminal(title) as bar:
        if bar is None:
            lines = MinuteLines(clock)
            yield lambda done, of, beside: lines.tell(done, of, lambda: line.format(done=done, of=of, beside=beside))
        else:
            task = bar.add_task("", total=None, beside="starting")
            yield lambda done, of, beside: bar.update(task, completed=done, total=of, beside=beside)


class RoundBar(Observer):
    """Shows the rounds of a run as a bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("", total=None, beside="starting")

    def on_round(self, record: RoundRecord) -> None:
        """See `Observer`."""
        name = next((name for name in METRICS if name in record.metrics), None)
        measured = f"{name} {shown(record.metrics[name])}  " if name else ""
        beside = measured + _spent(record, self.plan)
        self._bar.update(self._task, completed=record.round, total=self.plan.rounds, beside=beside)


class RoundLines(Observer):
    """Prints a line a minute about the rounds of a run."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lines = clock, MinuteLines(clock)
        self._last: float | None = None

    def on_round(self, record: RoundRecord) -> None:
        """See `Observer`."""
        now = self._clock()
        # A round that comes sooner than its own seconds was taken over from a killed process.
        if self._last is None or now - self._last < record.seconds / 2:
            self._lines.count_from(record.round - 1, ago=record.seconds)
        self._last = now
        self._lines.tell(record.round, self.plan.rounds, lambda: _sentence(record, self.plan))


def _sentence(record: RoundRecord, planned: Plan) -> str:
    return f"round {record.round} of {planned.rounds}, {_spent(record, planned)}"


def _spent(record: RoundRecord, planned: Plan) -> str:
    if (spent := record.spent_epsilon) is None:
        return "no privacy"
    shown_spent, whole = shown_claim(spent), shown_claim(planned.guarantee.epsilon)
    if record.round < planned.rounds and shown_spent == whole:
        return f"epsilon spent {whole}, which pays for all rounds"
    return f"epsilon spent {shown_spent}" + (f" of {whole}" if planned.guarantee.holds else "")
