"""How far a run is, on standard error: a bar on a terminal, a line a minute elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.reports.explain import METRICS, shown, shown_claim
from simulations.reports.minutes import Clock, MinuteLines
from simulations.runs.run import Progress as OnRound
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord


@contextmanager
def progress_bar(clock: Clock = time.monotonic) -> Iterator[OnRound]:
    """What a run calls after every round.

    Args:
        clock: that tells when a line is due.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield round_lines(clock)
        return
    columns = (TextColumn("round"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("starting", total=None)

        def step(record: RoundRecord, planned: Plan) -> None:
            name = next((name for name in METRICS if name in record.metrics), None)
            measured = f"{name} {shown(record.metrics[name])}  " if name else ""
            bar.update(task, completed=record.round, total=planned.rounds, description=measured + _spent(record))

        yield step


def round_lines(clock: Clock) -> OnRound:
    """A line a minute about the rounds of a run."""
    lines = MinuteLines(clock)
    told: float | None = None

    def step(record: RoundRecord, planned: Plan) -> None:
        nonlocal told
        now = clock()
        # No round takes less time than it says: one that comes sooner was taken over from a process that was killed.
        if told is None or now - told < record.seconds / 2:
            lines.count_from(record.round - 1, ago=record.seconds)
        told = now
        lines.tell(record.round, planned.rounds, lambda: _sentence(record, planned))

    return step


def _sentence(record: RoundRecord, planned: Plan) -> str:
    of = f" of {shown_claim(planned.guarantee.epsilon)}" if planned.guarantee.holds else ""
    return f"round {record.round} of {planned.rounds}, {_spent(record)}{of}"


def _spent(record: RoundRecord) -> str:
    return "no privacy" if record.spent_epsilon is None else f"epsilon spent {shown_claim(record.spent_epsilon)}"
