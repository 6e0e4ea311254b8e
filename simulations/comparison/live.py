"""The table that a terminal shows while a comparison runs."""

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from simulations.comparison.config import Comparison
from simulations.comparison.jobs import Job, Watch, measured
from simulations.comparison.one_cell import Record
from simulations.comparison.oracle import TRIED
from simulations.reports.explain import shown


@dataclass
class Progress:
    """What is known of a comparison under way.

    Attributes:
        comparison: what is run.
        searched: runs of searches that are done.
        looked: the same of the oracle's.
        values: strategy -> main metric of every cell that is done; infinite for those that failed.
    """

    comparison: Comparison
    searched: int = 0
    looked: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)

    def note(self, job: Job, record: Record) -> None:
        """Count a finished run."""
        if job.stage == "cells":
            self.values.setdefault(job.label, []).append(measured(record))
        elif job.stage == "tuning":
            self.searched += 1
        elif job.stage == "oracle":
            self.looked += 1

    def table(self) -> Table:
        """One row a strategy: cells done, failed, median of the main metric so far."""
        total = len(self.comparison.cells) // len(self.comparison.labels)
        tried = f"; {self.searched} runs of the search for settings" if self.comparison.config.tuning else ""
        if groups := {cell.group for cell in self.comparison.cells if cell.oracle}:
            tried += f"; the oracle looked at {self.looked} of {len(groups) * TRIED} runs"
        table = Table("strategy", "done", "failed", "median so far", title=f"{self.comparison.config.name}{tried}")
        for label in self.comparison.labels:
            values = self.values.get(label, [])
            good = [value for value in values if math.isfinite(value)]
            middle = shown(statistics.median(good)) if good else ""
            table.add_row(label, f"{len(values)} of {total}", str(len(values) - len(good)), middle)
        return table


@contextmanager
def live(comparison: Comparison) -> Iterator[Watch | None]:
    """A table on standard error that follows the comparison, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    progress = Progress(comparison)
    with Live(progress.table(), console=console, refresh_per_second=4) as view:

        def watch(job: Job, record: Record) -> None:
            progress.note(job, record)
            view.update(progress.table())

        yield watch
