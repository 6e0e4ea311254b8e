"""A progress bar for a run, on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.reports.explain import METRICS, shown, shown_claim
from simulations.runs.run import Progress as OnRound
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord


@contextmanager
def progress_bar() -> Iterator[OnRound | None]:
    """What a run calls after every round; None where standard error is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("round"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("starting", total=None)

        def step(record: RoundRecord, planned: Plan) -> None:
            name = next((name for name in METRICS if name in record.metrics), None)
            measured = f"{name} {shown(record.metrics[name])}  " if name else ""
            spent = (
                "no privacy" if record.spent_epsilon is None else f"epsilon spent {shown_claim(record.spent_epsilon)}"
            )
            bar.update(task, completed=record.round, total=planned.rounds, description=measured + spent)

        yield step
