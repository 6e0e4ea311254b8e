"""The progress of a comparison on standard error: a table on a terminal, a line a minute elsewhere."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from simulations.comparison.config import Comparison
from simulations.comparison.jobs import Job, Watch, measured
from simulations.comparison.one_cell import Record
from simulations.comparison.oracle import TRIED
from simulations.reports.explain import shown
from simulations.reports.progress import Clock, MinuteLines


@dataclass
class Progress:
    """The finished runs of a comparison: number by stage, and main metric by strategy, infinite for failed cells."""

    comparison: Comparison
    runs: Counter[str] = field(default_factory=Counter)
    values: dict[str, list[float]] = field(default_factory=dict)

    def note(self, job: Job, record: Record) -> None:
        """Count a finished run."""
        self.runs[job.stage] += 1
        if job.stage == "cells":
            self.values.setdefault(job.label, []).append(measured(record))

    def sentence(self) -> str:
        """Say how many cells are done."""
        before = self.runs.total() - self.runs["cells"]
        runs = f" after {before} run{'' if before == 1 else 's'} of searches and references" if before else ""
        return f"{self.runs['cells']} of {len(self.comparison.cells)} cells done{runs}"

    def table(self) -> Table:
        """Make one row for each strategy: cells done, failed, median of the main metric so far."""
        total = len(self.comparison.cells) // len(self.comparison.labels)
        title = self.comparison.config.name
        if self.comparison.config.tuning:
            title += f"; {self.runs['tuning']} runs of the search for settings"
        if groups := {cell.group for cell in self.comparison.cells if cell.oracle}:
            title += f"; {self.runs['oracle']} of {len(groups) * TRIED} runs of the oracle"
        table = Table("strategy", "done", "failed", "median so far", title=title)
        for label in self.comparison.labels:
            values = self.values.get(label, [])
            good = [value for value in values if math.isfinite(value)]
            middle = shown(statistics.median(good)) if good else ""
            table.add_row(label, f"{len(values)} of {total}", str(len(values) - len(good)), middle)
        return table


@contextmanager
def live(comparison: Comparison, clock: Clock = time.monotonic) -> Iterator[Watch]:
    """Provide the function that a comparison calls after every run, to show its progress."""
    progress, console, lines = Progress(comparison), Console(stderr=True), MinuteLines(clock)
    table = Live(progress.table(), console=console, refresh_per_second=4)
    with table if console.is_terminal else nullcontext() as view:

        def watch(job: Job, record: Record, made_now: bool) -> None:
            progress.note(job, record)
            if view is not None:
                view.update(progress.table())
                return
            if job.stage != "cells" or not made_now:
                # Other runs say nothing about the duration of a cell.
                lines.count_from(progress.runs["cells"])
            lines.tell(progress.runs["cells"], len(comparison.cells), progress.sentence)

        yield watch
