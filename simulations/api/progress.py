"""Progress of runs and plans on standard error: a bar on a terminal, a line a minute elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.reports.explain import METRICS, shown, shown_claim
from simulations.reports.minutes import Clock, MinuteLines
from simulations.runs.advice import Progress as OnPlan
from simulations.runs.run import Progress as OnRound
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord


def _bar(name: str, console: Console) -> Progress:
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    return Progress(*columns, TimeElapsedColumn(), console=console)


@contextmanager
def progress_bar(clock: Clock = time.monotonic) -> Iterator[OnRound]:
    """Yield the function that a run calls after every round."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield round_lines(clock)
        return
    with _bar("round", console) as bar:
        task = bar.add_task("starting", total=None)

        def step(record: RoundRecord, planned: Plan) -> None:
            name = next((name for name in METRICS if name in record.metrics), None)
            measured = f"{name} {shown(record.metrics[name])}  " if name else ""
            bar.update(task, completed=record.round, total=planned.rounds, description=measured + _spent(record))

        yield step


@contextmanager
def planning_bar(clock: Clock = time.monotonic) -> Iterator[OnPlan]:
    """Yield the function that is called before each plan."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = MinuteLines(clock)
        yield lambda _, done, of: lines.tell(done, of, lambda: f"{done} of {of} strategies planned")
        return
    with _bar("planning", console) as bar:
        task = bar.add_task("", total=None)
        yield lambda strategy, done, of: bar.update(task, completed=done, total=of, description=strategy)


def round_lines(clock: Clock) -> OnRound:
    """Return the function that prints a line a minute about the rounds of a run."""
    lines = MinuteLines(clock)
    last: float | None = None

    def step(record: RoundRecord, planned: Plan) -> None:
        nonlocal last
        now = clock()
        # A round that comes sooner than its own seconds was taken over from a killed process.
        if last is None or now - last < record.seconds / 2:
            lines.count_from(record.round - 1, ago=record.seconds)
        last = now
        lines.tell(record.round, planned.rounds, lambda: _sentence(record, planned))

    return step


def _sentence(record: RoundRecord, planned: Plan) -> str:
    of = f" of {shown_claim(planned.guarantee.epsilon)}" if planned.guarantee.holds else ""
    return f"round {record.round} of {planned.rounds}, {_spent(record)}{of}"


def _spent(record: RoundRecord) -> str:
    return "no privacy" if record.spent_epsilon is None else f"epsilon spent {shown_claim(record.spent_epsilon)}"
