"""How far a comparison is, on standard error: a table on a terminal, a line a minute elsewhere."""

import math
import statistics
import time
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
from simulations.reports.minutes import Clock, MinuteLines


@dataclass
class Progress:
    """What is known of a comparison under way.

    Attributes:
        comparison: what is run.
        searched: runs of searches that are done.
        looked: the same of the oracle's.
        others: the same of references.
        values: strategy -> main metric of every cell that is done; infinite for those that failed.
    """

    comparison: Comparison
    searched: int = 0
    looked: int = 0
    others: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)

    def note(self, job: Job, record: Record) -> None:
        """Count a finished run."""
        if job.stage == "cells":
            self.values.setdefault(job.label, []).append(measured(record))
        elif job.stage == "tuning":
            self.searched += 1
        elif job.stage == "oracle":
            self.looked += 1
        else:
            self.others += 1

    @property
    def done(self) -> int:
        """Cells."""
        return sum(map(len, self.values.values()))

    def sentence(self) -> str:
        """How far the comparison is."""
        before = self.searched + self.looked + self.others
        runs = f" after {before} run{'' if before == 1 else 's'} to search and to compare with" if before else ""
        return f"{self.done} of {len(self.comparison.cells)} cells done{runs}"

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
def live(comparison: Comparison, clock: Clock = time.monotonic) -> Iterator[Watch]:
    """What a comparison calls after every run.

    Args:
        comparison: to follow.
        clock: that tells when a line is due.
    """
    progress, console = Progress(comparison), Console(stderr=True)
    if not console.is_terminal:
        yield _lines(progress, clock)
        return
    with Live(progress.table(), console=console, refresh_per_second=4) as view:

        def watch(job: Job, record: Record, _: bool) -> None:
            progress.note(job, record)
            view.update(progress.table())

        yield watch


def _lines(progress: Progress, clock: Clock) -> Watch:
    lines = MinuteLines(clock)

    def watch(job: Job, record: Record, made_now: bool) -> None:
        progress.note(job, record)
        if job.stage != "cells" or not made_now:
            # What came before says nothing about how long a cell takes.
            lines.count_from(progress.done)
        lines.tell(progress.done, len(progress.comparison.cells), progress.sentence)

    return watch
