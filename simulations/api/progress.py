"""Progress of runs and plans on standard error: a bar on a terminal, a line a minute elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from simulations.reports.explain import METRICS, shown, shown_claim
from simulations.reports.minutes import Clock, MinuteLines, progress_on_terminal
from simulations.runs.advice import Progress as OnPlan
from simulations.runs.run import Progress as OnRound
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord


@contextmanager
def progress_bar(clock: Clock = time.monotonic) -> Iterator[OnRound]:
    """Yield the function that a run calls after every round."""
    with progress_on_terminal("round") as bar:
        if bar is None:
            yield round_lines(clock)
            return
        task = bar.add_task("", total=None, beside="starting")

        def step(record: RoundRecord, planned: Plan) -> None:
            name = next((name for name in METRICS if name in record.metrics), None)
            measured = f"{name} {shown(record.metrics[name])}  " if name else ""
            bar.update(task, completed=record.round, total=planned.rounds, beside=measured + _spent(record))

        yield step


@contextmanager
def planning_bar(clock: Clock = time.monotonic) -> Iterator[OnPlan]:
    """Yield the function that is called before each plan."""
    with progress_on_terminal("planning") as bar:
        if bar is None:
            lines = MinuteLines(clock)
            yield lambda _, done, of: lines.tell(done, of, lambda: f"{done} of {of} strategies planned")
        else:
            task = bar.add_task("", total=None, beside="")
            yield lambda strategy, done, of: bar.update(task, completed=done, total=of, beside=strategy)


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
